// The MSRs L1's processor has: where each one's value lives, what a write must satisfy, and which
// accesses need no exit. An MSR without a row does not exist: reading or writing it is #GP(0),
// though the processor underneath may have it (or, as TCG, take any number for an MSR that reads
// 0). SDM vol. 4; APM vol. 2, appendix A.
#pragma once

#include <array>
#include <string_view>

#include "base/bits.h"
#include "base/types.h"
#include "cpu/arch/msr.h"
#include "vmm/policy/feature.h"

namespace aerie::vmm::policy {

// Where a value lives.
enum class MsrHome : u8 {
  hardware,  // the processor's own MSR holds L1's value while L1 runs
  constant,  // nowhere: it reads as MsrPolicy::initial() says
  stored,    // Aerie keeps it for each vCPU; it has no effect of its own
  code,      // access<>() in msr.h: what L0 does for it is there
};

// Accesses that need no exit, where the host's own checks are those of L1's processor.
enum class MsrDirect : u8 {
  none,
  read,
  read_write,
  read_while_zero,  // the processor's own is 0; so may L1's be read there, until it is another
};

// What a write must satisfy, else #GP(0).
enum class MsrCheck : u8 {
  any,
  bits,  // no bit outside the mask
  canonical,
  canonical_on_intel,  // AMD takes any (SYSENTER MSRs)
  memory_types,        // eight bytes of 0, 1, 4, 5, 6 (fixed-range MTRRs)
  mtrr_pair,           // a base (type, address) or, at odd numbers, a mask (valid bit, address)
  mtrr_default,
  all_or_nothing,  // 0 or all ones
  machine_check,   // a bank's four, SDM vol. 3, 16.3.2
  ignored,         // taken and forgotten
  denied,          // read-only
  by_code,
};

struct MsrRow {
  u32 first;
  u32 last;
  std::string_view name;
  MsrHome home;
  MsrCheck check;
  u64 mask = 0;  // of MsrCheck::bits: the bits that may be written; others of the value must be 0
  u64 initial =
      0;  // power-up value; MsrPolicy::initial() computes those that depend on the machine
  MsrDirect direct = MsrDirect::none;
  Vendors who = Vendors::both;
  Feature needs = kNoFeature;
  bool from_host = false;  // the power-up value is the processor's: firmware has set it up
  bool write_only = false;
  std::string_view why = {};
};

namespace msr_table {

using enum MsrHome;
using enum MsrCheck;
namespace m = cpu::msr;
inline constexpr Vendors kIntel = Vendors::intel, kAmd = Vendors::amd;
inline constexpr u64 kLow32 = 0xffff'ffff;

// IA32_MISC_ENABLE: fast strings, thermal control, SpeedStep, MONITOR, CPUID limit, xTPR disable,
// XD disable; read-only EMON, BTS and PEBS unavailable (SDM vol. 4, table 2-2).
inline constexpr u64 kMiscEnableWritable = 0x4'00c5'0009, kMiscEnableReadOnly = 0x1880;
// DEBUGCTL: LBR and BTF; without a debug store the rest is reserved.
inline constexpr u64 kDebugctlWritable = m::debugctl_bits::lbr | m::debugctl_bits::btf;
// HWCR: TLB cache disable, FERR emulation and its ignore, McStatusWrEn, TscFreqSel.
inline constexpr u64 kHwcrWritable = bit(3) | bit(6) | bit(8) | bit(18) | bit(24);
inline constexpr u64 kHwcrMcStatusWrite = bit(18), kHwcrTscFreqSel = bit(24);
inline constexpr unsigned kMtrrPairs = 8;
inline constexpr u32 kMachineCheckLast =
    m::mc0_ctl + 4 * 32 - 1;  // narrowed to the banks there are

// Ascending by number.
inline constexpr MsrRow kRows[] = {
    {.first = 0x0,
     .last = 0x1,
     .name = "P5_MC_ADDR, P5_MC_TYPE",
     .home = constant,
     .check = denied,
     .needs = feature("mce"),
     .why = "of the Pentium; still read by some"},
    {.first = m::tsc,
     .last = m::tsc,
     .name = "TSC",
     .home = code,
     .check = by_code,
     .why = "L1's TSC is the processor's plus an offset; TCG reads 0 here"},
    {.first = m::platform_id,
     .last = m::platform_id,
     .name = "PLATFORM_ID",
     .home = constant,
     .check = denied,
     .who = kIntel},
    {.first = m::apic_base,
     .last = m::apic_base,
     .name = "APIC_BASE",
     .home = code,
     .check = by_code,
     .needs = feature("apic"),
     .why = "the local APIC is Aerie's"},
    {.first = m::feature_control,
     .last = m::feature_control,
     .name = "FEATURE_CONTROL",
     .home = stored,
     .check = by_code,
     .who = kIntel,
     .needs = feature("vmx"),
     .why = "starts unlocked; locked at L1's word"},
    {.first = m::tsc_adjust,
     .last = m::tsc_adjust,
     .name = "TSC_ADJUST",
     .home = code,
     .check = by_code,
     .needs = feature("tsc-adjust")},
    {.first = m::spec_ctrl,
     .last = m::spec_ctrl,
     .name = "SPEC_CTRL",
     .home = hardware,
     .check = bits,
     .mask = 0x7,
     .direct = MsrDirect::read_write,
     .who = kIntel,
     .needs = feature("spec-ctrl")},
    {.first = m::spec_ctrl,
     .last = m::spec_ctrl,
     .name = "SPEC_CTRL",
     .home = hardware,
     .check = bits,
     .mask = 0x7,
     .direct = MsrDirect::read_write,
     .who = kAmd,
     .needs = feature("ibrs")},
    {.first = m::pred_cmd,
     .last = m::pred_cmd,
     .name = "PRED_CMD",
     .home = hardware,
     .check = bits,
     .mask = 0x1,
     .direct = MsrDirect::read_write,
     .who = kIntel,
     .needs = feature("spec-ctrl"),
     .write_only = true},
    {.first = m::pred_cmd,
     .last = m::pred_cmd,
     .name = "PRED_CMD",
     .home = hardware,
     .check = bits,
     .mask = 0x1,
     .direct = MsrDirect::read_write,
     .who = kAmd,
     .needs = feature("ibpb"),
     .write_only = true},
    {.first = m::bios_update_trigger,
     .last = m::bios_update_trigger,
     .name = "BIOS_UPDT_TRIG",
     .home = constant,
     .check = ignored,
     .who = kIntel,
     .write_only = true,
     .why = "microcode is the machine owner's"},
    {.first = m::bios_sign_id,
     .last = m::bios_sign_id,
     .name = "BIOS_SIGN_ID",
     .home = constant,
     .check = ignored,
     .initial = u64{0x2b000643} << 32,
     .who = kIntel,
     .why = "a revision that needs no work-around"},
    {.first = m::amd_patch_level,
     .last = m::amd_patch_level,
     .name = "PATCH_LEVEL",
     .home = constant,
     .check = ignored,
     .initial = 0x0a101154,
     .who = kAmd,
     .why = "a revision that needs no work-around"},
    {.first = m::smm_monitor_ctl,
     .last = m::smm_monitor_ctl,
     .name = "SMM_MONITOR_CTL",
     .home = constant,
     .check = denied,
     .who = kIntel,
     .needs = feature("vmx"),
     .why = "no dual-monitor treatment"},
    {.first = m::platform_info,
     .last = m::platform_info,
     .name = "PLATFORM_INFO",
     .home = constant,
     .check = denied,
     .who = kIntel,
     .why = "the TSC's ratio to 100 MHz; no CPUID faulting"},
    {.first = m::mtrr_cap,
     .last = m::mtrr_cap,
     .name = "MTRRCAP",
     .home = constant,
     .check = denied,
     .needs = feature("mtrr")},
    {.first = m::arch_capabilities,
     .last = m::arch_capabilities,
     .name = "ARCH_CAPABILITIES",
     .home = constant,
     .check = denied,
     .who = kIntel,
     .needs = feature("arch-capabilities"),
     .why = "faults this machine lacks"},
    {.first = m::flush_cmd,
     .last = m::flush_cmd,
     .name = "FLUSH_CMD",
     .home = hardware,
     .check = bits,
     .mask = 0x1,
     .direct = MsrDirect::read_write,
     .who = kIntel,
     .needs = feature("flush-l1d"),
     .write_only = true},
    {.first = m::sysenter_cs,
     .last = m::sysenter_cs,
     .name = "SYSENTER_CS",
     .home = hardware,
     .check = any,
     .direct = MsrDirect::read_write,
     .needs = feature("sep")},
    {.first = m::sysenter_esp,
     .last = m::sysenter_eip,
     .name = "SYSENTER_ESP, SYSENTER_EIP",
     .home = hardware,
     .check = canonical_on_intel,
     .direct = MsrDirect::read_write,
     .needs = feature("sep")},
    {.first = m::mcg_cap,
     .last = m::mcg_cap,
     .name = "MCG_CAP",
     .home = constant,
     .check = denied,
     .needs = feature("mca"),
     .why = "as many banks as the processor has"},
    {.first = m::mcg_status,
     .last = m::mcg_status,
     .name = "MCG_STATUS",
     .home = stored,
     .check = bits,
     .mask = 0x7,
     .needs = feature("mca")},
    {.first = m::mcg_ctl,
     .last = m::mcg_ctl,
     .name = "MCG_CTL",
     .home = stored,
     .check = all_or_nothing,
     .initial = ~u64{0},
     .needs = feature("mca")},
    {.first = m::misc_enable,
     .last = m::misc_enable,
     .name = "MISC_ENABLE",
     .home = stored,
     .check = by_code,
     .initial = 0x1801,
     .who = kIntel,
     .why = "fast strings; no debug store. Writable bits are kept and have no effect"},
    {.first = m::debugctl,
     .last = m::debugctl,
     .name = "DEBUGCTL",
     .home = code,
     .check = by_code,
     .direct = MsrDirect::read_while_zero,
     .why = "LBR and BTF are kept; the host has no such facility"},
    {.first = m::last_branch_from,
     .last = m::last_exception_to,
     .name = "last branch and exception",
     .home = constant,
     .check = denied,
     .who = kAmd,
     .why = "no last-branch records"},
    {.first = m::mtrr_phys_base0,
     .last = m::mtrr_phys_base0 + 2 * kMtrrPairs - 1,
     .name = "MTRR_PHYSBASE, MTRR_PHYSMASK",
     .home = stored,
     .check = mtrr_pair,
     .needs = feature("mtrr"),
     .from_host = true,
     .why = "memory types are the real MTRRs', which firmware set"},
    {.first = 0x250,
     .last = 0x250,
     .name = "MTRR_FIX64K_00000",
     .home = stored,
     .check = memory_types,
     .needs = feature("mtrr"),
     .from_host = true},
    {.first = 0x258,
     .last = 0x259,
     .name = "MTRR_FIX16K",
     .home = stored,
     .check = memory_types,
     .needs = feature("mtrr"),
     .from_host = true},
    {.first = 0x268,
     .last = 0x26f,
     .name = "MTRR_FIX4K",
     .home = stored,
     .check = memory_types,
     .needs = feature("mtrr"),
     .from_host = true},
    {.first = m::pat,
     .last = m::pat,
     .name = "PAT",
     .home = code,
     .check = by_code,
     .needs = feature("pat"),
     .why = "part of what an L2 switch moves; types are checked"},
    {.first = m::mtrr_def_type,
     .last = m::mtrr_def_type,
     .name = "MTRR_DEF_TYPE",
     .home = stored,
     .check = mtrr_default,
     .needs = feature("mtrr"),
     .from_host = true},
    {.first = m::mc0_ctl,
     .last = kMachineCheckLast,
     .name = "MCi_CTL, STATUS, ADDR, MISC",
     .home = stored,
     .check = machine_check,
     .needs = feature("mca")},
    {.first = m::vmx_basic,
     .last = m::vmx_procbased3,
     .name = "VMX capabilities",
     .home = code,
     .check = denied,
     .who = kIntel,
     .needs = feature("vmx"),
     .why = "nested/vmx/capabilities.h"},
    {.first = m::tsc_deadline,
     .last = m::tsc_deadline,
     .name = "TSC_DEADLINE",
     .home = code,
     .check = by_code,
     .needs = feature("tsc-deadline"),
     .why = "the local APIC is Aerie's"},
    {.first = m::pkrs,
     .last = m::pkrs,
     .name = "PKRS",
     .home = hardware,
     .check = bits,
     .mask = kLow32,
     .direct = MsrDirect::read_write,
     .who = kIntel,
     .needs = feature("pks")},
    {.first = m::x2apic_first,
     .last = m::x2apic_last,
     .name = "x2APIC",
     .home = code,
     .check = by_code,
     .needs = feature("x2apic"),
     .why = "the local APIC is Aerie's"},
    {.first = m::xss,
     .last = m::xss,
     .name = "XSS",
     .home = stored,
     .check = bits,
     .mask = 0,
     .needs = feature("xsaves"),
     .why = "no supervisor state"},
    {.first = m::efer,
     .last = m::efer,
     .name = "EFER",
     .home = code,
     .check = by_code,
     .why = "an SVM host runs its guest with SVME set"},
    {.first = m::star,
     .last = m::star,
     .name = "STAR",
     .home = hardware,
     .check = any,
     .direct = MsrDirect::read_write,
     .needs = feature("syscall")},
    {.first = m::lstar,
     .last = m::cstar,
     .name = "LSTAR, CSTAR",
     .home = hardware,
     .check = canonical,
     .direct = MsrDirect::read_write,
     .needs = feature("lm")},
    {.first = m::sfmask,
     .last = m::sfmask,
     .name = "FMASK",
     .home = hardware,
     .check = bits,
     .mask = kLow32,
     .direct = MsrDirect::read_write,
     .needs = feature("syscall")},
    {.first = m::fs_base,
     .last = m::kernel_gs_base,
     .name = "FS_BASE, GS_BASE, KERNEL_GS_BASE",
     .home = hardware,
     .check = canonical,
     .direct = MsrDirect::read_write,
     .needs = feature("lm")},
    {.first = m::tsc_aux,
     .last = m::tsc_aux,
     .name = "TSC_AUX",
     .home = hardware,
     .check = bits,
     .mask = kLow32,
     .direct = MsrDirect::read_write,
     .needs = feature("rdtscp")},
    {.first = m::tsc_ratio,
     .last = m::tsc_ratio,
     .name = "TSC_RATIO",
     .home = code,
     .check = by_code,
     .who = kAmd,
     .needs = feature("tsc-scale"),
     .why = "nested/svm"},
    {.first = m::syscfg,
     .last = m::syscfg,
     .name = "SYSCFG",
     .home = constant,
     .check = ignored,
     .who = kAmd,
     .why = "no memory encryption, no TOP_MEM2"},
    {.first = m::hwcr,
     .last = m::hwcr,
     .name = "HWCR",
     .home = stored,
     .check = bits,
     .mask = kHwcrWritable,
     .initial = kHwcrTscFreqSel,
     .who = kAmd,
     .why = "McStatusWrEn works; the rest is kept and has no effect"},
    {.first = 0xc001001a,
     .last = 0xc001001a,
     .name = "TOP_MEM",
     .home = constant,
     .check = ignored,
     .who = kAmd},
    {.first = 0xc001001d,
     .last = 0xc001001d,
     .name = "TOP_MEM2",
     .home = constant,
     .check = ignored,
     .who = kAmd},
    {.first = 0xc001001f,
     .last = 0xc001001f,
     .name = "NB_CFG",
     .home = constant,
     .check = ignored,
     .who = kAmd},
    {.first = 0xc0010020,
     .last = 0xc0010020,
     .name = "PATCH_LOADER",
     .home = constant,
     .check = ignored,
     .who = kAmd,
     .write_only = true,
     .why = "microcode is the machine owner's"},
    {.first = 0xc0010055,
     .last = 0xc0010055,
     .name = "INT_PENDING_MSG",
     .home = constant,
     .check = ignored,
     .who = kAmd},
    {.first = 0xc0010058,
     .last = 0xc0010058,
     .name = "MMIO_CFG_BASE",
     .home = constant,
     .check = ignored,
     .who = kAmd,
     .why = "the chipset tells where it is"},
    {.first = m::vm_cr,
     .last = m::vm_cr,
     .name = "VM_CR",
     .home = code,
     .check = by_code,
     .who = kAmd,
     .needs = feature("svm"),
     .why = "nested/svm"},
    {.first = m::vm_hsave_pa,
     .last = m::vm_hsave_pa,
     .name = "VM_HSAVE_PA",
     .home = code,
     .check = by_code,
     .who = kAmd,
     .needs = feature("svm"),
     .why = "nested/svm"},
    {.first = 0xc0011020,
     .last = 0xc0011028,
     .name = "LS_CFG to FP_CFG",
     .home = stored,
     .check = any,
     .who = kAmd,
     .why = "kept, no effect"},
    {.first = m::de_cfg,
     .last = m::de_cfg,
     .name = "DE_CFG",
     .home = stored,
     .check = any,
     .initial = bit(1),
     .who = kAmd,
     .why = "LFENCE serializes"},
    {.first = 0xc001102a,
     .last = 0xc001102f,
     .name = "BU_CFG2 to BP_CFG",
     .home = stored,
     .check = any,
     .who = kAmd,
     .why = "kept, no effect"},
};
inline constexpr usize kCount = std::size(kRows);
static_assert(kCount < 0xff);

// Where in a vCPU's store the values of each `stored` row begin, and in the policy's those that
// come from firmware.
template <class Predicate>
consteval auto slots_of(Predicate has_slots) {
  std::array<u16, kCount + 1> slots{};
  for (usize i = 0; i < kCount; ++i) {
    const usize values = has_slots(kRows[i]) ? kRows[i].last - kRows[i].first + 1 : 0;
    slots[i + 1] = static_cast<u16>(slots[i] + values);
  }
  return slots;
}
inline constexpr auto kSlots = slots_of([](const MsrRow& r) { return r.home == stored; });
inline constexpr auto kHostSlots = slots_of([](const MsrRow& r) { return r.from_host; });
inline constexpr usize kStored = kSlots[kCount];
inline constexpr usize kFromHost = kHostSlots[kCount];

// The row of an MSR, for code that means one: whichever vendor's comes first.
consteval usize row_number(u32 index) {
  for (usize i = 0; i < kCount; ++i) {
    if (kRows[i].first <= index && index <= kRows[i].last) {
      return i;
    }
  }
  no_such_feature();
  return kCount;
}

consteval bool ascending() {
  for (usize i = 1; i < kCount; ++i) {
    const MsrRow& a = kRows[i - 1];
    const MsrRow& b = kRows[i];
    // Two rows for one MSR are two vendors'.
    const bool twins = a.first == b.first && a.last == b.last && a.who != b.who &&
                       a.who != Vendors::both && b.who != Vendors::both;
    if (b.last < b.first || (b.first <= a.last && !twins)) {
      return false;
    }
  }
  return true;
}
static_assert(ascending());

}  // namespace msr_table

}  // namespace aerie::vmm::policy
