// The fields of a vmcs12 in groups that are checked, merged and synchronised together. What L1
// writes marks the field's group dirty; a VM entry looks at dirty groups only (DESIGN §3).
#pragma once

#include <array>
#include <string_view>

#include "base/types.h"

namespace aerie::nested::vmx {

enum class Group : u8 {
  // Controls
  pin,         // pin-based controls, posted-interrupt vector and descriptor
  proc,        // primary, secondary and tertiary processor-based controls
  exceptions,  // exception bitmap, page-fault error-code mask and match
  exit,        // VM-exit controls
  entry,       // VM-entry controls
  event,       // VM-entry interruption information, error code, instruction length
  msr_lists,   // counts and addresses of the three MSR areas
  io_bitmaps,
  msr_bitmap,
  tsc,   // TSC offset and multiplier
  apic,  // virtual-APIC and APIC-access addresses, TPR threshold, EOI-exit bitmaps
  ept,   // EPTP
  vpid,
  cr_masks,     // CR0 and CR4 guest/host masks and read shadows
  cr3_targets,  // count and values
  extensions,   // PML, VM functions, #VE, VMREAD and VMWRITE bitmaps, XSS bitmap, PAUSE loops, …
  // Guest state
  guest_rip,  // RIP and RSP
  guest_rflags,
  guest_blocking,  // interruptibility, activity, pending debug exceptions
  guest_cr,        // CR0, CR4
  guest_cr3,
  guest_pdptes,
  guest_debug,  // DR7, DEBUGCTL
  guest_msrs,   // EFER, PAT, PERF_GLOBAL_CTRL, BNDCFGS, PKRS, CET
  guest_sysenter,
  guest_cs_ss,     // CS and SS
  guest_segments,  // ES, DS, FS, GS, LDTR, TR
  guest_tables,    // GDTR and IDTR
  guest_other,     // link pointer, SMBASE, preemption timer, interrupt status, PML index
  // Host state
  host_rip,    // RIP and RSP: loaded as they are at a VM exit
  host_state,  // all the rest
  // VM-exit information: written by L0, never checked nor merged
  information,
};
inline constexpr unsigned kGroups = 32;
static_assert(static_cast<unsigned>(Group::information) == kGroups - 1);

// A set of groups.
using GroupMask = u32;
constexpr GroupMask mask(Group group) { return GroupMask{1} << static_cast<unsigned>(group); }
template <class... G>
constexpr GroupMask mask(Group first, G... rest) {
  return mask(first) | (GroupMask{0} | ... | mask(rest));
}
inline constexpr GroupMask kAllGroups = ~mask(Group::information);

inline constexpr GroupMask kControlGroups =
    mask(Group::pin, Group::proc, Group::exceptions, Group::exit, Group::entry, Group::event,
         Group::msr_lists, Group::io_bitmaps, Group::msr_bitmap, Group::tsc, Group::apic,
         Group::ept, Group::vpid, Group::cr_masks, Group::cr3_targets, Group::extensions);
inline constexpr GroupMask kGuestGroups = mask(
    Group::guest_rip, Group::guest_rflags, Group::guest_blocking, Group::guest_cr, Group::guest_cr3,
    Group::guest_pdptes, Group::guest_debug, Group::guest_msrs, Group::guest_sysenter,
    Group::guest_cs_ss, Group::guest_segments, Group::guest_tables, Group::guest_other);
inline constexpr GroupMask kHostGroups = mask(Group::host_rip, Group::host_state);
static_assert((kControlGroups | kGuestGroups | kHostGroups) == kAllGroups);

// Guest state that L1 rarely reads after a VM exit. The engine may leave it in the control block
// that L2 ran with, the group's bit set in `stale`, until L1 reads or writes a field of it, or a
// check wants it.
inline constexpr GroupMask kLazyGroups = mask(
    Group::guest_cr, Group::guest_cr3, Group::guest_pdptes, Group::guest_debug, Group::guest_msrs,
    Group::guest_sysenter, Group::guest_cs_ss, Group::guest_segments, Group::guest_tables);

inline constexpr std::array<std::string_view, kGroups> kGroupNames = {"pin",
                                                                      "proc",
                                                                      "exceptions",
                                                                      "exit",
                                                                      "entry",
                                                                      "event",
                                                                      "msr_lists",
                                                                      "io_bitmaps",
                                                                      "msr_bitmap",
                                                                      "tsc",
                                                                      "apic",
                                                                      "ept",
                                                                      "vpid",
                                                                      "cr_masks",
                                                                      "cr3_targets",
                                                                      "extensions",
                                                                      "guest_rip",
                                                                      "guest_rflags",
                                                                      "guest_blocking",
                                                                      "guest_cr",
                                                                      "guest_cr3",
                                                                      "guest_pdptes",
                                                                      "guest_debug",
                                                                      "guest_msrs",
                                                                      "guest_sysenter",
                                                                      "guest_cs_ss",
                                                                      "guest_segments",
                                                                      "guest_tables",
                                                                      "guest_other",
                                                                      "host_rip",
                                                                      "host_state",
                                                                      "information"};

}  // namespace aerie::nested::vmx
