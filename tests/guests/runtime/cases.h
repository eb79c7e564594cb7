// A case is one function; a guest is a table of them. What is printed, one line each:
//
//   RUN name              before it starts, so that a hang has a name
//   PASS name: section
//   FAIL name: what: expected 0x1 got 0x2
//   SKIP name: reason
//   SUMMARY: 3 passed, 0 failed, 1 skipped
//
// Words on the guest's command line choose cases by name ("*" at the end of a word matches any
// rest), words that begin with "-" leave cases out (before the words that choose), words with "="
// are options; none means all. Exit value: 0 passed, 1 failed, 38 all skipped, 2 the guest died.
#pragma once

#include <span>
#include <string_view>

#include "tests/guests/runtime/console.h"
#include "tests/guests/runtime/exceptions.h"

namespace aerie::guest {

// What carries the guest. A case that an independent implementation is known to get wrong says so.
enum Host : u32 { raw_tcg = 1, bochs = 2, under_aerie = 4 };
Host host();

enum Need : u32 {
  two_cpus = 1 << 0,
  x2apic = 1 << 1,
  deadline = 1 << 2,  // TSC-deadline timer
  vmx = 1 << 3,
  avx = 1 << 4,
  hpet = 1 << 5,
  testdev = 1 << 6,         // QEMU's pc-testdev (interrupt lines at ports 0x2000-0x2017)
  no_x2apic = 1 << 7,       // the processors are in xAPIC mode (the default) ...
  in_x2apic_mode = 1 << 9,  // ... or in x2APIC mode (x2apic=1)
  monitor = 1 << 8,         // MONITOR and MWAIT
};

struct Case {
  std::string_view name;
  std::string_view section;  // of the manual that says so
  void (*run)();
  u32 needs = 0;
  u32 not_on = 0;             // Hosts where it is not run ...
  std::string_view why = {};  // ... and the reason
};

// `needs` are those of every row.
u8 run_cases(std::span<const Case> cases, u32 needs = 0);
// Called after each case, before its memory is given back.
void set_case_end(void (*function)());

// Within a case. All of them record; none ends the case. The first failure is the one reported,
// further ones follow as lines that begin with two blanks.
void fail(std::string_view what);
bool expect(bool condition, std::string_view what);
bool expect_equal(std::string_view what, u64 got, u64 expected);
// No exception, or exactly this one (with this error code).
bool expect_no_fault(std::string_view what, const Fault& fault);
bool expect_fault(std::string_view what, const Fault& fault, cpu::Exception exception);
bool expect_fault(std::string_view what, const Fault& fault, cpu::Exception exception, u64 error);
// The case turns into a SKIP unless it has already failed.
void skip(std::string_view reason);

// The value of NAME=value on the command line, or `otherwise`.
u64 option(std::string_view name, u64 otherwise);

// Non-canonical whatever CR4.LA57 says: MSRs, VMCS fields and invalidation descriptors are checked
// against the widest linear address that the processor supports (SDM vol. 3, 4.5.2).
u64 non_canonical();

// A guest's own entry; the machine is initialised (start.cc).
u8 guest_main();

}  // namespace aerie::guest
