// Segment registers as SVM's VMCB holds them (APM vol. 2, 15.5.1 and table B-2), which Aerie takes
// as its neutral form: on an SVM host nothing is converted on the exit path.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::cpu {

// ES..GS in instruction encoding order, then the system segments.
enum class SegmentRegister : u8 { es, cs, ss, ds, fs, gs, gdtr, ldtr, idtr, tr };
inline constexpr unsigned kSegmentRegisters = 10;

struct Segment {
  u16 selector;
  // Descriptor bits 55:52 (AVL, L, D/B, G) in bits 11:8, bits 47:40 (type, S, DPL, P) in bits 7:0.
  // Zero means unusable, as does P = 0.
  u16 attributes;
  u32 limit;  // in bytes, granularity already applied
  u64 base;

  constexpr unsigned type() const { return attributes & 0xf; }
  constexpr bool code_or_data() const { return (attributes & bit(4)) != 0; }
  constexpr unsigned dpl() const { return (attributes >> 5) & 3; }
  constexpr bool present() const { return (attributes & bit(7)) != 0; }
  constexpr bool long_mode() const { return (attributes & bit(9)) != 0; }     // L
  constexpr bool default_big() const { return (attributes & bit(10)) != 0; }  // D/B
  constexpr bool granularity() const { return (attributes & bit(11)) != 0; }
  constexpr bool operator==(const Segment&) const = default;
};
static_assert(sizeof(Segment) == 16);

// VMX access rights (SDM vol. 3, table 25-2): the same bits, the upper four at 15:12, unusable
// at 16.
constexpr u32 kVmxSegmentUnusable = 1u << 16;
// Not present is unusable and the other way round; the rest is kept, since SS.DPL is the CPL also
// where SS is unusable (null SS in 64-bit mode).
constexpr u32 vmx_access_rights(u16 attributes) {
  const auto rights = static_cast<u32>((attributes & 0xff) | ((attributes & 0xf00) << 4));
  return (attributes & bit(7)) != 0 ? rights : rights | kVmxSegmentUnusable;
}
constexpr u16 segment_attributes(u32 access_rights) {
  const auto attributes = static_cast<u16>((access_rights & 0xff) | ((access_rights >> 4) & 0xf00));
  return (access_rights & kVmxSegmentUnusable) != 0 ? static_cast<u16>(attributes & ~bit(7))
                                                    : attributes;
}

}  // namespace aerie::cpu
