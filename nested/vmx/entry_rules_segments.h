// VM-entry checks of guest segment registers: SDM vol. 3, 27.3.1.2. Part of entry_checks.cc.
#pragma once

#include "nested/vmx/entry_rules_host.h"

namespace aerie::nested::vmx {

constexpr const VmcsSegment& segment(RuleContext c, cpu::SegmentRegister r) {
  return c.v.guest_segments[static_cast<u8>(r)];
}

constexpr bool is_virtual_8086(RuleContext c) { return (c.v.guest_rflags & cpu::rflags::vm) != 0; }

namespace rules {

using enum cpu::SegmentRegister;

inline constexpr cpu::SegmentRegister kUserSegments[] = {cs, ss, ds, es, fs, gs};
inline constexpr cpu::SegmentRegister kDataSegments[] = {ds, es, fs, gs};

inline constexpr GroupMask kSegmentGroups = mask(Group::guest_cs_ss, Group::guest_segments);

// Whether `condition` holds for the segments among `registers` that are usable.
template <usize N, class F>
constexpr bool all_usable(RuleContext c, const cpu::SegmentRegister (&registers)[N], F condition) {
  for (const cpu::SegmentRegister r : registers) {
    const VmcsSegment& s = segment(c, r);
    if (s.usable() && !condition(s)) {
      return false;
    }
  }
  return true;
}
template <usize N, class F>
constexpr bool all(RuleContext c, const cpu::SegmentRegister (&registers)[N], F condition) {
  for (const cpu::SegmentRegister r : registers) {
    if (!condition(segment(c, r))) {
      return false;
    }
  }
  return true;
}

constexpr bool base_has_32_bits(const VmcsSegment& s) { return (s.base >> 32) == 0; }
constexpr bool is_system(const VmcsSegment& s) { return !s.code_or_data(); }
// Access-rights bits 11:8 and 31:17.
constexpr bool reserved_clear(const VmcsSegment& s) { return (s.access_rights & 0xfffe'0f00) == 0; }
// G must be 0 if any of the limit's bits 11:0 is 0, and 1 if any of its bits 31:20 is 1.
constexpr bool granularity_fits(const VmcsSegment& s) {
  const bool not_pages = (s.limit & 0xfff) != 0xfff;
  const bool not_bytes = (s.limit >> 20) != 0;
  return s.granularity() ? !not_pages : !not_bytes;
}
constexpr unsigned rpl(const VmcsSegment& s) { return s.selector & 3; }

// CS types: 9, 11, 13, 15 are accessed code, 3 is writable data, for real mode.
constexpr bool is_code_type(unsigned type) { return (type & 9) == 9; }

inline constexpr EntryRule kSegmentRules[] = {
    // Selectors
    {"guest TR selector: TI is 0", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_segments), [](RuleContext c) { return (segment(c, tr).selector & 4) == 0; }},
    {"guest LDTR selector: TI is 0", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_segments),
     [](RuleContext c) {
       return !segment(c, ldtr).usable() || (segment(c, ldtr).selector & 4) == 0;
     }},
    {"guest SS selector: RPL is that of CS", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss, Group::proc) | kVirtual8086,
     [](RuleContext c) {
       return is_virtual_8086(c) || c.unrestricted() || rpl(segment(c, ss)) == rpl(segment(c, cs));
     }},
    // Bases
    {"virtual-8086 guest: segment bases are selectors times 16", "27.3.1.2",
     EntryOutcome::guest_state, kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       return !is_virtual_8086(c) || all(c, kUserSegments, [](const VmcsSegment& s) {
         return s.base == u64{s.selector} << 4;
       });
     }},
    {"guest TR, FS and GS bases are canonical", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_segments),
     [](RuleContext c) {
       return is_canonical_for(c, segment(c, tr).base) &&
              is_canonical_for(c, segment(c, fs).base) && is_canonical_for(c, segment(c, gs).base);
     }},
    {"guest LDTR base is canonical", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_segments),
     [](RuleContext c) {
       return !segment(c, ldtr).usable() || is_canonical_for(c, segment(c, ldtr).base);
     }},
    {"guest CS base has 32 bits", "27.3.1.2", EntryOutcome::guest_state, mask(Group::guest_cs_ss),
     [](RuleContext c) { return base_has_32_bits(segment(c, cs)); }},
    {"guest SS, DS and ES bases have 32 bits", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups,
     [](RuleContext c) {
       constexpr cpu::SegmentRegister kRegisters[] = {ss, ds, es};
       return all_usable(c, kRegisters, base_has_32_bits);
     }},
    // Limits
    {"virtual-8086 guest: segment limits are 0xffff", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       return !is_virtual_8086(c) ||
              all(c, kUserSegments, [](const VmcsSegment& s) { return s.limit == 0xffff; });
     }},
    // Access rights
    {"virtual-8086 guest: segment access rights are 0xf3", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       return !is_virtual_8086(c) ||
              all(c, kUserSegments, [](const VmcsSegment& s) { return s.access_rights == 0xf3; });
     }},
    {"guest CS type", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss, Group::proc) | kVirtual8086,
     [](RuleContext c) {
       const unsigned type = segment(c, cs).type();
       return is_virtual_8086(c) || is_code_type(type) || (c.unrestricted() && type == 3);
     }},
    {"guest SS type is 3 or 7", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss) | kVirtual8086,
     [](RuleContext c) {
       const VmcsSegment& s = segment(c, ss);
       return is_virtual_8086(c) || !s.usable() || s.type() == 3 || s.type() == 7;
     }},
    {"guest DS, ES, FS and GS types: accessed, and readable if code", "27.3.1.2",
     EntryOutcome::guest_state, mask(Group::guest_segments) | kVirtual8086,
     [](RuleContext c) {
       return is_virtual_8086(c) || all_usable(c, kDataSegments, [](const VmcsSegment& s) {
                return (s.type() & 1) != 0 && ((s.type() & 8) == 0 || (s.type() & 2) != 0);
              });
     }},
    {"guest CS is no system segment", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss) | kVirtual8086,
     [](RuleContext c) { return is_virtual_8086(c) || segment(c, cs).code_or_data(); }},
    {"guest SS, DS, ES, FS and GS are no system segments", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       constexpr cpu::SegmentRegister kRegisters[] = {ss, ds, es, fs, gs};
       return is_virtual_8086(c) ||
              all_usable(c, kRegisters, [](const VmcsSegment& s) { return s.code_or_data(); });
     }},
    {"guest CS DPL", "27.3.1.2", EntryOutcome::guest_state, mask(Group::guest_cs_ss) | kVirtual8086,
     [](RuleContext c) {
       const VmcsSegment& code = segment(c, cs);
       const unsigned stack_dpl = segment(c, ss).dpl();
       if (is_virtual_8086(c)) {
         return true;
       }
       switch (code.type()) {
         case 3:
           return code.dpl() == 0;
         case 9:
         case 11:
           return code.dpl() == stack_dpl;
         default:  // conforming
           return code.dpl() <= stack_dpl;
       }
     }},
    {"guest SS DPL is the selector's RPL", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss, Group::proc) | kVirtual8086,
     [](RuleContext c) {
       const VmcsSegment& s = segment(c, ss);
       return is_virtual_8086(c) || c.unrestricted() || s.dpl() == rpl(s);
     }},
    {"guest SS DPL is 0 in real mode or with a data segment in CS", "27.3.1.2",
     EntryOutcome::guest_state, mask(Group::guest_cs_ss, Group::guest_cr) | kVirtual8086,
     [](RuleContext c) {
       const bool real = (c.v.guest_cr0 & cr0::pe) == 0 || segment(c, cs).type() == 3;
       return is_virtual_8086(c) || !real || segment(c, ss).dpl() == 0;
     }},
    {"guest DS, ES, FS and GS DPL is not below the selector's RPL", "27.3.1.2",
     EntryOutcome::guest_state, mask(Group::guest_segments, Group::proc) | kVirtual8086,
     [](RuleContext c) {
       // Conforming code (types 12 to 15) is exempt.
       return is_virtual_8086(c) || c.unrestricted() ||
              all_usable(c, kDataSegments,
                         [](const VmcsSegment& s) { return s.type() > 11 || s.dpl() >= rpl(s); });
     }},
    {"guest CS is present", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss) | kVirtual8086,
     [](RuleContext c) { return is_virtual_8086(c) || segment(c, cs).present(); }},
    {"guest SS, DS, ES, FS and GS are present", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       constexpr cpu::SegmentRegister kRegisters[] = {ss, ds, es, fs, gs};
       return is_virtual_8086(c) ||
              all_usable(c, kRegisters, [](const VmcsSegment& s) { return s.present(); });
     }},
    {"guest segment access rights: reserved bits", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       constexpr cpu::SegmentRegister kRegisters[] = {ss, ds, es, fs, gs};
       return is_virtual_8086(c) ||
              (reserved_clear(segment(c, cs)) && all_usable(c, kRegisters, reserved_clear));
     }},
    {"guest CS: D/B is 0 with L in IA-32e mode", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_cs_ss, Group::entry) | kVirtual8086,
     [](RuleContext c) {
       const VmcsSegment& code = segment(c, cs);
       return is_virtual_8086(c) || !c.ia32e_guest() || !code.long_mode() || !code.default_big();
     }},
    {"guest segment limits fit G", "27.3.1.2", EntryOutcome::guest_state,
     kSegmentGroups | kVirtual8086,
     [](RuleContext c) {
       constexpr cpu::SegmentRegister kRegisters[] = {ss, ds, es, fs, gs};
       return is_virtual_8086(c) ||
              (granularity_fits(segment(c, cs)) && all_usable(c, kRegisters, granularity_fits));
     }},
    {"guest TR is a busy TSS", "27.3.1.2", EntryOutcome::guest_state,
     mask(Group::guest_segments, Group::entry),
     [](RuleContext c) {
       const unsigned type = segment(c, tr).type();
       return is_system(segment(c, tr)) && (type == 11 || (type == 3 && !c.ia32e_guest()));
     }},
    {"guest TR is usable and present, reserved bits clear, limit fits G", "27.3.1.2",
     EntryOutcome::guest_state, mask(Group::guest_segments),
     [](RuleContext c) {
       const VmcsSegment& s = segment(c, tr);
       return s.usable() && s.present() && reserved_clear(s) && granularity_fits(s);
     }},
    {"guest LDTR is an LDT", "27.3.1.2", EntryOutcome::guest_state, mask(Group::guest_segments),
     [](RuleContext c) {
       const VmcsSegment& s = segment(c, ldtr);
       return !s.usable() || (is_system(s) && s.type() == 2);
     }},
    {"guest LDTR is present, reserved bits clear, limit fits G", "27.3.1.2",
     EntryOutcome::guest_state, mask(Group::guest_segments),
     [](RuleContext c) {
       const VmcsSegment& s = segment(c, ldtr);
       return !s.usable() || (s.present() && reserved_clear(s) && granularity_fits(s));
     }},
};

}  // namespace rules
}  // namespace aerie::nested::vmx
