#include "nested/vmx/capabilities.h"

#include <algorithm>

#include "cpu/arch/msr.h"
#include "cpu/arch/registers.h"
#include "nested/vmx/vmcs12.h"
#include "nested/vmx/vmcs12_fields.h"

namespace aerie::nested::vmx {
namespace {

namespace msr = cpu::msr;
using cpu::vmx::ControlWord;

// In the order of the enumeration, so that a row is found by its index.
constexpr FeatureRow kFeatureTable[] = {
    {Feature::base, "base", true, Feature::base, ""},
    {Feature::secondary_controls, "secondary-controls", true, Feature::base, ""},
    {Feature::tertiary_controls, "tertiary-controls", false, Feature::base,
     "nothing in it is offered"},
    {Feature::io_bitmaps, "io-bitmaps", true, Feature::base, ""},
    {Feature::msr_bitmaps, "msr-bitmaps", true, Feature::base, ""},
    {Feature::virtual_nmis, "virtual-nmis", true, Feature::base, ""},
    {Feature::monitor_trap, "monitor-trap", true, Feature::base, ""},
    {Feature::ept, "ept", true, Feature::secondary_controls, ""},
    {Feature::vpid, "vpid", true, Feature::secondary_controls, ""},
    {Feature::unrestricted_guest, "unrestricted-guest", true, Feature::ept, ""},
    {Feature::descriptor_table_exiting, "descriptor-table-exiting", true,
     Feature::secondary_controls, ""},
    {Feature::wbinvd_exiting, "wbinvd-exiting", true, Feature::secondary_controls, ""},
    {Feature::pause_loop_exiting, "pause-loop-exiting", false, Feature::secondary_controls,
     "the host may lack a pause filter"},
    {Feature::rdrand_exiting, "rdrand-exiting", false, Feature::secondary_controls,
     "SVM has no such intercept"},
    {Feature::rdseed_exiting, "rdseed-exiting", false, Feature::secondary_controls,
     "SVM has no such intercept"},
    {Feature::rdtscp, "rdtscp", true, Feature::secondary_controls, "where L1 has RDTSCP"},
    {Feature::invpcid, "invpcid", true, Feature::secondary_controls, "where L1 has INVPCID"},
    {Feature::xsaves, "xsaves", false, Feature::secondary_controls, "not yet implemented"},
    {Feature::user_wait, "user-wait", false, Feature::secondary_controls, "not yet implemented"},
    {Feature::encls_exiting, "encls-exiting", false, Feature::secondary_controls, "L1 has no SGX"},
    {Feature::enclv_exiting, "enclv-exiting", false, Feature::secondary_controls, "L1 has no SGX"},
    {Feature::pconfig, "pconfig", false, Feature::secondary_controls, "L1 has no PCONFIG"},
    {Feature::bus_lock, "bus-lock", false, Feature::secondary_controls, "not yet implemented"},
    {Feature::instruction_timeout, "instruction-timeout", false, Feature::secondary_controls,
     "not yet implemented"},
    {Feature::preemption_timer, "preemption-timer", false, Feature::base, "not yet implemented"},
    {Feature::tpr_shadow, "tpr-shadow", false, Feature::base, "not yet implemented"},
    {Feature::virtualize_apic, "virtualize-apic", false, Feature::secondary_controls,
     "not yet implemented"},
    {Feature::virtualize_x2apic, "virtualize-x2apic", false, Feature::tpr_shadow,
     "not yet implemented"},
    {Feature::apic_register, "apic-register", false, Feature::tpr_shadow, "not yet implemented"},
    {Feature::virtual_interrupts, "virtual-interrupts", false, Feature::tpr_shadow,
     "not yet implemented"},
    {Feature::posted_interrupts, "posted-interrupts", false, Feature::virtual_interrupts,
     "not yet implemented"},
    {Feature::vmfunc, "vmfunc", false, Feature::ept, "not yet implemented"},
    {Feature::vmcs_shadowing, "vmcs-shadowing", false, Feature::vmwrite_read_only,
     "not yet implemented"},
    {Feature::pml, "pml", false, Feature::ept_accessed_dirty, "not yet implemented"},
    {Feature::ept_ve, "ept-ve", false, Feature::ept, "not yet implemented"},
    {Feature::mode_based_execute, "mode-based-execute", false, Feature::ept, "not yet implemented"},
    {Feature::sub_page_permission, "sub-page-permission", false, Feature::ept,
     "not yet implemented"},
    {Feature::tsc_scaling, "tsc-scaling", false, Feature::secondary_controls,
     "not yet implemented"},
    {Feature::processor_trace, "processor-trace", false, Feature::base,
     "L1 has no processor trace"},
    {Feature::pasid, "pasid", false, Feature::secondary_controls, "L1 has no ENQCMD"},
    {Feature::loadiwkey, "loadiwkey", false, Feature::tertiary_controls, "L1 has no key locker"},
    {Feature::hlat, "hlat", false, Feature::tertiary_controls, "not yet implemented"},
    {Feature::ipi_virtualization, "ipi-virtualization", false, Feature::tertiary_controls,
     "not yet implemented"},
    {Feature::spec_ctrl, "spec-ctrl", false, Feature::tertiary_controls, "not yet implemented"},
    {Feature::pat, "pat", true, Feature::base, ""},
    {Feature::efer, "efer", true, Feature::base, ""},
    {Feature::perf_global_ctrl, "perf-global-ctrl", false, Feature::base,
     "L1 has no architectural performance monitoring"},
    {Feature::bndcfgs, "bndcfgs", false, Feature::base, "L1 has no MPX"},
    {Feature::cet, "cet", false, Feature::base, "L1 has no CET"},
    {Feature::pkrs, "pkrs", false, Feature::base, "not yet implemented"},
    {Feature::lbr, "lbr", false, Feature::base, "L1 has no architectural LBRs"},
    {Feature::uinv, "uinv", false, Feature::base, "L1 has no user interrupts"},
    {Feature::secondary_exit_controls, "secondary-exit-controls", false, Feature::base,
     "nothing in it is offered"},
    {Feature::dual_monitor, "dual-monitor", false, Feature::base, "no SMM under Aerie"},
    {Feature::ept_execute_only, "ept-execute-only", false, Feature::ept,
     "AMD's tables cannot say it"},
    {Feature::ept_5_levels, "ept-5-levels", false, Feature::ept, "not yet implemented"},
    {Feature::ept_2m_pages, "ept-2m", true, Feature::ept, ""},
    {Feature::ept_1g_pages, "ept-1g", true, Feature::ept_2m_pages, ""},
    {Feature::ept_accessed_dirty, "ept-ad", true, Feature::ept, ""},
    {Feature::ept_advanced_information, "ept-advanced-information", false, Feature::ept,
     "not yet implemented"},
    {Feature::vmwrite_read_only, "vmwrite-read-only", true, Feature::base,
     "as processors since Haswell; makes the lookup simpler"},
    {Feature::zero_length_events, "zero-length-events", true, Feature::base, ""},
    {Feature::any_error_code, "any-error-code", false, Feature::base, "comes with CET"},
};
static_assert(std::size(kFeatureTable) == kFeatures);
constexpr bool table_is_ordered() {
  for (unsigned i = 0; i < kFeatures; ++i) {
    if (kFeatureTable[i].feature != static_cast<Feature>(i)) {
      return false;
    }
  }
  return true;
}
static_assert(table_is_ordered());

// Every control bit of SDM vol. 3, tables 25-5 to 25-8, 25-14 and 25-16, and the reserved bits of
// the default1 class (A.2-A.5).
constexpr ControlRow kControlTable[] = {
    {ControlWord::pin, 0, Default::zero, Feature::base, "external-interrupt exiting"},
    {ControlWord::pin, 1, Default::one, Feature::base, "reserved"},
    {ControlWord::pin, 2, Default::one, Feature::base, "reserved"},
    {ControlWord::pin, 3, Default::zero, Feature::base, "NMI exiting"},
    {ControlWord::pin, 4, Default::one, Feature::base, "reserved"},
    {ControlWord::pin, 5, Default::zero, Feature::virtual_nmis, "virtual NMIs"},
    {ControlWord::pin, 6, Default::zero, Feature::preemption_timer,
     "activate VMX-preemption timer"},
    {ControlWord::pin, 7, Default::zero, Feature::posted_interrupts, "process posted interrupts"},

    {ControlWord::proc, 1, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 2, Default::zero, Feature::base, "interrupt-window exiting"},
    {ControlWord::proc, 3, Default::zero, Feature::base, "use TSC offsetting"},
    {ControlWord::proc, 4, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 5, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 6, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 7, Default::zero, Feature::base, "HLT exiting"},
    {ControlWord::proc, 8, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 9, Default::zero, Feature::base, "INVLPG exiting"},
    {ControlWord::proc, 10, Default::zero, Feature::base, "MWAIT exiting"},
    {ControlWord::proc, 11, Default::zero, Feature::base, "RDPMC exiting"},
    {ControlWord::proc, 12, Default::zero, Feature::base, "RDTSC exiting"},
    {ControlWord::proc, 13, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 14, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 15, Default::clearable, Feature::base, "CR3-load exiting"},
    {ControlWord::proc, 16, Default::clearable, Feature::base, "CR3-store exiting"},
    {ControlWord::proc, 17, Default::zero, Feature::tertiary_controls,
     "activate tertiary controls"},
    {ControlWord::proc, 19, Default::zero, Feature::base, "CR8-load exiting"},
    {ControlWord::proc, 20, Default::zero, Feature::base, "CR8-store exiting"},
    {ControlWord::proc, 21, Default::zero, Feature::tpr_shadow, "use TPR shadow"},
    {ControlWord::proc, 22, Default::zero, Feature::virtual_nmis, "NMI-window exiting"},
    {ControlWord::proc, 23, Default::zero, Feature::base, "MOV-DR exiting"},
    {ControlWord::proc, 24, Default::zero, Feature::base, "unconditional I/O exiting"},
    {ControlWord::proc, 25, Default::zero, Feature::io_bitmaps, "use I/O bitmaps"},
    {ControlWord::proc, 26, Default::one, Feature::base, "reserved"},
    {ControlWord::proc, 27, Default::zero, Feature::monitor_trap, "monitor trap flag"},
    {ControlWord::proc, 28, Default::zero, Feature::msr_bitmaps, "use MSR bitmaps"},
    {ControlWord::proc, 29, Default::zero, Feature::base, "MONITOR exiting"},
    {ControlWord::proc, 30, Default::zero, Feature::base, "PAUSE exiting"},
    {ControlWord::proc, 31, Default::zero, Feature::secondary_controls,
     "activate secondary controls"},

    {ControlWord::proc2, 0, Default::zero, Feature::virtualize_apic, "virtualize APIC accesses"},
    {ControlWord::proc2, 1, Default::zero, Feature::ept, "enable EPT"},
    {ControlWord::proc2, 2, Default::zero, Feature::descriptor_table_exiting,
     "descriptor-table exiting"},
    {ControlWord::proc2, 3, Default::zero, Feature::rdtscp, "enable RDTSCP"},
    {ControlWord::proc2, 4, Default::zero, Feature::virtualize_x2apic, "virtualize x2APIC mode"},
    {ControlWord::proc2, 5, Default::zero, Feature::vpid, "enable VPID"},
    {ControlWord::proc2, 6, Default::zero, Feature::wbinvd_exiting, "WBINVD exiting"},
    {ControlWord::proc2, 7, Default::zero, Feature::unrestricted_guest, "unrestricted guest"},
    {ControlWord::proc2, 8, Default::zero, Feature::apic_register, "APIC-register virtualization"},
    {ControlWord::proc2, 9, Default::zero, Feature::virtual_interrupts,
     "virtual-interrupt delivery"},
    {ControlWord::proc2, 10, Default::zero, Feature::pause_loop_exiting, "PAUSE-loop exiting"},
    {ControlWord::proc2, 11, Default::zero, Feature::rdrand_exiting, "RDRAND exiting"},
    {ControlWord::proc2, 12, Default::zero, Feature::invpcid, "enable INVPCID"},
    {ControlWord::proc2, 13, Default::zero, Feature::vmfunc, "enable VM functions"},
    {ControlWord::proc2, 14, Default::zero, Feature::vmcs_shadowing, "VMCS shadowing"},
    {ControlWord::proc2, 15, Default::zero, Feature::encls_exiting, "enable ENCLS exiting"},
    {ControlWord::proc2, 16, Default::zero, Feature::rdseed_exiting, "RDSEED exiting"},
    {ControlWord::proc2, 17, Default::zero, Feature::pml, "enable PML"},
    {ControlWord::proc2, 18, Default::zero, Feature::ept_ve, "EPT-violation #VE"},
    {ControlWord::proc2, 19, Default::zero, Feature::processor_trace, "conceal VMX from PT"},
    {ControlWord::proc2, 20, Default::zero, Feature::xsaves, "enable XSAVES/XRSTORS"},
    {ControlWord::proc2, 21, Default::zero, Feature::pasid, "PASID translation"},
    {ControlWord::proc2, 22, Default::zero, Feature::mode_based_execute,
     "mode-based execute control for EPT"},
    {ControlWord::proc2, 23, Default::zero, Feature::sub_page_permission,
     "sub-page write permissions for EPT"},
    {ControlWord::proc2, 24, Default::zero, Feature::processor_trace,
     "Intel PT uses guest physical addresses"},
    {ControlWord::proc2, 25, Default::zero, Feature::tsc_scaling, "use TSC scaling"},
    {ControlWord::proc2, 26, Default::zero, Feature::user_wait, "enable user wait and pause"},
    {ControlWord::proc2, 27, Default::zero, Feature::pconfig, "enable PCONFIG"},
    {ControlWord::proc2, 28, Default::zero, Feature::enclv_exiting, "enable ENCLV exiting"},
    {ControlWord::proc2, 30, Default::zero, Feature::bus_lock, "VMM bus-lock detection"},
    {ControlWord::proc2, 31, Default::zero, Feature::instruction_timeout, "instruction timeout"},

    {ControlWord::proc3, 0, Default::zero, Feature::loadiwkey, "LOADIWKEY exiting"},
    {ControlWord::proc3, 1, Default::zero, Feature::hlat, "enable HLAT"},
    {ControlWord::proc3, 2, Default::zero, Feature::hlat, "EPT paging-write control"},
    {ControlWord::proc3, 3, Default::zero, Feature::hlat, "guest-paging verification"},
    {ControlWord::proc3, 4, Default::zero, Feature::ipi_virtualization, "IPI virtualization"},
    {ControlWord::proc3, 7, Default::zero, Feature::spec_ctrl, "virtualize IA32_SPEC_CTRL"},

    {ControlWord::exit, 0, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 1, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 2, Default::clearable, Feature::base, "save debug controls"},
    {ControlWord::exit, 3, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 4, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 5, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 6, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 7, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 8, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 9, Default::zero, Feature::base, "host address-space size"},
    {ControlWord::exit, 10, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 11, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 12, Default::zero, Feature::perf_global_ctrl, "load IA32_PERF_GLOBAL_CTRL"},
    {ControlWord::exit, 13, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 14, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 15, Default::zero, Feature::base, "acknowledge interrupt on exit"},
    {ControlWord::exit, 16, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 17, Default::one, Feature::base, "reserved"},
    {ControlWord::exit, 18, Default::zero, Feature::pat, "save IA32_PAT"},
    {ControlWord::exit, 19, Default::zero, Feature::pat, "load IA32_PAT"},
    {ControlWord::exit, 20, Default::zero, Feature::efer, "save IA32_EFER"},
    {ControlWord::exit, 21, Default::zero, Feature::efer, "load IA32_EFER"},
    {ControlWord::exit, 22, Default::zero, Feature::preemption_timer, "save VMX-preemption timer"},
    {ControlWord::exit, 23, Default::zero, Feature::bndcfgs, "clear IA32_BNDCFGS"},
    {ControlWord::exit, 24, Default::zero, Feature::processor_trace, "conceal VMX from PT"},
    {ControlWord::exit, 25, Default::zero, Feature::processor_trace, "clear IA32_RTIT_CTL"},
    {ControlWord::exit, 26, Default::zero, Feature::lbr, "clear IA32_LBR_CTL"},
    {ControlWord::exit, 27, Default::zero, Feature::uinv, "clear UINV"},
    {ControlWord::exit, 28, Default::zero, Feature::cet, "load CET state"},
    {ControlWord::exit, 29, Default::zero, Feature::pkrs, "load PKRS"},
    {ControlWord::exit, 30, Default::zero, Feature::perf_global_ctrl, "save IA32_PERF_GLOBAL_CTRL"},
    {ControlWord::exit, 31, Default::zero, Feature::secondary_exit_controls,
     "activate secondary exit controls"},

    {ControlWord::entry, 0, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 1, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 2, Default::clearable, Feature::base, "load debug controls"},
    {ControlWord::entry, 3, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 4, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 5, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 6, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 7, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 8, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 9, Default::zero, Feature::base, "IA-32e mode guest"},
    {ControlWord::entry, 10, Default::zero, Feature::dual_monitor, "entry to SMM"},
    {ControlWord::entry, 11, Default::zero, Feature::dual_monitor,
     "deactivate dual-monitor treatment"},
    {ControlWord::entry, 12, Default::one, Feature::base, "reserved"},
    {ControlWord::entry, 13, Default::zero, Feature::perf_global_ctrl,
     "load IA32_PERF_GLOBAL_CTRL"},
    {ControlWord::entry, 14, Default::zero, Feature::pat, "load IA32_PAT"},
    {ControlWord::entry, 15, Default::zero, Feature::efer, "load IA32_EFER"},
    {ControlWord::entry, 16, Default::zero, Feature::bndcfgs, "load IA32_BNDCFGS"},
    {ControlWord::entry, 17, Default::zero, Feature::processor_trace, "conceal VMX from PT"},
    {ControlWord::entry, 18, Default::zero, Feature::processor_trace, "load IA32_RTIT_CTL"},
    {ControlWord::entry, 19, Default::zero, Feature::uinv, "load UINV"},
    {ControlWord::entry, 20, Default::zero, Feature::cet, "load CET state"},
    {ControlWord::entry, 21, Default::zero, Feature::lbr, "load guest IA32_LBR_CTL"},
    {ControlWord::entry, 22, Default::zero, Feature::pkrs, "load PKRS"},
};

// Bits of IA32_VMX_EPT_VPID_CAP.
struct EptVpidRow {
  u64 bits;
  Feature feature;
};
constexpr EptVpidRow kEptVpidTable[] = {
    {ept_vpid_cap::execute_only, Feature::ept_execute_only},
    {ept_vpid_cap::levels_4 | ept_vpid_cap::uncacheable | ept_vpid_cap::write_back |
         ept_vpid_cap::invept | ept_vpid_cap::invept_single | ept_vpid_cap::invept_all,
     Feature::ept},
    {ept_vpid_cap::levels_5, Feature::ept_5_levels},
    {ept_vpid_cap::pages_2m, Feature::ept_2m_pages},
    {ept_vpid_cap::pages_1g, Feature::ept_1g_pages},
    {ept_vpid_cap::accessed_dirty, Feature::ept_accessed_dirty},
    {ept_vpid_cap::advanced_information, Feature::ept_advanced_information},
    {ept_vpid_cap::invvpid | ept_vpid_cap::invvpid_address | ept_vpid_cap::invvpid_single |
         ept_vpid_cap::invvpid_all | ept_vpid_cap::invvpid_retaining,
     Feature::vpid},
};

// A feature is offered when it is implemented, not hidden, and what it needs is offered. Needs may
// point forward in the table, so this repeats until nothing changes.
FeatureSet offered_features(const FeatureSet& hidden, const FeatureSet& anyway) {
  FeatureSet set;
  for (const FeatureRow& r : kFeatureTable) {
    if (r.feature == Feature::base ||
        ((r.implemented || anyway.has(r.feature)) && !hidden.has(r.feature))) {
      set.add(r.feature);
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const FeatureRow& r : kFeatureTable) {
      if (set.has(r.feature) && !set.has(r.needs)) {
        set.remove(r.feature);
        changed = true;
      }
    }
  }
  return set;
}

constexpr u64 pair(u64 required, u64 allowed) { return (allowed << 32) | (required & 0xffff'ffff); }

}  // namespace

std::span<const FeatureRow> features() { return kFeatureTable; }
std::span<const ControlRow> controls() { return kControlTable; }

std::optional<Feature> feature_named(std::string_view name) {
  for (const FeatureRow& r : kFeatureTable) {
    if (r.name == name) {
      return r.feature;
    }
  }
  return std::nullopt;
}

Capabilities::Capabilities(const CapabilityConfig& config)
    : offered_{offered_features(config.hidden, config.anyway)},
      cr4_fixed1_{config.cr4_allowed | cpu::cr4::vmxe},
      efer_allowed_{config.efer_allowed},
      debugctl_allowed_{config.debugctl_allowed},
      physical_bits_{config.physical_bits},
      linear_bits_{config.linear_bits} {
  for (const ControlRow& r : kControlTable) {
    const auto word = static_cast<u8>(r.word);
    const u64 position = bit(r.position);
    if (r.kind == Default::one) {
      required1_[word] |= position;
    }
    if (r.kind != Default::zero) {
      default1_[word] |= position;
    }
    if (r.kind == Default::one || offered_.has(r.feature)) {
      allowed1_[word] |= position;
    }
  }
  for (const EptVpidRow& r : kEptVpidTable) {
    if (offered_.has(r.feature)) {
      ept_vpid_ |= r.bits;
    }
  }
  unsigned highest = 0;
  for (const FieldRow& r : vmcs12_fields()) {
    if (field_exists(r, *this)) {
      highest = std::max(highest, cpu::vmx::FieldEncoding{r.field}.index());
    }
  }
  vmcs_enum_ = u64{highest} << 1;
}

std::optional<u64> Capabilities::msr(u32 index) const {
  const auto plain = [this](ControlWord w) {
    return pair(default1_[static_cast<u8>(w)], allowed1(w));
  };
  const auto exact = [this](ControlWord w) { return pair(required1(w), allowed1(w)); };
  switch (index) {
    case msr::vmx_basic:
      // A.1: region of 4 KiB, write-back memory, INS/OUTS information, TRUE controls.
      return u64{kRevisionId} | (u64{kPageSize} << 32) | (u64{6} << 50) | bit(54) | bit(55) |
             (has(Feature::any_error_code) ? bit(56) : 0);
    case msr::vmx_pinbased:
      return plain(ControlWord::pin);
    case msr::vmx_procbased:
      return plain(ControlWord::proc);
    case msr::vmx_exit:
      return plain(ControlWord::exit);
    case msr::vmx_entry:
      return plain(ControlWord::entry);
    case msr::vmx_true_pinbased:
      return exact(ControlWord::pin);
    case msr::vmx_true_procbased:
      return exact(ControlWord::proc);
    case msr::vmx_true_exit:
      return exact(ControlWord::exit);
    case msr::vmx_true_entry:
      return exact(ControlWord::entry);
    case msr::vmx_misc:
      // A.6. Timer rate 2^5 TSC ticks where there is a preemption timer; EFER.LMA is stored into
      // "IA-32e mode guest" at exits (which unrestricted guest requires); activity states HLT,
      // shutdown, wait-for-SIPI.
      return (has(Feature::preemption_timer) ? 5 : 0) | bit(5) | bit(6) | bit(7) | bit(8) |
             (u64{kCr3Targets} << 16) | (u64{kMaxMsrListEntries / 512 - 1} << 25) |
             (has(Feature::vmwrite_read_only) ? bit(29) : 0) |
             (has(Feature::zero_length_events) ? bit(30) : 0);
    case msr::vmx_cr0_fixed0:
      return kCr0Fixed0;
    case msr::vmx_cr0_fixed1:
      return kCr0Fixed1;
    case msr::vmx_cr4_fixed0:
      return kCr4Fixed0;
    case msr::vmx_cr4_fixed1:
      return cr4_fixed1_;
    case msr::vmx_vmcs_enum:
      return vmcs_enum_;
    case msr::vmx_procbased2:
      return has(Feature::secondary_controls) ? std::optional{pair(0, allowed1(ControlWord::proc2))}
                                              : std::nullopt;
    case msr::vmx_ept_vpid_cap:
      return has(Feature::ept) || has(Feature::vpid) ? std::optional{ept_vpid_} : std::nullopt;
    case msr::vmx_vmfunc:
      return has(Feature::vmfunc) ? std::optional<u64>{bit(0)} : std::nullopt;  // EPTP switching
    case msr::vmx_procbased3:
      return has(Feature::tertiary_controls) ? std::optional{allowed1(ControlWord::proc3)}
                                             : std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace aerie::nested::vmx
