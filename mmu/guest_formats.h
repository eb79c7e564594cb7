// The formats a guest's translation tables may have, as traits. What a walker or a shadow pager
// needs to know of a format is here and nowhere else: entry width, levels, which entries are
// leaves, reserved bits, rights, accessed and dirty bits.
//
//   Legacy     32-bit paging, 4 KiB and (PSE, PSE-36) 4 MiB pages      SDM vol. 3, 4.3
//   Pae        PAE paging                                               SDM vol. 3, 4.4
//   Ia32e<N>   4- and 5-level paging; NPT12, walked as user accesses    SDM 4.5; APM vol. 2, 15.25
//   EptFormat  extended page tables of 4 or 5 levels                    SDM vol. 3, 29.3
//
// Levels are numbered from the leaf up: 1 is the table whose entries map 4 KiB.
#pragma once

#include "base/bits.h"
#include "base/types.h"
#include "cpu/arch/registers.h"

namespace aerie::mmu {

// What the processor that a guest sees offers, as far as reserved bits depend on it.
struct PagingFeatures {
  u8 maxphyaddr = 40;
  bool gib_pages = true;  // CPUID 8000_0001H EDX[26]
  bool pse36 = true;      // CPUID 1 EDX[17]
};

enum class PagingMode : u8 { none, legacy, pae, ia32e4, ia32e5 };

// The bits of CR0, CR4 and EFER that choose how linear addresses are translated, or-ed together as
// they stand (no two share a position). Cheap enough to form on every exit; keys the walk cache.
class ModeBits {
 public:
  static constexpr u32 kCr0 = static_cast<u32>(cpu::cr0::pg);
  static constexpr u32 kCr4 = static_cast<u32>(cpu::cr4::pse | cpu::cr4::pae | cpu::cr4::la57);
  static constexpr u32 kEfer = static_cast<u32>(cpu::efer::lma | cpu::efer::nxe);
  static_assert((kCr0 & kCr4) == 0 && (kCr0 & kEfer) == 0 && (kCr4 & kEfer) == 0);
  static constexpr u32 kNested = 1;  // an L2: what comes out is an Ngpa

  constexpr ModeBits() = default;
  constexpr ModeBits(u64 cr0, u64 cr4, u64 efer, bool nested = false)
      : bits_{(static_cast<u32>(cr0) & kCr0) | (static_cast<u32>(cr4) & kCr4) |
              (static_cast<u32>(efer) & kEfer) | (nested ? kNested : 0)} {}

  constexpr PagingMode mode() const {
    if ((bits_ & kCr0) == 0) {
      return PagingMode::none;
    }
    if ((bits_ & cpu::efer::lma) != 0) {
      return (bits_ & cpu::cr4::la57) != 0 ? PagingMode::ia32e5 : PagingMode::ia32e4;
    }
    return (bits_ & cpu::cr4::pae) != 0 ? PagingMode::pae : PagingMode::legacy;
  }
  constexpr bool pse() const { return (bits_ & cpu::cr4::pse) != 0; }
  constexpr bool nxe() const { return (bits_ & cpu::efer::nxe) != 0; }
  constexpr bool nested() const { return (bits_ & kNested) != 0; }
  constexpr u32 value() const { return bits_; }
  constexpr bool operator==(const ModeBits&) const = default;

 private:
  u32 bits_ = 0;
};

// Rights that guest paging grants, ANDed over the path.
namespace right {
inline constexpr u8 user = 1, write = 2, execute = 4, all = 7;
}
// Rights that EPT grants, at the positions of its own bits 2:0; execute_user is bit 10 of an entry.
namespace ept_right {
inline constexpr u8 read = 1, write = 2, execute = 4, execute_user = 8, all = 7;
}

// What the reserved bits of guest paging depend on.
struct FormatContext {
  PagingFeatures features{};
  bool nxe = false;
  bool pse = false;
};

namespace detail {
// Bits 51 down to MAXPHYADDR.
constexpr u64 beyond(u8 maxphyaddr) { return maxphyaddr >= 52 ? 0 : bit_mask(51, maxphyaddr); }
}  // namespace detail

inline constexpr u64 kAddressMask = bit_mask(51, 12);

struct Legacy {
  using Entry = u32;
  static constexpr unsigned kLevels = 2;
  static constexpr u64 kAccessed = bit(5), kDirty = bit(6);

