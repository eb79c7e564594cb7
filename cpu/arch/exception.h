// Exceptions and the events that are injected into a guest. SDM vol. 3, 6.3.1 and 25.8.3; APM vol.
// 2, 8.2 and 15.20.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::cpu {

enum class Exception : u8 {
  de = 0,
  db = 1,
  nmi = 2,
  bp = 3,
  of = 4,
  br = 5,
  ud = 6,
  nm = 7,
  df = 8,
  ts = 10,
  np = 11,
  ss = 12,
  gp = 13,
  pf = 14,
  mf = 16,
  ac = 17,
  mc = 18,
  xm = 19,
  ve = 20,
  cp = 21,
};

constexpr u32 exception_bit(Exception e) { return u32{1} << static_cast<u8>(e); }

// Exceptions that push an error code (SDM vol. 3, table 6-1).
constexpr bool has_error_code(u8 vector) {
  constexpr u32 with = (1u << 8) | (1u << 10) | (1u << 11) | (1u << 12) | (1u << 13) | (1u << 14) |
                       (1u << 17) | (1u << 21);
  return vector < 32 && ((with >> vector) & 1) != 0;
}

// Contributory exceptions and page faults make #DF of one another (SDM vol. 3, table 6-5).
constexpr bool is_contributory(u8 vector) {
  constexpr u32 set = (1u << 0) | (1u << 10) | (1u << 11) | (1u << 12) | (1u << 13);
  return vector < 32 && ((set >> vector) & 1) != 0;
}

// Types as VMX numbers them (SDM vol. 3, table 25-17); SVM's are a subset with other values.
enum class EventType : u8 {
  external_interrupt = 0,
  nmi = 2,
  hardware_exception = 3,
  software_interrupt = 4,
  privileged_software_exception = 5,  // ICEBP
  software_exception = 6,             // INT3, INTO
  other = 7,
};

// Something to be delivered through the guest's IDT.
struct Event {
  bool valid = false;
  EventType type = EventType::external_interrupt;
  u8 vector = 0;
  bool has_error = false;
  u32 error = 0;
  u8 instruction_length = 0;  // for software events: RIP pushed is RIP + length

  static constexpr Event exception(Exception e) {
    return {.valid = true, .type = EventType::hardware_exception, .vector = static_cast<u8>(e)};
  }
  static constexpr Event exception(Exception e, u32 error) {
    return {.valid = true,
            .type = EventType::hardware_exception,
            .vector = static_cast<u8>(e),
            .has_error = true,
            .error = error};
  }
  static constexpr Event interrupt(u8 vector) { return {.valid = true, .vector = vector}; }
  static constexpr Event nmi() { return {.valid = true, .type = EventType::nmi, .vector = 2}; }
};

// Page-fault error code bits (SDM vol. 3, 4.7).
namespace pfec {
inline constexpr u32 present = 1u << 0, write = 1u << 1, user = 1u << 2, reserved = 1u << 3,
                     fetch = 1u << 4, protection_key = 1u << 5;
}

}  // namespace aerie::cpu
