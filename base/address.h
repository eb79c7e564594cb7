// One type for each address space, so that they cannot be mixed by accident.
//
//   Gva   linear (virtual) address of the guest at hand
//   Gpa   physical address of L1
//   Ngpa  physical address of an L2
//   Hpa   host physical address
//
// Converting between them is a named function that can fail (mmu/, vmm/), never a cast.
#pragma once

#include <compare>

#include "base/types.h"

namespace aerie {

template <class Space>
class Address {
 public:
  constexpr Address() = default;
  constexpr explicit Address(u64 value) : value_{value} {}

  constexpr u64 value() const { return value_; }
  // Number of the 4 KiB frame or page.
  constexpr u64 frame() const { return value_ >> kPageShift; }
  constexpr u64 offset() const { return value_ & kPageMask; }
  constexpr Address page() const { return Address{value_ & ~kPageMask}; }
  constexpr bool page_aligned() const { return offset() == 0; }

  constexpr Address operator+(u64 bytes) const { return Address{value_ + bytes}; }
  constexpr Address operator-(u64 bytes) const { return Address{value_ - bytes}; }
  constexpr u64 operator-(Address other) const { return value_ - other.value_; }
  constexpr Address& operator+=(u64 bytes) {
    value_ += bytes;
    return *this;
  }
  constexpr auto operator<=>(const Address&) const = default;

  static constexpr Address of_frame(u64 frame) { return Address{frame << kPageShift}; }

 private:
  u64 value_ = 0;
};

using Gva = Address<struct GvaSpace>;
using Gpa = Address<struct GpaSpace>;
using Ngpa = Address<struct NgpaSpace>;
using Hpa = Address<struct HpaSpace>;

// Canonical for `bits` linear-address bits (48, or 57 with CR4.LA57). SDM vol. 1, 3.3.7.1.
constexpr bool is_canonical(u64 address, unsigned bits = 48) {
  const auto top = static_cast<i64>(address) >> (bits - 1);
  return top == 0 || top == -1;
}

}  // namespace aerie
