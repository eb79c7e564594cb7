#include "tests/unit/cpu/native.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>

using aerie::cpu::NativeState;

static_assert(offsetof(NativeState, rflags) == 128);

// Loads registers and flags, calls the instruction, and stores them again. RDI holds the state but
// while the instruction runs, when the stack does.
asm(R"(
  .text
  .type aerie_native_run, @function
aerie_native_run:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  pushq %rsi
  pushq %rdi
  pushq 128(%rdi)
  popfq
  movq 0(%rdi), %rax
  movq 8(%rdi), %rcx
  movq 16(%rdi), %rdx
  movq 24(%rdi), %rbx
  movq 40(%rdi), %rbp
  movq 48(%rdi), %rsi
  movq 64(%rdi), %r8
  movq 72(%rdi), %r9
  movq 80(%rdi), %r10
  movq 88(%rdi), %r11
  movq 96(%rdi), %r12
  movq 104(%rdi), %r13
  movq 112(%rdi), %r14
  movq 120(%rdi), %r15
  movq 56(%rdi), %rdi
  call *8(%rsp)
  xchgq %rdi, (%rsp)
  movq %rax, 0(%rdi)
  movq %rcx, 8(%rdi)
  movq %rdx, 16(%rdi)
  movq %rbx, 24(%rdi)
  movq %rbp, 40(%rdi)
  movq %rsi, 48(%rdi)
  movq %r8, 64(%rdi)
  movq %r9, 72(%rdi)
  movq %r10, 80(%rdi)
  movq %r11, 88(%rdi)
  movq %r12, 96(%rdi)
  movq %r13, 104(%rdi)
  movq %r14, 112(%rdi)
  movq %r15, 120(%rdi)
  pushfq
  popq 128(%rdi)
  cld
  popq 56(%rdi)
  popq %rsi
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
  .size aerie_native_run, . - aerie_native_run
)");
extern "C" void aerie_native_run(NativeState* state, const void* code);

namespace aerie::cpu {

bool run_natively(std::span<const u8> code, NativeState& state) {
  static u8* const page = [] {
    void* p =
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<u8*>(p);
  }();
  if (page == nullptr) {
    return false;
  }
  std::memcpy(page, code.data(), code.size());
  page[code.size()] = 0xc3;
  constexpr u64 loaded = rflags::arithmetic | rflags::df;
  state.rflags = (state.rflags & loaded) | rflags::fixed | rflags::interrupt;
  aerie_native_run(&state, page);
  return true;
}

}  // namespace aerie::cpu
