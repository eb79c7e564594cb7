// What other processors ask of a vCPU: one word per vCPU, its mailbox, and the kick that makes the
// vCPU look at it.
//
// The kick is a physical NMI. An NMI needs no EOI, no ISR bit of the physical APIC can hold it back
// (a level interrupt whose EOI L1 owes holds back fixed ones for as long as L1 likes), and it
// cannot be mistaken for a vector of L1's devices, which may use any of the 256. It can be mistaken
// for an NMI of L1's, so the word says which it is:
//
//   sender                                      receiver's NMI path
//   old = word.fetch_or(work | kick_in_flight)
//   if !(old & kick_in_flight): physical NMI -> old = word.fetch_and(~kick_in_flight)
//                                               old & kick_in_flight ? the kick : an NMI for L1
//
// Only the receiver's NMI path clears kick_in_flight, so at most one kick NMI is in flight, and a
// sender that finds it set knows that the receiver has yet to come by: the NMI is taken after the
// sender's work was in the word. Nobody kicks itself. What remains open: a genuine NMI that reaches
// the processor while a kick is pending there is latched as one with it and is lost, as two genuine
// ones would be.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>

#include "base/bits.h"
#include "base/types.h"

namespace aerie::vmm {

namespace request {
inline constexpr u32 interrupt = 1u << 0;  // the virtual IRR has changed
inline constexpr u32 nmi = 1u << 1;        // with a count of up to two
inline constexpr u32 init = 1u << 2;
inline constexpr u32 sipi = 1u << 3;       // with its vector
inline constexpr u32 tlb_flush = 1u << 4;  // drop what the next run() must not use
inline constexpr u32 quiesce = 1u << 5;    // pass through L0 once (epochs)
inline constexpr u32 stop = 1u << 6;       // the machine ends
inline constexpr u32 kick_in_flight = 1u << 31;
}  // namespace request

class Mailbox {
 public:
  // What is asked for, `request::` bits. One load: for the entry path.
  u32 pending() const { return word_.load(std::memory_order_acquire) & kRequests; }

  // Another processor's side. True when the caller has to send the physical NMI.
  [[nodiscard]] bool post(u32 requests) {
    const u32 old = word_.fetch_or(requests | request::kick_in_flight);
    return (old & request::kick_in_flight) == 0;
  }
  // An NMI is latched at most once behind one that is in service, so two can be on their way.
  // INIT makes a start-up IPI that came before it moot. Of two start-up IPIs that nobody has looked
  // at yet the second would find the processor started, so the first one's vector stays.
  [[nodiscard]] bool post_nmi() { return update(with_nmi, request::kick_in_flight); }
  [[nodiscard]] bool post_init() { return update(with_init, request::kick_in_flight); }
  [[nodiscard]] bool post_sipi(u8 vector) {
    return update([vector](u32 w) { return with_sipi(w, vector); }, request::kick_in_flight);
  }

  // The owner asks itself: never kicked.
  void post_self(u32 requests) { word_.fetch_or(requests); }
  void post_self_nmi() { (void)update(with_nmi, 0); }
  void post_self_init() { (void)update(with_init, 0); }

  // The owner takes requests: what of `requests` was set, now cleared. Not for nmi and sipi.
  u32 take(u32 requests) { return word_.fetch_and(~requests) & requests; }
  // NMIs that have come since: 0, 1 or 2.
  unsigned take_nmis() {
    return static_cast<unsigned>(NmiCount::get(word_.fetch_and(~(request::nmi | kNmiMask))));
  }
  std::optional<u8> take_sipi() {
    const u32 old = word_.fetch_and(~(request::sipi | kSipiMask));
    if ((old & request::sipi) == 0) {
      return std::nullopt;
    }
    return static_cast<u8>(SipiVector::get(old));
  }

  // The owner's NMI path, once for each physical NMI: whether it was the kick. Otherwise it is
  // L1's.
  [[nodiscard]] bool nmi_was_kick() {
    return (word_.fetch_and(~request::kick_in_flight) & request::kick_in_flight) != 0;
  }
  bool kick_in_flight() const {
    return (word_.load(std::memory_order_acquire) & request::kick_in_flight) != 0;
  }

 private:
  using SipiVector = Field<15, 8>;
  using NmiCount = Field<17, 16>;
  static constexpr u32 kSipiMask = static_cast<u32>(SipiVector::kMask);
  static constexpr u32 kNmiMask = static_cast<u32>(NmiCount::kMask);
  static constexpr u32 kRequests = 0xff;

  static u32 with_nmi(u32 word) {
    const u64 count = std::min<u64>(NmiCount::get(word) + 1, 2);
    return static_cast<u32>(NmiCount::set(word, count)) | request::nmi;
  }
  static u32 with_init(u32 word) { return (word & ~(request::sipi | kSipiMask)) | request::init; }
  static u32 with_sipi(u32 word, u8 vector) {
    if ((word & request::sipi) != 0) {
      return word;
    }
    return static_cast<u32>(SipiVector::set(word, vector)) | request::sipi;
  }

  template <class Change>
  bool update(Change change, u32 also) {
    u32 old = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(old, change(old) | also)) {
    }
    return (old & request::kick_in_flight) == 0;
  }

  std::atomic<u32> word_{0};
};

// NMIs that L1 is still to get: one while it handles one, else two, the second of which is taken
// when the first returns (SDM vol. 3, 6.7.1).
class NmiLatch {
 public:
  void add(unsigned nmis, bool blocked) {
    pending_ = static_cast<u8>(std::min<unsigned>(pending_ + nmis, blocked ? 1 : 2));
  }
  bool pending() const { return pending_ != 0; }
  void taken() { --pending_; }
  void clear() { pending_ = 0; }

 private:
  u8 pending_ = 0;
};

// What INIT and start-up IPIs make of a processor. SDM vol. 3, 9.4 and 11.4.7.3.
class Startup {
 public:
  enum class Action : u8 {
    none,
    init,   // reset the processor and its APIC; it then waits for a start-up IPI
    start,  // run from vector << 12 in real mode
  };
  struct Step {
    Action action = Action::none;
    u8 vector = 0;
  };

  bool waiting() const { return waiting_; }
  void set_waiting(bool waiting) { waiting_ = waiting; }

  // The next step the mailbox asks for; to be called until it says none. `init_blocked`: the
  // processor is where INIT stays latched, in VMX root operation or with GIF clear (SDM vol.
  // 3, 24.8; APM vol. 2, 15.17).
  Step next(Mailbox& mailbox, bool init_blocked) {
    const u32 pending = mailbox.pending();
    if ((pending & request::init) != 0 && !init_blocked) {
      mailbox.take(request::init);
      waiting_ = true;
      return {Action::init, 0};
    }
    if ((pending & request::sipi) != 0) {
      const std::optional<u8> vector = mailbox.take_sipi();
      if (vector && waiting_) {
        waiting_ = false;
        return {Action::start, *vector};
      }
    }
    return {};
  }

 private:
  bool waiting_ = false;
};

}  // namespace aerie::vmm
