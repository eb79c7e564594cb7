// A VMCB behind the neutral accessors of cpu/backend.h.
#pragma once

#include "base/physical.h"
#include "cpu/arch/instructions.h"
#include "cpu/backend.h"
#include "cpu/svm/vmcb.h"

namespace aerie::cpu::svm {

// A handle: copies refer to the same VMCB. Hot code works on a local copy (cpu::handle()), so that
// the compiler keeps the VMCB's address in a register.
class ControlBlock {
 public:
  static constexpr bool kIsHandle = true;

  // `vmcb` and `host_permissions...` are pages of Aerie's block.
  void attach(Hpa vmcb) {
    vmcb_ = physical_pointer<Vmcb>(vmcb);
    address_ = vmcb;
    vmcb_->control.int_ctl = int_ctl::v_intr_masking;
    vmcb_->control.np_enable = 1;
    vmcb_->save.efer = efer::svme;
    vmcb_->save.rflags = rflags::fixed;
    vmcb_->save.dr6 = dr6::initial;
    vmcb_->save.dr7 = dr7::initial;
  }

  Vmcb& vmcb() { return *vmcb_; }
  const Vmcb& vmcb() const { return *vmcb_; }
  Hpa address() const { return address_; }

  u64 rip() const { return vmcb_->save.rip; }
  u64 rflags() const { return vmcb_->save.rflags; }
  void set_rip(u64 v) { vmcb_->save.rip = v; }
  void set_rflags(u64 v) { vmcb_->save.rflags = v; }

  bool interrupt_shadow() const { return (vmcb_->control.interrupt_state & 1) != 0; }
  void set_interrupt_shadow(bool on) { vmcb_->control.interrupt_state = on ? 1 : 0; }

  u64 cr0() const { return vmcb_->save.cr0; }
  u64 cr2() const { return vmcb_->save.cr2; }
  u64 cr3() const { return vmcb_->save.cr3; }
  u64 cr4() const { return vmcb_->save.cr4; }
  u64 efer() const { return vmcb_->save.efer & ~efer::svme; }
  u64 pat() const { return vmcb_->save.pat; }
  u64 dr6() const { return vmcb_->save.dr6; }
  u64 dr7() const { return vmcb_->save.dr7; }
  u64 debugctl() const { return vmcb_->save.debugctl; }
  void set_cr0(u64 v) { vmcb_->save.cr0 = v; }
  void set_cr2(u64 v) { vmcb_->save.cr2 = v; }
  void set_cr3(u64 v) { vmcb_->save.cr3 = v; }
  void set_cr4(u64 v) { vmcb_->save.cr4 = v; }
  // VMRUN demands SVME in the guest's EFER (APM vol. 2, 15.5.1); no guest ever sees it from here.
  void set_efer(u64 v) { vmcb_->save.efer = v | efer::svme; }
  void set_pat(u64 v) { vmcb_->save.pat = v; }
  void set_dr6(u64 v) { vmcb_->save.dr6 = v; }
  void set_dr7(u64 v) { vmcb_->save.dr7 = v; }
  // Kept, not loaded: without LBR virtualization the processor's DEBUGCTL is L0's.
  void set_debugctl(u64 v) { vmcb_->save.debugctl = v; }

  const Segment& segment(SegmentRegister r) const {
    return vmcb_->save.segments[static_cast<u8>(r)];
  }
  void set_segment(SegmentRegister r, const Segment& s) {
    vmcb_->save.segments[static_cast<u8>(r)] = s;
    if (r == SegmentRegister::ss) {
      vmcb_->save.cpl = static_cast<u8>(s.dpl());
    }
  }
  u8 cpl() const { return vmcb_->save.cpl; }
  void set_cpl(u8 v) { vmcb_->save.cpl = v; }

  void store_syscall_state() { vmsave(address_); }
  void load_syscall_state() { vmload(address_); }
  u64 sysenter_cs() const { return vmcb_->save.sysenter_cs; }
  u64 sysenter_esp() const { return vmcb_->save.sysenter_esp; }
  u64 sysenter_eip() const { return vmcb_->save.sysenter_eip; }
  void set_sysenter_cs(u64 v) { vmcb_->save.sysenter_cs = v; }
  void set_sysenter_esp(u64 v) { vmcb_->save.sysenter_esp = v; }
  void set_sysenter_eip(u64 v) { vmcb_->save.sysenter_eip = v; }
  u64 kernel_gs_base() const { return vmcb_->save.kernel_gs_base; }
  void set_kernel_gs_base(u64 v) { vmcb_->save.kernel_gs_base = v; }
  u64 star() const { return vmcb_->save.star; }
  u64 lstar() const { return vmcb_->save.lstar; }
  u64 cstar() const { return vmcb_->save.cstar; }
  u64 sfmask() const { return vmcb_->save.sfmask; }
  void set_star(u64 v) { vmcb_->save.star = v; }
  void set_lstar(u64 v) { vmcb_->save.lstar = v; }
  void set_cstar(u64 v) { vmcb_->save.cstar = v; }
  void set_sfmask(u64 v) { vmcb_->save.sfmask = v; }

