#include "vmm/policy/describe.h"

#include <cstdio>
#include <string_view>

#include "vmm/policy/cr.h"
#include "vmm/policy/feature.h"
#include "vmm/policy/msr_table.h"

namespace aerie::vmm::policy {
namespace {

std::string hex(u64 value) {
  char text[32];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(value));
  return text;
}
std::string_view vendors(Vendors who) {
  return who == Vendors::both ? "both" : who == Vendors::intel ? "Intel" : "AMD";
}
std::string_view shown(Show show) {
  switch (show) {
    case Show::host:
      return "if the host has it";
    case Show::always:
      return "always";
    case Show::dynamic:
      return "by L1's state";
    case Show::engine:
      return "if nested/ has it";
    case Show::immune:
      return "if the host is immune";
    case Show::never:
      return "never";
  }
  return "";
}
std::string place(const CpuidBit& bit) {
  constexpr std::string_view kRegisters[] = {"EAX", "EBX", "ECX", "EDX"};
  if (bit.leaf == kNoLeaf) {
    return "capability MSRs";
  }
  std::string text = hex(bit.leaf);
  if (bit.subleaf != 0) {
    text += "." + std::to_string(bit.subleaf);
  }
  return text + ":" + std::string{kRegisters[static_cast<u8>(bit.reg)]} + "[" +
         std::to_string(bit.position) + "]";
}
std::string_view home(MsrHome home) {
  switch (home) {
    case MsrHome::hardware:
      return "the processor";
    case MsrHome::constant:
      return "constant";
    case MsrHome::stored:
      return "kept";
    case MsrHome::code:
      return "emulated";
  }
  return "";
}
std::string_view check(MsrCheck check) {
  switch (check) {
    case MsrCheck::any:
      return "any value";
    case MsrCheck::bits:
      return "reserved bits 0";
    case MsrCheck::canonical:
      return "canonical";
    case MsrCheck::canonical_on_intel:
      return "canonical on Intel";
    case MsrCheck::memory_types:
    case MsrCheck::mtrr_pair:
    case MsrCheck::mtrr_default:
      return "memory types, reserved bits 0";
    case MsrCheck::all_or_nothing:
      return "0 or all ones";
    case MsrCheck::machine_check:
      return "as the banks do";
    case MsrCheck::ignored:
      return "ignored";
    case MsrCheck::denied:
      return "#GP";
    case MsrCheck::by_code:
      return "checked";
  }
  return "";
}
std::string_view direct(MsrDirect direct) {
  switch (direct) {
    case MsrDirect::none:
      return "";
    case MsrDirect::read:
      return "read";
    case MsrDirect::read_write:
      return "read, write";
    case MsrDirect::read_while_zero:
      return "read, while 0";
  }
  return "";
}
std::string_view needs(Feature f) { return f == kNoFeature ? std::string_view{} : row_of(f).name; }

template <class... Cells>
void row(std::string& out, const Cells&... cells) {
  out += "|";
  ((out += " ", out += cells, out += " |"), ...);
  out += "\n";
}

template <usize N>
void control_bits(std::string& out, std::string_view name, const ControlBitRow (&rows)[N]) {
  for (const ControlBitRow& r : rows) {
    row(out, std::string{name} + "[" + std::to_string(__builtin_ctzll(r.bit)) + "]", needs(r.needs),
        r.shadow_only ? "L0's: the processor's own differs" : "the processor's");
  }
}

}  // namespace

std::string describe() {
  std::string out =
      "# What L1 sees\n\n"
      "Printed from the tables of vmm/policy by `build/hosted/vmm/policy/describe_policy`; a test "
      "compares it.\n\n"
      "`--cpu intel` shows family 6, model 0x8f (Sapphire Rapids), `--cpu amd` family 0x19, model "
      "0x11 (Genoa), "
      "each with the\nfeatures below. One package, one thread a core, APIC IDs as the machine has "
      "them. Leaf "
      "0x40000000 names `AerieAerieAe`.\n\n"
      "## Features\n\n"
      "`--hide` takes these names and the aliases at the end. Hiding one hides what cannot be "
      "without it.\n\n";
  row(out, "Name", "CPUID", "Shown", "Vendor", "Why");
  row(out, "---", "---", "---", "---", "---");
  for (const FeatureRow& r : feature_table::kRows) {
    row(out, r.name, place(r.bit), shown(r.show), vendors(r.who), r.why);
  }
  out +=
      "\n## MSRs\n\nAny other is #GP(0), read or written. \"Without exit\" is on a host that "
      "checks values as L1's "
      "processor would;\nTCG checks none, so there such writes exit.\n\n";
  row(out, "Number", "Name", "Value is", "Write", "Without exit", "Vendor", "Needs", "Why");
  row(out, "---", "---", "---", "---", "---", "---", "---", "---");
  for (const MsrRow& r : msr_table::kRows) {
    row(out, hex(r.first) + (r.last != r.first ? "-" + hex(r.last) : std::string{}), r.name,
        std::string{home(r.home)} + (r.write_only ? ", write-only" : "") +
            (r.from_host ? ", from firmware" : ""),
        check(r.check), direct(r.direct), vendors(r.who), needs(r.needs), r.why);
  }
  out +=
      "\n## Control registers\n\nCR0 is the processor's. Bits of CR4 and EFER that are not here "
      "are reserved.\n\n";
  row(out, "Bit", "Needs", "Lives in");
  row(out, "---", "---", "---");
  control_bits(out, "CR4", kCr4Bits);
  control_bits(out, "EFER", kEferBits);
  out += "\n## Aliases of feature names\n\n";
  std::string line;
  for (const auto& a : feature_table::kAliases) {
    std::string item = "`" + std::string{a.alias} + "` (" + std::string{a.name} + ")";
    if (line.size() + item.size() > 110) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + item +
            (&a == std::end(feature_table::kAliases) - 1 ? "." : ",");
  }
  return out + line + "\n";
}

}  // namespace aerie::vmm::policy
