#include "tests/guests/runtime/cases.h"

#include "base/bits.h"
#include "cpu/arch/instructions.h"
#include "cpu/arch/msr.h"
#include "tests/guests/runtime/acpi.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/memory.h"
#include "tests/guests/runtime/start.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

enum class Outcome : u8 { running, failed, skipped };
const Case* current = nullptr;
Outcome outcome;
void (*case_end)() = nullptr;

struct NeedCheck {
  u32 need;
  bool (*met)();
  std::string_view reason;
};
constexpr NeedCheck kNeeds[] = {
    {two_cpus, [] { return cpu_count() >= 2; }, "needs two processors"},
    {x2apic, [] { return has_x2apic(); }, "no x2APIC"},
    {no_x2apic, [] { return !in_x2apic(); }, "the processor is in x2APIC mode"},
    {in_x2apic_mode, [] { return in_x2apic(); }, "the processor is in xAPIC mode"},
    {deadline, [] { return (cpu::cpuid(1).ecx & bit(24)) != 0; }, "no TSC-deadline timer"},
    {vmx, [] { return (cpu::cpuid(1).ecx & bit(5)) != 0; }, "no VMX"},
    {avx, [] { return (cpu::cpuid(1).ecx & bit(28)) != 0; }, "no AVX"},
    {hpet, [] { return acpi().hpet() != 0; }, "no HPET"},
    {monitor, [] { return (cpu::cpuid(1).ecx & bit(3)) != 0; }, "no MONITOR"},
    // An unclaimed port reads all ones; pc-testdev's 0xe0 reads back what was written.
    {testdev,
     [] {
       cpu::outl(0xe0, 0x1234'5678);
       return cpu::inl(0xe0) == 0x1234'5678;
     },
     "no pc-testdev"},
};

// FAIL for the first, an indented line for those after it.
void begin_failure() {
  if (outcome == Outcome::running && current != nullptr) {
    print("FAIL {}: ", current->name);
  } else {
    print("  ");
  }
  outcome = Outcome::failed;
}

std::string_view reason_to_skip(const Case& c, u32 more_needs) {
  if ((c.not_on & host()) != 0) {
    return c.why;
  }
  for (const NeedCheck& n : kNeeds) {
    if (((c.needs | more_needs) & n.need) != 0 && !n.met()) {
      return n.reason;
    }
  }
  return {};
}

bool matches(std::string_view word, std::string_view name) {
  return word.ends_with('*') ? name.starts_with(word.substr(0, word.size() - 1)) : word == name;
}

bool chosen(const Case& c) {
  bool any_filter = false;
  for (const std::string_view word : command_line_words()) {
    if (word.find('=') != std::string_view::npos) {
      continue;
    }
    if (word.starts_with('-')) {
      if (matches({word.data() + 1, word.size() - 1}, c.name)) {
        return false;
      }
      continue;
    }
    any_filter = true;
    if (matches(word, c.name)) {
      return true;
    }
  }
  return !any_filter;
}

// The machine as every case finds it.
void quiet_machine() {
  cpu::cli();
  unblock_nmis();
  stop_pit();
  mask_ioapic();
  set_pic_masks(0xffff);
  reset_handlers();
  init_apic();
  PerCpu& self = this_cpu();
  for (volatile u32& n : self.interrupts) {
    n = 0;
  }
}

}  // namespace

Host host() {
  static const Host found = [] {
    const auto leaf = cpu::cpuid(0x4000'0000);
    const bool hypervisor = (cpu::cpuid(1).ecx & bit(31)) != 0;
    if (hypervisor && leaf.ebx == 0x5447'4354) {  // "TCGT"
      return raw_tcg;
    }
    // fw_cfg's signature, "QEMU": Bochs has no such device.
    cpu::outw(0x510, 0);
    return cpu::inb(0x511) == 'Q' ? under_aerie : bochs;
  }();
  return found;
}

void fail(std::string_view what) {
  begin_failure();
  print("{}\n", what);
}
bool expect(bool condition, std::string_view what) {
  if (!condition) {
    begin_failure();
    print("expected {}\n", what);
  }
  return condition;
}
bool expect_equal(std::string_view what, u64 got, u64 expected) {
  if (got != expected) {
    begin_failure();
    print("{}: expected {x} got {x}\n", what, expected, got);
  }
  return got == expected;
}
bool expect_no_fault(std::string_view what, const Fault& fault) {
  if (fault.raised) {
    begin_failure();
    print("{}: expected no exception got {} error {x} at {x}\n", what, fault.vector, fault.error,
          fault.rip);
  }
  return !fault.raised;
}
bool expect_fault(std::string_view what, const Fault& fault, cpu::Exception exception) {
  const auto wanted = static_cast<u8>(exception);
  if (!fault.raised) {
    begin_failure();
    print("{}: expected exception {} got none\n", what, wanted);
    return false;
  }
  if (fault.vector != wanted) {
    begin_failure();
    print("{}: expected exception {} got {} error {x} at {x}\n", what, wanted, fault.vector,
          fault.error, fault.rip);
    return false;
  }
  return true;
}
bool expect_fault(std::string_view what, const Fault& fault, cpu::Exception exception, u64 error) {
  return expect_fault(what, fault, exception) && expect_equal(what, fault.error, error);
}

u64 non_canonical() { return bit((cpu::cpuid(0x8000'0008).eax >> 8 & 0xff) - 1); }

void skip(std::string_view reason) {
  if (outcome == Outcome::running) {
    outcome = Outcome::skipped;
    print("SKIP {}: {}\n", current->name, reason);
  }
}

u64 option(std::string_view name, u64 otherwise) {
  for (const std::string_view word : command_line_words()) {
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=') {
      u64 value = 0;
      for (const char c : word.substr(name.size() + 1)) {
        value = value * 10 + static_cast<u64>(c - '0');
      }
      return value;
    }
  }
  return otherwise;
}

void set_case_end(void (*function)()) { case_end = function; }

u8 run_cases(std::span<const Case> cases, u32 needs) {
  if (option("x2apic", 0) != 0 && has_x2apic()) {
    use_x2apic();
  }
  unsigned passed = 0;
  unsigned failed = 0;
  unsigned skipped = 0;
  for (const Case& c : cases) {
    if (!chosen(c)) {
      continue;
    }
    if (const std::string_view reason = reason_to_skip(c, needs); !reason.empty()) {
      print("SKIP {}: {}\n", c.name, reason);
      ++skipped;
      continue;
    }
    print("RUN {}\n", c.name);
    current = &c;
    outcome = Outcome::running;
    const u64 mark = memory_mark();
    quiet_machine();
    const Fault fault = catch_fault([&] { c.run(); });
    expect_no_fault("case", fault);
    quiet_machine();
    if (case_end != nullptr) {
      case_end();
    }
    memory_release(mark);
    current = nullptr;
    switch (outcome) {
      case Outcome::running:
        print("PASS {}: {}\n", c.name, c.section);
        ++passed;
        break;
      case Outcome::failed:
        ++failed;
        break;
      case Outcome::skipped:
        ++skipped;
        break;
    }
  }
  print("SUMMARY: {} passed, {} failed, {} skipped\n", passed, failed, skipped);
  if (failed != 0 || passed + skipped == 0) {
    return 1;
  }
  return passed == 0 ? 38 : 0;
}

}  // namespace aerie::guest
