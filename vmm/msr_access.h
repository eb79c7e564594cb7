// L1's MSRs in one place: what vmm/policy asks of the vCPU (policy::MsrContext). RDMSR and WRMSR of
// L1 come through here, and the MSR lists of its VM entries and exits.
#pragma once

#include "cpu/arch/instructions.h"
#include "vmm/device_map.h"
#include "vmm/virtualization.h"

namespace aerie::vmm {

class MsrAccess {
 public:
  explicit MsrAccess(Vcpu& v) : v_{v} {}

  // Nothing, false: #GP(0).
  std::optional<u64> read(u32 index) { return v_.msrs.read(*this, index); }
  [[nodiscard]] bool write(u32 index, u64 value) { return v_.msrs.write(*this, index, value); }

  // --- policy::MsrContext
  // FS, GS, KERNEL_GS_BASE, the SYSCALL and SYSENTER MSRs of the guest that ran last are the
  // processor's own; L1's, since an exit of L2 that reaches L1 has put them back by now.
  u64 hardware_read(u32 index) { return cpu::rdmsr(index); }
  void hardware_write(u32 index, u64 value) { cpu::wrmsr(index, value); }
  std::optional<u64> apic_read(u32 index) { return v_.apic.read_msr(index); }
  bool apic_write(u32 index, u64 value) {
    const Gpa apic_page = v_.apic.base_page();
    const bool legal = v_.apic.write_msr(index, value);
    if (legal) {
      if (index == cpu::msr::apic_base) {
        v_.update_cpuid();
        if (v_.apic.base_page() != apic_page) {
          trap_apic_page(v_, apic_page);
        }
      }
      v_.reevaluate();
    }
    return legal;
  }
  u64 tsc() { return cpu::rdtsc() + v_.block_l1().tsc_offset(); }
  u64 tsc_offset() { return v_.block_l1().tsc_offset(); }
  void set_tsc_offset(u64 offset) {
    v_.block_l1().set_tsc_offset(offset);
    v_.apic.set_tsc_offset(offset);
  }
  u64 efer() { return v_.guest_efer(); }
  bool write_efer(u64 value) { return v_.write_efer(value); }
  u64 pat() { return v_.block_l1().pat(); }
  void set_pat(u64 value) { v_.block_l1().set_pat(value); }
  void set_debugctl(u64 value) { v_.block_l1().set_debugctl(value); }
  void set_direct_read(u32 index, bool on) { v_.set_direct_msr_read(index, on); }
  std::optional<u64> virtualization_read(u32 index) { return virtualization_msr_read(v_, index); }
  bool virtualization_write(u32 index, u64 value) {
    return virtualization_msr_write(v_, index, value);
  }

 private:
  Vcpu& v_;
};
static_assert(policy::MsrContext<MsrAccess>);

}  // namespace aerie::vmm
