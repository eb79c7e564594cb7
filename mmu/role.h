// What a shadow page stands for besides the guest frame it shadows: two shadow pages of one guest
// table may differ in everything here, and everything here is part of the key they are found by.
//
// Rights inherited from the tables above need not be in the key while the shadow's own format ANDs
// them over the path as the guest's does (NPT under EPT12 or NPT12; guest paging under guest
// paging): an upper shadow entry then carries its own guest entry's rights and no more. `access` is
// for folded shadows, where several dimensions meet in one entry (DESIGN §4, mode (f)).
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::mmu {

// legacy_pse: 32-bit paging with CR4.PSE. flat: no guest paging at all; all its pages are direct.
enum class TableFormat : u8 { ept, npt, legacy, pae, ia32e, legacy_pse, flat };

class Role {
 public:
  constexpr Role() = default;

  constexpr unsigned level() const { return static_cast<unsigned>(Level::get(bits_)); }
  constexpr TableFormat format() const { return static_cast<TableFormat>(Format::get(bits_)); }
  // No guest table of its own: a piece of a large guest page that L0 must map smaller. The key's
  // frame is the first one it covers; it maps what L0's map holds there, with all rights.
  constexpr bool direct() const { return Direct::get(bits_) != 0; }
  // The guest's table has accessed and dirty flags.
  constexpr bool accessed_dirty() const { return AccessedDirty::get(bits_) != 0; }
  constexpr bool mode_based_execute() const { return ModeBasedExecute::get(bits_) != 0; }
  constexpr u8 access() const { return static_cast<u8>(Access::get(bits_)); }
  // WP, SMEP, SMAP, NXE as PermissionMode::index().
  constexpr unsigned permission_mode() const { return static_cast<unsigned>(Mode::get(bits_)); }
  // Which quarter (PDE) or half (PTE) of a 1024-entry legacy table a 512-entry shadow page covers.
  constexpr unsigned quadrant() const { return static_cast<unsigned>(Quadrant::get(bits_)); }

  // Of a direct page under guest paging: what its leaves take over from the large guest entry.
  constexpr unsigned leaf_bits() const { return static_cast<unsigned>(LeafBits::get(bits_)); }
  // Which second dimension the addresses in the guest's table go through; 0: they are L1's own.
  constexpr unsigned space() const { return static_cast<unsigned>(Space::get(bits_)); }

  constexpr Role with_level(unsigned level) const { return Role{Level::set(bits_, level)}; }
  constexpr Role with_format(TableFormat f) const {
    return Role{Format::set(bits_, static_cast<u64>(f))};
  }
  constexpr Role with_direct(bool v) const { return Role{Direct::set(bits_, v)}; }
  constexpr Role with_accessed_dirty(bool v) const { return Role{AccessedDirty::set(bits_, v)}; }
  constexpr Role with_mode_based_execute(bool v) const {
    return Role{ModeBasedExecute::set(bits_, v)};
  }
  constexpr Role with_access(u8 access) const { return Role{Access::set(bits_, access)}; }
  constexpr Role with_permission_mode(unsigned mode) const { return Role{Mode::set(bits_, mode)}; }
  constexpr Role with_quadrant(unsigned q) const { return Role{Quadrant::set(bits_, q)}; }

  constexpr Role with_leaf_bits(unsigned b) const { return Role{LeafBits::set(bits_, b)}; }
  constexpr Role with_space(unsigned space) const { return Role{Space::set(bits_, space)}; }

  constexpr u32 value() const { return bits_; }
  constexpr bool operator==(const Role&) const = default;

 private:
  using Level = Field<2, 0>;
  using Format = Field<5, 3>;
  using Direct = Field<6, 6>;
  using AccessedDirty = Field<7, 7>;
  using ModeBasedExecute = Field<8, 8>;
  using Access = Field<12, 9>;
  using Mode = Field<16, 13>;
  using Quadrant = Field<18, 17>;
  using LeafBits = Field<25, 19>;
  using Space = Field<31, 26>;

  constexpr explicit Role(u64 bits) : bits_{static_cast<u32>(bits)} {}
  u32 bits_ = 0;
};

}  // namespace aerie::mmu
