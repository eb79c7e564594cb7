// Bit fields of hardware words, by position rather than by compiler bit-fields.
#pragma once

#include <concepts>
#include <type_traits>

#include "base/types.h"

namespace aerie {

constexpr u64 bit(unsigned n) { return u64{1} << n; }

// Ones in bits high..low, both included.
constexpr u64 bit_mask(unsigned high, unsigned low) {
  return (~u64{0} >> (63 - high)) & (~u64{0} << low);
}

// Bits `high`..`low` of a word: Field<15, 12>::get(ar).
template <unsigned High, unsigned Low>
struct Field {
  static_assert(High >= Low && High < 64);
  static constexpr u64 kMask = bit_mask(High, Low);
  static constexpr u64 get(u64 word) { return (word & kMask) >> Low; }
  static constexpr u64 make(u64 value) { return (value << Low) & kMask; }
  static constexpr u64 set(u64 word, u64 value) { return (word & ~kMask) | make(value); }
};

template <std::unsigned_integral T>
constexpr T align_down(T value, std::type_identity_t<T> alignment) {
  return value & ~(alignment - 1);
}
template <std::unsigned_integral T>
constexpr T align_up(T value, std::type_identity_t<T> alignment) {
  return align_down<T>(value + alignment - 1, alignment);
}

}  // namespace aerie
