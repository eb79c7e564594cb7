// VM exits to L1: SDM vol. 3, chapter 28. The information fields, the guest state that every L1
// reads at once, host state; the rest of the guest state stays in block_l2 (merge.h,
// synchronise()).
#pragma once

#include "nested/vmx/engine.h"

namespace aerie::nested::vmx {

template <L1Context C>
void Vmx<C>::exit_to_l1(cpu::vmx::BasicExit reason, u64 qualification, u32 interruption_info,
                        u32 interruption_error, u32 length, u32 information) {
  decltype(auto) b = cpu::handle(v_.block_l2());
  c_.exit_reason = static_cast<u32>(reason);
  c_.exit_qualification = qualification;
  c_.exit_interruption_info = interruption_info;
  c_.exit_interruption_error = interruption_error;
  c_.exit_instruction_length = length;
  c_.exit_instruction_info = information;
  c_.idt_vectoring_info = 0;
  if (reason == cpu::vmx::BasicExit::triple_fault) {
    interrupted_ = {};  // 28.2.4: not considered to occur during event delivery
  }
  if (interrupted_.valid) [[unlikely]] {
    // 28.2.4: the event being delivered; for a software one the instruction's length.
    c_.idt_vectoring_info = cpu::vmx::interruption_info::encode(interrupted_);
    c_.idt_vectoring_error = interrupted_.error;
    if (cpu::vmx::is_software_event(interrupted_.type)) {
      c_.exit_instruction_length = interrupted_.instruction_length;
    }
    interrupted_ = {};
  }
  // 28.2: the valid bit of the entry's interruption information is cleared.
  c_.entry_interruption_info &= ~cpu::vmx::interruption_info::valid;

  c_.guest_rip = b.rip();
  c_.guest_rflags = b.rflags();
  c_.guest_rsp = v_.registers()[cpu::Gpr::rsp];
  c_.guest_activity = static_cast<u32>(activity_);
  c_.guest_pending_debug = pending_debug_;
  // 28.3.4. The host does not say which of STI and MOV SS made the shadow; with IF clear STI cannot
  // have.
  u32 blocking = c_.guest_interruptibility & cpu::vmx::interruptibility::nmi;
  if (!has(c_.pin_controls, cpu::vmx::pin::virtual_nmis)) [[unlikely]] {
    blocking = v_.nmi_blocked() ? cpu::vmx::interruptibility::nmi : 0;
  }
  if (b.interrupt_shadow()) [[unlikely]] {
    blocking |= (c_.guest_rflags & cpu::rflags::interrupt) != 0
                    ? cpu::vmx::interruptibility::sti
                    : cpu::vmx::interruptibility::mov_ss;
  }
  c_.guest_interruptibility = blocking;
  // "IA-32e mode guest" follows EFER.LMA (28.3.2).
  const u32 ia32e = (l2_efer_ & cpu::efer::lma) != 0 ? cpu::vmx::entry::ia32e_guest : 0;
  c_.entry_controls = (c_.entry_controls & ~cpu::vmx::entry::ia32e_guest) | ia32e;
  stale_ |= kLeftInBlock;

  b.store_syscall_state();
  if (hides_dr6_) {
    b.set_dr6(l2_dr6_);
  }
  inject_.valid = false;
  if (window_requested_) [[unlikely]] {
    b.request_interrupt_window(false);
    window_requested_ = false;
  }
  if (osxsave_live_) [[unlikely]] {
    // XCR0 is not switched: but where L2 wrote it unseen, L1 must get its own back.
    const u64 now = v_.xcr0();
    if (now != l1_xcr0_) {
      switched_xcr0_ = true;
      l2_xcr0_ = now;
      v_.set_xcr0(l1_xcr0_);
    }
  }
  v_.count_reflected(reason);
  if (c_.exit_msr_store_count != 0) [[unlikely]] {
    if (!store_exit_msrs()) {
      return abort(cpu::vmx::VmxAbort::saving_guest_msrs);
    }
  }
  load_host_state(true);
}

template <L1Context C>
void Vmx<C>::exit_on_instruction(cpu::vmx::BasicExit reason, const cpu::Instruction& i,
                                 u64 qualification, u32 information) {
  exit_to_l1(reason, qualification, 0, 0, i.length, information);
}

// 28.5, for exits and for failed entries. `switched`: the processor holds L2's state; it does not
// when the entry failed before it was loaded.
template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::load_host_state(bool switched) {
  using cpu::SegmentRegister;
  using namespace cpu::vmx::exit;
  decltype(auto) b1 = cpu::handle(v_.block_l1());
  decltype(auto) b2 = cpu::handle(v_.block_l2());
  const u32 controls = c_.exit_controls;

  u64 efer, pat;
  if (switched) [[likely]] {
    carry_unswitched_state(b1, b2);
    efer = l2_efer_;
    pat = b2.pat();
  } else {
    b1.store_syscall_state();
    efer = v_.l1_efer();
    pat = b1.pat();
  }
  if (has(controls, load_efer)) {
    efer = c_.host_efer;
  } else {
    constexpr u64 kLong = cpu::efer::lma | cpu::efer::lme;
    efer = (efer & ~kLong) | (has(controls, host_64) ? kLong : 0);
  }
  b1.set_pat(has(controls, load_pat) ? c_.host_pat : pat);

  b1.set_segment(SegmentRegister::cs, host_.cs);
  b1.set_segment(SegmentRegister::ss, host_.ss);
  b1.set_segment(SegmentRegister::ds, host_.ds);
  b1.set_segment(SegmentRegister::es, host_.es);
  b1.set_segment(SegmentRegister::fs, host_.fs);
  b1.set_segment(SegmentRegister::gs, host_.gs);
  b1.set_segment(SegmentRegister::tr, host_.tr);
  b1.set_segment(SegmentRegister::ldtr, host_.ldtr);
  b1.set_segment(SegmentRegister::gdtr, host_.gdtr);
  b1.set_segment(SegmentRegister::idtr, host_.idtr);
  b1.set_sysenter_cs(host_.sysenter_cs);
  b1.set_sysenter_esp(c_.host_sysenter_esp);
  b1.set_sysenter_eip(c_.host_sysenter_eip);
  b1.load_syscall_state();

  b1.set_dr7(cpu::dr7::initial);
  v_.clear_l1_debugctl();
  b1.set_rip(c_.host_rip);
  b1.set_rflags(cpu::rflags::fixed);
  b1.set_interrupt_shadow(false);
  v_.registers()[cpu::Gpr::rsp] = c_.host_rsp;

  mode_ = Mode::root;
  attention_ = 0;
  v_.set_running_l2(false);

  // 28.5.1: CR0 keeps ET, CD, NW and its reserved bits.
  constexpr u64 kKept = cpu::cr0::et | cpu::cr0::cd | cpu::cr0::nw;
  const u64 current = switched ? c_.guest_cr0 : v_.l1_cr0();
  const u64 cr0 = (c_.host_cr0 & ~kKept) | (current & kKept);
  if (((cr0 ^ v_.l1_cr0()) | (c_.host_cr3 ^ v_.l1_cr3()) | (host_.cr4 ^ v_.l1_cr4()) |
       (efer ^ v_.l1_efer())) != 0) [[unlikely]] {
    if (!v_.load_l1_paging(cr0, c_.host_cr3, host_.cr4, efer)) {
      return abort(cpu::vmx::VmxAbort::host_pdpte);
    }
  }
  if (translation_.vpid == 0) {
    v_.flush_l1_linear();  // 29.? without VPIDs an exit drops the linear mappings of VPID 0
  }
  if (c_.exit_msr_load_count != 0) [[unlikely]] {
    if (!load_exit_msrs()) {
      return abort(cpu::vmx::VmxAbort::loading_host_msrs);
    }
  }
}

// 28.7: the indicator goes to the VMCS region, the processor into shutdown.
template <L1Context C>
[[gnu::cold]] void Vmx<C>::abort(cpu::vmx::VmxAbort why) {
  const u32 indicator = static_cast<u32>(why);
  c_.abort_indicator = indicator;
  v_.memory().write(current_ + offsetof(Vmcs12, abort_indicator), &indicator, sizeof(indicator));
  if (mode_ == Mode::non_root) {
    mode_ = Mode::root;
    v_.set_running_l2(false);
  }
  v_.shutdown_l1();
}

}  // namespace aerie::nested::vmx
