// What an entry of a guest's own paging (not EPT12 or NPT12) makes of the shadow entry that stands
// for it. The processor walks the shadow with the guest's SMEP, SMAP and protection keys, so an
// entry carries the guest's own U/S, R/W, XD and key, and the processor checks them as it would
// have checked the guest's. SDM vol. 3, 4.3 to 4.6.
//
// What needs care:
//  - Accessed and dirty are the guest's to see: nothing stands for an entry that is not accessed
//    yet, and a leaf that is not dirty yet is not writable. The fault sets the flag.
//  - The processor always runs with CR0.WP, so that a clean page stays write-protected. Where the
//    guest has WP = 0, a supervisor page is writable whatever its R/W says. A read-only user page
//    is either readable by all or (after a supervisor write to it) writable by the supervisor
//    alone, and changes between the two at faults.
//  - PAE and 32-bit paging are shadowed by PAE tables: a 32-bit table makes two shadow tables, or
//    four of its directory.
#pragma once

#include "mmu/guest_formats.h"
#include "mmu/host_map.h"
#include "mmu/role.h"

namespace aerie::mmu {

// What a guest entry says, as far as its shadow goes.
struct LinearEntry {
  enum class Kind : u8 { none, table, leaf };
  Kind kind = Kind::none;
  u8 access = right::all;  // of a table: what its entries inherit (Role::access())
  u8 leaf_bits = 0;        // of a leaf: kLeafBits, packed
  u64 address = 0;         // of the next table or the page, in the guest's physical space
  u64 flags = 0;           // of the shadow entry, but for kLeafBits
};

namespace linear {

// Bits of a leaf that only a leaf has, in the places of a 4 KiB entry: PWT, PCD, PAT, and the
// protection key.
inline constexpr u64 kPwtPcd = bit_mask(4, 3), kPatSmall = bit(7), kPatLarge = bit(12),
                     kKey = bit_mask(62, 59);
constexpr u8 pack_leaf_bits(u64 entry, bool large, bool keys) {
  const bool pat = (entry & (large ? kPatLarge : kPatSmall)) != 0;
  return static_cast<u8>(((entry >> 3) & 3) | (pat ? 4 : 0) |
                         (keys ? ((entry >> 59) & 15) << 3 : 0));
}
constexpr u64 unpack_leaf_bits(u8 packed, bool large) {
  return (static_cast<u64>(packed & 3) << 3) |
         ((packed & 4) != 0 ? (large ? kPatLarge : kPatSmall) : 0) |
         (static_cast<u64>(packed >> 3) << 59);
}

// How much of a 32-bit page directory's entry one shadow entry of 2 MiB covers: half.
constexpr bool is_narrow(TableFormat f) {
  return f == TableFormat::legacy || f == TableFormat::legacy_pse;
}
// Where in the guest's table the entry lies that entry `index` of a shadow page with this role
// stands for.
constexpr unsigned guest_index(Role role, unsigned index) {
  if (!is_narrow(role.format())) {
    return index;
  }
  return role.level() == 2 ? role.quadrant() * 256 + index / 2 : role.quadrant() * 512 + index;
}

constexpr u64 page_size(unsigned level) { return bit(12 + 9 * (level - 1)); }

// What Role::permission_mode() holds here: NXE, since bit 63 means something by it; WP; and without
// WP: SMEP, and whether SMAP or protection keys look at whose a page is.
inline constexpr unsigned kWp = 1, kSmep = 2, kOwnerChecked = 4, kNxe = 8;
constexpr bool has_wp(Role role) { return (role.permission_mode() & kWp) != 0; }

template <class Format>
constexpr LinearEntry derive(Role role, u64 entry, const FormatContext& context) {
  const unsigned level = role.level();
  const bool large_or_small_leaf = Format::leaf(entry, level, context);
  if (!Format::present(entry) || (entry & Format::kAccessed) == 0 ||
      (entry & Format::reserved(level, large_or_small_leaf, context)) != 0) {
    return {};
  }
  const u8 rights = Format::rights(entry, level, context);
  u64 flags = npt::present | npt::accessed;
  flags |= (rights & right::execute) != 0 ? 0 : npt::no_execute;
  if (!large_or_small_leaf) {
    const u8 access = has_wp(role) ? u8{right::all} : static_cast<u8>(role.access() & rights);
    flags |= (rights & right::user) != 0 ? npt::user : 0;
    flags |= (rights & right::write) != 0 || !has_wp(role) ? npt::write : 0;
    return {LinearEntry::Kind::table, static_cast<u8>(access | right::execute), 0,
            Format::table(entry), flags};
  }
  const bool dirty = (entry & Format::kDirty) != 0;
  bool write = (rights & right::write) != 0;
  if (!has_wp(role)) {
    const bool user = (rights & role.access() & right::user) != 0;
    write = !user || (write && (role.access() & right::write) != 0);
  }
  flags |= (rights & right::user) != 0 ? npt::user : 0;
  flags |= write && dirty ? npt::write | npt::dirty : 0;
  const bool keys = Format::kLevels >= 4;
  return {LinearEntry::Kind::leaf, right::all, pack_leaf_bits(entry, level > 1, keys),
          Format::frame(entry, level), flags};
}

}  // namespace linear

// The entry of a guest's table that entry `index` of the shadow page with `role` stands for.
constexpr LinearEntry derive_linear(Role role, unsigned index, u64 entry,
                                    const PagingFeatures& features) {
  const FormatContext context{features, (role.permission_mode() & linear::kNxe) != 0,
                              role.format() == TableFormat::legacy_pse};
  switch (role.format()) {
    case TableFormat::legacy:
    case TableFormat::legacy_pse: {
      LinearEntry e = linear::derive<Legacy>(role, entry, context);
      if (e.kind == LinearEntry::Kind::leaf && role.level() == 2 && (index & 1) != 0) {
        e.address += linear::page_size(2);
      }
      return e;
    }
    case TableFormat::pae:
      return linear::derive<Pae>(role, entry, context);
    default:
      // The levels below the fifth mean the same in 4- and 5-level paging.
      return role.level() == 5 ? linear::derive<Ia32e<5>>(role, entry, context)
                               : linear::derive<Ia32e<4>>(role, entry, context);
  }
}

}  // namespace aerie::mmu
