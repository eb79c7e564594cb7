// Where a guest's code lies, without walking its tables on every exit (DESIGN §3).
//
// L1 changes its tables without our knowing, so what is kept is not the translation alone but the
// table entries it came from: a hit loads each of them again and compares, accessed and dirty bits
// masked. That is exact, at some four instructions an entry. For an L2 the entries' own addresses
// went through EPT12: that second dimension is vouched for by the shadow pager's generation, which
// is part of the key.
//
// One per virtual CPU: no lock. Pointers into L1's memory stay valid because L1's RAM never moves
// (gpa == hpa, and its ranges are fixed at boot).
#pragma once

#include <array>

#include "mmu/walker.h"

namespace aerie::mmu {

class WalkCache {
 public:
  static constexpr unsigned kSlots = 64;

  // A pointer to the guest's byte at linear address `rip`, valid to the end of its 4 KiB page;
  // nullptr where the tables do not translate it to L1's RAM or ROM. Rights are not checked: the
  // processor has just executed from there.
  const u8* code_bytes(ModeBits mode, u64 cr3, u64 rip, const L1Memory& memory) {
    const Slot& s = slot(cr3, rip);
    if (hits(s, mode, cr3, rip, 0)) [[likely]] {
      return s.bytes + (rip & kPageMask);
    }
    return fill(mode, cr3, rip, memory);
  }

  // The same for an L2. `generation`: of the root that L2 runs on (ShadowPager), never 0, unique to
  // the root and changed whenever something may have left it.
  const u8* code_bytes(ModeBits mode, u64 cr3, u64 rip, u64 generation, const L1Memory& memory,
                       Eptp eptp, const EptFormat::Context& context) {
    const Slot& s = slot(cr3, rip);
    if (hits(s, mode, cr3, rip, generation)) [[likely]] {
      return s.bytes + (rip & kPageMask);
    }
    return fill_nested(mode, cr3, rip, generation, memory, eptp, context);
  }

  // The table entries that vouch for the page of `rip`, just translated by code_bytes(): for a
  // caller that keeps them with what it derived from the page (vmm/exit_sites.h). The last one is
  // repeated where the walk is shorter; false where the format's entries are not 8 bytes.
  struct Path {
    std::array<const u64*, WalkPath::kMaxDepth> at;
    std::array<u64, WalkPath::kMaxDepth> value;
  };
  static constexpr u64 kIgnoredBits = Ia32e<4>::kAccessed | Ia32e<4>::kDirty;
  bool path(ModeBits mode, u64 cr3, u64 rip, u64 generation, Path& out) {
    const Slot& s = slot(cr3, rip);
    if (!hits(s, mode, cr3, rip, generation) || s.kind < 2 || s.kind > out.at.size()) {
      return false;
    }
    for (unsigned i = 0; i < out.at.size(); ++i) {
      const unsigned from = i < s.kind ? i : s.kind - 1;
      out.at[i] = static_cast<const u64*>(s.at[from]);
      out.value[i] = s.value[from];
    }
    return true;
  }

  // A hit is not counted: that would cost as much as comparing another entry.
  u64 misses() const { return misses_; }

  void clear() { slots_ = {}; }

 private:
  // Accessed and dirty bits; in an entry that is no leaf bit 6 means nothing.
  static constexpr u64 kIgnored = Ia32e<4>::kAccessed | Ia32e<4>::kDirty;
  static constexpr u8 kNarrow = 6;  // `kind` of legacy tables, whose entries are 4 bytes

  static constexpr u64 kEmpty = ~u64{0};  // no linear address has this page number

  struct Slot {
    u64 page = kEmpty;  // number of the linear page
    u64 cr3 = 0;
    u64 cr3_mask = 0;  // the bits of CR3 that count in this mode: no PCID, PWT, PCD, bit 63
    u64 generation = 0;
    u32 mode = 0;
    u32 kind = 0;               // entries to compare (0: no paging), or kNarrow
    const u8* bytes = nullptr;  // of the page
    std::array<const void*, WalkPath::kMaxDepth> at{};
    std::array<u64, WalkPath::kMaxDepth> value{};
  };

  static constexpr u64 cr3_mask(PagingMode mode) {
    switch (mode) {
      case PagingMode::none:
        return 0;
      case PagingMode::legacy:
        return bit_mask(31, 12);
      case PagingMode::pae:
        return bit_mask(31, 5);
      case PagingMode::ia32e4:
      case PagingMode::ia32e5:
        break;
    }
    return kAddressMask;
  }

  static u64 difference(const Slot& s, unsigned i) {
    return __atomic_load_n(static_cast<const u64*>(s.at[i]), __ATOMIC_RELAXED) ^ s.value[i];
  }

  // Legacy slots are compared out of line, on the way to fill().
  static bool unchanged(const Slot& s) {
    u64 changed = 0;
    switch (s.kind) {
      case 5:
        changed |= difference(s, 4);
        [[fallthrough]];
      case 4:
        changed |= difference(s, 3);
        [[fallthrough]];
      case 3:
        changed |= difference(s, 2);
        [[fallthrough]];
      case 2:
        changed |= difference(s, 1) | difference(s, 0);
        [[fallthrough]];
      case 0:
        return (changed & ~kIgnored) == 0;
      case kNarrow:
        return false;
      default:
        __builtin_unreachable();
    }
  }
  static bool unchanged_narrow(const Slot& s);

  Slot& slot(u64 cr3, u64 rip) {
    return slots_[((rip >> kPageShift) ^ (cr3 >> kPageShift)) % kSlots];
  }
  static bool matches(const Slot& s, ModeBits mode, u64 cr3, u64 rip, u64 generation) {
    return s.page == rip >> kPageShift && s.mode == mode.value() &&
           ((s.cr3 ^ cr3) & s.cr3_mask) == 0 && s.generation == generation;
  }
  static bool hits(const Slot& s, ModeBits mode, u64 cr3, u64 rip, u64 generation) {
    return matches(s, mode, cr3, rip, generation) && unchanged(s);
  }

  const u8* fill(ModeBits mode, u64 cr3, u64 rip, const L1Memory& memory);
  const u8* fill_nested(ModeBits mode, u64 cr3, u64 rip, u64 generation, const L1Memory& memory,
                        Eptp eptp, const EptFormat::Context& context);
  template <class Second>
  const u8* refill(ModeBits mode, u64 cr3, u64 rip, u64 generation, const L1Memory& memory,
                   const Second& second);

  std::array<Slot, kSlots> slots_{};
  u64 misses_ = 0;
};

}  // namespace aerie::mmu
