// Physical interrupts on their way to L1's APIC, and what of L1's APIC the physical one mirrors.
//
// Every physical interrupt exits. L0 then takes it through its own IDT in a short window, which
// tells it the vector and nothing else: a vector is not proof of anything, since L1's devices may
// use each of them, the spurious vector has no ISR bit, and an 8259 puts any vector on the bus.
// What came is told by the physical ISR and TMR:
//
//   ISR bit clear              an ExtINT (the 8259's, if L1's APIC lets it through) or a spurious
//   one ISR bit set, TMR bit clear edge: physical EOI at once ISR bit set, TMR bit set   level: the
//   physical EOI waits for L1's, since it re-arms the line
//
// A deferred EOI cannot always be given when L1 gives its own: the physical EOI ends the *highest*
// vector in service, and a higher level interrupt may have come in since. It is then owed until all
// above it have ended; nothing at or below it could have been delivered before that either.
#pragma once

#include <optional>

#include "base/types.h"
#include "vmm/host_apic.h"
#include "vmm/vector_set.h"

namespace aerie::vmm {

class PhysicalInterrupts {
 public:
  // L0's spurious vector in the physical SVR.
  static constexpr u8 kSpuriousVector = 0xff;

  enum class Kind : u8 {
    spurious,
    extint,
    edge,   // EOI given
    level,  // EOI deferred
  };

  explicit PhysicalInterrupts(HostApic& host) : host_{host} {}

  // This processor's physical APIC as L0 wants it: software-enabled with L0's spurious vector, TPR
  // 0, the timer masked.
  void bring_up();

  // Called on its processor with the vector that the window took.
  Kind classify(u8 vector);

  // L1 has ended `vector`: gives the deferred physical EOI, or owes it.
  void end(u8 vector) {
    if (in_service_.test(vector)) [[unlikely]] {
      end_deferred(vector);
    }
  }
  // Ends all that is deferred and not in L1's IRR or ISR any more: L1's APIC was reset or has come
  // back to life. A line that is still raised then fires again.
  void drain(const AtomicVectorSet& virtual_irr, const VectorSet& virtual_isr);

  bool deferred(u8 vector) const { return in_service_.test(vector); }
  bool any_deferred() const { return !in_service_.empty(); }

  // --- The 8259 ---
  // Its interrupt must be acknowledged only when L1 can take it at once: L1 may be reprogramming
  // the 8259 with interrupts off, and the vector of before would be wrong. So LINT0 is held masked
  // from the first exit at which L1 cannot take it until it can.

  // Before the window is opened. `l1_accepts`: L1 could take an interrupt as its very next step.
  // False when there is nothing to take through the APIC, so that no window is to be opened: on TCG
  // it would find no vector at all.
  bool prepare_window(bool l1_accepts);
  // L0 has to hear of it when L1 can take interrupts (and then to call release_extint()).
  bool extint_held() const { return held_; }
  void release_extint();

  // --- Mirrors of L1's registers ---
  void mirror_logical(u32 ldr, u32 dfr);
  // `lint0`, `lint1`: L1's entries. `wired`: L1's APIC is disabled by IA32_APIC_BASE, and the pins
  // go to the processor as INTR and NMI (SDM vol. 3, 11.4.3).
  void mirror_lint(u32 lint0, u32 lint1, bool wired);

 private:
  void end_deferred(u8 vector);
  void write_lint0();

  HostApic& host_;
  VectorSet in_service_;  // deferred: the physical ISR, as L0 leaves it
  VectorSet owed_;        // of these, ended by L1 already
  u32 lint0_ = apic::lvt_masked;
  bool held_ = false;
};

}  // namespace aerie::vmm
