#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

u64 measure() {
  // Channel 2, mode 0, 10 ms; its output is bit 5 of port 0x61.
  constexpr u32 ticks = kPitFrequency / 100;
  cpu::outb(0x61, static_cast<u8>((cpu::inb(0x61) & ~2) | 1));
  cpu::outb(0x43, 0xb0);
  cpu::outb(0x42, static_cast<u8>(ticks));
  cpu::outb(0x42, static_cast<u8>(ticks >> 8));
  const u64 start = cpu::rdtsc();
  while ((cpu::inb(0x61) & 0x20) == 0) {
  }
  const u64 elapsed = (cpu::rdtsc() - start) / 10;
  return elapsed == 0 ? 1 : elapsed;
}

}  // namespace

u64 tsc_per_millisecond() {
  static const u64 rate = measure();
  return rate;
}

void spin_microseconds(u64 microseconds) {
  const u64 start = cpu::rdtsc();
  const u64 limit = microseconds * tsc_per_millisecond() / 1000;
  while (cpu::rdtsc() - start < limit) {
    cpu::pause();
  }
}

void start_pit_one_shot(u16 ticks) {
  cpu::outb(0x43, 0x30);  // channel 0, mode 0
  cpu::outb(0x40, static_cast<u8>(ticks));
  cpu::outb(0x40, static_cast<u8>(ticks >> 8));
}
void start_pit_periodic(u16 ticks) {
  cpu::outb(0x43, 0x34);  // channel 0, mode 2
  cpu::outb(0x40, static_cast<u8>(ticks));
  cpu::outb(0x40, static_cast<u8>(ticks >> 8));
}
void stop_pit() {
  cpu::outb(0x43, 0x30);  // mode 0 counts only once loaded
}

}  // namespace aerie::guest
