// What must hold between the shadow pager's structures whenever its lock is free. Tests call this
// after every step.
#include "mmu/shadow_pager.h"

namespace aerie::mmu {

#define AERIE_INVARIANT(condition) \
  do {                             \
    if (!(condition)) {            \
      return #condition;           \
    }                              \
  } while (false)

const char* ShadowPager::check_invariants() const {
  u64 nodes_used = 0;
  u32 unsync = 0, closed = 0, roots = 0;
  for (u32 n = 1; n < pool_.count(); ++n) {
    const ShadowPage& p = pool_[n];
    const u64* entries = pool_.entries(n);
    if (p.use == PageUse::free || p.use == PageUse::retired) {
      for (unsigned i = 0; i < 512; ++i) {
        AERIE_INVARIANT(entries[i] == 0);
      }
      AERIE_INVARIANT(p.present == 0 && p.tables == 0 && p.parent_count == 0);
      continue;
    }
    const unsigned level = p.role.level();
    AERIE_INVARIANT(level >= 1 && level <= npt::levels);
    AERIE_INVARIANT(pool_.find(p.frame, p.role) == n);  // hashed, and no other has its key
    AERIE_INVARIANT((p.parent_count != 0) == (p.use == PageUse::linked));
    AERIE_INVARIANT(p.parent_count <= kMaxParents);
    roots += p.use == PageUse::root ? 1 : 0;
    unsync += p.sync != SyncState::synced ? 1 : 0;
    if (p.role.direct()) {
      AERIE_INVARIANT(p.sync == SyncState::synced);
    } else if (p.sync != SyncState::unsync) {
      // A closed table is read-only for L1, and for every L2.
      ++closed;
      AERIE_INVARIANT(!host_->lookup(Gpa::of_frame(p.frame)).writable);
      AERIE_INVARIANT(!writable_by_l2(p.frame));
    }

    u32 present = 0, tables = 0, parents = 0;
    bool parents_right = true;
    nodes_.for_each(p.parents, [&](EntryRef ref) {
      ++parents;
      const u64 entry = pool_.entry(ref);
      parents_right = parents_right && (entry & npt::present) != 0 &&
                      (entry & npt::address) == pool_.table(n).value();
      return parents_right;
    });
    AERIE_INVARIANT(parents_right);
    AERIE_INVARIANT(parents == p.parent_count);
    nodes_used += parents;

    for (u32 i = 0; i < 512; ++i) {
      const u64 entry = entries[i];
      if (entry == 0) {
        continue;
      }
      ++present;
      AERIE_INVARIANT((entry & (npt::present | npt::user)) == (npt::present | npt::user));
      if (is_leaf(entry, level)) {
        // Nothing but L1's memory, and no more of it than L0's map gives.
        AERIE_INVARIANT((level > 1) == ((entry & npt::large) != 0));
        const u64 address = entry & npt::address;
        AERIE_INVARIANT((address & (shadow_size(level) - 1)) == 0);
        const HostMap::Lookup host = host_->lookup(Gpa{address});
        AERIE_INVARIANT(host.present && host.hpa.value() == address);
        // A large leaf may outlive the splitting of L0's map below it, but only read-only.
        AERIE_INVARIANT(host.level >= level || (entry & npt::write) == 0);
        AERIE_INVARIANT(host.writable || (entry & npt::write) == 0);
        unsigned found = 0;
        leaves_.for_each(nodes_, address >> kPageShift, [&](EntryRef ref) {
          found += ref == EntryRef{n, i} ? 1 : 0;
          return true;
        });
        AERIE_INVARIANT(found == 1);
        ++nodes_used;
      } else {
        ++tables;
        const u32 child = pool_.of_table(entry & npt::address);
        AERIE_INVARIANT(child != ShadowPool::kNone && child < pool_.count());
        const ShadowPage& c = pool_[child];
        AERIE_INVARIANT(c.use == PageUse::linked);
        AERIE_INVARIANT(c.role.level() + 1 == level);
        AERIE_INVARIANT((p.roots & ~c.roots) == 0);
        // What is behind for a root cannot be reached from where it is not.
        AERIE_INVARIANT(!c.stale || p.stale || (c.roots & ~p.roots) != 0);
        AERIE_INVARIANT(!p.role.direct() || c.role.direct());
      }
    }
    AERIE_INVARIANT(present == p.present);
    AERIE_INVARIANT(tables == p.tables);
  }
  AERIE_INVARIANT(nodes_used + nodes_.free() == nodes_.capacity());
  AERIE_INVARIANT(unsync == unsync_.size());
  AERIE_INVARIANT(closed == unsync_.protected_pages());
  for (const Root& root : roots_) {
    if (root.key.load(std::memory_order_relaxed) == 0) {
      continue;
    }
    --roots;
    AERIE_INVARIANT(pool_[root.page].use == PageUse::root);
    AERIE_INVARIANT(pool_[root.page].frame == root.eptp.root() >> kPageShift);
    AERIE_INVARIANT((pool_[root.page].roots & bit(root.index)) != 0);
  }
  AERIE_INVARIANT(roots == 0);
  return nullptr;
}

}  // namespace aerie::mmu
