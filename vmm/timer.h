// The local APIC's timer: one-shot, periodic and TSC-deadline, the latter also where the processor
// has none. SDM vol. 3, 11.5.4.
//
// What the timer does is decided by arithmetic on the TSC; the physical timer only makes L0 look in
// time. It runs one-shot with L1's own vector: L0 needs no vector of its own that a device of L1's
// could use too, and a device interrupt of that vector coalesces with the timer's as it would
// without Aerie. Whether the timer has fired is for expired() to say, not for the vector that came.
//
// The counter counts what the physical one counts (QEMU: 1 GHz), so that an L1 that calibrates it
// against another clock finds what it would find without Aerie.
#pragma once

#include <optional>

#include "base/types.h"
#include "vmm/apic_registers.h"
#include "vmm/host_apic.h"

namespace aerie::vmm {

// Ticks of the physical APIC timer, divided by 1, for each TSC tick: fixed point, 32 fraction bits.
struct TimerRatio {
  u64 apic_per_tsc = u64{1} << 32;

  // From a calibration that counted both over one interval (read_clocks()), or from two
  // frequencies. Rounded up, so that where a count comes out even the counter is seen to have run
  // out when the physical one has.
  static constexpr TimerRatio of(u64 apic_ticks, u64 tsc_ticks) {
    while (apic_ticks >= u64{1} << 32) {
      apic_ticks >>= 1;
      tsc_ticks >>= 1;
    }
    const u64 divisor = tsc_ticks == 0 ? 1 : tsc_ticks;
    return {((apic_ticks << 32) + divisor - 1) / divisor};
  }
  // Both saturate.
  constexpr u64 to_apic(u64 tsc_ticks) const { return scale(tsc_ticks, 0); }
  constexpr u64 to_apic_rounded_up(u64 tsc_ticks) const { return scale(tsc_ticks, 0xffff'ffff); }

 private:
  constexpr u64 scale(u64 tsc_ticks, u64 rounding) const {
    __extension__ using u128 = unsigned __int128;
    const u128 product = (static_cast<u128>(tsc_ticks) * apic_per_tsc + rounding) >> 32;
    return product > ~u64{0} ? ~u64{0} : static_cast<u64>(product);
  }
};

// Both clocks at one moment, for calibration. `apic` counts down and must be running.
struct ClockReading {
  u64 tsc;
  u32 apic;
};
// The tightest of some attempts: under an emulator, or on a busy host, a moment can be long.
ClockReading read_clocks(HostApic& host);

// `now` is always the physical TSC. The caller settles an expiry (expired(), consume()) before it
// changes anything, and programs the physical timer (program()) after.
class ApicTimer {
 public:
  void set_ratio(TimerRatio ratio) { ratio_ = ratio; }

  // Power-up and INIT: stopped, one-shot, masked.
  void reset();

  // A switch between TSC-deadline mode and the others stops what was armed (SDM vol. 3, 11.5.4.1);
  // between one-shot and periodic the counter counts on.
  void write_lvt(u32 lvt);
  // Ignored in TSC-deadline mode.
  void write_initial_count(u32 count, u64 now);
  void write_divide(u32 value, u64 now);
  // IA32_TSC_DEADLINE, in L1's TSC; ignored unless in TSC-deadline mode.
  void write_deadline(u64 guest_tsc);
  // L1's TSC is the physical one plus `offset`. A deadline stays where it is in L1's TSC.
  void set_tsc_offset(u64 offset) { tsc_offset_ = offset; }

  u32 initial_count() const { return initial_count_; }
  u32 divide() const { return divide_; }
  u32 current_count(u64 now) const;
  // Zero once the deadline has passed.
  u64 deadline(u64 now) const { return expired(now) ? 0 : deadline_; }

  // Whether the timer has fired since the last consume().
  bool expired(u64 now) const;
  // Takes note of an expiry: a one-shot or a deadline is over, a period begins.
  void consume(u64 now);

  // Makes the physical timer fire at the next expiry, or not at all where L1 would see nothing of
  // it (masked, stopped, a vector below 16).
  void program(HostApic& host, u64 now);
  void disarm(HostApic& host);
  // The vector the physical timer is armed with.
  std::optional<u8> armed_vector() const { return armed_; }

 private:
  apic::TimerMode mode() const { return apic::timer_mode(lvt_); }
  unsigned divide_shift() const { return (((divide_ & 3) | ((divide_ >> 1) & 4)) + 1) & 7; }
  // Counter ticks since it was started, after division.
  u64 elapsed(u64 now) const { return ratio_.to_apic(now - base_) >> divide_shift(); }
  // Physical ticks until the next expiry; empty when none is coming.
  std::optional<u64> remaining(u64 now) const;

  TimerRatio ratio_;
  u32 lvt_ = apic::lvt_masked;
  u32 divide_ = 0;
  u32 initial_count_ = 0;
  bool running_ = false;  // the counter is not zero, or will be reloaded
  u64 base_ = 0;          // physical TSC at which the counter was started
  u64 next_ = 0;          // the expiry to come, in counter ticks from base_
  u64 deadline_ = 0;      // in L1's TSC; zero when disarmed
  u64 tsc_offset_ = 0;

  std::optional<u8> armed_;
  u32 physical_lvt_ = ~u32{0};  // last values written to the physical timer
  u32 physical_divide_ = ~u32{0};
};

}  // namespace aerie::vmm
