#include "vmm/timer.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/vmm/apic_machine.h"

namespace aerie::vmm {
namespace {

constexpr u32 kVector = 0xe0;
constexpr u32 kPeriodic = 1u << 17, kDeadline = 1u << 18;
constexpr u32 kDivideBy1 = 0xb;

// One processor whose clocks stand in a given ratio.
struct TimerMachine : ApicMachine {
  // `apic` ticks of the APIC timer for each `tsc` ticks of the TSC.
  explicit TimerMachine(u64 apic = 1, u64 tsc = 1) : ApicMachine{0} {
    cpus.push_back(std::make_unique<Cpu>(bus));
    host(0).tsc_per_tick_numerator = tsc;
    host(0).tsc_per_tick_denominator = apic;
    (*this)[0].power_up({.bootstrap = true}, TimerRatio::of(apic, tsc));
    write(apic::svr, 0x1ff);
    write(apic::divide, kDivideBy1);
  }
  u64 now() { return host(0).clock; }
  void advance_to(u64 time) {
    host(0).advance_to(time);
    take_physical();
  }
  // Runs until an interrupt is there for L1, at most until `limit`; when that was.
  std::optional<u64> run_until_interrupt(u64 limit) {
    while (!(*this)[0].deliverable()) {
      const auto end = host(0).timer_end();
      if (!end || *end > limit) {
        advance_to(limit);
        break;
      }
      advance_to(std::max(*end, now()));
    }
    if (serve() != static_cast<int>(kVector)) return std::nullopt;
    return now();
  }
  void set_deadline(u64 value) { ASSERT_TRUE((*this)[0].write_msr(cpu::msr::tsc_deadline, value)); }
  u64 deadline() { return *(*this)[0].read_msr(cpu::msr::tsc_deadline); }
};

TEST(TimerRatio, ScalesAndSaturates) {
  EXPECT_EQ(TimerRatio::of(1, 1).to_apic(12345), 12345u);
  EXPECT_EQ(TimerRatio::of(1'000'000, 3'000'000).to_apic(3'000'000'000'000),
            1'000'000'000'000u + 465);
  EXPECT_EQ(TimerRatio::of(1, 2).to_apic(5), 2u);
  EXPECT_EQ(TimerRatio::of(1, 2).to_apic_rounded_up(5), 3u);
  EXPECT_EQ(TimerRatio::of(4, 1).to_apic(~u64{0}), ~u64{0});
  EXPECT_EQ(TimerRatio::of(u64{6} << 32, u64{12} << 32).to_apic(5000), 2500u);
  EXPECT_EQ(TimerRatio::of(1, 0).to_apic(0), 0u);  // a failed calibration is no division by zero
}

TEST(ReadClocks, TakesTheTightestOfItsAttempts) {
  struct Jittery : ModelApic {
    u64 tsc() override { return clock += (++calls % 7 == 0 ? 10 : 50'000); }
    unsigned calls = 0;
  } host;
  host.write(apic::divide, kDivideBy1);
  host.write(apic::initial_count, ~u32{0});
  const ClockReading reading = read_clocks(host);
  // The model's counter stands still between the two readings of the TSC around it.
  EXPECT_LE(reading.tsc - host.timer_start - (~u32{0} - reading.apic), 5u);
}

// One-shot, over clock ratios, dividers and counts: never early, and late by less than two ticks of
// the physical timer (which counts in the divided unit only when it has to).
TEST(Timer, OneShotFiresOnceWhenTheCountHasRunOut) {
  for (const auto& [apic, tsc] : {std::pair<u64, u64>{1, 1}, {1000, 2400}, {1000, 999}, {3, 1}}) {
    for (u32 divide : {0x0u, 0x1u, 0x2u, 0x3u, 0x8u, 0x9u, 0xau, 0xbu}) {
      const unsigned shift = divide == 0xb ? 0 : ((divide & 3) | ((divide & 8) >> 1)) + 1;
      for (u32 count : {1u, 2u, 1000u, 65'536u, 0xffff'ffffu}) {
        TimerMachine m{apic, tsc};
        m.write(apic::divide, divide);
        m.write(apic::lvt_timer, kVector);
        const u64 start = m.now();
        m.write(apic::initial_count, count);
        const u64 ticks = u64{count} << shift;
        const u64 exact = (ticks * tsc + apic - 1) / apic;
        const auto fired = m.run_until_interrupt(start + 2 * exact + 100'000);
        ASSERT_TRUE(fired) << apic << '/' << tsc << ' ' << divide << ' ' << count;
        // The ratio itself has 32 fraction bits.
        EXPECT_GE(*fired - start + exact / 1'000'000'000 + 1, exact);
        // What takes more than 32 bits is counted in coarser units.
        const u64 coarse = (ticks >> 32) == 0 ? 1 : u64{2} << shift;
        EXPECT_LE(*fired - start, exact + (2 + coarse) * (tsc / apic + 1) + exact / 1'000'000'000);
        EXPECT_EQ(m.read(apic::current_count), 0u);
        EXPECT_EQ(m.read(apic::initial_count), count);
        EXPECT_FALSE(m.run_until_interrupt(m.now() + 2 * exact)) << "fired twice";
      }
    }
  }
}

TEST(Timer, CurrentCountCountsDownInDividedTicks) {
  TimerMachine m;
  m.write(apic::divide, 0x3);  // by 16
  m.write(apic::lvt_timer, apic::lvt_masked);
  m.write(apic::initial_count, 1000);
  const u64 start = m.now();
  EXPECT_EQ(m.read(apic::current_count), 1000u);
  m.advance_to(start + 15);
  EXPECT_EQ(m.read(apic::current_count), 1000u);
  m.advance_to(start + 16);
  EXPECT_EQ(m.read(apic::current_count), 999u);
  m.advance_to(start + 15'999);
  EXPECT_EQ(m.read(apic::current_count), 1u);
  m.advance_to(start + 16'000);
  EXPECT_EQ(m.read(apic::current_count), 0u);
  EXPECT_FALSE(m.host(0).timer_running);  // masked: nothing physical
}

TEST(Timer, PeriodicFiresEveryPeriodWithoutDrift) {
  TimerMachine m{1000, 2400};
  m.write(apic::lvt_timer, kVector | kPeriodic);
  const u64 start = m.now();
  m.write(apic::initial_count, 100'000);
  for (u64 n = 1; n <= 1000; ++n) {
    const auto fired = m.run_until_interrupt(start + n * 240'000 + 1000);
    ASSERT_TRUE(fired) << n;
    EXPECT_GE(*fired, start + n * 240'000);
    EXPECT_LE(*fired, start + n * 240'000 + 8);
  }
}

TEST(Timer, PeriodsMissedWhileNobodyLookedAreOneInterrupt) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kPeriodic);
  const u64 start = m.now();
  m.write(apic::initial_count, 10'000);
  m.host(0).advance_to(start + 35'000);
  m.take_physical();
  EXPECT_EQ(m.serve(), static_cast<int>(kVector));
  EXPECT_EQ(m.serve(), -1);
  EXPECT_EQ(m.read(apic::current_count), 5'000u);
  const auto next = m.run_until_interrupt(start + 50'000);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, start + 40'000);
}

TEST(Timer, AShortPeriodDoesNotArmThePhysicalTimerFasterThanL0CanFollow) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kPeriodic);
  m.write(apic::initial_count, 1);
  unsigned fired = 0;
  const u64 end = m.now() + 1'000'000;
  while (m.run_until_interrupt(end)) ++fired;
  EXPECT_GT(fired, 1000u);
  EXPECT_LE(fired, 2001u);
}

TEST(Timer, OneShotAndPeriodicChangeOverWithoutARestart) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector);
  const u64 start = m.now();
  m.write(apic::initial_count, 10'000);
  m.advance_to(start + 4'000);
  m.write(apic::lvt_timer, kVector | kPeriodic);
  EXPECT_EQ(m.read(apic::current_count), 6'000u);
  EXPECT_EQ(m.run_until_interrupt(start + 20'000), start + 10'000);
  EXPECT_EQ(m.read(apic::current_count), 10'000u);
  m.advance_to(start + 13'000);
  m.write(apic::lvt_timer, kVector);
  EXPECT_EQ(m.read(apic::current_count), 7'000u);
  EXPECT_EQ(m.run_until_interrupt(start + 30'000), start + 20'000);
  EXPECT_EQ(m.read(apic::current_count), 0u);
  EXPECT_FALSE(m.run_until_interrupt(start + 100'000));
  m.write(apic::lvt_timer, kVector | kPeriodic);  // it stays stopped
  EXPECT_EQ(m.read(apic::current_count), 0u);
  EXPECT_FALSE(m.run_until_interrupt(start + 200'000));
}

TEST(Timer, ADividerWrittenMeanwhileChangesThePaceOfWhatIsLeft) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector);
  const u64 start = m.now();
  m.write(apic::initial_count, 10'000);
  m.advance_to(start + 4'000);
  m.write(apic::divide, 0x0);  // by 2
  EXPECT_EQ(m.read(apic::current_count), 6'000u);
  EXPECT_EQ(m.run_until_interrupt(start + 100'000), start + 16'000);
}

TEST(Timer, WritingZeroStopsIt) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kPeriodic);
  m.write(apic::initial_count, 10'000);
  m.write(apic::initial_count, 0);
  EXPECT_EQ(m.read(apic::current_count), 0u);
  EXPECT_FALSE(m.host(0).timer_running);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 1'000'000));
}

TEST(Timer, WhatExpiresMaskedIsLostAndWhatIsUnmaskedInTimeIsNot) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | apic::lvt_masked);
  m.write(apic::initial_count, 10'000);
  m.advance_to(m.now() + 20'000);
  m.write(apic::lvt_timer, kVector);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 100'000));
  m.write(apic::lvt_timer, kVector | apic::lvt_masked);
  const u64 start = m.now();
  m.write(apic::initial_count, 10'000);
  m.advance_to(start + 5'000);
  m.write(apic::lvt_timer, kVector);
  EXPECT_EQ(m.run_until_interrupt(start + 100'000), start + 10'000);
}

TEST(Timer, TheVectorCanChangeWhileItRuns) {
  TimerMachine m;
  m.write(apic::lvt_timer, 0x40);
  m.write(apic::initial_count, 10'000);
  m.write(apic::lvt_timer, kVector);
  EXPECT_TRUE(m.run_until_interrupt(m.now() + 100'000));
}

TEST(Timer, AnIllegalVectorIsNeverArmed) {
  TimerMachine m;
  m.write(apic::lvt_timer, 0x0e);
  m.write(apic::initial_count, 10'000);
  EXPECT_FALSE(m.host(0).timer_running);
  m.advance_to(m.now() + 20'000);
  m.write(apic::lvt_timer, kVector);
  m.write(apic::esr, 0);
  EXPECT_EQ(m.read(apic::esr), 0x40u);
}

// ---- TSC deadline ----

TEST(TscDeadline, FiresAtTheDeadlineAndReadsZeroAfter) {
  for (const auto& [apic, tsc] : {std::pair<u64, u64>{1, 1}, {1000, 2400}, {1000, 999}, {3, 1}}) {
    for (u64 delta : {u64{1}, u64{2}, u64{1000}, u64{5'000'000'000}, u64{2'000'000'000'000}}) {
      TimerMachine m{apic, tsc};
      m.write(apic::lvt_timer, kVector | kDeadline);
      const u64 deadline = m.now() + delta;
      m.set_deadline(deadline);
      EXPECT_EQ(m.deadline(), deadline);
      const auto fired = m.run_until_interrupt(deadline + 1'000'000);
      ASSERT_TRUE(fired) << apic << '/' << tsc << ' ' << delta;
      EXPECT_GE(*fired, deadline);
      EXPECT_LE(*fired, deadline + 300 * (tsc / apic + 1) + delta / 500'000'000);
      if (delta <= 1000) {
        EXPECT_EQ(m.host(0).timer_writes, 3u) << "power-up, armed once, stopped";
      }
      EXPECT_EQ(m.deadline(), 0u);
      EXPECT_FALSE(m.run_until_interrupt(m.now() + 1'000'000'000));
    }
  }
}

TEST(TscDeadline, OneThatHasPassedFiresAtOnce) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  m.set_deadline(m.now());
  EXPECT_EQ(m.serve(), static_cast<int>(kVector));
  EXPECT_EQ(m.deadline(), 0u);
  m.set_deadline(1);
  EXPECT_EQ(m.serve(), static_cast<int>(kVector));
  EXPECT_EQ(m.serve(), -1);
}

TEST(TscDeadline, ZeroDisarmsAndAnotherValueReplaces) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  const u64 start = m.now();
  m.set_deadline(start + 1000);
  m.set_deadline(0);
  EXPECT_FALSE(m.host(0).timer_running);
  EXPECT_FALSE(m.run_until_interrupt(start + 10'000));
  m.set_deadline(start + 20'000);
  m.set_deadline(start + 15'000);
  EXPECT_EQ(m.run_until_interrupt(start + 100'000), start + 15'000);
}

TEST(TscDeadline, AFarOneNeverFires) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  m.set_deadline(~u64{0});
  EXPECT_FALSE(m.run_until_interrupt(m.now() + (u64{1} << 45)));
  EXPECT_EQ(m.deadline(), ~u64{0});
}

TEST(TscDeadline, TheCounterRegistersAreDeadAndTheMsrIsIgnoredInOtherModes) {
  TimerMachine m;
  m.set_deadline(m.now() + 1000);
  EXPECT_EQ(m.deadline(), 0u);
  m.write(apic::lvt_timer, kVector | kDeadline);
  m.write(apic::initial_count, 1000);
  EXPECT_EQ(m.read(apic::initial_count), 0u);
  EXPECT_EQ(m.read(apic::current_count), 0u);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 100'000));
}

TEST(TscDeadline, ATimerDiesWithTheModeThatArmedIt) {  // SDM vol. 3, 11.5.4.1
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  m.set_deadline(m.now() + 1000);
  m.write(apic::lvt_timer, kVector);
  m.write(apic::lvt_timer, kVector | kDeadline);
  EXPECT_EQ(m.deadline(), 0u);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 100'000));
  m.write(apic::lvt_timer, kVector);
  m.write(apic::initial_count, 1000);
  m.write(apic::lvt_timer, kVector | kDeadline);
  m.write(apic::lvt_timer, kVector);
  EXPECT_EQ(m.read(apic::initial_count), 0u);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 100'000));
}

TEST(TscDeadline, IsInTheGuestsTscWhichMayBeMoved) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  const u64 start = m.now();
  m[0].set_tsc_offset(u64{0} - start);  // L1's TSC reads 0
  m.set_deadline(50'000);
  EXPECT_EQ(m.run_until_interrupt(start + 200'000), start + 50'000);
  m.set_deadline(100'000);
  m[0].set_tsc_offset(u64{0} - start + 30'000);  // forward: the deadline is nearer
  EXPECT_EQ(m.run_until_interrupt(start + 200'000), start + 70'000);
  m.set_deadline(150'000);
  m[0].set_tsc_offset(u64{0} - start - 10'000);  // back: later
  EXPECT_EQ(m.run_until_interrupt(start + 300'000), start + 160'000);
  m.set_deadline(1'000'000);
  m[0].set_tsc_offset(u64{2'000'000});  // past it
  EXPECT_EQ(m.serve(), static_cast<int>(kVector));
}

TEST(Timer, InitAndSoftwareDisableStopIt) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kPeriodic);
  m.write(apic::initial_count, 1000);
  m.write(apic::svr, 0xff);
  EXPECT_FALSE(m.host(0).timer_running);
  m.write(apic::svr, 0x1ff);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 100'000));  // still masked
  m.write(apic::lvt_timer, kVector | kPeriodic);
  EXPECT_TRUE(m.run_until_interrupt(m.now() + 100'000));
  m[0].init_reset();
  EXPECT_FALSE(m.host(0).timer_running);
  m.write(apic::svr, 0x1ff);
  m.write(apic::lvt_timer, kVector);
  EXPECT_FALSE(m.run_until_interrupt(m.now() + 100'000));
}

// ---- The timer and devices of the same vector ----

TEST(Timer, ADevicesInterruptOfItsVectorIsNotTheTimers) {
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  const u64 start = m.now();
  m.set_deadline(start + 10'000);
  m.host(0).advance_to(start + 5'000);
  m.host(0).raise(kVector);
  m.take_physical();
  EXPECT_EQ(m.serve(), static_cast<int>(kVector));
  EXPECT_EQ(m.deadline(), start + 10'000);
  EXPECT_EQ(m.run_until_interrupt(start + 100'000), start + 10'000);
}

TEST(Timer, AnExpiryFoundByAWriteOfL1sIsNeitherLostNorDoubled) {
  // The physical interrupt is pending: it will do.
  TimerMachine m;
  m.write(apic::lvt_timer, kVector | kDeadline);
  m.set_deadline(m.now() + 100);
  m.host(0).advance_to(m.now() + 100);
  m.set_deadline(m.now() + 1'000'000);
  EXPECT_EQ(m.serve(), -1);
  m.take_physical();
  EXPECT_EQ(m.serve(), static_cast<int>(kVector));
  EXPECT_EQ(m.serve(), -1);
  EXPECT_TRUE(m.host(0).timer_running);  // with the new deadline
  // The physical timer is late: the write itself delivers.
  TimerMachine late;
  late.write(apic::lvt_timer, kVector | kDeadline);
  late.set_deadline(late.now() + 100);
  late.host(0).clock += 100;
  late.set_deadline(0);
  EXPECT_FALSE(late.host(0).timer_running);
  late.take_physical();
  EXPECT_EQ(late.serve(), static_cast<int>(kVector));
  EXPECT_EQ(late.serve(), -1);
}

TEST(Timer, APhysicalTimerThatFiresEarlyIsArmedAgain) {
  TimerMachine m;
  m.host(0).tsc_per_tick_numerator = 99;  // it runs 1% faster than calibrated
  m.host(0).tsc_per_tick_denominator = 100;
  m.write(apic::lvt_timer, kVector | kDeadline);
  const u64 deadline = m.now() + 1'000'000;
  m.set_deadline(deadline);
  const auto fired = m.run_until_interrupt(deadline + 1'000);
  ASSERT_TRUE(fired);
  EXPECT_GE(*fired, deadline);
  EXPECT_LE(*fired, deadline + 2);
  EXPECT_LE(m.host(0).timer_writes, 6u);
}

// A random L1 against a plain reading of the manual: what is armed fires once, not early, not much
// later.
TEST(Timer, RandomSequencesOfDeadlinesFireAsAModelSays) {
  std::mt19937_64 random{42};
  TimerMachine m{1000, 2400};
  m.write(apic::lvt_timer, kVector | kDeadline);
  u64 model = 0;  // armed deadline
  u64 fired = 0, expected = 0;
  for (int step = 0; step < 20'000; ++step) {
    switch (random() % 3) {
      case 0: {
        const u64 value = random() % 8 == 0 ? 0 : m.now() + random() % 50'000 - 1000;
        if (model != 0 && m.now() >= model) ++expected, model = 0;
        m.set_deadline(value);
        model = value;
        if (model != 0 && m.now() >= model) ++expected, model = 0;
        break;
      }
      case 1:
        m.advance_to(m.now() + random() % 20'000);
        break;
      default:
        break;
    }
    if (model != 0 && m.now() >= model + 10) ++expected, model = 0;
    m.take_physical();
    while (m.serve() >= 0) ++fired;
    if (model == 0 || m.now() < model) {
      ASSERT_EQ(fired, expected) << step;
      ASSERT_EQ(m.deadline(), model);
    } else {
      fired = expected = 0;  // within the rounding: either is right
      m.set_deadline(0);
      m.take_physical();
      while (m.serve() >= 0) {
      }
      model = 0;
    }
  }
}

}  // namespace
}  // namespace aerie::vmm
