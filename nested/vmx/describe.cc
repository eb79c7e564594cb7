#include "nested/vmx/describe.h"

#include <array>
#include <span>

#include "base/log.h"
#include "cpu/arch/msr.h"
#include "nested/vmx/vmcs12_fields.h"

namespace aerie::nested::vmx {
namespace {

using cpu::vmx::ControlWord;
using cpu::vmx::FieldEncoding;
using cpu::vmx::FieldType;
using cpu::vmx::FieldWidth;

constexpr std::array<std::string_view, cpu::vmx::kControlWords> kWordNames = {
    "pin-based", "primary", "secondary", "tertiary", "VM-exit", "VM-entry"};
constexpr std::array<std::string_view, 4> kWidthNames = {"16", "64", "32", "natural"};
constexpr std::array<std::string_view, 4> kTypeNames = {"control", "read-only", "guest", "host"};

template <class... Args>
void print(const LineSink& out, std::string_view pattern, const Args&... args) {
  std::array<char, 256> line;
  const LogArgument list[sizeof...(Args) + 1] = {LogArgument{args}..., LogArgument{0}};
  out({line.data(), format(line, pattern, std::span{list, sizeof...(Args)})});
}

std::string_view control_name(Gate gate) {
  for (const ControlRow& r : controls()) {
    if (r.word == gate.word && (gate.bits >> r.position & 1) != 0) {
      return r.name;
    }
  }
  return {};
}

std::string_view outcome_name(EntryOutcome outcome) {
  switch (outcome) {
    case EntryOutcome::control:
      return "VMfail 7";
    case EntryOutcome::host_state:
      return "VMfail 8";
    case EntryOutcome::guest_state:
      return "exit 33";
    case EntryOutcome::pdpte:
      return "exit 33, qualification 2";
    case EntryOutcome::nmi:
      return "exit 33, qualification 3";
    case EntryOutcome::link_pointer:
      return "exit 33, qualification 4";
  }
  return {};
}

void describe_features(const Capabilities& c, const LineSink& out) {
  out("## Features");
  out("");
  out("`--hide NAME` takes one away, with all that needs it.");
  out("");
  out("| name | offered | needs | remark |");
  out("|---|---|---|---|");
  for (const FeatureRow& r : features()) {
    print(out, "| {} | {} | {} | {} |", r.name, c.has(r.feature) ? "yes" : "no",
          r.needs == Feature::base ? "" : features()[static_cast<usize>(r.needs)].name, r.why);
  }
  out("");
}

void describe_controls(const Capabilities& c, const LineSink& out) {
  out("## Controls (SDM vol. 3, 25.6-25.8)");
  out("");
  out("| word | bit | control | may be |");
  out("|---|---|---|---|");
  for (const ControlRow& r : controls()) {
    const bool one = (c.allowed1(r.word) >> r.position & 1) != 0;
    const bool zero = (c.required1(r.word) >> r.position & 1) == 0;
    print(out, "| {} | {} | {} | {} |", kWordNames[static_cast<usize>(r.word)], r.position, r.name,
          one && zero ? "0 or 1"
          : one       ? "1"
                      : "0");
  }
  out("");
}

void describe_msrs(const Capabilities& c, const LineSink& out) {
  out("## Capability MSRs (SDM vol. 3, appendix A)");
  out("");
  out("0x489, IA32_VMX_CR4_FIXED1, has besides VMXE every bit of CR4 that L1's CPUID allows; "
      "--hide changes");
  out("them all alike.");
  out("");
  out("| MSR | value |");
  out("|---|---|");
  for (u32 index = cpu::msr::vmx_basic; index <= cpu::msr::vmx_procbased3; ++index) {
    if (const auto value = c.msr(index)) {
      print(out, "| {x} | {x} |", index, *value);
    } else {
      print(out, "| {x} | none: #GP |", index);
    }
  }
  out("");
}

void describe_fields(const Capabilities& c, const LineSink& out) {
  out("## VMCS fields (SDM vol. 3, appendix B)");
  out("");
  out("A group is what is checked, merged and synchronised together. A field with a gate exists "
      "where that");
  out("control may be 1; other fields of the manual are not stored.");
  out("");
  out("| encoding | field | type | bits | group | gate | exists |");
  out("|---|---|---|---|---|---|---|");
  for (const FieldRow& r : vmcs12_fields()) {
    const FieldEncoding e{r.field};
    print(out, "| {x} | {} | {} | {} | {} | {} | {} |", e.value, r.name,
          kTypeNames[static_cast<usize>(e.type())], kWidthNames[static_cast<usize>(e.width())],
          kGroupNames[static_cast<usize>(r.group)], control_name(r.gate),
          field_exists(r, c) ? "yes" : "no");
  }
  out("");
}

void describe_checks(const LineSink& out) {
  out("## VM-entry checks (SDM vol. 3, 27.2 and 27.3.1), in their order");
  out("");
  out("| section | condition | else |");
  out("|---|---|---|");
  for (const EntryRule& r : entry_rules()) {
    print(out, "| {} | {} | {} |", r.section, r.name, outcome_name(r.outcome));
  }
}

}  // namespace

void describe_vmx(const Capabilities& capabilities, const LineSink& out) {
  out("# VMX as Aerie offers it to an L1");
  out("");
  out("Printed from the tables in nested/vmx by `describe_vmx > docs/vmx_tables.md`; a test "
      "compares.");
  out("");
  describe_features(capabilities, out);
  describe_controls(capabilities, out);
  describe_msrs(capabilities, out);
  describe_fields(capabilities, out);
  describe_checks(out);
}

void dump_vmcs12(const Vmcs12& vmcs, const Capabilities& capabilities, GroupMask stale,
                 const LineSink& out) {
  for (const FieldRow& r : vmcs12_fields()) {
    if (!field_exists(r, capabilities)) {
      continue;
    }
    const auto shift = static_cast<u8>(64 - 8 * FieldEncoding{r.field}.size());
    const FieldSlot slot{r.offset, static_cast<u8>(r.group),
                         static_cast<u8>(FieldSlot::kPresent | shift)};
    print(out, "{} = {x}{}", r.name, read_field(vmcs, slot),
          (stale & slot.mask()) != 0 ? " (stale)" : "");
  }
}

}  // namespace aerie::nested::vmx
