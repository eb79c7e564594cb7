// Exceptions of L1 that L0 intercepts, and the exits that end an L1.
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"
#include "vmm/hypercall.h"
#include "vmm/virtualization.h"
#include "vmm/vmx_cpu.h"

namespace aerie::vmm::exits {

using cpu::Event;
using cpu::Exception;
using cpu::Op;

namespace {

// Every VMX instruction raises #UD on an SVM host (FACTS).
[[gnu::noinline]] void undefined_opcode(Vcpu& v) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i != nullptr && i->op >= Op::vmcall && i->op <= Op::vmfunc && vmx_instruction(v, *i)) {
    return;
  }
  if (i != nullptr && i->op == Op::vmcall) {
    hypercall(v, *i);
    return;
  }
  if (i != nullptr && i->op == Op::invpcid && linear_pager != nullptr &&
      machine.cpuid_policy.has(policy::feature("invpcid"))) {
    invpcid(v, *i);
    return;
  }
  if (i != nullptr && i->op == Op::icebp) {
    // TCG does not know it. A trap: RIP is past it, DR6 says nothing (SDM vol. 3, 6.3.1).
    v.skip(*i);
    v.raise(Exception::db);
    return;
  }
  v.raise(Exception::ud);
}

[[gnu::noinline]] void other_exception(Vcpu& v, const cpu::Exit& exit) {
  // The guest's own, intercepted to set RF, or for the length of a step.
  const auto e = static_cast<Exception>(exit.vector);
  if (e == Exception::pf && linear_pager != nullptr) {
    v.linear_paging.page_fault(exit);
    return;
  }
  const cpu::Exit whole = v.complete(exit);
  if (e == Exception::pf) {
    v.block().set_cr2(whole.info2);
  }
  v.raise(cpu::has_error_code(exit.vector) ? Event::exception(e, static_cast<u32>(whole.error_code))
                                           : Event::exception(e));
}

}  // namespace

void exception(Vcpu& v, const cpu::Exit& exit) {
  if (exit.vector != static_cast<u8>(Exception::ud)) [[unlikely]] {
    other_exception(v, exit);
    return;
  }
  const cpu::Instruction* i = known_instruction(v);
  if (i != nullptr && v.vmx != nullptr) [[likely]] {
    if (i->op == Op::vmread) {
      if (v.vmx->engine.vmread_known(*i)) [[likely]] {
        v.telemetry().count(telemetry::Event::vmread);
        v.skip_known(*i);
        return;
      }
    } else if (i->op == Op::vmwrite && v.vmx->engine.vmwrite_known(*i)) {
      v.telemetry().count(telemetry::Event::vmwrite);
      v.skip_known(*i);
      return;
    }
  }
  undefined_opcode(v);
}

void shutdown(Vcpu& v, const cpu::Exit&) {
  auto& b = v.block_l1();
  end_run(
      telemetry::EndState::l1_triple_fault,
      "L1 cpu{}: triple fault at {x}:{x}, rsp {x}, cr0 {x}, cr2 {x}, cr3 {x}, cr4 {x}, efer {x}",
      v.index(), b.segment(cpu::SegmentRegister::cs).selector, b.rip(),
      v.registers()[cpu::Gpr::rsp], b.cr0(), b.cr2(), b.cr3(), b.cr4(), b.efer());
}

// The processor refused the control block. On TCG also what an unintercepted MOV to CR3 with bits
// above MAXPHYADDR ends in (FACTS): L0 owes L1 a #GP.
void invalid_state(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i != nullptr && i->op == Op::mov_to_cr) {
    v.raise_gp();
    return;
  }
  auto& b = v.block_l1();
  end_run(
      telemetry::EndState::panic,
      "L1 cpu{}: the processor refuses L1's state: rip {x}, rflags {x}, cr0 {x}, cr3 {x}, cr4 {x}, "
      "efer {x}, injection {x}",
      v.index(), b.rip(), b.rflags(), b.cr0(), b.cr3(), b.cr4(), b.efer(),
      b.vmcb().control.event_injection);
}

void unexpected(Vcpu& v, const cpu::Exit& exit) {
  end_run(telemetry::EndState::panic, "L1 cpu{}: no handler for exit {} (code {x}) at rip {x}",
          v.index(), static_cast<u32>(exit.reason), v.complete(exit).raw_code, v.block_l1().rip());
}

}  // namespace aerie::vmm::exits
