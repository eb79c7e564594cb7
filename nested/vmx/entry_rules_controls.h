// VM-entry checks of the VMX controls: SDM vol. 3, 27.2.1. Part of entry_checks.cc.
#pragma once

#include "base/bits.h"
#include "nested/vmx/entry_checks.h"

namespace aerie::nested::vmx {

using RuleContext = const EntryContext&;

constexpr bool is_physical(RuleContext c, u64 address) {
  return (address >> c.capabilities.physical_bits()) == 0;
}
constexpr bool is_physical_page(RuleContext c, u64 address) {
  return (address & kPageMask) == 0 && is_physical(c, address);
}
// An area of `count` entries of an MSR list, 16 bytes each: aligned, and all of it within the width
// of physical addresses.
constexpr bool is_msr_area(RuleContext c, u64 address, u32 count) {
  return count == 0 || ((address & 15) == 0 && is_physical(c, address) &&
                        is_physical(c, address + u64{count} * 16 - 1));
}

// The event to be injected, where the field is valid.
constexpr bool injects(RuleContext c) {
  return (c.v.entry_interruption_info & cpu::vmx::interruption_info::valid) != 0;
}
constexpr cpu::EventType injected_type(RuleContext c) {
  return cpu::vmx::interruption_info::type(c.v.entry_interruption_info);
}
constexpr u8 injected_vector(RuleContext c) {
  return cpu::vmx::interruption_info::vector(c.v.entry_interruption_info);
}
constexpr bool injects(RuleContext c, cpu::EventType type) {
  return injects(c) && injected_type(c) == type;
}
constexpr bool injected_error(RuleContext c) {
  return (c.v.entry_interruption_info & cpu::vmx::interruption_info::error_valid) != 0;
}

// Exceptions that deliver an error code in protected mode; #CP exists with CET only.
constexpr bool delivers_error(RuleContext c, u8 vector) {
  return cpu::has_error_code(vector) &&
         (vector != static_cast<u8>(cpu::Exception::cp) || c.capabilities.has(Feature::cet));
}

namespace rules {

namespace pin = cpu::vmx::pin;
namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;
namespace entry = cpu::vmx::entry;
namespace exit = cpu::vmx::exit;
using cpu::EventType;
using cpu::vmx::ControlWord;

inline constexpr EntryRule kControlRules[] = {
    // 27.2.1.1 VM-execution control fields
    {"pin-based controls: reserved bits", "27.2.1.1", EntryOutcome::control, mask(Group::pin),
     [](RuleContext c) { return c.capabilities.valid(ControlWord::pin, c.v.pin_controls); }},
    {"primary processor-based controls: reserved bits", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc),
     [](RuleContext c) { return c.capabilities.valid(ControlWord::proc, c.v.proc_controls); }},
    {"secondary processor-based controls: reserved bits", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc),
     [](RuleContext c) {
       return !c.proc(proc::secondary) ||
              c.capabilities.valid(ControlWord::proc2, c.v.proc2_controls);
     }},
    {"tertiary processor-based controls: reserved bits", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc),
     [](RuleContext c) {
       return !c.proc(proc::tertiary) ||
              c.capabilities.valid(ControlWord::proc3, c.v.tertiary_controls);
     }},
    {"CR3-target count at most that of IA32_VMX_MISC", "27.2.1.1", EntryOutcome::control,
     mask(Group::cr3_targets), [](RuleContext c) { return c.v.cr3_target_count <= kCr3Targets; }},
    {"I/O-bitmap addresses: page-aligned, within the physical-address width", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc, Group::io_bitmaps),
     [](RuleContext c) {
       return !c.proc(proc::io_bitmaps) ||
              (is_physical_page(c, c.v.io_bitmap_a) && is_physical_page(c, c.v.io_bitmap_b));
     }},
    {"MSR-bitmap address: page-aligned, within the physical-address width", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc, Group::msr_bitmap),
     [](RuleContext c) {
       return !c.proc(proc::msr_bitmaps) || is_physical_page(c, c.v.msr_bitmap);
     }},
    {"virtual-APIC address: page-aligned, within the physical-address width", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc, Group::apic),
     [](RuleContext c) {
       return !c.proc(proc::tpr_shadow) || is_physical_page(c, c.v.virtual_apic_address);
     }},
    {"TPR threshold: bits 31:4 are 0 without virtual-interrupt delivery", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc, Group::apic),
     [](RuleContext c) {
       return !c.proc(proc::tpr_shadow) || c.proc2(proc2::virtual_interrupts) ||
              (c.v.tpr_threshold >> 4) == 0;
     }},
    {"TPR threshold: not above VTPR", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc, Group::apic),
     [](RuleContext c) {
       if (!c.proc(proc::tpr_shadow) ||
           c.proc2(proc2::virtual_interrupts | proc2::virtualize_apic)) {
         return true;
       }
       // Where the page is no memory, it reads as all ones.
       constexpr u64 kVtprOffset = 0x80;
       const u8 vtpr =
           c.memory.read<u8>(Gpa{c.v.virtual_apic_address + kVtprOffset}).value_or(0xff);
       return (c.v.tpr_threshold & 15) <= (vtpr >> 4);
     }},
    {"virtual NMIs need NMI exiting", "27.2.1.1", EntryOutcome::control, mask(Group::pin),
     [](RuleContext c) { return !c.pin(pin::virtual_nmis) || c.pin(pin::nmi); }},
    {"NMI-window exiting needs virtual NMIs", "27.2.1.1", EntryOutcome::control,
     mask(Group::pin, Group::proc),
     [](RuleContext c) { return !c.proc(proc::nmi_window) || c.pin(pin::virtual_nmis); }},
    {"APIC-access address: page-aligned, within the physical-address width", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc, Group::apic),
     [](RuleContext c) {
       return !c.proc2(proc2::virtualize_apic) || is_physical_page(c, c.v.apic_access_address);
     }},
    {"x2APIC, APIC-register and virtual-interrupt virtualization need the TPR shadow", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc),
     [](RuleContext c) {
       return c.proc(proc::tpr_shadow) ||
              !c.proc2(proc2::virtualize_x2apic | proc2::apic_register | proc2::virtual_interrupts);
     }},
    {"x2APIC mode and APIC accesses are not virtualized both", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc),
     [](RuleContext c) {
       return !c.proc2(proc2::virtualize_x2apic) || !c.proc2(proc2::virtualize_apic);
     }},
    {"virtual-interrupt delivery needs external-interrupt exiting", "27.2.1.1",
     EntryOutcome::control, mask(Group::pin, Group::proc),
     [](RuleContext c) {
       return !c.proc2(proc2::virtual_interrupts) || c.pin(pin::external_interrupt);
     }},
    {"posted interrupts need virtual-interrupt delivery and acknowledge-interrupt-on-exit",
     "27.2.1.1", EntryOutcome::control, mask(Group::pin, Group::proc, Group::exit),
     [](RuleContext c) {
       return !c.pin(pin::posted_interrupts) ||
              (c.proc2(proc2::virtual_interrupts) && c.exit(exit::acknowledge_interrupt));
     }},
    {"posted-interrupt notification vector is at most 255", "27.2.1.1", EntryOutcome::control,
     mask(Group::pin),
     [](RuleContext c) {
       return !c.pin(pin::posted_interrupts) || c.v.posted_interrupt_vector <= 0xff;
     }},
    {"posted-interrupt descriptor: 64-byte aligned, within the physical-address width", "27.2.1.1",
     EntryOutcome::control, mask(Group::pin),
     [](RuleContext c) {
       return !c.pin(pin::posted_interrupts) || ((c.v.posted_interrupt_descriptor & 63) == 0 &&
                                                 is_physical(c, c.v.posted_interrupt_descriptor));
     }},
    {"VPID is not 0", "27.2.1.1", EntryOutcome::control, mask(Group::proc, Group::vpid),
     [](RuleContext c) { return !c.proc2(proc2::vpid) || c.v.vpid != 0; }},
    {"EPTP: supported memory type", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc, Group::ept),
     [](RuleContext c) {
       const unsigned type = cpu::vmx::Eptp{c.v.eptp}.memory_type();
       const u64 offered = c.capabilities.ept_vpid();
       return !c.proc2(proc2::ept) || (type == 0 && (offered & ept_vpid_cap::uncacheable) != 0) ||
              (type == 6 && (offered & ept_vpid_cap::write_back) != 0);
     }},
    {"EPTP: supported page-walk length", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc, Group::ept),
     [](RuleContext c) {
       const unsigned levels = cpu::vmx::Eptp{c.v.eptp}.levels();
       const u64 offered = c.capabilities.ept_vpid();
       return !c.proc2(proc2::ept) || (levels == 4 && (offered & ept_vpid_cap::levels_4) != 0) ||
              (levels == 5 && (offered & ept_vpid_cap::levels_5) != 0);
     }},
    {"EPTP: accessed and dirty flags supported", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc, Group::ept),
     [](RuleContext c) {
       return !c.proc2(proc2::ept) || !cpu::vmx::Eptp{c.v.eptp}.accessed_dirty() ||
              (c.capabilities.ept_vpid() & ept_vpid_cap::accessed_dirty) != 0;
     }},
    {"EPTP: reserved bits", "27.2.1.1", EntryOutcome::control, mask(Group::proc, Group::ept),
     [](RuleContext c) {
       // Bit 7 is for supervisor shadow stacks, which are not offered.
       return !c.proc2(proc2::ept) ||
              ((c.v.eptp & (cpu::vmx::Eptp::kReserved | bit(7))) == 0 && is_physical(c, c.v.eptp));
     }},
    {"PML needs EPT", "27.2.1.1", EntryOutcome::control, mask(Group::proc),
     [](RuleContext c) { return !c.proc2(proc2::pml) || c.proc2(proc2::ept); }},
    {"PML address: page-aligned, within the physical-address width", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc, Group::extensions),
     [](RuleContext c) { return !c.proc2(proc2::pml) || is_physical_page(c, c.v.pml_address); }},
    {"unrestricted guest and mode-based execute control need EPT", "27.2.1.1",
     EntryOutcome::control, mask(Group::proc),
     [](RuleContext c) {
       return !c.proc2(proc2::unrestricted_guest | proc2::mode_based_execute) ||
              c.proc2(proc2::ept);
     }},
    {"VM functions: reserved bits", "27.2.1.1", EntryOutcome::control,
     mask(Group::proc, Group::extensions),
     [](RuleContext c) {
       return !c.proc2(proc2::vmfunc) || (c.v.vm_function_controls & ~bit(0)) == 0;
     }},
    {"EPTP switching: needs EPT; list address page-aligned, within the physical-address width",
     "27.2.1.1", EntryOutcome::control, mask(Group::proc, Group::extensions),
     [](RuleContext c) {
       return !c.proc2(proc2::vmfunc) || (c.v.vm_function_controls & bit(0)) == 0 ||
              (c.proc2(proc2::ept) && is_physical_page(c, c.v.eptp_list_address));
     }},
    {"VMREAD- and VMWRITE-bitmap addresses: page-aligned, within the physical-address width",
     "27.2.1.1", EntryOutcome::control, mask(Group::proc, Group::extensions),
     [](RuleContext c) {
       return !c.proc2(proc2::vmcs_shadowing) ||
              (is_physical_page(c, c.v.vmread_bitmap) && is_physical_page(c, c.v.vmwrite_bitmap));
     }},
    {"virtualization-exception information: page-aligned, within the physical-address width",
     "27.2.1.1", EntryOutcome::control, mask(Group::proc, Group::extensions),
     [](RuleContext c) {
       return !c.proc2(proc2::ept_ve) || is_physical_page(c, c.v.ve_information_address);
     }},

    // 27.2.1.2 VM-exit control fields
    {"VM-exit controls: reserved bits", "27.2.1.2", EntryOutcome::control, mask(Group::exit),
     [](RuleContext c) { return c.capabilities.valid(ControlWord::exit, c.v.exit_controls); }},
    {"saving the VMX-preemption timer needs the timer", "27.2.1.2", EntryOutcome::control,
     mask(Group::pin, Group::exit),
     [](RuleContext c) {
       return !c.exit(exit::save_preemption_timer) || c.pin(pin::preemption_timer);
     }},
    {"VM-exit MSR-store area: 16-byte aligned, within the physical-address width", "27.2.1.2",
     EntryOutcome::control, mask(Group::msr_lists),
     [](RuleContext c) {
       return is_msr_area(c, c.v.exit_msr_store_address, c.v.exit_msr_store_count);
     }},
    {"VM-exit MSR-load area: 16-byte aligned, within the physical-address width", "27.2.1.2",
     EntryOutcome::control, mask(Group::msr_lists),
     [](RuleContext c) {
       return is_msr_area(c, c.v.exit_msr_load_address, c.v.exit_msr_load_count);
     }},

    // 27.2.1.3 VM-entry control fields
    {"VM-entry controls: reserved bits", "27.2.1.3", EntryOutcome::control, mask(Group::entry),
     [](RuleContext c) { return c.capabilities.valid(ControlWord::entry, c.v.entry_controls); }},
    {"event: type is not reserved", "27.2.1.3", EntryOutcome::control, mask(Group::event),
     [](RuleContext c) {
       // Type 7 stands for a pending monitor trap, where that exists.
       return !injects(c) ||
              (static_cast<u8>(injected_type(c)) != 1 &&
               (injected_type(c) != EventType::other || c.capabilities.has(Feature::monitor_trap)));
     }},
    {"event: vector fits the type", "27.2.1.3", EntryOutcome::control, mask(Group::event),
     [](RuleContext c) {
       return !(injects(c, EventType::nmi) && injected_vector(c) != 2) &&
              !(injects(c, EventType::hardware_exception) && injected_vector(c) > 31) &&
              !(injects(c, EventType::other) && injected_vector(c) != 0);
     }},
    {"event: error code exactly where the exception delivers one", "27.2.1.3",
     EntryOutcome::control, mask(Group::event, Group::proc, Group::guest_cr),
     [](RuleContext c) {
       if (!injects(c)) {
         return true;
       }
       // In real mode, where unrestricted guest allows it, nothing delivers one.
       const bool exception = injects(c, EventType::hardware_exception);
       const bool real_mode = c.unrestricted() && (c.v.guest_cr0 & cpu::cr0::pe) == 0;
       if (exception && !real_mode && c.capabilities.has(Feature::any_error_code)) {
         return true;
       }
       return injected_error(c) ==
              (exception && !real_mode && delivers_error(c, injected_vector(c)));
     }},
    {"event: reserved bits", "27.2.1.3", EntryOutcome::control, mask(Group::event),
     [](RuleContext c) {
       return !injects(c) ||
              (c.v.entry_interruption_info & cpu::vmx::interruption_info::entry_reserved) == 0;
     }},
    {"event: error code has 16 bits", "27.2.1.3", EntryOutcome::control, mask(Group::event),
     [](RuleContext c) {
       return !injects(c) || !injected_error(c) || (c.v.entry_exception_error >> 16) == 0;
     }},
    {"event: instruction length of a software event", "27.2.1.3", EntryOutcome::control,
     mask(Group::event),
     [](RuleContext c) {
       const u32 length = c.v.entry_instruction_length;
       return !injects(c) || !cpu::vmx::is_software_event(injected_type(c)) ||
              (length <= 15 && (length != 0 || c.capabilities.has(Feature::zero_length_events)));
     }},
    {"VM-entry MSR-load area: 16-byte aligned, within the physical-address width", "27.2.1.3",
     EntryOutcome::control, mask(Group::msr_lists),
     [](RuleContext c) {
       return is_msr_area(c, c.v.entry_msr_load_address, c.v.entry_msr_load_count);
     }},
    {"no entry to SMM nor deactivation of dual-monitor treatment outside SMM", "27.2.1.3",
     EntryOutcome::control, mask(Group::entry),
     [](RuleContext c) { return !c.entry(entry::smm | entry::deactivate_dual_monitor); }},
};

}  // namespace rules
}  // namespace aerie::nested::vmx
