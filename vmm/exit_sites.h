// Exit sites (DESIGN §3): the places in a guest's 64-bit code where it exits again and again. One
// entry holds what the walk cache and the decode cache would say, so that the common exit costs one
// look-up: the instruction at RIP is still the one decoded before if the table entries that lead to
// it and its own bytes are what they were. Both are compared; nothing has to be invalidated.
//
// One a vCPU, no lock. Everything else (other modes, a page's last bytes, long instructions) goes
// by the two caches.
#pragma once

#include <array>

#include "cpu/decode/instruction.h"
#include "mmu/walk_cache.h"

namespace aerie::vmm {

class ExitSites {
 public:
  // L1's. nullptr: not known, or changed.
  [[gnu::always_inline]] const cpu::Instruction* find(u64 rip, u64 cr3, mmu::ModeBits mode) const {
    return check(sites_[index(rip)], rip, cr3, mode);
  }
  // An L2's, whose mode says that it is one. `generation`: of its second dimension of translation,
  // 0 without.
  [[gnu::always_inline]] const cpu::Instruction* find_nested(u64 rip, u64 cr3, mmu::ModeBits mode,
                                                             u64 generation) const {
    const Site& s = sites_[index(rip)];
    return s.generation == generation ? check(s, rip, cr3, mode) : nullptr;
  }

  // `code`: the instruction's bytes in the physical window, just decoded as `instruction`.
  void add(u64 rip, u64 cr3, mmu::ModeBits mode, u64 generation, const mmu::WalkCache::Path& path,
           const u8* code, const cpu::Instruction& instruction) {
    if (instruction.length > sizeof(u64) || (rip & kPageMask) > kPageSize - sizeof(u64)) {
      return;
    }
    Site& s = sites_[index(rip)];
    s.rip = rip;
    s.cr3 = cr3;
    s.generation = generation;
    s.mode = mode.value();
    s.path = path;
    s.code = code;
    s.mask = ~u64{0} >> (64 - 8 * instruction.length);
    __builtin_memcpy(&s.bytes, code, sizeof(s.bytes));
    s.bytes &= s.mask;
    s.instruction = instruction;
  }

 private:
  static constexpr usize kSites = 256;

  // A power of two in size: an index is a shift.
  struct alignas(256) Site {
    u64 rip = ~u64{0};  // no instruction begins there: not canonical with its successor
    u64 cr3 = 0;
    u64 generation = 0;
    u32 mode = 0;
    mmu::WalkCache::Path path{};
    const u8* code = nullptr;
    u64 mask = 0;
    u64 bytes = 0;
    cpu::Instruction instruction{};
  };

  [[gnu::always_inline]] static const cpu::Instruction* check(const Site& s, u64 rip, u64 cr3,
                                                              mmu::ModeBits mode) {
    if (s.rip != rip || s.cr3 != cr3 || s.mode != mode.value()) [[unlikely]] {
      return nullptr;
    }
    u64 changed = difference(s, 0) | difference(s, 1) | difference(s, 2) | difference(s, 3);
    // A fifth entry is there to compare with five levels only: Linux uses them wherever it can.
    if ((mode.value() & cpu::cr4::la57) != 0) {
      changed |= difference(s, 4);
    }
    if ((changed & ~mmu::WalkCache::kIgnoredBits) != 0) [[unlikely]] {
      return nullptr;
    }
    u64 bytes;
    __builtin_memcpy(&bytes, s.code, sizeof(bytes));
    return (bytes & s.mask) == s.bytes ? &s.instruction : nullptr;
  }

  static constexpr usize index(u64 rip) { return (rip ^ (rip >> 9)) % kSites; }
  static u64 difference(const Site& s, unsigned i) {
    return __atomic_load_n(s.path.at[i], __ATOMIC_RELAXED) ^ s.path.value[i];
  }

  std::array<Site, kSites> sites_{};
};

}  // namespace aerie::vmm
