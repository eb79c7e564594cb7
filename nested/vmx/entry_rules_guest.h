// VM-entry checks of guest state other than segment registers: SDM vol. 3, 27.3.1.1 and 27.3.1.3 to
// 27.3.1.6. Part of entry_checks.cc.
#pragma once

#include <array>

#include "cpu/arch/registers.h"
#include "nested/vmx/entry_rules_segments.h"

namespace aerie::nested::vmx {

constexpr bool guest_uses_pae(RuleContext c) {
  return (c.v.guest_cr0 & cpu::cr0::pg) != 0 && (c.v.guest_cr4 & cpu::cr4::pae) != 0 &&
         !c.ia32e_guest();
}

// SDM vol. 3, table 4-8: of a present PDPTE bits 2:1, 8:5 and 63:MAXPHYADDR are reserved. Bit 5,
// the accessed flag elsewhere, is let pass: QEMU's TCG sets it in the tables of a guest that it
// runs.
constexpr bool is_valid_pdpte(RuleContext c, u64 entry) {
  constexpr u64 kReserved = bit_mask(2, 1) | bit_mask(8, 6);
  return (entry & 1) == 0 || ((entry & kReserved) == 0 && is_physical(c, entry));
}

namespace rules {

namespace blocking = cpu::vmx::interruptibility;
namespace pending = cpu::vmx::pending_debug;
namespace rflags = cpu::rflags;
using cpu::vmx::Activity;

constexpr bool blocked(RuleContext c, u32 bit) { return (c.v.guest_interruptibility & bit) != 0; }
constexpr bool is_in(RuleContext c, Activity activity) {
  return c.v.guest_activity == static_cast<u32>(activity);
}
constexpr bool injects_exception(RuleContext c, cpu::Exception e) {
  return injects(c, EventType::hardware_exception) && injected_vector(c) == static_cast<u8>(e);
}
inline constexpr u64 kNoLink = ~u64{0};

// The checks of control registers, debug registers and MSRs.
inline constexpr EntryRule kGuestRegisterRules[] = {
    {"guest CR0: bits fixed in VMX operation", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::guest_cr, Group::proc),
     [](RuleContext c) {
       const u64 fixed0 =
           Capabilities::kCr0Fixed0 & ~(c.unrestricted() ? cr0::pe | cr0::pg : u64{0});
       return (c.v.guest_cr0 & fixed0) == fixed0 &&
              (c.v.guest_cr0 & ~(Capabilities::kCr0Fixed1 | kCr0Unchecked)) == 0;
     }},
    {"guest CR0.PG needs CR0.PE", "27.3.1.1", EntryOutcome::guest_state, mask(Group::guest_cr),
     [](RuleContext c) {
       return (c.v.guest_cr0 & cr0::pg) == 0 || (c.v.guest_cr0 & cr0::pe) != 0;
     }},
    {"guest CR4: bits fixed in VMX operation", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::guest_cr),
     [](RuleContext c) {
       return (c.v.guest_cr4 & Capabilities::kCr4Fixed0) == Capabilities::kCr4Fixed0 &&
              (c.v.guest_cr4 & ~c.capabilities.cr4_fixed1()) == 0;
     }},
    {"guest CR4.CET needs CR0.WP", "27.3.1.1", EntryOutcome::guest_state, mask(Group::guest_cr),
     [](RuleContext c) {
       return (c.v.guest_cr4 & cr4::cet) == 0 || (c.v.guest_cr0 & cr0::wp) != 0;
     }},
    {"guest IA32_DEBUGCTL: reserved bits", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_debug),
     [](RuleContext c) {
       return !c.entry(entry::load_debug) ||
              (c.v.guest_debugctl & ~c.capabilities.debugctl_allowed()) == 0;
     }},
    {"IA-32e guest has CR0.PG and CR4.PAE", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_cr),
     [](RuleContext c) {
       return !c.ia32e_guest() ||
              ((c.v.guest_cr0 & cr0::pg) != 0 && (c.v.guest_cr4 & cr4::pae) != 0);
     }},
    {"guest CR4.PCIDE needs an IA-32e guest", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_cr),
     [](RuleContext c) { return c.ia32e_guest() || (c.v.guest_cr4 & cr4::pcide) == 0; }},
    {"guest CR3: within the physical-address width", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::guest_cr3), [](RuleContext c) { return is_physical(c, c.v.guest_cr3); }},
    {"guest DR7 has 32 bits", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_debug),
     [](RuleContext c) { return !c.entry(entry::load_debug) || (c.v.guest_dr7 >> 32) == 0; }},
    {"guest IA32_SYSENTER_ESP is canonical", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::guest_sysenter),
     [](RuleContext c) { return is_canonical_for(c, c.v.guest_sysenter_esp); }},
    {"guest IA32_SYSENTER_EIP is canonical", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::guest_sysenter),
     [](RuleContext c) { return is_canonical_for(c, c.v.guest_sysenter_eip); }},
    {"guest IA32_PAT: valid memory types", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_msrs),
     [](RuleContext c) {
       return !c.entry(entry::load_pat) || cpu::msr::is_valid_pat(c.v.guest_pat);
     }},
    {"guest IA32_EFER: reserved bits", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_msrs),
     [](RuleContext c) {
       return !c.entry(entry::load_efer) || (c.v.guest_efer & ~c.capabilities.efer_allowed()) == 0;
     }},
    {"guest IA32_EFER.LMA is \"IA-32e mode guest\"", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_msrs),
     [](RuleContext c) {
       return !c.entry(entry::load_efer) || ((c.v.guest_efer & efer::lma) != 0) == c.ia32e_guest();
     }},
    {"guest IA32_EFER.LME is LMA with paging", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_msrs, Group::guest_cr),
     [](RuleContext c) {
       return !c.entry(entry::load_efer) || (c.v.guest_cr0 & cr0::pg) == 0 ||
              ((c.v.guest_efer & efer::lma) != 0) == ((c.v.guest_efer & efer::lme) != 0);
     }},
    {"guest IA32_PKRS has 32 bits", "27.3.1.1", EntryOutcome::guest_state,
     mask(Group::entry, Group::guest_msrs),
     [](RuleContext c) { return !c.entry(entry::load_pkrs) || (c.v.guest_pkrs >> 32) == 0; }},
};