  static constexpr unsigned shift(unsigned level) { return 12 + 10 * (level - 1); }
  static constexpr u64 index(u64 linear, unsigned level) {
    return (linear >> shift(level)) & 0x3ff;
  }
  static constexpr u64 root(u64 cr3) { return cr3 & bit_mask(31, 12); }
  static constexpr bool present(u64 entry) { return (entry & 1) != 0; }
  static constexpr bool leaf(u64 entry, unsigned level, const FormatContext& c) {
    return level == 1 || (c.pse && (entry & bit(7)) != 0);
  }
  static constexpr u64 reserved(unsigned level, bool is_leaf, const FormatContext& c) {
    if (level != 2 || !is_leaf) {
      return 0;
    }
    // PSE-36: bits M-20:13 are address bits M-1:32, M being the smaller of MAXPHYADDR and 40.
    const unsigned m = c.features.maxphyaddr < 40 ? c.features.maxphyaddr : 40;
    return c.features.pse36 && m > 32 ? bit_mask(21, m - 19) : bit_mask(21, 13);
  }
  static constexpr u64 table(u64 entry) { return entry & bit_mask(31, 12); }
  static constexpr u64 frame(u64 entry, unsigned level) {
    return level == 1 ? entry & bit_mask(31, 12)
                      : (entry & bit_mask(31, 22)) | ((entry & bit_mask(20, 13)) << 19);
  }
  static constexpr u8 rights(u64 entry, unsigned, const FormatContext&) {
    return static_cast<u8>(((entry >> 2) & 1) | (entry & 2) | right::execute);
  }
  static constexpr bool has_accessed(unsigned) { return true; }
};

namespace detail {
// What PAE's lower two levels and IA-32e paging have in common.
struct Wide {
  using Entry = u64;
  static constexpr u64 kAccessed = bit(5), kDirty = bit(6);
  static constexpr u64 kNoExecute = bit(63);

  static constexpr unsigned shift(unsigned level) { return 12 + 9 * (level - 1); }
  static constexpr bool present(u64 entry) { return (entry & 1) != 0; }
  static constexpr u64 table(u64 entry) { return entry & kAddressMask; }
  static constexpr u64 frame(u64 entry, unsigned level) {
    return entry & kAddressMask & ~(bit(shift(level)) - 1);
  }
  static constexpr u8 rights(u64 entry) {
    return static_cast<u8>(((entry >> 2) & 1) | (entry & 2) |
                           ((entry & kNoExecute) != 0 ? 0 : right::execute));
  }
  // Address bits of a large leaf below its size, but for PAT (bit 12).
  static constexpr u64 large_low(unsigned level) { return bit_mask(shift(level) - 1, 13); }
};
}  // namespace detail

struct Pae : detail::Wide {
  static constexpr unsigned kLevels = 3;
  static constexpr u64 index(u64 linear, unsigned level) {
    return (linear >> shift(level)) & (level == 3 ? 3 : 0x1ff);
  }
  static constexpr u64 root(u64 cr3) { return cr3 & bit_mask(31, 5); }
  static constexpr bool leaf(u64 entry, unsigned level, const FormatContext&) {
    return level == 1 || (level == 2 && (entry & bit(7)) != 0);
  }
  static constexpr u64 reserved(unsigned level, bool is_leaf, const FormatContext& c) {
    const u64 high = bit_mask(62, 52) | detail::beyond(c.features.maxphyaddr);
    if (level == 3) {
      // Bit 5 is left out: QEMU's TCG sets it, as if a PDPTE had an accessed bit (FACTS).
      return high | bit(63) | bit_mask(8, 6) | bit_mask(2, 1);
    }
    return high | (c.nxe ? 0 : bit(63)) | (level == 2 && is_leaf ? large_low(2) : 0);
  }
  static constexpr u8 rights(u64 entry, unsigned level, const FormatContext&) {
    return level == 3 ? right::all : Wide::rights(entry);
  }
  static constexpr bool has_accessed(unsigned level) { return level != 3; }
};

template <unsigned Levels>
struct Ia32e : detail::Wide {
  static_assert(Levels == 4 || Levels == 5);
  static constexpr unsigned kLevels = Levels;
  static constexpr u64 index(u64 linear, unsigned level) {
    return (linear >> shift(level)) & 0x1ff;
  }
  static constexpr u64 root(u64 cr3) { return cr3 & kAddressMask; }
  // Bit 7 of a PML4E or PML5E is reserved, not a page size.
  static constexpr bool leaf(u64 entry, unsigned level, const FormatContext&) {
    return level == 1 || (level <= 3 && (entry & bit(7)) != 0);
  }
  static constexpr u64 reserved(unsigned level, bool is_leaf, const FormatContext& c) {
    u64 mask = detail::beyond(c.features.maxphyaddr) | (c.nxe ? 0 : bit(63));
    if (level >= 4 || (level == 3 && !c.features.gib_pages)) {
      mask |= bit(7);
    }
    return is_leaf && level > 1 ? mask | large_low(level) : mask;
  }
  static constexpr u8 rights(u64 entry, unsigned, const FormatContext&) {
    return Wide::rights(entry);
  }
  static constexpr bool has_accessed(unsigned) { return true; }
};

// Extended page tables. An entry is present when it grants anything; what a present one must not
// hold is an EPT misconfiguration (SDM vol. 3, 29.3.3.1), not a fault of the access.
struct EptFormat {
  using Entry = u64;
  static constexpr u64 kAccessed = bit(8), kDirty = bit(9), kLarge = bit(7), kExecuteUser = bit(10);

