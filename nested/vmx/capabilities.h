// What of VMX an L1 is offered: one table of features, one of control bits, and the capability MSRs
// 0x480-0x492 made from them (SDM vol. 3, appendix A), so that no two MSRs can disagree. To offer a
// feature that has been implemented, set its row's `implemented`.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "base/types.h"
#include "cpu/arch/msr.h"
#include "cpu/arch/registers.h"
#include "cpu/vmx/controls.h"

namespace aerie::nested::vmx {

// Each stands for everything of the architecture that comes and goes together: loading PAT on
// entry, and saving and loading it on exit, say.
enum class Feature : u8 {
  base,  // what every VMX processor has, or Aerie always offers
  secondary_controls,
  tertiary_controls,
  // Execution
  io_bitmaps,
  msr_bitmaps,
  virtual_nmis,  // with NMI-window exiting
  monitor_trap,
  ept,
  vpid,
  unrestricted_guest,
  descriptor_table_exiting,
  wbinvd_exiting,
  pause_loop_exiting,
  rdrand_exiting,
  rdseed_exiting,
  rdtscp,
  invpcid,
  xsaves,
  user_wait,
  encls_exiting,
  enclv_exiting,
  pconfig,
  bus_lock,
  instruction_timeout,
  preemption_timer,
  tpr_shadow,
  virtualize_apic,
  virtualize_x2apic,
  apic_register,
  virtual_interrupts,
  posted_interrupts,
  vmfunc,
  vmcs_shadowing,
  pml,
  ept_ve,
  mode_based_execute,
  sub_page_permission,
  tsc_scaling,
  processor_trace,
  pasid,
  loadiwkey,
  hlat,
  ipi_virtualization,
  spec_ctrl,
  // State moved by entries and exits
  pat,
  efer,
  perf_global_ctrl,
  bndcfgs,
  cet,
  pkrs,
  lbr,
  uinv,
  secondary_exit_controls,
  dual_monitor,
  // Details of EPT and VPID
  ept_execute_only,
  ept_5_levels,
  ept_2m_pages,
  ept_1g_pages,
  ept_accessed_dirty,
  ept_advanced_information,
  // Others
  vmwrite_read_only,   // VMWRITE to read-only data fields: IA32_VMX_MISC bit 29
  zero_length_events,  // software events with an instruction length of 0: bit 30
  any_error_code,      // hardware exceptions with or without an error code: IA32_VMX_BASIC bit 56
  count
};
inline constexpr unsigned kFeatures = static_cast<unsigned>(Feature::count);

class FeatureSet {
 public:
  constexpr bool has(Feature f) const { return (words_[index(f)] & bit(f)) != 0; }
  constexpr void add(Feature f) { words_[index(f)] |= bit(f); }
  constexpr void remove(Feature f) { words_[index(f)] &= ~bit(f); }
  constexpr bool operator==(const FeatureSet&) const = default;

 private:
  static constexpr unsigned index(Feature f) { return static_cast<unsigned>(f) / 64; }
  static constexpr u64 bit(Feature f) { return aerie::bit(static_cast<unsigned>(f) % 64); }
  std::array<u64, (kFeatures + 63) / 64> words_{};
};

struct FeatureRow {
  Feature feature;
  std::string_view name;  // as in --hide
  bool implemented;
  Feature needs;         // is not offered without that one
  std::string_view why;  // for docs: why it is not offered, or whence it comes
};
std::span<const FeatureRow> features();
// The feature of that name.
std::optional<Feature> feature_named(std::string_view name);

// How a control bit may be set (SDM vol. 3, A.2).
enum class Default : u8 {
  zero,       // may be 0; 1 where its feature is offered
  one,        // reserved, must be 1
  clearable,  // in the default1 class: must be 1 by the plain MSR, may be 0 by the TRUE one
};
struct ControlRow {
  cpu::vmx::ControlWord word;
  u8 position;
  Default kind;
  Feature feature;
  std::string_view name;
};
std::span<const ControlRow> controls();

// What the capabilities depend on at run time.
struct CapabilityConfig {
  FeatureSet hidden;    // taken away by the user, absent from L1's CPUID, or beyond the host
  FeatureSet anyway;    // offered although not implemented: for tests
  u64 cr4_allowed = 0;  // CR4 bits that L1 may set; VMXE is added
  u64 efer_allowed = cpu::efer::sce | cpu::efer::lme | cpu::efer::lma | cpu::efer::nxe;
  u64 debugctl_allowed = cpu::msr::debugctl_bits::lbr | cpu::msr::debugctl_bits::btf;
  u8 physical_bits = 40;  // MAXPHYADDR that L1 sees
  u8 linear_bits = 48;    // that L1's processor supports: 57 with LA57
};

class Capabilities {
 public:
  explicit Capabilities(const CapabilityConfig& config);

