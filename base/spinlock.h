// Ticket-free test-and-set lock for cold paths. L0 runs with interrupts off (GIF=0), so holding one
// cannot be interrupted on the same processor.
#pragma once

#include <atomic>

namespace aerie {

class SpinLock {
 public:
  // Holds the lock for its lifetime.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(SpinLock& lock) : lock_{lock} { lock_.lock(); }
    ~Guard() { lock_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    SpinLock& lock_;
  };

  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) {
      while (held_.load(std::memory_order_relaxed)) {
        __builtin_ia32_pause();
      }
    }
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace aerie
