// Fixed-width integers, spelled short, as every file of the core uses them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aerie {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using usize = std::size_t;

inline constexpr u64 kKiB = 1024;
inline constexpr u64 kMiB = 1024 * kKiB;
inline constexpr u64 kGiB = 1024 * kMiB;

inline constexpr unsigned kPageShift = 12;
inline constexpr u64 kPageSize = u64{1} << kPageShift;
inline constexpr u64 kPageMask = kPageSize - 1;

// Most processors one machine may have; per-CPU arrays are sized by it.
inline constexpr unsigned kMaxCpus = 8;

}  // namespace aerie
