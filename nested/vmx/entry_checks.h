// The checks that a VM entry makes of a VMCS, as a table of rules in the order of SDM vol. 3, 27.2
// and 27.3.1, evaluated incrementally: a rule is looked at again only when a group that it depends
// on has changed.
//
// Not here: what VMLAUNCH and VMRESUME check before (26.3, no current VMCS, MOV-SS blocking, launch
// state), and the loading of MSRs after (27.4).
#pragma once

#include <span>
#include <string_view>

#include "base/address.h"
#include "cpu/vmx/controls.h"
#include "cpu/vmx/exit_reason.h"
#include "mmu/l1_memory.h"
#include "nested/vmx/capabilities.h"
#include "nested/vmx/groups.h"
#include "nested/vmx/vmcs12.h"

namespace aerie::nested::vmx {

// What the rules look at.
struct EntryContext {
  const Vmcs12& v;
  const Capabilities& capabilities;
  const mmu::L1Memory& memory;
  Gpa vmcs_address;   // of the current VMCS
  bool l1_long_mode;  // L1's IA32_EFER.LMA
  // L2 will run 64-bit code: "IA-32e mode guest" and CS.L. Apart, because CS may be stale in `v`.
  bool code_64bit;

  constexpr bool pin(u32 bit) const { return (v.pin_controls & bit) != 0; }
  constexpr bool proc(u32 bit) const { return (v.proc_controls & bit) != 0; }
  // Secondary controls count only where they are activated.
  constexpr bool proc2(u32 bit) const {
    return proc(cpu::vmx::proc::secondary) && (v.proc2_controls & bit) != 0;
  }
  constexpr bool exit(u32 bit) const { return (v.exit_controls & bit) != 0; }
  constexpr bool entry(u32 bit) const { return (v.entry_controls & bit) != 0; }
  constexpr bool unrestricted() const { return proc2(cpu::vmx::proc2::unrestricted_guest); }
  constexpr bool ia32e_guest() const { return entry(cpu::vmx::entry::ia32e_guest); }
  constexpr bool host_64() const { return exit(cpu::vmx::exit::host_64); }
};

// What a failure means to L1.
enum class EntryOutcome : u8 {
  control,       // VMfail with InstructionError::entry_invalid_control
  host_state,    // VMfail with InstructionError::entry_invalid_host_state
  guest_state,   // VM exit 33, qualification 0
  pdpte,         // VM exit 33, qualification 2
  nmi,           // VM exit 33, qualification 3
  link_pointer,  // VM exit 33, qualification 4
};

struct EntryRule {
  std::string_view name;     // the condition that must hold
  std::string_view section;  // of SDM vol. 3
  EntryOutcome outcome;
  GroupMask groups;  // that it depends on, kVirtual8086 among them
  bool (*holds)(const EntryContext& c);

  constexpr bool vm_fails() const { return outcome <= EntryOutcome::host_state; }
  // If vm_fails():
  constexpr cpu::vmx::InstructionError instruction_error() const {
    return outcome == EntryOutcome::control ? cpu::vmx::InstructionError::entry_invalid_control
                                            : cpu::vmx::InstructionError::entry_invalid_host_state;
  }
  // Else: the exit qualification.
  constexpr u64 qualification() const {
    using cpu::vmx::EntryFailureQualification;
    switch (outcome) {
      case EntryOutcome::pdpte:
        return static_cast<u64>(EntryFailureQualification::pdpte);
      case EntryOutcome::nmi:
        return static_cast<u64>(EntryFailureQualification::nmi);
      case EntryOutcome::link_pointer:
        return static_cast<u64>(EntryFailureQualification::link_pointer);
      default:
        return static_cast<u64>(EntryFailureQualification::other);
    }
  }
};

// All rules, in the order in which they are made.
std::span<const EntryRule> entry_rules();

// SDM vol. 3, 27.3.1.4: in 64-bit code RIP's bits 63:N must be equal, N the width of linear
// addresses (not bits 63:N-1: RIP may be just outside the canonical range); else bits 63:32 must be
// 0.
constexpr bool is_valid_guest_rip(u64 rip, bool code_64bit, unsigned linear_bits) {
  if (!code_64bit) {
    return (rip >> 32) == 0;
  }
  const i64 top = static_cast<i64>(rip) >> linear_bits;
  return top == 0 || top == -1;
}

// Stands, in a rule's groups, for RFLAGS.VM alone: rules that are about virtual-8086 mode or not
// about it are many, and RFLAGS changes often, but this flag does not. It takes the bit of the one
// group that no rule depends on.
inline constexpr GroupMask kVirtual8086 = mask(Group::information);
static_assert((kVirtual8086 & kAllGroups) == 0);

// The checks of one vmcs12 over its entries. `dirty` of run() are the groups that were written, by
// L1 or by an exit that stored something else than the processor ran with, since the last run()
// that found no fault; at first, and after the vmcs12 was loaded from memory, kAllGroups.
class EntryChecks {
 public:
  // The first rule that does not hold, or nullptr.
  const EntryRule* run(const EntryContext& c, GroupMask dirty) {
    // Groups whose rules also look at L1's memory are never clean.
    dirty |= again_;
    if (c.l1_long_mode != l1_long_mode_) [[unlikely]] {
      dirty |= mask(Group::exit, Group::entry);
    }
    if ((dirty & ~mask(Group::guest_rip)) == 0) [[likely]] {
      return dirty == 0 ||
                     is_valid_guest_rip(c.v.guest_rip, c.code_64bit, c.capabilities.linear_bits())
                 ? nullptr
                 : rip_rule();
    }
    return run_rules(c, dirty);
  }

  // Groups of the vmcs12 that run() will read with these groups dirty, RIP's own apart: stale ones
  // among them are to be synchronised first.
  GroupMask reads(const Vmcs12& v, GroupMask dirty) const {
    dirty |= again_;
    return (dirty & ~mask(Group::guest_rip)) == 0 ? 0 : groups_read(with_virtual_8086(v, dirty));
  }

 private:
  GroupMask with_virtual_8086(const Vmcs12& v, GroupMask dirty) const {
    const bool now = (v.guest_rflags & cpu::rflags::vm) != 0;
    return now != virtual_8086_ ? dirty | kVirtual8086 : dirty;
  }
  const EntryRule* run_rules(const EntryContext& c, GroupMask dirty);
  static const EntryRule* rip_rule();
  static GroupMask groups_read(GroupMask dirty);

  GroupMask again_ = 0;
  // As of the last run() that found no fault.
  bool l1_long_mode_ = false;
  bool virtual_8086_ = false;
};

}  // namespace aerie::nested::vmx
