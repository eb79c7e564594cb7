// Results and flags of integer arithmetic at any operand size. SDM vol. 1, 3.4.3.1 and appendix A.
#pragma once

#include <bit>

#include "cpu/arch/registers.h"

namespace aerie::cpu {

// `flags` holds the arithmetic flags the operation sets, all others zero.
struct Arithmetic {
  u64 value;
  u64 flags;
};

constexpr u64 size_mask(unsigned size) { return ~u64{0} >> (64 - 8 * size); }
constexpr u64 sign_extend(u64 value, unsigned size) {
  const unsigned shift = 64 - 8 * size;
  return static_cast<u64>(static_cast<i64>(value << shift) >> shift);
}

// SF, ZF and PF of a result already cut to size.
constexpr u64 result_flags(u64 value, unsigned size) {
  u64 flags = 0;
  flags |= value == 0 ? rflags::zf : 0;
  flags |= (value >> (8 * size - 1)) != 0 ? rflags::sf : 0;
  flags |= std::popcount(value & 0xff) % 2 == 0 ? rflags::pf : 0;
  return flags;
}

// `a` and `b` are cut to size.
constexpr Arithmetic add(u64 a, u64 b, bool carry, unsigned size) {
  const u64 value = (a + b + (carry ? 1 : 0)) & size_mask(size);
  const unsigned top = 8 * size - 1;
  u64 flags = result_flags(value, size);
  flags |= ((((a & b) | ((a | b) & ~value)) >> top) & 1) != 0 ? rflags::cf : 0;
  flags |= ((((a ^ value) & (b ^ value)) >> top) & 1) != 0 ? rflags::of : 0;
  flags |= (a ^ b ^ value) & rflags::af;
  return {value, flags};
}
constexpr Arithmetic subtract(u64 a, u64 b, bool borrow, unsigned size) {
  const u64 value = (a - b - (borrow ? 1 : 0)) & size_mask(size);
  const unsigned top = 8 * size - 1;
  u64 flags = result_flags(value, size);
  flags |= ((((~a & b) | (~(a ^ b) & value)) >> top) & 1) != 0 ? rflags::cf : 0;
  flags |= ((((a ^ b) & (a ^ value)) >> top) & 1) != 0 ? rflags::of : 0;
  flags |= (a ^ b ^ value) & rflags::af;
  return {value, flags};
}
// AND, OR, XOR, TEST: CF and OF cleared, AF undefined (cleared here, as processors do).
constexpr Arithmetic logic(u64 value, unsigned size) { return {value, result_flags(value, size)}; }

}  // namespace aerie::cpu
