// What a guest's table entry makes of the shadow entry that stands for it: a pure function of the entry
// and the shadow page's role, so that a shadow page can be brought up to date entry by entry, whatever
// its place in the tree. One function per guest format; the shadow side is NPT's format.
#pragma once

#include "mmu/guest_formats.h"
#include "mmu/host_map.h"
#include "mmu/role.h"

namespace aerie::mmu {

struct ShadowedEntry {
  enum class Kind : u8 { none, table, leaf };
  Kind kind = Kind::none;
  u64 address = 0;  // of the guest's next table, or of the page
  u64 flags = 0;    // of the shadow entry, without address and page size
};

namespace shadow_flags {
inline constexpr u64 base = npt::present | npt::user;
inline constexpr u64 all = base | npt::write;  // and executable
}  // namespace shadow_flags

// EPT → NPT. Nothing stands for an entry that the processor would have to stop at: not present,
// misconfigured, or (with accessed and dirty flags) not accessed yet. A leaf that is not dirty yet is not
// writable, so that the first write comes to L0, which sets the flag.
constexpr ShadowedEntry shadow_of_ept(u64 entry, Role role, const EptFormat::Context& context) {
  ShadowedEntry s;
  const unsigned level = role.level();
  if (!EptFormat::present(entry, context) || EptFormat::misconfigured(entry, level, context) ||
      (role.accessed_dirty() && (entry & EptFormat::kAccessed) == 0)) {
    return s;
  }
  s.flags = shadow_flags::base | ((entry & ept_right::execute) != 0 ? 0 : npt::no_execute);
  const bool leaf = EptFormat::leaf(entry, level);
  if ((entry & ept_right::write) != 0 &&
      (!leaf || !role.accessed_dirty() || (entry & EptFormat::kDirty) != 0)) {
    s.flags |= npt::write;
  }
  s.kind = leaf ? ShadowedEntry::Kind::leaf : ShadowedEntry::Kind::table;
  s.address = leaf ? EptFormat::frame(entry, level) : EptFormat::table(entry);
  return s;
}

constexpr u64 shadow_size(unsigned level) { return bit(EptFormat::shift(level)); }

}  // namespace aerie::mmu
