#include "vmm/timer.h"

#include <algorithm>
#include <bit>

namespace aerie::vmm {
namespace {

using apic::TimerMode;

// A period shorter than L0 needs to take the interrupt would leave L1 no time at all: such a timer
// is looked after this often. On a processor of its own L1 would find its vector in the IRR
// whenever it looks. Physical ticks.
constexpr u64 kShortestPeriod = 500;

// Divide configuration for a division by 2^shift (SDM vol. 3, figure 11-10).
constexpr u32 divide_value(unsigned shift) {
  const unsigned code = (shift + 7) & 7;
  return (code & 3) | ((code & 4) << 1);
}

}  // namespace

ClockReading read_clocks(HostApic& host) {
  constexpr int kAttempts = 16;
  ClockReading best{};
  u64 shortest = ~u64{0};
  for (int i = 0; i < kAttempts; ++i) {
    const u64 before = host.tsc();
    const u32 apic = host.read(apic::current_count);
    const u64 took = host.tsc() - before;
    if (took < shortest) {
      shortest = took;
      best = {.tsc = before + took / 2, .apic = apic};
    }
  }
  return best;
}

void ApicTimer::reset() {
  lvt_ = apic::lvt_masked;
  divide_ = 0;
  initial_count_ = 0;
  running_ = false;
  deadline_ = 0;
}

void ApicTimer::write_lvt(u32 lvt) {
  const bool was_deadline = mode() == TimerMode::tsc_deadline;
  lvt_ = lvt;
  if (was_deadline != (mode() == TimerMode::tsc_deadline)) {
    running_ = false;
    initial_count_ = 0;
    deadline_ = 0;
  }
}

void ApicTimer::write_initial_count(u32 count, u64 now) {
  if (mode() == TimerMode::tsc_deadline) {
    return;
  }
  initial_count_ = count;
  running_ = count != 0;
  base_ = now;
  next_ = count;
}

void ApicTimer::write_divide(u32 value, u64 now) {
  const u32 left = current_count(now);
  divide_ = value & apic::divide_writable;
  if (running_) {
    base_ = now;
    next_ = left;
  }
}

void ApicTimer::write_deadline(u64 guest_tsc) {
  if (mode() == TimerMode::tsc_deadline) {
    deadline_ = guest_tsc;
  }
}

u32 ApicTimer::current_count(u64 now) const {
  if (!running_) {
    return 0;
  }
  const u64 ticks = elapsed(now);
  if (ticks < next_) {
    return static_cast<u32>(next_ - ticks);
  }
  if (mode() != TimerMode::periodic) {
    return 0;
  }
  return static_cast<u32>(initial_count_ - (ticks - next_) % initial_count_);
}

bool ApicTimer::expired(u64 now) const {
  if (mode() == TimerMode::tsc_deadline) {
    return deadline_ != 0 && now + tsc_offset_ >= deadline_;
  }
  return running_ && mode() != TimerMode::reserved && elapsed(now) >= next_;
}

void ApicTimer::consume(u64 now) {
  if (mode() == TimerMode::tsc_deadline) {
    deadline_ = 0;
    return;
  }
  if (mode() != TimerMode::periodic) {
    running_ = false;
    return;
  }
  const u64 ticks = elapsed(now);
  if (running_ && ticks >= next_) {
    next_ += ((ticks - next_) / initial_count_ + 1) * initial_count_;
  }
}

std::optional<u64> ApicTimer::remaining(u64 now) const {
  switch (mode()) {
    case TimerMode::tsc_deadline:
      if (deadline_ == 0) {
        return std::nullopt;
      }
      return expired(now) ? 0 : ratio_.to_apic_rounded_up(deadline_ - (now + tsc_offset_));
    case TimerMode::one_shot:
    case TimerMode::periodic: {
      if (!running_) {
        return std::nullopt;
      }
      const u64 end = next_ << divide_shift();
      const u64 ticks = ratio_.to_apic(now - base_);
      const u64 left = end > ticks ? end - ticks : 0;
      const bool hectic = mode() == TimerMode::periodic &&
                          (u64{initial_count_} << divide_shift()) < kShortestPeriod;
      return hectic ? kShortestPeriod : left;
    }
    case TimerMode::reserved:
      break;
  }
  return std::nullopt;
}

void ApicTimer::program(HostApic& host, u64 now) {
  const auto vector = static_cast<u8>(lvt_);
  std::optional<u64> ticks;
  if ((lvt_ & apic::lvt_masked) == 0 && apic::is_legal_vector(vector)) {
    ticks = remaining(now);
  }
  if (!ticks) {
    disarm(host);
    return;
  }
  if (physical_lvt_ != vector) {
    disarm(host);  // the old count must not run out under the new vector
    physical_lvt_ = vector;
    host.write(apic::lvt_timer, vector);
  }
  // What 32 bits don't hold is counted in coarser ticks, up to 128 a tick, and what these don't
  // hold in pieces: L0 finds the timer not expired and programs it again.
  const unsigned shift =
      static_cast<unsigned>(std::clamp(static_cast<int>(std::bit_width(*ticks)) - 32, 0, 7));
  const u64 count = (*ticks >> shift) + ((*ticks & (bit(shift) - 1)) != 0 ? 1 : 0);
  if (const u32 value = divide_value(shift); physical_divide_ != value) {
    physical_divide_ = value;
    host.write(apic::divide, value);
  }
  host.write(apic::initial_count, static_cast<u32>(std::clamp<u64>(count, 1, 0xffff'ffff)));
  armed_ = vector;
}

void ApicTimer::disarm(HostApic& host) {
  if (armed_) {
    armed_.reset();
    host.write(apic::initial_count, 0);
  }
}

}  // namespace aerie::vmm