  constexpr bool has(Feature f) const { return offered_.has(f); }

  // Bits that may be 1, and bits that must be (by the TRUE MSRs).
  constexpr u64 allowed1(cpu::vmx::ControlWord word) const {
    return allowed1_[static_cast<u8>(word)];
  }
  constexpr u64 required1(cpu::vmx::ControlWord word) const {
    return required1_[static_cast<u8>(word)];
  }
  constexpr bool valid(cpu::vmx::ControlWord word, u64 value) const {
    return (value & required1(word)) == required1(word) && (value & ~allowed1(word)) == 0;
  }
  constexpr bool offers_any(cpu::vmx::ControlWord word, u64 bits) const {
    return (allowed1(word) & bits) != 0;
  }
  constexpr bool vmwrite_any() const { return has(Feature::vmwrite_read_only); }

  // CR0 and CR4 in VMX operation (A.7, A.8): bits of fixed0 must be 1, bits outside fixed1 must be
  // 0.
  static constexpr u64 kCr0Fixed0 = 0x8000'0021;  // PG, NE, PE
  static constexpr u64 kCr0Fixed1 = 0xffff'ffff;
  static constexpr u64 kCr4Fixed0 = 0x2000;  // VMXE
  constexpr u64 cr4_fixed1() const { return cr4_fixed1_; }

  constexpr u8 physical_bits() const { return physical_bits_; }
  constexpr u8 linear_bits() const { return linear_bits_; }
  constexpr u64 ept_vpid() const { return ept_vpid_; }
  // Bits that IA32_EFER and IA32_DEBUGCTL may hold.
  constexpr u64 efer_allowed() const { return efer_allowed_; }
  constexpr u64 debugctl_allowed() const { return debugctl_allowed_; }

  // Values of IA32_VMX_BASIC (0x480) to IA32_VMX_PROCBASED_CTLS3 (0x492); nothing for one that does
  // not exist with these capabilities (#GP).
  std::optional<u64> msr(u32 index) const;

 private:
  FeatureSet offered_;
  std::array<u64, cpu::vmx::kControlWords> allowed1_{};
  std::array<u64, cpu::vmx::kControlWords> required1_{};
  std::array<u64, cpu::vmx::kControlWords> default1_{};  // required by the plain MSRs
  u64 cr4_fixed1_ = 0;
  u64 efer_allowed_ = 0;
  u64 debugctl_allowed_ = 0;
  u64 ept_vpid_ = 0;
  u64 vmcs_enum_ = 0;
  u8 physical_bits_ = 0;
  u8 linear_bits_ = 0;
};

// Limits that IA32_VMX_MISC reports (A.6).
inline constexpr unsigned kCr3Targets = 4;
inline constexpr unsigned kMaxMsrListEntries = 512;

// IA32_VMX_EPT_VPID_CAP (A.10).
namespace ept_vpid_cap {
inline constexpr u64 execute_only = bit(0), levels_4 = bit(6), levels_5 = bit(7),
                     uncacheable = bit(8), write_back = bit(14), pages_2m = bit(16),
                     pages_1g = bit(17), invept = bit(20), accessed_dirty = bit(21),
                     advanced_information = bit(22), invept_single = bit(25), invept_all = bit(26),
                     invvpid = bit(32), invvpid_address = bit(40), invvpid_single = bit(41),
                     invvpid_all = bit(42), invvpid_retaining = bit(43);
}

}  // namespace aerie::nested::vmx
