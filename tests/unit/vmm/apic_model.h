// A physical local APIC for tests: IRR, ISR, TMR with acceptance by priority, an LVT timer on a
// clock that the test moves, and a record of what L0 did with it.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "vmm/host_apic.h"
#include "vmm/vector_set.h"

namespace aerie::vmm {

class ModelApic : public HostApic {
 public:
  u32 read(u32 offset) override {
    const unsigned index = (offset >> 4) & 7;
    if (offset >= apic::isr && offset < apic::tmr) return isr.word32(index);
    if (offset >= apic::tmr && offset < apic::irr) return tmr.word32(index);
    if (offset >= apic::irr && offset < apic::esr) return irr.word32(index);
    if (offset == apic::current_count) return current_count();
    if (offset == apic::ppr) return ppr();
    return registers[offset];
  }
  void write(u32 offset, u32 value) override {
    registers[offset] = value;
    if (offset == apic::eoi) {
      if (const int v = isr.highest(); v >= 0) {
        isr.clear(static_cast<u8>(v));
        ended.push_back(static_cast<u8>(v));
      }
    } else if (offset == apic::icr_low) {
      sent.emplace_back(registers[apic::icr_high] >> 24, value);
    } else if (offset == apic::initial_count) {
      ++timer_writes;
      timer_running = value != 0;
      timer_start = clock;
    }
  }
  u64 tsc() override { return clock; }

  // An interrupt message arrives.
  void raise(u8 vector, bool level = false) {
    irr.set(vector);
    level ? tmr.set(vector) : tmr.clear(vector);
  }
  // What L0's window would take: the highest vector above the processor priority.
  std::optional<u8> acknowledge() {
    const int v = irr.highest();
    if (v < 0 || (v & 0xf0) <= static_cast<int>(ppr() & 0xf0)) return std::nullopt;
    irr.clear(static_cast<u8>(v));
    isr.set(static_cast<u8>(v));
    return static_cast<u8>(v);
  }
  u32 ppr() const { return isr.highest() < 0 ? 0 : static_cast<u32>(isr.highest() & 0xf0); }

  // Moves the clock; the timer fires if its count has run out by then.
  void advance_to(u64 time) {
    clock = time;
    if (timer_running && current_count() == 0) {
      timer_running = false;
      raise(static_cast<u8>(registers[apic::lvt_timer]));
    }
  }
  // When the timer will fire, in TSC ticks.
  std::optional<u64> timer_end() const {
    if (!timer_running) return std::nullopt;
    const u64 ticks = u64{register_at(apic::initial_count)} << shift();
    return timer_start + (ticks * tsc_per_tick_numerator + tsc_per_tick_denominator - 1) /
                             tsc_per_tick_denominator;
  }
  u32 register_at(u32 offset) const {
    const auto it = registers.find(offset);
    return it == registers.end() ? 0 : it->second;
  }

  std::map<u32, u32> registers;
  VectorSet irr, isr, tmr;
  std::vector<u8> ended;                  // EOIs given, by vector
  std::vector<std::pair<u32, u32>> sent;  // destination, ICR low
  u64 clock = 1'000'000;
  u64 tsc_per_tick_numerator = 1, tsc_per_tick_denominator = 1;
  bool timer_running = false;
  u64 timer_start = 0;
  unsigned timer_writes = 0;

 private:
  unsigned shift() const {
    const u32 d = register_at(apic::divide);
    return ((d & 3) | ((d >> 1) & 4)) == 7 ? 0 : ((d & 3) | ((d >> 1) & 4)) + 1;
  }
  u32 current_count() const {
    if (!timer_running) return 0;
    const u64 ticks =
        ((clock - timer_start) * tsc_per_tick_denominator / tsc_per_tick_numerator) >> shift();
    const u64 count = register_at(apic::initial_count);
    return ticks >= count ? 0 : static_cast<u32>(count - ticks);
  }
};

}  // namespace aerie::vmm