  // What the EPT capabilities shown to L1 make of an entry (IA32_VMX_EPT_VPID_CAP).
  struct Context {
    PagingFeatures features{};
    bool execute_only = false;
    bool mode_based_execute = false;
  };

  static constexpr unsigned shift(unsigned level) { return 12 + 9 * (level - 1); }
  static constexpr u64 index(u64 address, unsigned level) {
    return (address >> shift(level)) & 0x1ff;
  }
  static constexpr bool present(u64 entry, const Context& c) {
    return (entry & (ept_right::all | (c.mode_based_execute ? kExecuteUser : 0))) != 0;
  }
  static constexpr bool leaf(u64 entry, unsigned level) {
    return level == 1 || (level <= 3 && (entry & kLarge) != 0);
  }
  // Bits that a leaf, or an entry that points to a table, must not have set. `beyond`: the address
  // bits that the processor lacks, which is the only part that is not a constant of the level.
  static constexpr u64 leaf_reserved(unsigned level, u64 beyond, const Context& c) {
    return beyond | (level > 1 ? bit_mask(shift(level) - 1, 12) : 0) |
           (level == 3 && !c.features.gib_pages ? kLarge : 0);
  }
  static constexpr u64 table_reserved(u64 beyond) { return beyond | bit_mask(7, 3); }
  static constexpr bool bad_memory_type(u64 entry) {
    return ((0x8c >> ((entry >> 3) & 7)) & 1) != 0;
  }
  static constexpr u64 beyond(const Context& c) { return detail::beyond(c.features.maxphyaddr); }

  // Of a present entry.
  static constexpr bool misconfigured(u64 entry, unsigned level, u64 beyond, const Context& c) {
    if ((entry & ept_right::read) == 0 && ((entry & ept_right::write) != 0 || !c.execute_only)) {
      return true;
    }
    if (leaf(entry, level)) {
      return (entry & leaf_reserved(level, beyond, c)) != 0 || bad_memory_type(entry);
    }
    return (entry & table_reserved(beyond)) != 0;
  }
  static constexpr u64 table(u64 entry) { return entry & kAddressMask; }
  static constexpr u64 frame(u64 entry, unsigned level) {
    return entry & kAddressMask & ~(bit(shift(level)) - 1);
  }
  // Bit 10 counts under mode-based execute control only; without it execute stands for both.
  static constexpr u8 rights(u64 entry, const Context& c) {
    const u8 rwx = static_cast<u8>(entry & ept_right::all);
    const bool user =
        c.mode_based_execute ? (entry & kExecuteUser) != 0 : (entry & ept_right::execute) != 0;
    return static_cast<u8>(rwx | (user ? ept_right::execute_user : 0));
  }
};

// An EPT pointer as L1 wrote it into its VMCS. SDM vol. 3, table 25-9. That it is well formed is
// checked at VM entry, by nested.
class Eptp {
 public:
  constexpr Eptp() = default;
  constexpr explicit Eptp(u64 value) : value_{value} {}
  constexpr u64 value() const { return value_; }
  constexpr u64 root() const { return value_ & kAddressMask; }
  constexpr unsigned levels() const { return static_cast<unsigned>((value_ >> 3) & 7) + 1; }
  constexpr bool accessed_dirty() const { return (value_ & bit(6)) != 0; }
  constexpr bool operator==(const Eptp&) const = default;

 private:
  u64 value_ = 0;
};

}  // namespace aerie::mmu
