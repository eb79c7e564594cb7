// VM-entry checks of the host-state area: SDM vol. 3, 27.2.2 to 27.2.4. Part of entry_checks.cc.
#pragma once

#include "nested/vmx/entry_rules_controls.h"

namespace aerie::nested::vmx {

constexpr bool is_canonical_for(RuleContext c, u64 address) {
  return is_canonical(address, c.capabilities.linear_bits());
}

namespace rules {

namespace cr0 = cpu::cr0;
namespace cr4 = cpu::cr4;
namespace efer = cpu::efer;

// NW and CD are changed by neither entry nor exit and so never checked (notes of 27.2.2 and
// 27.3.1.1).
inline constexpr u64 kCr0Unchecked = cr0::nw | cr0::cd;

constexpr bool selector_is_gdt_rpl0(u16 selector) { return (selector & 7) == 0; }

inline constexpr EntryRule kHostRules[] = {
    // 27.2.2 Host control registers and MSRs
    {"host CR0: bits fixed in VMX operation", "27.2.2", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) {
       return (c.v.host_cr0 & Capabilities::kCr0Fixed0) == Capabilities::kCr0Fixed0 &&
              (c.v.host_cr0 & ~(Capabilities::kCr0Fixed1 | kCr0Unchecked)) == 0;
     }},
    {"host CR4: bits fixed in VMX operation", "27.2.2", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) {
       return (c.v.host_cr4 & Capabilities::kCr4Fixed0) == Capabilities::kCr4Fixed0 &&
              (c.v.host_cr4 & ~c.capabilities.cr4_fixed1()) == 0;
     }},
    {"host CR4.CET needs CR0.WP", "27.2.2", EntryOutcome::host_state, mask(Group::host_state),
     [](RuleContext c) { return (c.v.host_cr4 & cr4::cet) == 0 || (c.v.host_cr0 & cr0::wp) != 0; }},
    {"host CR3: within the physical-address width", "27.2.2", EntryOutcome::host_state,
     mask(Group::host_state), [](RuleContext c) { return is_physical(c, c.v.host_cr3); }},
    {"host IA32_SYSENTER_ESP is canonical", "27.2.2", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) { return is_canonical_for(c, c.v.host_sysenter_esp); }},
    {"host IA32_SYSENTER_EIP is canonical", "27.2.2", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) { return is_canonical_for(c, c.v.host_sysenter_eip); }},
    {"host IA32_PAT: valid memory types", "27.2.2", EntryOutcome::host_state,
     mask(Group::exit, Group::host_state),
     [](RuleContext c) { return !c.exit(exit::load_pat) || cpu::msr::is_valid_pat(c.v.host_pat); }},
    {"host IA32_EFER: reserved bits", "27.2.2", EntryOutcome::host_state,
     mask(Group::exit, Group::host_state),
     [](RuleContext c) {
       return !c.exit(exit::load_efer) || (c.v.host_efer & ~c.capabilities.efer_allowed()) == 0;
     }},
    {"host IA32_EFER: LMA and LME equal host address-space size", "27.2.2",
     EntryOutcome::host_state, mask(Group::exit, Group::host_state),
     [](RuleContext c) {
       const u64 wanted = c.host_64() ? efer::lma | efer::lme : 0;
       return !c.exit(exit::load_efer) || (c.v.host_efer & (efer::lma | efer::lme)) == wanted;
     }},
    {"host IA32_PKRS has 32 bits", "27.2.2", EntryOutcome::host_state,
     mask(Group::exit, Group::host_state),
     [](RuleContext c) { return !c.exit(exit::load_pkrs) || (c.v.host_pkrs >> 32) == 0; }},

    // 27.2.3 Host segment and descriptor-table registers
    {"host selectors: RPL and TI are 0", "27.2.3", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) {
       return selector_is_gdt_rpl0(c.v.host_cs_selector) &&
              selector_is_gdt_rpl0(c.v.host_ss_selector) &&
              selector_is_gdt_rpl0(c.v.host_ds_selector) &&
              selector_is_gdt_rpl0(c.v.host_es_selector) &&
              selector_is_gdt_rpl0(c.v.host_fs_selector) &&
              selector_is_gdt_rpl0(c.v.host_gs_selector) &&
              selector_is_gdt_rpl0(c.v.host_tr_selector);
     }},
    {"host CS is not 0", "27.2.3", EntryOutcome::host_state, mask(Group::host_state),
     [](RuleContext c) { return c.v.host_cs_selector != 0; }},
    {"host TR is not 0", "27.2.3", EntryOutcome::host_state, mask(Group::host_state),
     [](RuleContext c) { return c.v.host_tr_selector != 0; }},
    {"host SS is not 0 where the host is not 64-bit", "27.2.3", EntryOutcome::host_state,
     mask(Group::exit, Group::host_state),
     [](RuleContext c) { return c.host_64() || c.v.host_ss_selector != 0; }},
    {"host FS, GS and TR bases are canonical", "27.2.3", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) {
       return is_canonical_for(c, c.v.host_fs_base) && is_canonical_for(c, c.v.host_gs_base) &&
              is_canonical_for(c, c.v.host_tr_base);
     }},
    {"host GDTR and IDTR bases are canonical", "27.2.3", EntryOutcome::host_state,
     mask(Group::host_state),
     [](RuleContext c) {
       return is_canonical_for(c, c.v.host_gdtr_base) && is_canonical_for(c, c.v.host_idtr_base);
     }},

    // 27.2.4 Address-space size
    {"outside IA-32e mode neither host nor guest is 64-bit", "27.2.4", EntryOutcome::host_state,
     mask(Group::exit, Group::entry),
     [](RuleContext c) { return c.l1_long_mode || (!c.host_64() && !c.ia32e_guest()); }},
    {"in IA-32e mode the host is 64-bit", "27.2.4", EntryOutcome::host_state, mask(Group::exit),
     [](RuleContext c) { return !c.l1_long_mode || c.host_64(); }},
    {"a host that is not 64-bit has no IA-32e guest, CR4.PCIDE or wide RIP", "27.2.4",
     EntryOutcome::host_state, mask(Group::exit, Group::entry, Group::host_state, Group::host_rip),
     [](RuleContext c) {
       return c.host_64() ||
              (!c.ia32e_guest() && (c.v.host_cr4 & cr4::pcide) == 0 && (c.v.host_rip >> 32) == 0);
     }},
    {"a 64-bit host has CR4.PAE", "27.2.4", EntryOutcome::host_state,
     mask(Group::exit, Group::host_state),
     [](RuleContext c) { return !c.host_64() || (c.v.host_cr4 & cr4::pae) != 0; }},
    {"a 64-bit host's RIP is canonical", "27.2.4", EntryOutcome::host_state,
     mask(Group::exit, Group::host_rip),
     [](RuleContext c) { return !c.host_64() || is_canonical_for(c, c.v.host_rip); }},
};

}  // namespace rules
}  // namespace aerie::nested::vmx
