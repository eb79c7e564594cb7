#include "nested/vmx/entry_checks.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "nested/vmx/vmcs12_fields.h"
#include "tests/unit/nested/entry_state.h"

namespace aerie::nested::vmx {
namespace {

using namespace test;
using enum cpu::SegmentRegister;
using cpu::vmx::FieldEncoding;
namespace cr0 = cpu::cr0;
namespace cr4 = cpu::cr4;
namespace efer = cpu::efer;
namespace entry = cpu::vmx::entry;
namespace exit = cpu::vmx::exit;
namespace pin = cpu::vmx::pin;
namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;
namespace rflags = cpu::rflags;

constexpr u64 kWide = u64{1} << 40;              // beyond the physical-address width
constexpr u64 kNonCanonical = 0x8000'0000'0000;  // with 48 bits
constexpr u32 kValid = 1u << 31, kErrorValid = 1u << 11;
constexpr u32 type(unsigned t) { return t << 8; }

std::vector<std::string> failures(const EntryState& s) {
  const Capabilities capabilities{s.config};
  const EntryContext c{
      s.v, capabilities, s.memory->memory, s.vmcs_address, s.l1_long_mode, s.code_64bit()};
  std::vector<std::string> names;
  for (const EntryRule& rule : entry_rules()) {
    if (!rule.holds(c)) {
      names.emplace_back(rule.name);
    }
  }
  return names;
}

using Base = EntryState (*)(SmallMemory&);
using Mutator = void (*)(EntryState&);

// A change to a valid state after which exactly the rule of this name does not hold.
struct Break {
  const char* rule;
  Base base;
  Mutator change;
};

constexpr Base L = long_mode_state, P = pae_state, M = pae_in_memory_state, V = virtual_8086_state,
               R = real_mode_state, H = host_32_state;

const Break kBreaks[] = {
    // 27.2.1.1
    {"pin-based controls: reserved bits", L, [](EntryState& s) { s.v.pin_controls &= ~2u; }},
    {"pin-based controls: reserved bits", L, [](EntryState& s) { s.v.pin_controls |= 1u << 8; }},
    {"pin-based controls: reserved bits", L,
     [](EntryState& s) {
       s.config = usual_config();
       s.v.pin_controls |= pin::preemption_timer;
     }},
    {"primary processor-based controls: reserved bits", L,
     [](EntryState& s) { s.v.proc_controls &= ~2u; }},
    {"primary processor-based controls: reserved bits", L, [](EntryState& s) { s.v.proc_controls |= 1; }},
    {"secondary processor-based controls: reserved bits", L,
     [](EntryState& s) { s.v.proc2_controls |= 1u << 29; }},
    {"secondary processor-based controls: reserved bits", L,
     [](EntryState& s) {
       s.config = usual_config();
       s.v.proc2_controls |= proc2::rdrand;
     }},
    {"tertiary processor-based controls: reserved bits", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::tertiary;
       s.v.tertiary_controls = bit(63);
     }},
    {"CR3-target count at most that of IA32_VMX_MISC", L,
     [](EntryState& s) { s.v.cr3_target_count = 5; }},
    {"I/O-bitmap addresses: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::io_bitmaps;
       s.v.io_bitmap_a = 0x800;
     }},
    {"I/O-bitmap addresses: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::io_bitmaps;
       s.v.io_bitmap_b = kWide;
     }},
    {"MSR-bitmap address: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::msr_bitmaps;
       s.v.msr_bitmap = kWide;
     }},
    {"virtual-APIC address: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.virtual_apic_address = 1;
     }},
    {"TPR threshold: bits 31:4 are 0 without virtual-interrupt delivery", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.virtual_apic_address = 0x5000;
       s.v.tpr_threshold = 0x10;
     }},
    {"TPR threshold: not above VTPR", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.virtual_apic_address = 0x5000;
       s.memory->store<u32>(0x5080, 0x2f);
       s.v.tpr_threshold = 3;
     }},
    {"virtual NMIs need NMI exiting", L, [](EntryState& s) { s.v.pin_controls |= pin::virtual_nmis; }},
    {"NMI-window exiting needs virtual NMIs", L,
     [](EntryState& s) { s.v.proc_controls |= proc::nmi_window; }},
    {"APIC-access address: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::virtualize_apic;
       s.v.apic_access_address = kWide;
     }},
    {"x2APIC, APIC-register and virtual-interrupt virtualization need the TPR shadow", L,
     [](EntryState& s) { s.v.proc2_controls |= proc2::apic_register; }},
    {"x2APIC mode and APIC accesses are not virtualized both", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.proc2_controls |= proc2::virtualize_apic | proc2::virtualize_x2apic;
     }},
    {"virtual-interrupt delivery needs external-interrupt exiting", L,
     [](EntryState& s) {
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.proc2_controls |= proc2::virtual_interrupts;
     }},
    {"posted interrupts need virtual-interrupt delivery and acknowledge-interrupt-on-exit", L,
     [](EntryState& s) { s.v.pin_controls |= pin::posted_interrupts | pin::external_interrupt; }},
    {"posted interrupts need virtual-interrupt delivery and acknowledge-interrupt-on-exit", L,
     [](EntryState& s) {
       s.v.pin_controls |= pin::posted_interrupts | pin::external_interrupt;
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.proc2_controls |= proc2::virtual_interrupts;
     }},
    {"posted-interrupt notification vector is at most 255", L,
     [](EntryState& s) {
       s.v.pin_controls |= pin::posted_interrupts | pin::external_interrupt;
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.proc2_controls |= proc2::virtual_interrupts;
       s.v.exit_controls |= exit::acknowledge_interrupt;
       s.v.posted_interrupt_vector = 0x100;
     }},
    {"posted-interrupt descriptor: 64-byte aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.pin_controls |= pin::posted_interrupts | pin::external_interrupt;
       s.v.proc_controls |= proc::tpr_shadow;
       s.v.proc2_controls |= proc2::virtual_interrupts;
       s.v.exit_controls |= exit::acknowledge_interrupt;
       s.v.posted_interrupt_descriptor = 0x20;
     }},
    {"VPID is not 0", L, [](EntryState& s) { s.v.proc2_controls |= proc2::vpid; }},
    {"EPTP: supported memory type", P, [](EntryState& s) { s.v.eptp = 0x1000 | (3 << 3) | 1; }},
    {"EPTP: supported page-walk length", P, [](EntryState& s) { s.v.eptp = 0x1000 | (2 << 3) | 6; }},
    {"EPTP: supported page-walk length", P,
     [](EntryState& s) {
       s.config = usual_config();
       s.v.eptp = 0x1000 | (4 << 3) | 6;
     }},
    {"EPTP: accessed and dirty flags supported", P,
     [](EntryState& s) {
       s.config.hidden.add(Feature::ept_accessed_dirty);
       s.v.eptp |= bit(6);
     }},
    {"EPTP: reserved bits", P, [](EntryState& s) { s.v.eptp |= bit(7); }},
    {"EPTP: reserved bits", P, [](EntryState& s) { s.v.eptp |= bit(11); }},
    {"EPTP: reserved bits", P, [](EntryState& s) { s.v.eptp |= kWide; }},
    {"PML needs EPT", L, [](EntryState& s) { s.v.proc2_controls |= proc2::pml; }},
    {"PML address: page-aligned, within the physical-address width", P,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::pml;
       s.v.pml_address = 8;
     }},
    {"unrestricted guest and mode-based execute control need EPT", L,
     [](EntryState& s) { s.v.proc2_controls |= proc2::unrestricted_guest; }},
    {"unrestricted guest and mode-based execute control need EPT", L,
     [](EntryState& s) { s.v.proc2_controls |= proc2::mode_based_execute; }},
    {"VM functions: reserved bits", P,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::vmfunc;
       s.v.vm_function_controls = 2;
     }},
    {"EPTP switching: needs EPT; list address page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::vmfunc;
       s.v.vm_function_controls = 1;
     }},
    {"EPTP switching: needs EPT; list address page-aligned, within the physical-address width", P,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::vmfunc;
       s.v.vm_function_controls = 1;
       s.v.eptp_list_address = kWide;
     }},
    {"VMREAD- and VMWRITE-bitmap addresses: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::vmcs_shadowing;
       s.v.vmwrite_bitmap = 1;
     }},
    {"virtualization-exception information: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::ept_ve;
       s.v.ve_information_address = 1;
     }},
    // 27.2.1.2
    {"VM-exit controls: reserved bits", L, [](EntryState& s) { s.v.exit_controls &= ~1u; }},
    {"VM-exit controls: reserved bits", L,
     [](EntryState& s) {
       s.config = usual_config();
       s.v.exit_controls |= exit::load_perf_global_ctrl;
     }},
    {"saving the VMX-preemption timer needs the timer", L,
     [](EntryState& s) { s.v.exit_controls |= exit::save_preemption_timer; }},
    {"VM-exit MSR-store area: 16-byte aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.exit_msr_store_count = 1;
       s.v.exit_msr_store_address = 8;
     }},
    {"VM-exit MSR-load area: 16-byte aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.exit_msr_load_count = 2;
       s.v.exit_msr_load_address = kWide - 16;
     }},
    {"VM-exit MSR-load area: 16-byte aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.exit_msr_load_count = ~0u;
       s.v.exit_msr_load_address = ~u64{15};
     }},
    // 27.2.1.3
    {"VM-entry controls: reserved bits", L, [](EntryState& s) { s.v.entry_controls &= ~1u; }},
    {"VM-entry controls: reserved bits", L, [](EntryState& s) { s.v.entry_controls |= 1u << 31; }},
    {"event: type is not reserved", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(1) | 32; }},
    {"event: type is not reserved", L,
     [](EntryState& s) {
       s.config.hidden.add(Feature::monitor_trap);
       s.v.entry_interruption_info = kValid | type(7);
     }},
    {"event: vector fits the type", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(2) | 3; }},
    {"event: vector fits the type", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(3) | 32; }},
    {"event: vector fits the type", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(7) | 1; }},
    {"event: error code exactly where the exception delivers one", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(3) | 13; }},
    {"event: error code exactly where the exception delivers one", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | kErrorValid | type(3) | 6; }},
    {"event: error code exactly where the exception delivers one", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | kErrorValid | type(2) | 2; }},
    {"event: error code exactly where the exception delivers one", R,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | kErrorValid | type(3) | 13; }},
    {"event: error code exactly where the exception delivers one", L,
     [](EntryState& s) {
       s.config = usual_config();
       s.config.anyway.add(Feature::any_error_code);
       s.v.entry_interruption_info = kValid | kErrorValid | type(2) | 2;
     }},
    {"event: reserved bits", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(2) | 2 | 1u << 12; }},
    {"event: reserved bits", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(2) | 2 | 1u << 30; }},
    {"event: error code has 16 bits", L,
     [](EntryState& s) {
       s.v.entry_interruption_info = kValid | kErrorValid | type(3) | 13;
       s.v.entry_exception_error = 0x1'0000;
     }},
    {"event: instruction length of a software event", L,
     [](EntryState& s) {
       s.v.entry_interruption_info = kValid | type(4) | 0x80;
       s.v.entry_instruction_length = 16;
     }},
    {"event: instruction length of a software event", L,
     [](EntryState& s) {
       s.config.hidden.add(Feature::zero_length_events);
       s.v.entry_interruption_info = kValid | type(6) | 3;
       s.v.entry_instruction_length = 0;
     }},
    {"VM-entry MSR-load area: 16-byte aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.entry_msr_load_count = 1;
       s.v.entry_msr_load_address = kWide;
     }},
    {"no entry to SMM nor deactivation of dual-monitor treatment outside SMM", L,
     [](EntryState& s) { s.v.entry_controls |= entry::smm; }},
    // 27.2.2
    {"host CR0: bits fixed in VMX operation", L, [](EntryState& s) { s.v.host_cr0 &= ~cr0::ne; }},
    {"host CR0: bits fixed in VMX operation", L, [](EntryState& s) { s.v.host_cr0 |= bit(32); }},
    {"host CR4: bits fixed in VMX operation", L, [](EntryState& s) { s.v.host_cr4 &= ~cr4::vmxe; }},
    {"host CR4: bits fixed in VMX operation", L, [](EntryState& s) { s.v.host_cr4 |= cr4::smxe; }},
    {"host CR4.CET needs CR0.WP", L,
     [](EntryState& s) {
       s.v.host_cr4 |= cr4::cet;
       s.v.host_cr0 &= ~cr0::wp;
     }},
    {"host CR3: within the physical-address width", L, [](EntryState& s) { s.v.host_cr3 |= kWide; }},
    {"host IA32_SYSENTER_ESP is canonical", L,
     [](EntryState& s) { s.v.host_sysenter_esp = kNonCanonical; }},
    {"host IA32_SYSENTER_EIP is canonical", L,
     [](EntryState& s) { s.v.host_sysenter_eip = kNonCanonical; }},
    {"host IA32_PAT: valid memory types", L,
     [](EntryState& s) {
       s.v.exit_controls |= exit::load_pat;
       s.v.host_pat = 2;
     }},
    {"host IA32_EFER: reserved bits", L,
     [](EntryState& s) {
       s.v.exit_controls |= exit::load_efer;
       s.v.host_efer |= bit(1);
     }},
    {"host IA32_EFER: LMA and LME equal host address-space size", L,
     [](EntryState& s) {
       s.v.exit_controls |= exit::load_efer;
       s.v.host_efer = efer::lma;
     }},
    {"host IA32_EFER: LMA and LME equal host address-space size", H,
     [](EntryState& s) {
       s.v.exit_controls |= exit::load_efer;
       s.v.host_efer = efer::lme;
     }},
    {"host IA32_PKRS has 32 bits", L,
     [](EntryState& s) {
       s.v.exit_controls |= exit::load_pkrs;
       s.v.host_pkrs = bit(32);
     }},
    // 27.2.3
    {"host selectors: RPL and TI are 0", L, [](EntryState& s) { s.v.host_ds_selector = 3; }},
    {"host selectors: RPL and TI are 0", L, [](EntryState& s) { s.v.host_tr_selector |= 4; }},
    {"host CS is not 0", L, [](EntryState& s) { s.v.host_cs_selector = 0; }},
    {"host TR is not 0", L, [](EntryState& s) { s.v.host_tr_selector = 0; }},
    {"host SS is not 0 where the host is not 64-bit", H,
     [](EntryState& s) { s.v.host_ss_selector = 0; }},
    {"host FS, GS and TR bases are canonical", L,
     [](EntryState& s) { s.v.host_gs_base = kNonCanonical; }},
    {"host GDTR and IDTR bases are canonical", L,
     [](EntryState& s) { s.v.host_idtr_base = kNonCanonical; }},
    // 27.2.4
    {"outside IA-32e mode neither host nor guest is 64-bit", H,
     [](EntryState& s) { s.v.exit_controls |= exit::host_64; }},
    {"in IA-32e mode the host is 64-bit", H, [](EntryState& s) { s.l1_long_mode = true; }},
    {"a host that is not 64-bit has no IA-32e guest, CR4.PCIDE or wide RIP", H,
     [](EntryState& s) { s.v.host_cr4 |= cr4::pcide; }},
    {"a host that is not 64-bit has no IA-32e guest, CR4.PCIDE or wide RIP", H,
     [](EntryState& s) { s.v.host_rip = bit(32); }},
    {"a 64-bit host has CR4.PAE", L, [](EntryState& s) { s.v.host_cr4 &= ~cr4::pae; }},
    {"a 64-bit host's RIP is canonical", L, [](EntryState& s) { s.v.host_rip = kNonCanonical; }},
    // 27.3.1.1
    {"guest CR0: bits fixed in VMX operation", L, [](EntryState& s) { s.v.guest_cr0 &= ~cr0::ne; }},
    {"guest CR0: bits fixed in VMX operation", R, [](EntryState& s) { s.v.guest_cr0 |= bit(40); }},
    {"guest CR0.PG needs CR0.PE", R, [](EntryState& s) { s.v.guest_cr0 |= cr0::pg; }},
    {"guest CR4: bits fixed in VMX operation", L, [](EntryState& s) { s.v.guest_cr4 &= ~cr4::vmxe; }},
    {"guest CR4: bits fixed in VMX operation", L, [](EntryState& s) { s.v.guest_cr4 |= bit(30); }},
    {"guest CR4.CET needs CR0.WP", L,
     [](EntryState& s) {
       s.v.guest_cr4 |= cr4::cet;
       s.v.guest_cr0 &= ~cr0::wp;
     }},
    {"guest IA32_DEBUGCTL: reserved bits", L,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_debug;
       s.v.guest_debugctl = bit(2);
     }},
    {"IA-32e guest has CR0.PG and CR4.PAE", L, [](EntryState& s) { s.v.guest_cr4 &= ~cr4::pae; }},
    {"IA-32e guest has CR0.PG and CR4.PAE", L,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::unrestricted_guest | proc2::ept;
       s.v.eptp = 0x1000 | (3 << 3) | 6;
       s.v.guest_cr0 &= ~cr0::pg;
     }},
    {"guest CR4.PCIDE needs an IA-32e guest", P, [](EntryState& s) { s.v.guest_cr4 |= cr4::pcide; }},
    {"guest CR3: within the physical-address width", L, [](EntryState& s) { s.v.guest_cr3 |= kWide; }},
    {"guest DR7 has 32 bits", L,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_debug;
       s.v.guest_dr7 = bit(32);
     }},
    {"guest IA32_SYSENTER_ESP is canonical", L,
     [](EntryState& s) { s.v.guest_sysenter_esp = kNonCanonical; }},
    {"guest IA32_SYSENTER_EIP is canonical", L,
     [](EntryState& s) { s.v.guest_sysenter_eip = kNonCanonical; }},
    {"guest IA32_PAT: valid memory types", L,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_pat;
       s.v.guest_pat = u64{8} << 56;
     }},
    {"guest IA32_EFER: reserved bits", L,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_efer;
       s.v.guest_efer |= efer::svme;
     }},
    {"guest IA32_EFER.LMA is \"IA-32e mode guest\"", P,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_efer;
       s.v.guest_efer = efer::lma | efer::lme;
     }},
    {"guest IA32_EFER.LME is LMA with paging", L,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_efer;
       s.v.guest_efer = efer::lma;
     }},
    {"guest IA32_PKRS has 32 bits", L,
     [](EntryState& s) {
       s.v.entry_controls |= entry::load_pkrs;
       s.v.guest_pkrs = bit(32);
     }},
    // 27.3.1.2
    {"guest TR selector: TI is 0", L, [](EntryState& s) { s.segment(tr).selector |= 4; }},
    {"guest LDTR selector: TI is 0", L, [](EntryState& s) { s.segment(ldtr).selector |= 4; }},
    {"guest SS selector: RPL is that of CS", L,
     [](EntryState& s) { s.segment(cs).selector |= 3; }},
    {"virtual-8086 guest: segment bases are selectors times 16", V,
     [](EntryState& s) { s.segment(gs).base = 0; }},
    {"guest TR, FS and GS bases are canonical", L,
     [](EntryState& s) { s.segment(fs).base = kNonCanonical; }},
    {"guest LDTR base is canonical", L, [](EntryState& s) { s.segment(ldtr).base = kNonCanonical; }},
    {"guest CS base has 32 bits", L, [](EntryState& s) { s.segment(cs).base = bit(32); }},
    {"guest SS, DS and ES bases have 32 bits", L, [](EntryState& s) { s.segment(es).base = bit(62); }},
    {"virtual-8086 guest: segment limits are 0xffff", V,
     [](EntryState& s) { s.segment(ds).limit = 0xfffe; }},
    {"virtual-8086 guest: segment access rights are 0xf3", V,
     [](EntryState& s) { s.segment(ss).access_rights = 0xf7; }},
    {"guest CS type", L, [](EntryState& s) { s.segment(cs).access_rights ^= 1; }},
    {"guest CS type", P, [](EntryState& s) { s.segment(cs).access_rights = 0xc093; }},
    {"guest SS type is 3 or 7", L, [](EntryState& s) { s.segment(ss).access_rights ^= 2; }},
    {"guest DS, ES, FS and GS types: accessed, and readable if code", L,
     [](EntryState& s) { s.segment(fs).access_rights ^= 1; }},
    {"guest DS, ES, FS and GS types: accessed, and readable if code", L,
     [](EntryState& s) { s.segment(fs).access_rights = 0xc099; }},
    {"guest CS is no system segment", L, [](EntryState& s) { s.segment(cs).access_rights ^= 0x10; }},
    {"guest SS, DS, ES, FS and GS are no system segments", L,
     [](EntryState& s) { s.segment(gs).access_rights ^= 0x10; }},
    {"guest CS DPL", L, [](EntryState& s) { s.segment(cs).access_rights |= 0x60; }},
    {"guest CS DPL", R,
     [](EntryState& s) { s.segment(cs).access_rights = 0xf3; }},
    {"guest CS DPL", L, [](EntryState& s) { s.segment(cs).access_rights = 0xa0ff; }},
    {"guest SS DPL is the selector's RPL", L,
     [](EntryState& s) {
       s.segment(ss).selector |= 3;
       s.segment(cs).selector |= 3;
     }},
    {"guest SS DPL is 0 in real mode or with a data segment in CS", R,
     [](EntryState& s) {
       s.segment(ss).access_rights |= 0x60;
       s.segment(cs).access_rights |= 0x60;
     }},
    {"guest DS, ES, FS and GS DPL is not below the selector's RPL", L,
     [](EntryState& s) { s.segment(es).selector |= 2; }},
    {"guest CS is present", L, [](EntryState& s) { s.segment(cs).access_rights ^= 0x80; }},
    {"guest SS, DS, ES, FS and GS are present", L,
     [](EntryState& s) { s.segment(ss).access_rights ^= 0x80; }},
    {"guest segment access rights: reserved bits", L,
     [](EntryState& s) { s.segment(ds).access_rights |= 0x100; }},
    {"guest segment access rights: reserved bits", L,
     [](EntryState& s) { s.segment(cs).access_rights |= 0x2'0000; }},
    {"guest CS: D/B is 0 with L in IA-32e mode", L,
     [](EntryState& s) { s.segment(cs).access_rights |= 0x4000; }},
    {"guest segment limits fit G", L, [](EntryState& s) { s.segment(cs).limit = 0xffff'f000; }},
    {"guest segment limits fit G", L, [](EntryState& s) { s.segment(ds).access_rights ^= 0x8000; }},
    {"guest TR is a busy TSS", L, [](EntryState& s) { s.segment(tr).access_rights = 0x83; }},
    {"guest TR is a busy TSS", P, [](EntryState& s) { s.segment(tr).access_rights = 0x89; }},
    {"guest TR is usable and present, reserved bits clear, limit fits G", L,
     [](EntryState& s) { s.segment(tr).access_rights |= cpu::kVmxSegmentUnusable; }},
    {"guest TR is usable and present, reserved bits clear, limit fits G", L,
     [](EntryState& s) { s.segment(tr).limit = 0x10'0000; }},
    {"guest LDTR is an LDT", L, [](EntryState& s) { s.segment(ldtr).access_rights = 0x83; }},
    {"guest LDTR is present, reserved bits clear, limit fits G", L,
     [](EntryState& s) { s.segment(ldtr).access_rights = 2; }},
    // 27.3.1.3
    {"guest GDTR and IDTR bases are canonical", L,
     [](EntryState& s) { s.segment(gdtr).base = kNonCanonical; }},
    {"guest GDTR and IDTR limits have 16 bits", L,
     [](EntryState& s) { s.segment(idtr).limit = 0x1'0000; }},
    // 27.3.1.4
    {"guest RIP fits the mode", L, [](EntryState& s) { s.v.guest_rip = bit(48); }},
    {"guest RIP fits the mode", P, [](EntryState& s) { s.v.guest_rip = bit(32); }},
    {"guest RFLAGS: reserved bits", L, [](EntryState& s) { s.v.guest_rflags = 0; }},
    {"guest RFLAGS: reserved bits", L, [](EntryState& s) { s.v.guest_rflags |= bit(22); }},
    {"guest RFLAGS.VM needs protected mode outside IA-32e mode", V,
     [](EntryState& s) {
       s.v.proc2_controls |= proc2::unrestricted_guest;
       s.v.guest_cr0 &= ~(cr0::pg | cr0::pe);
       // CS.DPL = 3 is what virtual-8086 mode wants; real mode's rules do not apply to it.
     }},
    {"guest RFLAGS.IF is 1 for an external interrupt", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | 32; }},
    // 27.3.1.5
    {"activity state is supported", L, [](EntryState& s) { s.v.guest_activity = 4; }},
    {"activity state HLT needs CPL 0", L,
     [](EntryState& s) {
       s.v.guest_activity = 1;
       for (const cpu::SegmentRegister r : {cs, ss}) {
         s.segment(r).selector |= 3;
         s.segment(r).access_rights |= 0x60;
       }
     }},
    {"activity state is active in an STI or MOV-SS shadow", L,
     [](EntryState& s) {
       s.v.guest_activity = 1;
       s.v.guest_interruptibility = 2;
     }},
    {"activity state lets the event in", L,
     [](EntryState& s) {
       s.v.guest_activity = 1;
       s.v.entry_interruption_info = kValid | kErrorValid | type(3) | 13;
     }},
    {"activity state lets the event in", L,
     [](EntryState& s) {
       s.v.guest_activity = 2;
       s.v.guest_rflags |= rflags::interrupt;
       s.v.entry_interruption_info = kValid | 32;
     }},
    {"activity state lets the event in", L,
     [](EntryState& s) {
       s.v.guest_activity = 3;
       s.v.entry_interruption_info = kValid | type(2) | 2;
     }},
    {"interruptibility state: reserved bits", L,
     [](EntryState& s) { s.v.guest_interruptibility = 0x20; }},
    {"interruptibility state: not blocking by STI and by MOV SS both", L,
     [](EntryState& s) {
       s.v.guest_rflags |= rflags::interrupt;
       s.v.guest_interruptibility = 3;
     }},
    {"interruptibility state: blocking by STI needs RFLAGS.IF", L,
     [](EntryState& s) { s.v.guest_interruptibility = 1; }},
    {"interruptibility state: no blocking by STI or MOV SS with an external interrupt", L,
     [](EntryState& s) {
       s.v.guest_rflags |= rflags::interrupt;
       s.v.guest_interruptibility = 2;
       s.v.entry_interruption_info = kValid | 32;
     }},
    {"interruptibility state: no blocking by MOV SS with an NMI", L,
     [](EntryState& s) {
       s.v.guest_interruptibility = 2;
       s.v.entry_interruption_info = kValid | type(2) | 2;
     }},
    {"interruptibility state: no blocking by SMI outside SMM", L,
     [](EntryState& s) { s.v.guest_interruptibility = 4; }},
    {"interruptibility state: no blocking by STI with an NMI", L,
     [](EntryState& s) {
       s.v.guest_rflags |= rflags::interrupt;
       s.v.guest_interruptibility = 1;
       s.v.entry_interruption_info = kValid | type(2) | 2;
     }},
    {"interruptibility state: no blocking by NMI with a virtual NMI", L,
     [](EntryState& s) {
       s.v.pin_controls |= pin::nmi | pin::virtual_nmis;
       s.v.guest_interruptibility = 8;
       s.v.entry_interruption_info = kValid | type(2) | 2;
     }},
    {"interruptibility state: no enclave", L, [](EntryState& s) { s.v.guest_interruptibility = 16; }},
    {"pending debug exceptions: reserved bits", L, [](EntryState& s) { s.v.guest_pending_debug = bit(4); }},
    {"pending debug exceptions: reserved bits", L,
     [](EntryState& s) { s.v.guest_pending_debug = bit(13); }},
    {"pending debug exceptions: BS is single-stepping's where an instruction was just executed", L,
     [](EntryState& s) {
       s.v.guest_interruptibility = 2;
       s.v.guest_rflags |= rflags::tf;
     }},
    {"pending debug exceptions: BS is single-stepping's where an instruction was just executed", L,
     [](EntryState& s) {
       s.v.guest_activity = 1;
       s.v.guest_pending_debug = cpu::vmx::pending_debug::bs;
     }},
    {"pending debug exceptions: BS is single-stepping's where an instruction was just executed", L,
     [](EntryState& s) {
       s.v.guest_interruptibility = 2;
       s.v.guest_rflags |= rflags::tf;
       s.v.guest_debugctl = 2;  // BTF: steps on branches only
       s.v.guest_pending_debug = cpu::vmx::pending_debug::bs;
     }},
    {"VMCS link pointer: page-aligned, within the physical-address width", L,
     [](EntryState& s) {
       s.v.vmcs_link_pointer = 0x6004;
       s.memory->store<u32>(0x6004, kRevisionId);
     }},
    {"VMCS link pointer: refers to a VMCS of this revision and kind", L,
     [](EntryState& s) { s.v.vmcs_link_pointer = 0x6000; }},
    {"VMCS link pointer: refers to a VMCS of this revision and kind", L,
     [](EntryState& s) {
       s.v.vmcs_link_pointer = 0x6000;
       s.memory->store<u32>(0x6000, kRevisionId);
       s.v.proc2_controls |= proc2::vmcs_shadowing;
     }},
    {"VMCS link pointer: refers to a VMCS of this revision and kind", L,
     [](EntryState& s) { s.v.vmcs_link_pointer = SmallMemory::kSize; }},
    {"VMCS link pointer: is not the current VMCS", L,
     [](EntryState& s) {
       s.v.vmcs_link_pointer = s.vmcs_address.value();
       s.memory->store<u32>(s.vmcs_address.value(), kRevisionId);
     }},
    // 27.3.1.6
    {"guest PDPTEs in the VMCS: reserved bits", P, [](EntryState& s) { s.v.guest_pdpte2 |= bit(63); }},
    {"guest PDPTEs in the VMCS: reserved bits", P, [](EntryState& s) { s.v.guest_pdpte0 |= 2; }},
    {"guest PDPTEs in memory: reserved bits", M,
     [](EntryState& s) { s.memory->store<u64>(0x1038, 0x2001 | kWide); }},
    {"guest PDPTEs in memory: reserved bits", M,
     [](EntryState& s) { s.v.guest_cr3 = SmallMemory::kSize; }},
};

const EntryRule* rule_named(std::string_view name) {
  for (const EntryRule& rule : entry_rules()) {
    if (rule.name == name) {
      return &rule;
    }
  }
  return nullptr;
}

struct NamedBase {
  const char* name;
  Base make;
};
constexpr NamedBase kBases[] = {
    {"long mode", L},    {"PAE", P},       {"PAE without EPT", M},
    {"virtual-8086", V}, {"real mode", R}, {"32-bit host", H},
};

TEST(EntryRules, HoldForValidStates) {
  for (const NamedBase& base : kBases) {
    SmallMemory memory;
    EXPECT_EQ(failures(base.make(memory)), std::vector<std::string>{}) << base.name;
  }
}

TEST(EntryRules, EachIsBrokenAlone) {
  for (const Break& b : kBreaks) {
    SmallMemory memory;
    EntryState state = b.base(memory);
    b.change(state);
    EXPECT_EQ(failures(state), std::vector<std::string>{b.rule});
  }
}

TEST(EntryRules, EachHasATestThatBreaksIt) {
  std::map<std::string, int> broken;
  for (const Break& b : kBreaks) {
    ASSERT_NE(rule_named(b.rule), nullptr) << b.rule;
    ++broken[b.rule];
  }
  for (const EntryRule& rule : entry_rules()) {
    EXPECT_TRUE(broken.contains(std::string{rule.name})) << rule.name;
  }
}

TEST(EntryRules, HaveUniqueNamesSectionsAndGroups) {
  std::map<std::string_view, int> names;
  bool guest_seen = false;
  for (const EntryRule& rule : entry_rules()) {
    EXPECT_EQ(names[rule.name]++, 0) << rule.name;
    EXPECT_TRUE(rule.section.starts_with("27.")) << rule.name;
    EXPECT_NE(rule.groups, 0u) << rule.name;
    EXPECT_NE(rule.groups & kAllGroups, 0u) << rule.name;
    // Controls and host state come before guest state: a VMfail has precedence.
    guest_seen = guest_seen || !rule.vm_fails();
    EXPECT_EQ(rule.vm_fails(), !guest_seen) << rule.name;
    EXPECT_EQ(rule.vm_fails(), rule.section.starts_with("27.2")) << rule.name;
  }
}

// The states of kBases and what they are after each of kBreaks.
std::vector<EntryState> many_states(SmallMemory& memory) {
  std::vector<EntryState> states;
  for (const NamedBase& base : kBases) {
    states.push_back(base.make(memory));
  }
  for (const Break& b : kBreaks) {
    EntryState s = b.base(memory);
    b.change(s);
    states.push_back(s);
  }
  return states;
}

// What makes incremental checking right: a rule's answer can change only with a field of its
// groups.
TEST(EntryRules, DependOnTheirGroupsOnly) {
  SmallMemory memory;
  FieldIndex index;
  index.build(Capabilities{full_config()});
  std::mt19937_64 random{1};
  for (const EntryState& state : many_states(memory)) {
    const Capabilities capabilities{state.config};
    EntryState changed = state;
    const EntryContext before{
        state.v,           capabilities, memory.memory, state.vmcs_address, state.l1_long_mode,
        state.code_64bit()};
    for (const FieldRow& row : vmcs12_fields()) {
      if (row.group == Group::information) {
        continue;
      }
      const FieldSlot slot = index.find(row.field);
      const u64 old = read_field(state.v, slot);
      for (const u64 value : {u64{0}, ~u64{0}, old ^ bit(random() % 64), random()}) {
        write_field(changed.v, slot, value);
        const EntryContext after{changed.v,          capabilities,       memory.memory,
                                 state.vmcs_address, state.l1_long_mode, changed.code_64bit()};
        const bool vm_changed = ((changed.v.guest_rflags ^ state.v.guest_rflags) & rflags::vm) != 0;
        const GroupMask written = mask(row.group) | (vm_changed ? kVirtual8086 : 0);
        for (const EntryRule& rule : entry_rules()) {
          if ((rule.groups & written) == 0) {
            ASSERT_EQ(rule.holds(after), rule.holds(before)) << rule.name << ": " << row.name;
          }
        }
      }
      write_field(changed.v, slot, old);
    }
  }
}

EntryContext context(const EntryState& s, const Capabilities& capabilities) {
  return {s.v, capabilities, s.memory->memory, s.vmcs_address, s.l1_long_mode, s.code_64bit()};
}

// From a valid VMCS any writes, then run() with just the written groups: the same answer as a check
// of all.
TEST(EntryChecks, IncrementalChecksFindWhatFullOnesFind) {
  SmallMemory memory;
  std::mt19937_64 random{2};
  FieldIndex index;
  const Capabilities capabilities{full_config()};
  index.build(capabilities);
  const auto fields = vmcs12_fields();
  for (const NamedBase& base : kBases) {
    EntryState state = base.make(memory);
    EntryChecks checks;
    GroupMask dirty = kAllGroups;
    for (int step = 0; step < 3000; ++step) {
      const Vmcs12 saved = state.v;
      for (u64 writes = random() % 3; writes > 0; --writes) {
        const FieldRow& row = fields[random() % fields.size()];
        const FieldSlot slot = index.find(row.field);
        const u64 old = read_field(state.v, slot);
        const u64 values[] = {0, old ^ bit(random() % 64), old + 1, random()};
        if (write_field(state.v, slot, values[random() % 4])) {
          dirty |= slot.mask() & kAllGroups;
        }
      }
      const auto expected = failures(state);
      const EntryRule* const failed = checks.run(context(state, capabilities), dirty);
      ASSERT_EQ(failed == nullptr, expected.empty()) << base.name << ", step " << step;
      if (failed != nullptr) {
        ASSERT_EQ(failed->name, expected[0]);
        // L1 puts it right again, most of the time.
        if (random() % 4 != 0) {
          state.v = saved;
        } else {
          state = base.make(memory);
          dirty = kAllGroups;
        }
      } else {
        dirty = 0;
      }
    }
  }
}

TEST(EntryChecks, RipAloneIsCheckedInTheShortCut) {
  SmallMemory memory;
  EntryState s = long_mode_state(memory);
  const Capabilities capabilities{s.config};
  EntryChecks checks;
  ASSERT_EQ(checks.run(context(s, capabilities), kAllGroups), nullptr);
  EXPECT_EQ(checks.reads(s.v, mask(Group::guest_rip)), 0u);
  s.v.guest_rip = 0x1234;
  EXPECT_EQ(checks.run(context(s, capabilities), mask(Group::guest_rip)), nullptr);
  s.v.guest_rip = bit(50);
  const EntryRule* const failed = checks.run(context(s, capabilities), mask(Group::guest_rip));
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->name, "guest RIP fits the mode");
  EXPECT_EQ(checks.run(context(s, capabilities), 0), nullptr);  // not looked at: not dirty
}

// SDM vol. 3, 27.3.1.4: bits 63:48 must be equal, bit 47 may differ from them.
TEST(EntryChecks, RipMayBeJustOutsideTheCanonicalRange) {
  EXPECT_TRUE(is_valid_guest_rip(0x0000'8000'0000'0000, true, 48));
  EXPECT_FALSE(is_valid_guest_rip(0x0001'0000'0000'0000, true, 48));
  EXPECT_TRUE(is_valid_guest_rip(0xffff'0000'0000'0000, true, 48));
  EXPECT_FALSE(is_valid_guest_rip(0xfffe'ffff'ffff'ffff, true, 48));
  EXPECT_TRUE(is_valid_guest_rip(0x00ff'ffff'ffff'ffff, true, 57));
  EXPECT_TRUE(is_valid_guest_rip(0xffff'ffff, false, 48));
  EXPECT_FALSE(is_valid_guest_rip(0x1'0000'0000, false, 48));
}

TEST(EntryChecks, NoticeThatL1LeftLongMode) {
  SmallMemory memory;
  EntryState s = long_mode_state(memory);
  const Capabilities capabilities{s.config};
  EntryChecks checks;
  ASSERT_EQ(checks.run(context(s, capabilities), kAllGroups), nullptr);
  s.l1_long_mode = false;
  for (int i = 0; i < 2; ++i) {
    const EntryRule* const failed = checks.run(context(s, capabilities), 0);
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->instruction_error(), cpu::vmx::InstructionError::entry_invalid_host_state);
  }
  s.l1_long_mode = true;
  EXPECT_EQ(checks.run(context(s, capabilities), 0), nullptr);
}

// Rules that look at L1's memory are never clean.
TEST(EntryChecks, LookAtMemoryAtEveryEntry) {
  SmallMemory memory;
  EntryState s = pae_in_memory_state(memory);
  s.v.vmcs_link_pointer = 0x6000;
  memory.store<u32>(0x6000, kRevisionId);
  const Capabilities capabilities{s.config};
  EntryChecks checks;
  ASSERT_EQ(checks.run(context(s, capabilities), kAllGroups), nullptr);
  EXPECT_NE(checks.reads(s.v, 0) & mask(Group::guest_cr3), 0u);
  memory.store<u32>(0x6000, 0);
  const EntryRule* failed = checks.run(context(s, capabilities), 0);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->outcome, EntryOutcome::link_pointer);
  EXPECT_EQ(failed->qualification(), 4u);
  memory.store<u32>(0x6000, kRevisionId);
  memory.store<u64>(0x1020, bit(60) | 1);
  failed = checks.run(context(s, capabilities), 0);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->qualification(), 2u);
}

// What rules must let pass: the cases that a too strict reading would refuse.
struct Accepted {
  const char* what;
  Base base;
  Mutator change;
};
const Accepted kAccepted[] = {
    {"unactivated secondary controls are not looked at", L,
     [](EntryState& s) {
       s.v.proc_controls &= ~proc::secondary;
       s.v.proc2_controls = ~0u;
     }},
    {"bitmap addresses without their control", L,
     [](EntryState& s) { s.v.io_bitmap_a = s.v.io_bitmap_b = s.v.msr_bitmap = ~u64{0}; }},
    {"MSR areas without entries", L,
     [](EntryState& s) {
       s.v.exit_msr_store_address = s.v.exit_msr_load_address = s.v.entry_msr_load_address =
           ~u64{0};
     }},
    {"an MSR area that ends at the physical-address width", L,
     [](EntryState& s) {
       s.v.entry_msr_load_count = 2;
       s.v.entry_msr_load_address = kWide - 32;
     }},
    {"an invalid event is not looked at", L,
     [](EntryState& s) { s.v.entry_interruption_info = 0x7fff'ffff; }},
    {"uncacheable EPT", P, [](EntryState& s) { s.v.eptp = 0x1000 | (3 << 3); }},
    {"host SS 0 for a 64-bit host", L, [](EntryState& s) { s.v.host_ss_selector = 0; }},
    {"EFER fields without their controls", L,
     [](EntryState& s) { s.v.host_efer = s.v.guest_efer = ~u64{0}; }},
    {"debug registers without their control", L,
     [](EntryState& s) { s.v.guest_dr7 = s.v.guest_debugctl = ~u64{0}; }},
    {"CR0.NW and CD", L, [](EntryState& s) { s.v.guest_cr0 |= cr0::nw | cr0::cd; }},
    {"low bits of CR3", M, [](EntryState& s) { s.v.guest_cr3 |= 0x1f; }},
    {"ignored bits of a PDPTE", P, [](EntryState& s) { s.v.guest_pdpte0 |= 0xe00; }},
    {"an absent PDPTE", P, [](EntryState& s) { s.v.guest_pdpte1 = ~u64{1}; }},
    {"unusable data segments with anything in them", L,
     [](EntryState& s) {
       for (const cpu::SegmentRegister r : {ds, es, ldtr}) {
         s.segment(r) = {0xffff, 0, 0x1234'5678, 0xffff'ffff, 0, ~u64{0}};
       }
     }},
    {"SS unusable", L, [](EntryState& s) { s.segment(ss) = {0, 0, 0, 0x1'0000, 0, ~u64{0}}; }},
    {"a conforming CS below SS's privilege", L,
     [](EntryState& s) {
       for (const cpu::SegmentRegister r : {cs, ss}) {
         s.segment(r).selector |= 3;
       }
       s.segment(ss).access_rights |= 0x60;
       s.segment(cs).access_rights = 0xa09f;
     }},
    {"a data segment in CS, unrestricted", R,
     [](EntryState& s) { s.segment(cs).access_rights = 0x93; }},
    {"RPLs that differ, unrestricted", R,
     [](EntryState& s) {
       s.segment(ss).selector |= 3;
       s.segment(ds).selector |= 3;
     }},
    {"a 16-bit busy TSS of a 32-bit guest", P,
     [](EntryState& s) { s.segment(tr).access_rights = 0x83; }},
    {"#DB into HLT", L,
     [](EntryState& s) {
       s.v.guest_activity = 1;
       s.v.entry_interruption_info = kValid | type(3) | 1;
     }},
    {"NMI into shutdown", L,
     [](EntryState& s) {
       s.v.guest_activity = 2;
       s.v.entry_interruption_info = kValid | type(2) | 2;
     }},
    {"wait-for-SIPI", L, [](EntryState& s) { s.v.guest_activity = 3; }},
    {"blocking by NMI with an NMI that is not virtual", L,
     [](EntryState& s) {
       s.v.guest_interruptibility = 8;
       s.v.entry_interruption_info = kValid | type(2) | 2;
     }},
    {"BS with TF in a MOV-SS shadow", L,
     [](EntryState& s) {
       s.v.guest_interruptibility = 2;
       s.v.guest_rflags |= rflags::tf;
       s.v.guest_pending_debug =
           cpu::vmx::pending_debug::bs | cpu::vmx::pending_debug::enabled_breakpoint | 1;
     }},
    {"TF without BS where nothing blocks", L,
     [](EntryState& s) { s.v.guest_rflags |= rflags::tf; }},
    {"a link to another VMCS", L,
     [](EntryState& s) {
       s.v.vmcs_link_pointer = 0x6000;
       s.memory->store<u32>(0x6000, kRevisionId);
     }},
    {"57-bit addresses where linear addresses are that wide", L,
     [](EntryState& s) {
       s.config.linear_bits = 57;
       s.v.host_fs_base = s.v.host_rip = s.v.guest_sysenter_eip = s.v.guest_rip = bit(50);
       s.segment(tr).base = bit(55);
     }},
    {"a software interrupt of length 0", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(4) | 0x80; }},
    {"a pending monitor trap", L,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(7); }},
    {"#GP with its error code", L,
     [](EntryState& s) {
       s.v.entry_interruption_info = kValid | kErrorValid | type(3) | 13;
       s.v.entry_exception_error = 0xffff;
     }},
    {"real mode's #GP without", R,
     [](EntryState& s) { s.v.entry_interruption_info = kValid | type(3) | 13; }},
    {"#GP without, where any error code goes", L,
     [](EntryState& s) {
       s.config.hidden.remove(Feature::any_error_code);
       s.v.entry_interruption_info = kValid | type(3) | 13;
     }},
};

TEST(EntryRules, AcceptWhatTheManualAllows) {
  for (const Accepted& a : kAccepted) {
    SmallMemory memory;
    EntryState state = a.base(memory);
    a.change(state);
    EXPECT_EQ(failures(state), std::vector<std::string>{}) << a.what;
  }
}

}  // namespace
}  // namespace aerie::nested::vmx
