// What a guest's table entry makes of the shadow entry that stands for it: a pure function of the
// entry and the shadow page's role, so that a shadow page can be brought up to date entry by entry,
// whatever its place in the tree. One function per guest format; the shadow side is NPT's format.
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

// EPT → NPT, for the entries of one table. Nothing stands for an entry that the processor would
// have to stop at: not present, misconfigured, or (with accessed and dirty flags) not accessed yet.
// A leaf that is not dirty yet is not writable, so that the first write comes to L0, which sets the
// flag. Execute-only cannot be said in this format and is not offered.
class EptShadowing {
 public:
  constexpr EptShadowing(Role role, const EptFormat::Context& context)
      : leaf_reserved_{EptFormat::leaf_reserved(role.level(), EptFormat::beyond(context), context)},
        table_reserved_{EptFormat::table_reserved(EptFormat::beyond(context))},
        required_{ept_right::read | (role.accessed_dirty() ? EptFormat::kAccessed : 0)},
        clean_{role.accessed_dirty() ? EptFormat::kDirty : 0},
        address_{kAddressMask & ~(bit(EptFormat::shift(role.level())) - 1)},
        level_{role.level()} {}

  constexpr ShadowedEntry operator()(u64 entry) const {
    const bool leaf = EptFormat::leaf(entry, level_);
    if ((entry & (required_ | (leaf ? leaf_reserved_ : table_reserved_))) != required_ ||
        (leaf && EptFormat::bad_memory_type(entry))) {
      return {};
    }
    static_assert(npt::write == ept_right::write);
    u64 flags = shadow_flags::base | (entry & npt::write) |
                ((entry & ept_right::execute) != 0 ? 0 : npt::no_execute);
    if (!leaf) {
      return {ShadowedEntry::Kind::table, EptFormat::table(entry), flags};
    }
    if ((entry & clean_) != clean_) {
      flags &= ~npt::write;
    }
    return {ShadowedEntry::Kind::leaf, entry & address_, flags};
  }

 private:
  u64 leaf_reserved_, table_reserved_;
  u64 required_;  // set in every entry that a shadow may stand for
  u64 clean_;     // set in every leaf whose shadow may be writable
  u64 address_;
  unsigned level_;
};

constexpr u64 shadow_size(unsigned level) { return bit(EptFormat::shift(level)); }

}  // namespace aerie::mmu
