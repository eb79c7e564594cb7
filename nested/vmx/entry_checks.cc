#include "nested/vmx/entry_checks.h"

#include <array>
#include <bit>

#include "nested/vmx/entry_rules_controls.h"
#include "nested/vmx/entry_rules_guest.h"
#include "nested/vmx/entry_rules_host.h"
#include "nested/vmx/entry_rules_segments.h"

namespace aerie::nested::vmx {
namespace {

constexpr usize kRuleCount = std::size(rules::kControlRules) + std::size(rules::kHostRules) +
                             std::size(rules::kGuestRegisterRules) +
                             std::size(rules::kSegmentRules) + std::size(rules::kGuestStateRules);

constexpr auto kRules = [] {
  std::array<EntryRule, kRuleCount> all{};
  usize n = 0;
  const auto append = [&](std::span<const EntryRule> part) {
    for (const EntryRule& r : part) {
      all[n++] = r;
    }
  };
  append(rules::kControlRules);
  append(rules::kHostRules);
  append(rules::kGuestRegisterRules);
  append(rules::kSegmentRules);
  append(rules::kGuestStateRules);
  return all;
}();

// The predicates alone, close together.
constexpr auto kHolds = [] {
  std::array<bool (*)(const EntryContext&), kRuleCount> all{};
  for (usize i = 0; i < kRuleCount; ++i) {
    all[i] = kRules[i].holds;
  }
  return all;
}();

// A set of rules, a bit each.
using RuleSet = std::array<u64, (kRuleCount + 63) / 64>;

constexpr auto kRulesOfGroup = [] {
  std::array<RuleSet, kGroups> sets{};
  for (usize rule = 0; rule < kRuleCount; ++rule) {
    for (usize group = 0; group < kGroups; ++group) {
      if ((kRules[rule].groups >> group & 1) != 0) {
        sets[group][rule / 64] |= bit(rule % 64);
      }
    }
  }
  return sets;
}();

constexpr RuleSet rules_of(GroupMask dirty) {
  RuleSet set{};
  for (; dirty != 0; dirty &= dirty - 1) {
    const RuleSet& more = kRulesOfGroup[static_cast<usize>(std::countr_zero(dirty))];
    for (usize i = 0; i < set.size(); ++i) {
      set[i] |= more[i];
    }
  }
  return set;
}

// run()'s short cut knows the one rule that RIP alone can break.
constexpr usize kRipRule = [] {
  usize found = kRuleCount;
  for (usize rule = 0; rule < kRuleCount; ++rule) {
    if ((kRules[rule].groups & mask(Group::guest_rip)) != 0) {
      found = found == kRuleCount ? rule : kRuleCount + 1;
    }
  }
  return found;
}();
static_assert(kRipRule < kRuleCount, "exactly one rule depends on Group::guest_rip");

}  // namespace

std::span<const EntryRule> entry_rules() { return kRules; }

const EntryRule* EntryChecks::rip_rule() { return &kRules[kRipRule]; }

GroupMask EntryChecks::groups_read(GroupMask dirty) {
  const RuleSet set = rules_of(dirty);
  GroupMask groups = 0;
  for (usize i = 0; i < set.size(); ++i) {
    for (u64 word = set[i]; word != 0; word &= word - 1) {
      groups |= kRules[i * 64 + static_cast<usize>(std::countr_zero(word))].groups;
    }
  }
  return groups;
}

const EntryRule* EntryChecks::run_rules(const EntryContext& c, GroupMask dirty) {
  const RuleSet set = rules_of(with_virtual_8086(c.v, dirty));
  for (usize i = 0; i < set.size(); ++i) {
    for (u64 word = set[i]; word != 0; word &= word - 1) {
      const usize rule = i * 64 + static_cast<usize>(std::countr_zero(word));
      if (!kHolds[rule](c)) {
        return &kRules[rule];
      }
    }
  }
  l1_long_mode_ = c.l1_long_mode;
  virtual_8086_ = (c.v.guest_rflags & cpu::rflags::vm) != 0;
  again_ = (c.v.vmcs_link_pointer != rules::kNoLink ? mask(Group::guest_other) : 0) |
           (guest_uses_pae(c) && !c.proc2(cpu::vmx::proc2::ept) ? mask(Group::guest_pdptes) : 0) |
           (c.proc(cpu::vmx::proc::tpr_shadow) ? mask(Group::apic) : 0);
  return nullptr;
}

}  // namespace aerie::nested::vmx
