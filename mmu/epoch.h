// When may memory be used again that a processor's TLB or table walker may still know of? When
// every processor has flushed since it was unlinked.
//
// A processor says so itself, on its way into a guest: enter() compares the epoch it has seen with
// the current one, and the caller flushes everything when they differ. Nobody waits and nobody is
// interrupted on the common path; whoever needs the memory kicks the laggards.
//
//   unlinking processor                      entering processor
//   entry := 0
//   epoch := epoch + 1 (= E)
//                                            seen := epoch
//   reuse when every seen >= E               flush; run the guest
//
// The entering processor walks nothing between its store and its flush. If it read the epoch before
// the unlinking, seen < E and the memory is kept; if after, its flush drops what it knew.
#pragma once

#include <array>
#include <atomic>

#include "base/types.h"

namespace aerie::mmu {

class Epochs {
 public:
  static constexpr u64 kQuiescent = ~u64{0};

  // Before every entry into a guest (L1 or L2). True: flush all guest translations with this entry.
  bool enter(unsigned cpu) {
    const u64 now = current_.load(std::memory_order_acquire);
    if (seen_[cpu].value.load(std::memory_order_relaxed) == now) [[likely]] {
      return false;
    }
    seen_[cpu].value.store(now, std::memory_order_seq_cst);
    return true;
  }
  // The processor will not run a guest until it calls enter() again (halted, waiting for SIPI).
  void leave(unsigned cpu) { seen_[cpu].value.store(kQuiescent, std::memory_order_release); }

  // To be called after entries were removed or narrowed: the epoch that every processor must reach.
  u64 advance() { return current_.fetch_add(1, std::memory_order_seq_cst) + 1; }

  // What advance() will return.
  u64 next() const { return current_.load(std::memory_order_relaxed) + 1; }

  // Processors, but for `self`, that may still use what was removed before `epoch`. `self` is in L0
  // and flushes at its next enter().
  u32 laggards(u64 epoch, unsigned self) const {
    u32 mask = 0;
    for (unsigned cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (cpu != self && seen_[cpu].value.load(std::memory_order_seq_cst) < epoch) {
        mask |= u32{1} << cpu;
      }
    }
    return mask;
  }

 private:
  struct alignas(64) Seen {
    std::atomic<u64> value{kQuiescent};
  };
  std::atomic<u64> current_{1};
  std::array<Seen, kMaxCpus> seen_{};
};

}  // namespace aerie::mmu
