// The software backend's control block: cpu::ControlBlock with plain fields, so that nested and vmm
// run under GoogleTest and under a fuzzer with no machine at all. Hosted only.
//
// What a processor keeps apart is kept apart here too: FS, GS, LDTR, TR and the system-call MSRs
// are seen by the accessors only after store_syscall_state(), and reach the processor only by
// load_syscall_state(). An engine that forgets one of the two computes with stale values, as it
// would on an SVM host.
#pragma once

#include <array>

#include "cpu/backend.h"

namespace aerie::cpu::model {

// What VMLOAD and VMSAVE move (APM vol. 3, VMLOAD): in the processor between exits, in the control
// block when stored.
struct SyscallState {
  Segment fs, gs, ldtr, tr;
  u64 kernel_gs_base = 0;
  u64 star = 0, lstar = 0, cstar = 0, sfmask = 0;
  u64 sysenter_cs = 0, sysenter_esp = 0, sysenter_eip = 0;

  bool operator==(const SyscallState&) const = default;
};

class ControlBlock {
 public:
  // `processor_state`: the syscall state the processor holds, shared by all control blocks of one
  // processor. nullptr: store and load are only counted.
  explicit ControlBlock(SyscallState* processor_state = nullptr)
      : processor_state_{processor_state} {}

  // Program state
  u64 rip() const { return rip_; }
  u64 rflags() const { return rflags_; }
  void set_rip(u64 v) { rip_ = v; }
  void set_rflags(u64 v) { rflags_ = v; }
  bool interrupt_shadow() const { return interrupt_shadow_; }
  void set_interrupt_shadow(bool on) { interrupt_shadow_ = on; }

  // Control registers, EFER, debug registers
  u64 cr0() const { return cr0_; }
  u64 cr2() const { return cr2_; }
  u64 cr3() const { return cr3_; }
  u64 cr4() const { return cr4_; }
  u64 efer() const { return efer_; }
  u64 pat() const { return pat_; }
  u64 dr6() const { return dr6_; }
  u64 dr7() const { return dr7_; }
  u64 debugctl() const { return debugctl_; }
  void set_cr0(u64 v) { cr0_ = v; }
  void set_cr2(u64 v) { cr2_ = v; }
  void set_cr3(u64 v) { cr3_ = v; }
  void set_cr4(u64 v) { cr4_ = v; }
  void set_efer(u64 v) { efer_ = v; }
  void set_pat(u64 v) { pat_ = v; }
  void set_dr6(u64 v) { dr6_ = v; }
  void set_dr7(u64 v) { dr7_ = v; }
  void set_debugctl(u64 v) { debugctl_ = v; }

  // Segments. FS, GS, LDTR and TR as of the last store_syscall_state().
  const Segment& segment(SegmentRegister r) const {
    switch (r) {
      case SegmentRegister::fs:
        return syscall_.fs;
      case SegmentRegister::gs:
        return syscall_.gs;
      case SegmentRegister::ldtr:
        return syscall_.ldtr;
      case SegmentRegister::tr:
        return syscall_.tr;
      default:
        return segments_[static_cast<u8>(r)];
    }
  }
  void set_segment(SegmentRegister r, const Segment& s) { const_cast<Segment&>(segment(r)) = s; }
  u8 cpl() const { return static_cast<u8>(segment(SegmentRegister::ss).dpl()); }

  void store_syscall_state() {
    ++syscall_stores;
    if (processor_state_ != nullptr) {
      syscall_ = *processor_state_;
    }
  }
  void load_syscall_state() {
    ++syscall_loads;
    if (processor_state_ != nullptr) {
      *processor_state_ = syscall_;
    }
  }
  u64 sysenter_cs() const { return syscall_.sysenter_cs; }
  u64 sysenter_esp() const { return syscall_.sysenter_esp; }
  u64 sysenter_eip() const { return syscall_.sysenter_eip; }
  u64 star() const { return syscall_.star; }
  u64 lstar() const { return syscall_.lstar; }
  u64 cstar() const { return syscall_.cstar; }
  u64 sfmask() const { return syscall_.sfmask; }
  u64 kernel_gs_base() const { return syscall_.kernel_gs_base; }
  void set_sysenter_cs(u64 v) { syscall_.sysenter_cs = v; }
  void set_sysenter_esp(u64 v) { syscall_.sysenter_esp = v; }
  void set_sysenter_eip(u64 v) { syscall_.sysenter_eip = v; }
  void set_star(u64 v) { syscall_.star = v; }
  void set_lstar(u64 v) { syscall_.lstar = v; }
  void set_cstar(u64 v) { syscall_.cstar = v; }
  void set_sfmask(u64 v) { syscall_.sfmask = v; }
  void set_kernel_gs_base(u64 v) { syscall_.kernel_gs_base = v; }

  // Events
  void inject(const Event& e) { injected = e; }
  void clear_injection() { injected = {}; }
  Event interrupted_event() const { return interrupted; }
  void request_interrupt_window(bool on) { interrupt_window = on; }

  // What L0 sees, and translation
  void set_intercepts(const Intercepts& i) { intercepts = i; }
  void set_msr_bitmap(Hpa h) { msr_bitmap = h; }
  void set_io_bitmap(Hpa h) { io_bitmap = h; }
  void set_tsc_offset(u64 v) { tsc_offset_ = v; }
  u64 tsc_offset() const { return tsc_offset_; }
  void set_tdp_root(Hpa h) { tdp_root = h; }
  void set_tag(u32 t) { tag = t; }
  void flush(TlbFlush f) {
    if (f > pending_flush) {
      pending_flush = f;  // the wider of two requests wins, as TLB_CONTROL is only written up
    }
  }

  // Written by the engine, looked at by tests and by model::Processor.
  Event injected{};
  Intercepts intercepts{};
  Hpa msr_bitmap{}, io_bitmap{}, tdp_root{};
  u32 tag = 0;
  TlbFlush pending_flush = TlbFlush::none;
  bool interrupt_window = false;
  unsigned syscall_stores = 0, syscall_loads = 0;

  // Written by tests: what the processor was delivering when the guest exited.
  Event interrupted{};

 private:
  SyscallState* processor_state_;
  u64 rip_ = 0;
  u64 rflags_ = rflags::fixed;
  bool interrupt_shadow_ = false;
  u64 cr0_ = 0, cr2_ = 0, cr3_ = 0, cr4_ = 0, efer_ = 0;
  u64 pat_ = 0x0007'0406'0007'0406;  // the value of power-up, SDM vol. 3, 12.12.4
  u64 dr6_ = dr6::initial, dr7_ = dr7::initial, debugctl_ = 0;
  u64 tsc_offset_ = 0;
  std::array<Segment, kSegmentRegisters> segments_{};
  SyscallState syscall_{};
};
static_assert(cpu::ControlBlock<ControlBlock>);

}  // namespace aerie::cpu::model