  // Software events other than INT n are delivered as exceptions whose RIP the caller has advanced;
  // INT n pushes RIP as it stands (FACTS: TCG pushes VMCB.RIP unchanged), so the length is added
  // here.
  void inject(const Event& e) {
    u64 type = event::type_exception;
    switch (e.type) {
      case EventType::external_interrupt:
        type = event::type_interrupt;
        break;
      case EventType::nmi:
        type = event::type_nmi;
        break;
      case EventType::software_interrupt:
        type = event::type_software_interrupt;
        break;
      default:
        break;
    }
    if (e.type == EventType::software_interrupt || e.type == EventType::software_exception ||
        e.type == EventType::privileged_software_exception) {
      set_rip(rip() + e.instruction_length);
    }
    vmcb_->control.event_injection =
        event::Vector::make(e.vector) | event::Type::make(type) | event::valid |
        (e.has_error ? event::error_valid | event::ErrorCode::make(e.error) : 0);
  }
  void clear_injection() { vmcb_->control.event_injection = 0; }
  bool injecting() const { return (vmcb_->control.event_injection & event::valid) != 0; }

  Event interrupted_event() const {
    const u64 info = vmcb_->control.exit_int_info;
    if ((info & event::valid) == 0) [[likely]] {
      return {};
    }
    Event e{.valid = true, .vector = static_cast<u8>(event::Vector::get(info))};
    switch (event::Type::get(info)) {
      case event::type_interrupt:
        e.type = EventType::external_interrupt;
        break;
      case event::type_nmi:
        e.type = EventType::nmi;
        break;
      case event::type_software_interrupt:
        e.type = EventType::software_interrupt;
        break;
      default:
        e.type = EventType::hardware_exception;
        break;
    }
    // FACTS: a virtual interrupt whose delivery faulted on NPT is reported as an exception.
    if (e.type == EventType::hardware_exception && e.vector >= 32) {
      e.type = EventType::external_interrupt;
    }
    if (e.type == EventType::hardware_exception && has_error_code(e.vector)) {
      e.has_error = true;
      e.error = static_cast<u32>(event::ErrorCode::get(info));
    }
    return e;
  }

  void request_interrupt_window(bool on) {
    auto& c = vmcb_->control;
    if (on) {
      c.int_ctl |= int_ctl::v_irq | int_ctl::v_ign_tpr | int_ctl::V_INTR_PRIO::make(15);
      c.intercept_misc1 |= intercept::vintr;
    } else {
      c.int_ctl &= ~(int_ctl::v_irq | int_ctl::v_ign_tpr | int_ctl::V_INTR_PRIO::kMask);
      c.intercept_misc1 &= ~intercept::vintr;
    }
  }
  bool interrupt_window_requested() const { return (vmcb_->control.int_ctl & int_ctl::v_irq) != 0; }

  void set_intercepts(const Intercepts& wanted);

  void set_msr_bitmap(Hpa h) { vmcb_->control.msrpm_base = h.value(); }
  void set_io_bitmap(Hpa h) { vmcb_->control.iopm_base = h.value(); }
  void set_tsc_offset(u64 v) { vmcb_->control.tsc_offset = v; }
  u64 tsc_offset() const { return vmcb_->control.tsc_offset; }
  // Off: the guest's CR3 is what the processor walks.
  void set_nested_paging(bool on) { vmcb_->control.np_enable = on ? 1 : 0; }
  void set_tdp_root(Hpa h) { vmcb_->control.nested_cr3 = h.value(); }
  void set_tag(u32 tag) { vmcb_->control.asid = tag; }
  void flush(TlbFlush f) {
    // Without FlushByASID only the whole TLB can be flushed (APM vol. 2, 15.16.2); the processor's
    // quirks say whether TLB_CONTROL 3 exists.
    vmcb_->control.tlb_control =
        f == TlbFlush::none ? tlb_control::nothing : tlb_control::flush_all;
  }

 private:
  Vmcb* vmcb_ = nullptr;
  Hpa address_{};
};
static_assert(cpu::ControlBlock<ControlBlock>);

}  // namespace aerie::cpu::svm
