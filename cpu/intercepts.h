// What of a guest's doings comes to L0, in neutral terms. A backend turns it into its own controls;
// a nested merge is the bitwise OR of what L0 wants and what L1 wants.
#pragma once

#include "base/bits.h"
#include "base/types.h"
#include "cpu/exit.h"

namespace aerie::cpu {

struct Intercepts {
  u64 reasons = 0;     // by ExitReason; exceptions, CR and DR accesses have their own words
  u32 exceptions = 0;  // by vector
  u16 cr_reads = 0;    // by control register number
  u16 cr_writes = 0;
  u16 dr_reads = 0;  // by debug register number
  u16 dr_writes = 0;

  constexpr Intercepts& on(ExitReason reason) {
    reasons |= bit(static_cast<unsigned>(reason));
    return *this;
  }
  constexpr Intercepts& off(ExitReason reason) {
    reasons &= ~bit(static_cast<unsigned>(reason));
    return *this;
  }
  constexpr bool has(ExitReason reason) const {
    return (reasons & bit(static_cast<unsigned>(reason))) != 0;
  }
  constexpr Intercepts operator|(const Intercepts& o) const {
    return {reasons | o.reasons,
            exceptions | o.exceptions,
            static_cast<u16>(cr_reads | o.cr_reads),
            static_cast<u16>(cr_writes | o.cr_writes),
            static_cast<u16>(dr_reads | o.dr_reads),
            static_cast<u16>(dr_writes | o.dr_writes)};
  }
  constexpr bool operator==(const Intercepts&) const = default;
};
static_assert(kExitReasons <= 64);

}  // namespace aerie::cpu
