// Waiting, measured by the TSC, whose rate is found once by the PIT; and the PIT itself. Nothing
// here takes interrupts. 8254 data sheet.
#pragma once

#include "base/types.h"
#include "cpu/arch/instructions.h"

namespace aerie::guest {

inline constexpr u32 kPitFrequency = 1'193'182;

// TSC ticks in a millisecond (PIT channel 2).
u64 tsc_per_millisecond();
void spin_microseconds(u64 microseconds);

// Polls `done` for at most `milliseconds`. Returns its last answer.
template <class Condition>
bool spin_until(Condition&& done, u64 milliseconds = 1000) {
  const u64 start = cpu::rdtsc();
  const u64 limit = milliseconds * tsc_per_millisecond();
  while (!done()) {
    if (cpu::rdtsc() - start > limit) {
      return done();
    }
    cpu::pause();
  }
  return true;
}

// PIT channel 0, IRQ 0 (IOAPIC pin 2): one interrupt after `ticks`, or one every `ticks`.
void start_pit_one_shot(u16 ticks);
void start_pit_periodic(u16 ticks);
void stop_pit();

}  // namespace aerie::guest
