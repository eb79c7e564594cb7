// VMLAUNCH and VMRESUME: SDM vol. 3, chapter 27. Checks, merge, MSR loading, and the failures of
// each.
#pragma once

#include "cpu/arch/msr.h"
#include "nested/vmx/engine.h"

namespace aerie::nested::vmx {

// 26.3: the instruction before was MOV SS or POP SS. The host's interrupt shadow is also that of
// STI, which does not matter here: STI is one byte, 0xFB, and no MOV or POP of SS ends in that byte
// with IF set by it.
template <L1Context C>
[[gnu::cold]] bool Vmx<C>::blocked_by_mov_ss() {
  Block& b = v_.block_l1();
  if ((b.rflags() & cpu::rflags::interrupt) == 0) {
    return true;
  }
  u8 before = 0;
  const u64 base = long_mode(b) ? 0 : b.segment(cpu::SegmentRegister::cs).base;
  return !v_.peek_l1_linear(Gva{base + b.rip() - 1}, &before, 1) || before != 0xfb;
}

template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::enter(const cpu::Instruction& i, bool launch) {
  using cpu::vmx::InstructionError;
  decltype(auto) b1 = cpu::handle(v_.block_l1());
  decltype(auto) b2 = cpu::handle(v_.block_l2());
  if (current_ == kNoVmcs) [[unlikely]] {
    return fail_invalid(i);
  }
  if (b1.interrupt_shadow() && blocked_by_mov_ss()) [[unlikely]] {
    return fail_valid(InstructionError::entry_blocked_by_mov_ss, i);
  }
  if (launch != (c_.launched == 0)) [[unlikely]] {
    return fail_valid(
        launch ? InstructionError::vmlaunch_not_clear : InstructionError::vmresume_not_launched, i);
  }

  // Checks (27.2, 27.3.1). Rules over fields that are stale in c_ want them there.
  synchronise(checks_.reads(c_, dirty_));
  const bool cs_long = (stale_ & mask(Group::guest_cs_ss)) != 0
                           ? b2.segment(cpu::SegmentRegister::cs).long_mode()
                           : c_.segment(cpu::SegmentRegister::cs).long_mode();
  const EntryContext context{
      c_,       v_.capabilities(), v_.memory(),
      current_, long_mode(b1),     has(c_.entry_controls, cpu::vmx::entry::ia32e_guest) && cs_long};
  if (const EntryRule* broken = checks_.run(context, dirty_); broken != nullptr) [[unlikely]] {
    v_.note_failed_entry(*broken);
    if (broken->vm_fails()) {
      return fail_valid(broken->instruction_error(), i);
    }
    if (mask(Group::host_state, Group::exit) & dirty_) {
      make_host_image();
    }
    return fail_entry(cpu::vmx::BasicExit::entry_guest_state, broken->qualification(), false);
  }

  const GroupMask dirty = dirty_;
  if (dirty != 0) {
    if ((dirty & ~mask(Group::guest_rip, Group::guest_rflags)) != 0) {
      if (!merge(dirty)) [[unlikely]] {
        return fail_entry(cpu::vmx::BasicExit::entry_guest_state,
                          static_cast<u64>(cpu::vmx::EntryFailureQualification::pdpte), false);
      }
    }
    b2.set_rip(c_.guest_rip);
    b2.set_rflags(c_.guest_rflags);
    dirty_ = 0;
  }
  v_.registers()[cpu::Gpr::rsp] = c_.guest_rsp;
  if (inherits_) {
    inherit_l1_state();
  }
  b2.set_tsc_offset(b1.tsc_offset() + tsc_offset_);

  // What VMX leaves in the processor (state_ownership.h).
  b1.store_syscall_state();
  carry_unswitched_state(b2, b1);
  b2.load_syscall_state();
  if (hides_dr6_) {
    l2_dr6_ = b2.dr6();
    b2.set_dr6(cpu::dr6::initial);
  }
  v_.switch_l2_translation(translation_);
  mode_ = Mode::non_root;
  v_.set_running_l2(true);
  if (switched_xcr0_) [[unlikely]] {
    l1_xcr0_ = v_.xcr0();
    v_.set_xcr0(l2_xcr0_);
  } else if (osxsave_live_) {
    l1_xcr0_ = v_.xcr0();
  }

  if (c_.entry_msr_load_count != 0) [[unlikely]] {
    synchronise(stale_);
    if (const u64 failed = load_entry_msrs(); failed != 0) {
      dirty_ = kAllGroups;  // block_l2 holds what the list loaded
      return fail_entry(cpu::vmx::BasicExit::entry_msr_loading, failed, true);
    }
  }
  c_.launched = 1;

  // What the entry injects, and the state that decides which events come next.
  activity_ = static_cast<cpu::vmx::Activity>(c_.guest_activity);
  pending_debug_ = c_.guest_pending_debug;
  injected_ = {};
  attention_ = 0;
  constexpr u32 kWindows =
      cpu::vmx::proc::interrupt_window | cpu::vmx::proc::nmi_window | cpu::vmx::proc::monitor_trap;
  if (((c_.entry_interruption_info & cpu::vmx::interruption_info::valid) |
       (c_.proc_controls & kWindows) | c_.guest_activity | c_.guest_interruptibility |
       pending_debug_) != 0) [[unlikely]] {
    begin_events();
  }
}

// 27.8: the VM-exit information says so, host state is loaded; nothing else of vmcs12 changes, and
// no MSRs are stored.
template <L1Context C>
[[gnu::cold]] void Vmx<C>::fail_entry(cpu::vmx::BasicExit reason, u64 qualification,
                                      bool switched) {
  c_.exit_reason = cpu::vmx::failed_entry_reason(reason);
  c_.exit_qualification = qualification;
  load_host_state(switched);
}

}  // namespace aerie::nested::vmx
