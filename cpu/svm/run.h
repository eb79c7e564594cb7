// The world switch. APM vol. 2, 15.5 and 15.6.
#pragma once

#include "cpu/arch/registers.h"
#include "cpu/svm/control_block.h"
#include "cpu/svm/exit_code.h"

namespace aerie::cpu::svm {

// Runs the guest of `block` until its next #VMEXIT. GIF is 0 before and after. Inlined into the
// vCPU loop, so that no callee-saved register is pushed and popped at every exit.
[[gnu::always_inline]] inline void run(ControlBlock& block, GuestRegisters& registers, Exit& exit) {
  Vmcb& vmcb = block.vmcb();
  vmcb.save.rax = registers[Gpr::rax];
  vmcb.save.rsp = registers[Gpr::rsp];
  u64 pointer = reinterpret_cast<u64>(&registers);
  u64 address = block.address().value();
  asm volatile(
      "push %%rbp\n\t"
      "push %%rdi\n\t"
      "mov 0x08(%%rdi), %%rcx\n\t"
      "mov 0x10(%%rdi), %%rdx\n\t"
      "mov 0x18(%%rdi), %%rbx\n\t"
      "mov 0x28(%%rdi), %%rbp\n\t"
      "mov 0x30(%%rdi), %%rsi\n\t"
      "mov 0x40(%%rdi), %%r8\n\t"
      "mov 0x48(%%rdi), %%r9\n\t"
      "mov 0x50(%%rdi), %%r10\n\t"
      "mov 0x58(%%rdi), %%r11\n\t"
      "mov 0x60(%%rdi), %%r12\n\t"
      "mov 0x68(%%rdi), %%r13\n\t"
      "mov 0x70(%%rdi), %%r14\n\t"
      "mov 0x78(%%rdi), %%r15\n\t"
      "mov 0x38(%%rdi), %%rdi\n\t"
      "vmrun\n\t"
      "pop %%rax\n\t"
      "mov %%rcx, 0x08(%%rax)\n\t"
      "mov %%rdx, 0x10(%%rax)\n\t"
      "mov %%rbx, 0x18(%%rax)\n\t"
      "mov %%rbp, 0x28(%%rax)\n\t"
      "mov %%rsi, 0x30(%%rax)\n\t"
      "mov %%rdi, 0x38(%%rax)\n\t"
      "mov %%r8, 0x40(%%rax)\n\t"
      "mov %%r9, 0x48(%%rax)\n\t"
      "mov %%r10, 0x50(%%rax)\n\t"
      "mov %%r11, 0x58(%%rax)\n\t"
      "mov %%r12, 0x60(%%rax)\n\t"
      "mov %%r13, 0x68(%%rax)\n\t"
      "mov %%r14, 0x70(%%rax)\n\t"
      "mov %%r15, 0x78(%%rax)\n\t"
      "pop %%rbp\n\t"
      : "+D"(pointer), "+a"(address)
      :
      : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory",
        "cc");
  registers[Gpr::rax] = vmcb.save.rax;
  registers[Gpr::rsp] = vmcb.save.rsp;
  vmcb.control.tlb_control = tlb_control::nothing;
  decode_exit(vmcb.control, exit);
}

}  // namespace aerie::cpu::svm