inline constexpr EntryRule kGuestStateRules[] = {
    // 27.3.1.3 Descriptor-table registers
    {"guest GDTR and IDTR bases are canonical", "27.3.1.3", EntryOutcome::guest_state,
     mask(Group::guest_tables),
     [](RuleContext c) {
       return is_canonical_for(c, segment(c, gdtr).base) &&
              is_canonical_for(c, segment(c, idtr).base);
     }},
    {"guest GDTR and IDTR limits have 16 bits", "27.3.1.3", EntryOutcome::guest_state,
     mask(Group::guest_tables),
     [](RuleContext c) { return ((segment(c, gdtr).limit | segment(c, idtr).limit) >> 16) == 0; }},

    // 27.3.1.4 RIP and RFLAGS
    {"guest RIP fits the mode", "27.3.1.4", EntryOutcome::guest_state,
     mask(Group::guest_rip, Group::guest_cs_ss, Group::entry),
     [](RuleContext c) {
       return is_valid_guest_rip(c.v.guest_rip, c.code_64bit, c.capabilities.linear_bits());
     }},
    {"guest RFLAGS: reserved bits", "27.3.1.4", EntryOutcome::guest_state,
     mask(Group::guest_rflags),
     [](RuleContext c) {
       constexpr u64 kClear = bit_mask(63, 22) | bit(15) | bit(5) | bit(3);
       return (c.v.guest_rflags & kClear) == 0 && (c.v.guest_rflags & rflags::fixed) != 0;
     }},
    {"guest RFLAGS.VM needs protected mode outside IA-32e mode", "27.3.1.4",
     EntryOutcome::guest_state, mask(Group::guest_cr, Group::entry) | kVirtual8086,
     [](RuleContext c) {
       return !is_virtual_8086(c) || (!c.ia32e_guest() && (c.v.guest_cr0 & cr0::pe) != 0);
     }},
    {"guest RFLAGS.IF is 1 for an external interrupt", "27.3.1.4", EntryOutcome::guest_state,
     mask(Group::guest_rflags, Group::event),
     [](RuleContext c) {
       return !injects(c, EventType::external_interrupt) ||
              (c.v.guest_rflags & rflags::interrupt) != 0;
     }},

    // 27.3.1.5 Non-register state
    {"activity state is supported", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking),
     [](RuleContext c) { return c.v.guest_activity <= static_cast<u32>(Activity::wait_for_sipi); }},
    {"activity state HLT needs CPL 0", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking, Group::guest_cs_ss),
     [](RuleContext c) { return !is_in(c, Activity::hlt) || segment(c, ss).dpl() == 0; }},
    {"activity state is active in an STI or MOV-SS shadow", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking),
     [](RuleContext c) {
       return !blocked(c, blocking::sti | blocking::mov_ss) || is_in(c, Activity::active);
     }},
    {"activity state lets the event in", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking, Group::event),
     [](RuleContext c) {
       if (!injects(c) || is_in(c, Activity::active)) {
         return true;
       }
       const bool machine_check = injects_exception(c, cpu::Exception::mc);
       if (is_in(c, Activity::hlt)) {
         return injects(c, EventType::external_interrupt) || injects(c, EventType::nmi) ||
                machine_check || injects_exception(c, cpu::Exception::db) ||
                injects(c, EventType::other);
       }
       return is_in(c, Activity::shutdown) && (injects(c, EventType::nmi) || machine_check);
     }},
    {"interruptibility state: reserved bits", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking), [](RuleContext c) { return !blocked(c, blocking::reserved); }},
    {"interruptibility state: not blocking by STI and by MOV SS both", "27.3.1.5",
     EntryOutcome::guest_state, mask(Group::guest_blocking),
     [](RuleContext c) { return !blocked(c, blocking::sti) || !blocked(c, blocking::mov_ss); }},
    {"interruptibility state: blocking by STI needs RFLAGS.IF", "27.3.1.5",
     EntryOutcome::guest_state, mask(Group::guest_blocking, Group::guest_rflags),
     [](RuleContext c) {
       return !blocked(c, blocking::sti) || (c.v.guest_rflags & rflags::interrupt) != 0;
     }},
    {"interruptibility state: no blocking by STI or MOV SS with an external interrupt", "27.3.1.5",
     EntryOutcome::guest_state, mask(Group::guest_blocking, Group::event),
     [](RuleContext c) {
       return !blocked(c, blocking::sti | blocking::mov_ss) ||
              !injects(c, EventType::external_interrupt);
     }},
    {"interruptibility state: no blocking by MOV SS with an NMI", "27.3.1.5",
     EntryOutcome::guest_state, mask(Group::guest_blocking, Group::event),
     [](RuleContext c) { return !blocked(c, blocking::mov_ss) || !injects(c, EventType::nmi); }},
    {"interruptibility state: no blocking by SMI outside SMM", "27.3.1.5",
     EntryOutcome::guest_state, mask(Group::guest_blocking),
     [](RuleContext c) { return !blocked(c, blocking::smi); }},
    // A processor may or may not require this one; the strict reading finds more faults of an L1.
    {"interruptibility state: no blocking by STI with an NMI", "27.3.1.5", EntryOutcome::nmi,
     mask(Group::guest_blocking, Group::event),
     [](RuleContext c) { return !blocked(c, blocking::sti) || !injects(c, EventType::nmi); }},
    {"interruptibility state: no blocking by NMI with a virtual NMI", "27.3.1.5",
     EntryOutcome::guest_state, mask(Group::guest_blocking, Group::event, Group::pin),
     [](RuleContext c) {
       return !blocked(c, blocking::nmi) || !c.pin(pin::virtual_nmis) ||
              !injects(c, EventType::nmi);
     }},
    {"interruptibility state: no enclave", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking), [](RuleContext c) { return !blocked(c, blocking::enclave); }},
    {"pending debug exceptions: reserved bits", "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking),
     [](RuleContext c) {
       // Bus locks and RTM are not offered, so their bits are reserved too.
       constexpr u64 kReserved = pending::reserved | pending::bus_lock | pending::rtm;
       return (c.v.guest_pending_debug & kReserved) == 0;
     }},
    {"pending debug exceptions: BS is single-stepping's where an instruction was just executed",
     "27.3.1.5", EntryOutcome::guest_state,
     mask(Group::guest_blocking, Group::guest_rflags, Group::guest_debug),
     [](RuleContext c) {
       if (!blocked(c, blocking::sti | blocking::mov_ss) && !is_in(c, Activity::hlt)) {
         return true;
       }
       const bool steps = (c.v.guest_rflags & rflags::tf) != 0 &&
                          (c.v.guest_debugctl & cpu::msr::debugctl_bits::btf) == 0;
       return ((c.v.guest_pending_debug & pending::bs) != 0) == steps;
     }},
    {"VMCS link pointer: page-aligned, within the physical-address width", "27.3.1.5",
     EntryOutcome::link_pointer, mask(Group::guest_other),
     [](RuleContext c) {
       return c.v.vmcs_link_pointer == kNoLink || is_physical_page(c, c.v.vmcs_link_pointer);
     }},
    {"VMCS link pointer: refers to a VMCS of this revision and kind", "27.3.1.5",
     EntryOutcome::link_pointer, mask(Group::guest_other, Group::proc),
     [](RuleContext c) {
       if (c.v.vmcs_link_pointer == kNoLink) {
         return true;
       }
       const u32 wanted = kRevisionId | (c.proc2(proc2::vmcs_shadowing) ? 1u << 31 : 0);
       return c.memory.read<u32>(Gpa{c.v.vmcs_link_pointer}) == wanted;
     }},
    {"VMCS link pointer: is not the current VMCS", "27.3.1.5", EntryOutcome::link_pointer,
     mask(Group::guest_other),
     [](RuleContext c) { return c.v.vmcs_link_pointer != c.vmcs_address.value(); }},

    // 27.3.1.6 PDPTEs
    {"guest PDPTEs in the VMCS: reserved bits", "27.3.1.6", EntryOutcome::pdpte,
     mask(Group::guest_pdptes, Group::guest_cr, Group::entry, Group::proc),
     [](RuleContext c) {
       return !guest_uses_pae(c) || !c.proc2(proc2::ept) ||
              (is_valid_pdpte(c, c.v.guest_pdpte0) && is_valid_pdpte(c, c.v.guest_pdpte1) &&
               is_valid_pdpte(c, c.v.guest_pdpte2) && is_valid_pdpte(c, c.v.guest_pdpte3));
     }},
    {"guest PDPTEs in memory: reserved bits", "27.3.1.6", EntryOutcome::pdpte,
     mask(Group::guest_cr3, Group::guest_pdptes, Group::guest_cr, Group::entry, Group::proc),
     [](RuleContext c) {
       if (!guest_uses_pae(c) || c.proc2(proc2::ept)) {
         return true;
       }
       // Bits 4:0 of CR3 are ignored. Without EPT L2's physical addresses are L1's.
       const auto pdptes = c.memory.read<std::array<u64, 4>>(Gpa{c.v.guest_cr3 & bit_mask(31, 5)});
       if (!pdptes) {
         return false;  // no memory there: it reads as all ones
       }
       for (const u64 pdpte : *pdptes) {
         if (!is_valid_pdpte(c, pdpte)) {
           return false;
         }
       }
       return true;
     }},
};

}  // namespace rules
}  // namespace aerie::nested::vmx
