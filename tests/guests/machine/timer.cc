// The local APIC's timer, and what an interrupt may do at each instruction boundary. The sweeps
// move a timer's expiry over a piece of code one tick at a time: under -icount a tick is an
// instruction.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

constexpr u8 kTimer = 0x40;
constexpr u8 kRescue = 0x50;  // the PIT, which ends a HLT that the timer did not
constexpr u32 kDivideBy1 = 0xb;

void set_timer(u32 mode, u32 divide = kDivideBy1) {
  apic_write(Apic::divide, divide);
  apic_write(Apic::timer, kTimer | mode);
}
u32 timer_count() { return this_cpu().interrupts[kTimer]; }

void arm_rescue() {
  set_ioapic_entry(2, kRescue | u64{apic_id()} << 56);
  start_pit_one_shot(0xffff);  // 55 ms
}

// How many timer counts pass in a millisecond at divide-by-1.
u64 counts_per_millisecond() {
  set_timer(lvt::masked);
  apic_write(Apic::initial_count, 0xffff'ffff);
  spin_microseconds(2000);
  const u32 left = apic_read(Apic::current_count);
  apic_write(Apic::initial_count, 0);
  return (0xffff'ffff - left) / 2;
}

// For every count from 0 to `last`, `arm(count)` and then STI; HLT. The timer's interrupt, wherever
// it comes, must be taken once and must end the HLT.
template <class Arm>
void sweep_sti_hlt(u32 last, Arm&& arm) {
  for (u32 count = 1; count <= last; ++count) {
    this_cpu().interrupts[kTimer] = 0;
    this_cpu().interrupts[kRescue] = 0;
    arm_rescue();
    arm(count);
    asm volatile("sti\n\thlt\n\tcli" ::: "memory");
    const bool first = timer_count() == 1 && this_cpu().interrupts[kRescue] == 0;
    stop_pit();
    if (!first) {
      print("count {}: timer {} rescue {}\n", count, timer_count(), this_cpu().interrupts[kRescue]);
      fail("the timer's interrupt did not end STI; HLT");
      return;
    }
  }
}

void sti_hlt_sweep() {
  set_timer(lvt::one_shot);
  sweep_sti_hlt(static_cast<u32>(option("sweep", 400)),
                [](u32 count) { apic_write(Apic::initial_count, count); });
}

void sti_hlt_sweep_deadline() {
  set_timer(lvt::tsc_deadline);
  sweep_sti_hlt(static_cast<u32>(option("sweep", 400)),
                [](u32 count) { cpu::wrmsr(cpu::msr::tsc_deadline, cpu::rdtsc() + count); });
}

// With instructions a hypervisor emulates between the arming and the HLT.
void sti_hlt_after_emulated_sweep() {
  set_timer(lvt::one_shot);
  sweep_sti_hlt(static_cast<u32>(option("sweep", 400)), [](u32 count) {
    apic_write(Apic::initial_count, count);
    cpu::cpuid(0);
    apic_read(Apic::tpr);
  });
}

volatile u64 interrupted_rip;
volatile u64 interrupted_rflags;
void note_rip(Frame& frame) {
  interrupted_rip = frame.rip;
  interrupted_rflags = frame.rflags;
  this_cpu().interrupts[kTimer] = this_cpu().interrupts[kTimer] + 1;
  end_of_interrupt();
}

extern "C" const u64 guest_boundaries[];
asm(R"(
        .pushsection .rodata
        .balign 8
guest_boundaries:
        .quad boundary_1, boundary_2, boundary_3, boundary_4, boundary_5, boundary_6, boundary_7
        .quad boundary_8, boundary_9, 0
        .popsection
)");

// Where an interrupt is taken, RIP is an instruction's; nothing is lost or executed twice; and
// never is it the one after STI or MOV SS.
void boundary_sweep() {
  set_handler(kTimer, note_rip);
  set_timer(lvt::one_shot);
  const u64 ss = kData;
  const u32 signature = cpu::cpuid(1).eax;
  u32 taken_inside = 0;
  for (u32 count = 1; count <= option("sweep", 400); ++count) {
    this_cpu().interrupts[kTimer] = 0;
    interrupted_rip = 0;
    u64 accumulator = 0;
    u32 eax = 0;
    apic_write(Apic::initial_count, count);
    asm volatile(R"(
        sti
        add $1, %[sum]              # in STI's shadow
boundary_1: add $2, %[sum]
boundary_2: mov $1, %%eax
boundary_3: cpuid
boundary_4: mov %%eax, %[eax]
boundary_5: add $4, %[sum]
boundary_6: mov %[ss], %%ss
        add $8, %[sum]              # in MOV SS's shadow
boundary_7: add $16, %[sum]
boundary_8: add $32, %[sum]
boundary_9: cli
)"
                 : [sum] "+r"(accumulator), [eax] "+r"(eax)
                 : [ss] "r"(ss)
                 : "rax", "rbx", "rcx", "rdx", "memory", "cc");
    apic_write(Apic::initial_count, 0);
    bool ok = expect_equal("sum of the adds", accumulator, 63) &&
              expect_equal("CPUID.1:EAX", eax, signature);
    if (interrupted_rip != 0) {
      bool listed = false;
      for (const u64* at = guest_boundaries; *at != 0; ++at) {
        listed = listed || *at == interrupted_rip;
      }
      ok = ok && expect(listed, "RIP at a boundary outside the shadows of STI and MOV SS");
      ok = ok && expect((interrupted_rflags & cpu::rflags::interrupt) != 0, "IF=1 in the frame");
      ++taken_inside;
    }
    if (!ok) {
      print("  count {} rip {x}\n", count, interrupted_rip);
      return;
    }
    // One that came after the CLI.
    asm volatile("sti\n\tnop\n\tcli" ::: "memory");
  }
  if (option("icount", 0) != 0) {
    expect(taken_inside >= 9, "the sweep to meet the code");
  }
}

void one_shot_once() {
  const u64 rate = counts_per_millisecond();
  set_timer(lvt::one_shot);
  cpu::sti();
  apic_write(Apic::initial_count, static_cast<u32>(rate));
  expect(spin_until([] { return timer_count() != 0; }), "an interrupt");
  spin_microseconds(3000);
  expect_equal("interrupts", timer_count(), 1);
  expect_equal("current count after", apic_read(Apic::current_count), 0);
}

void counts_down_from_initial() {
  set_timer(lvt::masked);
  apic_write(Apic::initial_count, 0x4000'0000);
  const u32 first = apic_read(Apic::current_count);
  spin_microseconds(100);
  const u32 second = apic_read(Apic::current_count);
  expect(first <= 0x4000'0000 && first > 0x3000'0000, "first read just below the initial count");
  expect(second < first, "the count to fall");
  expect_equal("initial count reads back", apic_read(Apic::initial_count), 0x4000'0000);
  apic_write(Apic::initial_count, 0);
  expect_equal("current count when stopped", apic_read(Apic::current_count), 0);
}

void periodic_repeats() {
  const u64 rate = counts_per_millisecond();
  set_timer(lvt::periodic);
  cpu::sti();
  apic_write(Apic::initial_count, static_cast<u32>(rate));
  const bool many = spin_until([] { return timer_count() >= 5; });
  apic_write(Apic::initial_count, 0);
  expect(many, "five interrupts");
  const u32 seen = timer_count();
  spin_microseconds(3000);
  expect(timer_count() <= seen + 1, "none after initial count 0");
}

void periodic_reloads_initial_count() {
  const u64 rate = counts_per_millisecond();
  const auto initial = static_cast<u32>(rate * 2);
  set_timer(lvt::periodic | lvt::masked);
  apic_write(Apic::initial_count, initial);
  for (unsigned i = 0; i < 2000; ++i) {
    if (apic_read(Apic::current_count) > initial) {
      fail("current count above the initial count");
      return;
    }
    spin_microseconds(5);
  }
  apic_write(Apic::initial_count, 0);
}

// TSC ticks for which `counts` timer counts pass, as a ratio in 1/1024; the best of several, since
// a machine whose processor is taken away between two reads tells nonsense.
u64 ticks_per_1024_counts(u32 divide) {
  u64 best = ~u64{0};
  for (unsigned i = 0; i < 4; ++i) {
    set_timer(lvt::masked, divide);
    apic_write(Apic::initial_count, 0xffff'ffff);
    const u64 start = cpu::rdtsc();
    spin_microseconds(300);
    const u64 elapsed = cpu::rdtsc() - start;
    const u64 counts = 0xffff'ffff - apic_read(Apic::current_count);
    apic_write(Apic::initial_count, 0);
    const u64 ratio = elapsed * 1024 / (counts == 0 ? 1 : counts);
    best = ratio < best ? ratio : best;
  }
  return best;
}

// Divide values 2..128, 1: bits 0, 1 and 3 of the register. SDM vol. 3, figure 10-10.
void divide_values() {
  struct Row {
    u32 code;
    u32 divisor;
  };
  constexpr Row kRows[] = {{0xb, 1}, {0, 2}, {1, 4}, {2, 8}, {3, 16}, {8, 32}, {9, 64}, {0xa, 128}};
  for (const Row& row : kRows) {
    // Against divide-by-1 measured just before; a wrong divisor is off by a factor of two at least.
    bool right = false;
    u64 ratio = 0;
    for (unsigned attempt = 0; attempt < 5 && !right; ++attempt) {
      const u64 base = ticks_per_1024_counts(kDivideBy1);
      ratio = ticks_per_1024_counts(row.code);
      right = ratio * 4 > base * row.divisor * 3 && ratio * 3 < base * row.divisor * 4;
      ratio = ratio * 16 / base;
    }
    if (!right) {
      expect_equal("sixteen times the divisor, within a quarter", ratio, row.divisor * 16);
    }
    expect_equal("divide register reads back", apic_read(Apic::divide), row.code);
  }
}

void masked_is_silent() {
  set_timer(lvt::masked);
  cpu::sti();
  apic_write(Apic::initial_count, 1000);
  spin_until([] { return apic_read(Apic::current_count) == 0; });
  spin_microseconds(100);
  expect_equal("interrupts while masked", timer_count(), 0);
  expect(!apic_bit(Apic::irr, kTimer), "no IRR bit");
  set_timer(lvt::one_shot);
  spin_microseconds(100);
  expect_equal("interrupts after unmasking: what was masked is gone", timer_count(), 0);
}

// The interrupt waits in IRR while IF=0.
void pending_in_irr() {
  set_timer(lvt::one_shot);
  apic_write(Apic::initial_count, 100);
  expect(spin_until([] { return apic_bit(Apic::irr, kTimer); }), "IRR bit with IF=0");
  expect_equal("interrupts with IF=0", timer_count(), 0);
  asm volatile("sti\n\tnop\n\tnop\n\tcli" ::: "memory");
  expect_equal("interrupts after STI", timer_count(), 1);
  expect(!apic_bit(Apic::irr, kTimer) && !apic_bit(Apic::isr, kTimer), "IRR and ISR clear");
}

void deadline_fires_and_disarms() {
  set_timer(lvt::tsc_deadline);
  expect_equal("unarmed", cpu::rdmsr(cpu::msr::tsc_deadline), 0);
  // Far enough away to be read back, then near.
  u64 when = cpu::rdtsc() + 10'000 * tsc_per_millisecond();
  cpu::wrmsr(cpu::msr::tsc_deadline, when);
  expect_equal("armed", cpu::rdmsr(cpu::msr::tsc_deadline), when);
  when = cpu::rdtsc() + tsc_per_millisecond();
  cpu::wrmsr(cpu::msr::tsc_deadline, when);
  cpu::sti();
  expect(spin_until([] { return timer_count() != 0; }), "an interrupt");
  expect(cpu::rdtsc() >= when, "not before the deadline");
  expect_equal("disarmed", cpu::rdmsr(cpu::msr::tsc_deadline), 0);
  cpu::wrmsr(cpu::msr::tsc_deadline, 1);
  expect(spin_until([] { return timer_count() == 2; }), "a deadline in the past to fire at once");
}

void deadline_zero_disarms() {
  set_timer(lvt::tsc_deadline);
  cpu::wrmsr(cpu::msr::tsc_deadline, cpu::rdtsc() + 20 * tsc_per_millisecond());
  cpu::wrmsr(cpu::msr::tsc_deadline, 0);
  cpu::sti();
  spin_microseconds(25'000);
  expect_equal("interrupts", timer_count(), 0);
}

// In TSC-deadline mode the initial count is ignored; in the other modes IA32_TSC_DEADLINE is zero
// and writes of it are ignored; a change of mode disarms. SDM vol. 3, 10.5.4.1.
void deadline_mode_is_exclusive() {
  set_timer(lvt::tsc_deadline);
  cpu::sti();
  apic_write(Apic::initial_count, 1000);
  expect_equal("current count", apic_read(Apic::current_count), 0);
  spin_microseconds(500);
  expect_equal("interrupts of the initial count", timer_count(), 0);
  cpu::wrmsr(cpu::msr::tsc_deadline, cpu::rdtsc() + 20 * tsc_per_millisecond());
  set_timer(lvt::one_shot);
  spin_microseconds(25'000);
  expect_equal("interrupts of a deadline whose mode was left", timer_count(), 0);
  cpu::wrmsr(cpu::msr::tsc_deadline, cpu::rdtsc() + 1000);
  spin_microseconds(500);
  expect_equal("IA32_TSC_DEADLINE outside its mode", cpu::rdmsr(cpu::msr::tsc_deadline), 0);
  expect_equal("interrupts of it", timer_count(), 0);
}

constexpr Case kCases[] = {
    {"sti_hlt_sweep", "SDM vol. 2, STI; vol. 3, 10.5.4", sti_hlt_sweep},
    {"sti_hlt_after_emulated_sweep", "SDM vol. 2, STI", sti_hlt_after_emulated_sweep},
    {"sti_hlt_sweep_deadline", "SDM vol. 3, 10.5.4.1", sti_hlt_sweep_deadline, deadline},
    {"boundary_sweep", "SDM vol. 3, 6.8.1 and 6.8.3", boundary_sweep},
    {"one_shot_once", "SDM vol. 3, 10.5.4", one_shot_once},
    {"counts_down_from_initial", "SDM vol. 3, 10.5.4", counts_down_from_initial},
    {"periodic_repeats", "SDM vol. 3, 10.5.4", periodic_repeats},
    {"periodic_reloads_initial_count", "SDM vol. 3, 10.5.4", periodic_reloads_initial_count},
    {"divide_values", "SDM vol. 3, figure 10-10", divide_values},
    {"masked_is_silent", "SDM vol. 3, 10.5.1", masked_is_silent},
    {"pending_in_irr", "SDM vol. 3, 10.8.4", pending_in_irr},
    {"deadline_fires_and_disarms", "SDM vol. 3, 10.5.4.1", deadline_fires_and_disarms, deadline,
     bochs, "Bochs leaves IA32_TSC_DEADLINE as it was when the timer fires"},
    {"deadline_zero_disarms", "SDM vol. 3, 10.5.4.1", deadline_zero_disarms, deadline},
    {"deadline_mode_is_exclusive", "SDM vol. 3, 10.5.4.1", deadline_mode_is_exclusive, deadline},
};

}  // namespace

u8 guest_main() { return run_cases(kCases); }

}  // namespace aerie::guest
