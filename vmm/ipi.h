// Interrupt messages between L1's processors: destinations, delivery modes, shorthands. SDM vol. 3,
// 11.6. They go from virtual APIC to virtual APIC and are no physical messages but for the kick.
#pragma once

#include <array>
#include <atomic>

#include "base/types.h"
#include "vmm/apic_registers.h"

namespace aerie::vmm {

class LocalApic;

class ApicBus {
 public:
  // At boot, one processor after the other.
  void attach(LocalApic& apic);

  // What `from` wrote to its ICR: its low half, and the destination, 32 bits wide from an x2APIC.
  void send(LocalApic& from, u32 icr_low, u32 destination);

  unsigned count() const { return count_; }
  LocalApic& operator[](unsigned i) { return *apics_[i]; }

 private:
  void deliver_lowest_priority(LocalApic& from, u32 targets, u8 vector);

  std::array<LocalApic*, kMaxCpus> apics_{};
  unsigned count_ = 0;
  std::atomic<u32> rotation_{0};  // breaks ties of lowest-priority delivery
};

}  // namespace aerie::vmm
