// What the guest invalidates, and the comparison of shadow entries with the guest's that follows
// from it. SDM vol. 3, 4.10.4.
#include "mmu/linear_pager.h"

namespace aerie::mmu {
namespace {

u64 load(const u64& entry) { return __atomic_load_n(&entry, __ATOMIC_RELAXED); }
void store(u64& entry, u64 value) { __atomic_store_n(&entry, value, __ATOMIC_RELEASE); }

}  // namespace

const void* LinearPager::guest_table(const ShadowPage& p) const {
  return memory_->pointer<const u8>(Gpa::of_frame(p.frame), kPageSize);
}

// A table that is no memory reads as all ones.
u64 LinearPager::guest_entry(const ShadowPage& p, const void* table, unsigned index) const {
  const unsigned at = linear::guest_index(p.role, index);
  if (linear::is_narrow(p.role.format())) {
    return table != nullptr ? __atomic_load_n(static_cast<const u32*>(table) + at, __ATOMIC_RELAXED)
                            : ~u32{0};
  }
  return table != nullptr ? __atomic_load_n(static_cast<const u64*>(table) + at, __ATOMIC_RELAXED)
                          : ~u64{0};
}

// The guest's entry is `now`, and no longer what the shadow's was made from. Narrowed at once;
// widened by the fault that asks for it (L0's map may not allow the write).
void LinearPager::sync_entry(u32 n, unsigned index, u64 now) {
  const Role role = pool_[n].role;
  u64& raw = raw_[u64{n} * 512 + index];
  const LinearEntry was = derive_linear(role, index, raw, features_);
  const LinearEntry is = derive_linear(role, index, now, features_);
  if (is.kind == LinearEntry::Kind::none || is.kind != was.kind || is.address != was.address ||
      is.access != was.access || is.leaf_bits != was.leaf_bits) {
    zap({n, index});
    return;
  }
  u64& entry = pool_.entries(n)[index];
  const u64 old = load(entry);
  const bool table = is.kind == LinearEntry::Kind::table;
  const u64 write = table ? is.flags & npt::write : is.flags & old & npt::write;
  const u64 value = (old & ~(npt::user | npt::write | npt::no_execute)) |
                    (is.flags & (npt::user | npt::no_execute)) | write;
  if ((old & ~value & (npt::write | npt::user)) != 0 || (value & ~old & npt::no_execute) != 0) {
    changes_.fetch_add(1, std::memory_order_relaxed);
    ++stats_.narrowed;
    if (role.level() > 1) {
      structure_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  raw = now;
  store(entry, value);
}

void LinearPager::sync_page(u32 n) {
  const ShadowPage& p = pool_[n];
  if (!has_guest_table(p)) {
    return;
  }
  stats_.compared += p.present;
  const void* table = guest_table(p);
  if (table == nullptr || linear::is_narrow(p.role.format())) [[unlikely]] {
    for (unsigned index = 0; index < 512; ++index) {
      if (!is_present(n, index)) {
        continue;
      }
      if (const u64 now = guest_entry(p, table, index); now != raw_[u64{n} * 512 + index]) {
        sync_entry(n, index, now);
      }
    }
    return;
  }
  const auto* guest = static_cast<const u64*>(table);
  const u64* raw = raw_ + u64{n} * 512;
  for (unsigned word = 0; word < 8; ++word) {
    for (u64 left = present_[n].word[word]; left != 0; left &= left - 1) {
      const unsigned index = word * 64 + static_cast<unsigned>(__builtin_ctzll(left));
      if (const u64 now = load(guest[index]); now != raw[index]) [[unlikely]] {
        sync_entry(n, index, now);
      }
    }
  }
}

// Compares all that is reached from `top`, each page once in a round (stamp_). Where that is too
// much at once, the page lets go of the tables below, and link() compares each when a fault comes
// to it.
void LinearPager::sync_tree(u32 top) {
  struct Place {
    u32 page;
    unsigned next;
  };
  std::array<Place, 5> stack;
  unsigned depth = 0;
  u64 budget = options_.eager_entries;
  const auto visit = [&](u32 n) {
    stamp_of_[n] = stamp_;
    const u64 work = pool_[n].present + 16u;
    budget = budget > work ? budget - work : 0;
    sync_page(n);
    if (pool_[n].tables != 0) {
      stack[depth++] = {n, 0};
    }
  };
  if (stamp_of_[top] == stamp_) {
    return;
  }
  ++stats_.tree_syncs;
  visit(top);
  while (depth != 0) {
    Place& at = stack[depth - 1];
    const unsigned level = pool_[at.page].role.level();
    u32 child = ShadowPool::kNone;
    for (; at.next < 512 && child == ShadowPool::kNone; ++at.next) {
      const u64 left = present_[at.page].word[at.next / 64] >> (at.next % 64);
      if (left == 0) {
        at.next |= 63;
        continue;
      }
      at.next += static_cast<unsigned>(__builtin_ctzll(left));
      const u64 entry = load(pool_.entries(at.page)[at.next]);
      if (!is_leaf(entry, level)) {
        child = pool_.of_table(entry & npt::address);
      }
    }
    if (child == ShadowPool::kNone) {
      --depth;
    } else if (stamp_of_[child] != stamp_ && has_guest_table(pool_[child])) {
      visit(child);
    }
    if (budget == 0) {
      ++stats_.put_off;
      zap_all(top, true);
      return;
    }
  }
}

void LinearPager::sync_path(const LinearRoot& root, u64 linear) {
  ++stats_.path_syncs;
  u32 n = root.page;
  for (unsigned level = root.mode.top();; --level) {
    const unsigned index = index_at(root.mode, linear, level);
    const ShadowPage& p = pool_[n];
    if (has_guest_table(p)) {
      const void* table = guest_table(p);
      // A 32-bit directory's entry is two of the shadow's, and may be one page.
      const unsigned last = linear::is_narrow(p.role.format()) && level == 2 ? index | 1 : index;
      for (unsigned i = last == index ? index : index & ~1u; i <= last; ++i) {
        if (is_present(n, i)) {
          if (const u64 now = guest_entry(p, table, i); now != raw_[u64{n} * 512 + i]) {
            sync_entry(n, i, now);
          }
        }
      }
    }
    if (!is_present(n, index)) {
      return;
    }
    const u64 entry = load(pool_.entries(n)[index]);
    if (is_leaf(entry, level)) {
      return;
    }
    n = pool_.of_table(entry & npt::address);
  }
}

// The entries that lead to a page, each compared with the guest's.
void LinearPager::sync_parents(u32 n) {
  if (pool_[n].use == PageUse::root) {
    return;
  }
  for (;;) {
    bool changed = false;
    EntryRef found{};
    u64 now = 0;
    nodes_.for_each(pool_[n].parents, [&](EntryRef ref) {
      const ShadowPage& p = pool_[ref.page()];
      if (has_guest_table(p)) {
        now = guest_entry(p, guest_table(p), ref.index());
        changed = now != raw_[u64{ref.page()} * 512 + ref.index()];
        found = ref;
      }
      return !changed;
    });
    if (!changed) {
      return;
    }
    sync_entry(found.page(), found.index(), now);
  }
}

// PAE's four entries, as MOV CR3 loaded them.
void LinearPager::load_pdptes(LinearRoot& root, const u64* pdptes) {
  if (!root.mode.pae() || pdptes == nullptr) {
    return;
  }
  for (unsigned i = 0; i < 4; ++i) {
    if (root.pdptes[i] != pdptes[i]) {
      root.pdptes[i] = pdptes[i];
      if (is_present(root.page, i)) {
        zap({root.page, i});
      }
    }
  }
}

// What this processor's guest has invalidated since it last entered this root.
void LinearPager::bring_up_to_date(unsigned cpu, LinearRoot& root, const u64* pdptes) {
  Cpu& c = cpus_[cpu];
  load_pdptes(root, pdptes);
  const u64 mask = bit(root.index);
  const u32 behind = c.logged - c.seen[root.index];
  c.seen[root.index] = c.logged;
  if ((c.pending & mask) != 0 || behind > kLog) {
    c.pending &= ~mask;
    ++stamp_;
    sync_tree(root.page);
  } else {
    for (u32 i = 0; i < behind; ++i) {
      sync_path(root, c.log[(c.logged - behind + i) % kLog]);
    }
    if (behind == 0) {
      return;
    }
  }
  const unsigned t = options_.tags == 0 ? 0 : root.index % options_.tags;
  if (c.tag_changes[t] != changes_.load(std::memory_order_relaxed)) {
    c.stale_tags |= u32{1} << t;
  }
}

bool LinearPager::flush_address(unsigned cpu, const LinearRoot& root, u64 linear, bool global) {
  const SpinLock::Guard guard{lock_};
  Cpu& c = cpus_[cpu];
  sync_path(root, linear);
  if (global) {
    // This root has just been seen to; if it was up to date before, it still is.
    const bool up_to_date = c.seen[root.index] == c.logged;
    c.log[c.logged % kLog] = linear;
    ++c.logged;
    c.seen[root.index] += up_to_date ? 1 : 0;
  }
  const unsigned t = options_.tags == 0 ? 0 : root.index % options_.tags;
  if (c.tag_structure[t] == structure_.load(std::memory_order_relaxed)) {
    return true;
  }
  c.stale_tags |= u32{1} << t;
  return false;
}

void LinearPager::flush_address_of(unsigned cpu, u16 pcid, u64 linear, unsigned space) {
  const SpinLock::Guard guard{lock_};
  Cpu& c = cpus_[cpu];
  for (const LinearRoot& root : roots_) {
    const u64 key = root.key.load(std::memory_order_relaxed);
    if (key != 0 && LinearMode::pcid_of(key) == pcid && LinearMode::space_of(key) == space) {
      sync_path(root, linear);
      c.stale_tags |= u32{1} << (options_.tags == 0 ? 0 : root.index % options_.tags);
    }
  }
}

void LinearPager::flush_context(unsigned cpu, u16 pcid, unsigned space) {
  for (const LinearRoot& root : roots_) {
    const u64 key = root.key.load(std::memory_order_relaxed);
    if (key != 0 && LinearMode::pcid_of(key) == pcid && LinearMode::space_of(key) == space) {
      cpus_[cpu].pending |= bit(root.index);
    }
  }
}

#define AERIE_INVARIANT(condition) \
  do {                             \
    if (!(condition)) {            \
      return #condition;           \
    }                              \
  } while (false)

const char* LinearPager::check_invariants() const {
  u64 nodes_used = 0;
  for (u32 n = 1; n < pool_.count(); ++n) {
    const ShadowPage& p = pool_[n];
    const u64* entries = pool_.entries(n);
    if (p.use == PageUse::free || p.use == PageUse::retired) {
      for (unsigned i = 0; i < 512; ++i) {
        AERIE_INVARIANT(entries[i] == 0 && !is_present(n, i));
      }
      continue;
    }
    const unsigned level = p.role.level();
    AERIE_INVARIANT(pool_.find(p.frame, p.role) == n);
    AERIE_INVARIANT((p.parent_count != 0) == (p.use != PageUse::orphan));
    u32 present = 0, tables = 0, parents = 0;
    bool parents_right = true;
    nodes_.for_each(p.parents, [&](EntryRef ref) {
      ++parents;
      parents_right = parents_right && is_present(ref.page(), ref.index()) &&
                      (pool_.entry(ref) & npt::address) == pool_.table(n).value();
      return parents_right;
    });
    AERIE_INVARIANT(parents_right);
    AERIE_INVARIANT(p.use == PageUse::root ? parents == 0 : parents == p.parent_count);
    nodes_used += parents;
    for (u32 i = 0; i < 512; ++i) {
      const u64 entry = entries[i];
      AERIE_INVARIANT((entry != 0) == is_present(n, i));
      if (entry == 0) {
        continue;
      }
      ++present;
      if (is_leaf(entry, level)) {
        // Nothing but L1's memory, and no more of it than L0's map gives.
        const u64 page = entry & npt::address & ~(linear::page_size(level) - 1);
        const HostMap::Lookup host = host_->lookup(Gpa{page});
        AERIE_INVARIANT(host.present && host.hpa.value() == page && host.level >= level);
        AERIE_INVARIANT(host.writable || (entry & npt::write) == 0);
      } else {
        ++tables;
        const u32 child = pool_.of_table(entry & npt::address);
        AERIE_INVARIANT(child != ShadowPool::kNone && child < pool_.count());
        AERIE_INVARIANT(pool_[child].use == PageUse::linked);
        AERIE_INVARIANT(pool_[child].role.level() + 1 == level);
      }
    }
    AERIE_INVARIANT(present == p.present && tables == p.tables);
  }
  AERIE_INVARIANT(nodes_used + nodes_.free() == nodes_.capacity());
  return nullptr;
}

}  // namespace aerie::mmu
