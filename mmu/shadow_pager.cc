#include "mmu/shadow_pager.h"

#include <algorithm>

#include "cpu/exit.h"

namespace aerie::mmu {
namespace {

u64 load(const u64& entry) { return __atomic_load_n(&entry, __ATOMIC_RELAXED); }
void store(u64& entry, u64 value) { __atomic_store_n(&entry, value, __ATOMIC_RELEASE); }

// A shadow entry's own business; accessed and dirty are the processor's.
constexpr u64 kCompared = ~(npt::accessed | npt::dirty);

constexpr u64 frame_of(u64 entry, unsigned level) {
  return (entry & npt::address & ~(shadow_size(level) - 1)) >> kPageShift;
}

}  // namespace

bool ShadowPager::init(PageAllocator& allocator, L1Memory& memory, HostMap& host,
                       const EptFormat::Context& context, Options options) {
  memory_ = &memory;
  host_ = &host;
  context_ = context;
  eager_entries_ = options.eager_entries;
  epoch_advanced_ = options.epoch_advanced;
  epoch_listener_ = options.who;
  const u32 pages = std::max(options.pages, u32{128});
  if (!pool_.init(allocator, pages) || !nodes_.init(allocator, pages * 128) ||
      !leaves_.init(allocator, pages * 4)) {
    return false;
  }
  unsync_.init(&pool_, options.track_writes ? &host : nullptr, &allocator);
  for (unsigned i = 0; i < kMaxRoots; ++i) {
    roots_[i].index = static_cast<u8>(i);
  }
  memory.set_write_watch(
      {&closed_pages_,
       [](void* who, Gpa page) { static_cast<ShadowPager*>(who)->l1_write_fault(page); }, this});
  return true;
}

// Roots

bool ShadowPager::is_active(const Root& root) const {
  return std::any_of(cpus_.begin(), cpus_.end(), [&](const CpuState& c) {
    return c.active.load(std::memory_order_seq_cst) == &root;
  });
}

// Takes a root away from whoever had it. Its pages stay, as orphans, until they are needed or found
// again.
void ShadowPager::evict(Root& root) {
  ++stats_.roots_evicted;
  pool_.set_use(root.page, PageUse::orphan);
  for (u32 n = 1; n < pool_.count(); ++n) {
    pool_[n].roots &= ~bit(root.index);
  }
  root.page = ShadowPool::kNone;
  advance_epoch();  // whoever tags translations by the root's index starts afresh
}

// A root that is nobody's, or the one that was not looked up for the longest time. Between a
// processor that takes a root lock-free and one that takes it away:
//
//   switch_root()                    free_root()
//   active := root                   key := 0
//   key still ours? go on            root active anywhere? give it back
//
// with sequential consistency at least one of them sees the other.
Root* ShadowPager::free_root(unsigned cpu) {
  cpus_[cpu].active.store(nullptr, std::memory_order_seq_cst);
  Root* oldest = nullptr;
  for (Root& root : roots_) {
    if (root.key.load(std::memory_order_relaxed) == 0) {
      return &root;
    }
    if (!is_active(root) && (oldest == nullptr || root.used < oldest->used)) {
      oldest = &root;
    }
  }
  if (oldest == nullptr) {
    return nullptr;  // cannot be: there are more roots than processors
  }
  const u64 key = oldest->key.exchange(0, std::memory_order_seq_cst);
  if (is_active(*oldest)) {
    oldest->key.store(key, std::memory_order_seq_cst);
    return nullptr;
  }
  evict(*oldest);
  return oldest;
}

Root* ShadowPager::find_root(unsigned cpu, Eptp eptp, u32& kick) {
  kick = 0;
  if (eptp.levels() != npt::levels) {
    return nullptr;
  }
  const SpinLock::Guard guard{lock_};
  ++stats_.root_misses;
  const u64 key = key_of(eptp);
  CpuState& c = cpus_[cpu];
  Root* root = nullptr;
  for (Root& candidate : roots_) {
    if (candidate.key.load(std::memory_order_relaxed) == key) {
      root = &candidate;
    }
  }
  if (root == nullptr) {
    if (!ensure(cpu, 1, 0, kick)) {
      return nullptr;
    }
    root = free_root(cpu);
    if (root == nullptr) {
      kick = epochs_.laggards(~u64{0} - 1, cpu);
      return nullptr;
    }
    const u64 frame = eptp.root() >> kPageShift;
    const Role role = Role{}
                          .with_level(npt::levels)
                          .with_format(TableFormat::ept)
                          .with_accessed_dirty(eptp.accessed_dirty());
    u32 n = pool_.find(frame, role);
    if (n == ShadowPool::kNone) {
      n = pool_.take(frame, role);
      unsync_.add(n);
    }
    admit(n, bit(root->index));  // no page has this root's bit yet: brings it up to date
    pool_.set_use(n, PageUse::root);
    root->page = n;
    root->table = pool_.table(n);
    root->eptp = eptp;
    root->generation.store(++last_generation_, std::memory_order_relaxed);
    root->key.store(key, std::memory_order_seq_cst);
    ++stats_.roots_made;
    note_changes();
  } else if ((c.pending & bit(root->index)) != 0) {
    invalidate(cpu, bit(root->index));
  }
  c.pending &= ~bit(root->index);
  root->used = ++clock_;
  c.active.store(root, std::memory_order_seq_cst);
  c.previous.insert(key, root);
  return root;
}

// Pages

// Makes sure that `pages` and `nodes` are free, so that what follows cannot fail half way.
bool ShadowPager::ensure(unsigned cpu, u32 pages, u32 nodes, u32& kick) {
  kick = 0;
  if (pool_.free() >= pages && nodes_.free() >= nodes) [[likely]] {
    return true;
  }
  pool_.recycle(epochs_, cpu);
  if (pool_.free() < pages || nodes_.free() < nodes) {
    // Not more than a batch at a time while the last one waits for processors to flush.
    if (pool_.retired() < kReclaimBatch || nodes_.free() < nodes) {
      reclaim(kReclaimBatch);
    }
    kick = pool_.recycle(epochs_, cpu);
    note_changes();
  }
  if (pool_.free() >= pages && nodes_.free() >= nodes) {
    return true;
  }
  // Two processors must not wait for each other: this one runs no guest before enter_guest().
  epochs_.leave(cpu);
  return false;
}

void ShadowPager::reclaim(u32 pages) {
  const u64 epoch = epochs_.next();
  for (u32 i = 0; i < pages; ++i) {
    const u32 n =
        pool_.first_orphan() != ShadowPool::kNone ? pool_.first_orphan() : pool_.first_linked();
    if (n == ShadowPool::kNone) {
      break;
    }
    drop_parents(n);
    for (u32 index = 0; index < 512 && pool_[n].present != 0; ++index) {
      if (pool_.entries(n)[index] != 0) {
        zap({n, index});
      }
    }
    if (!pool_[n].role.direct()) {
      unsync_.remove(n);
    }
    pool_.retire(n, epoch);
    ++stats_.reclaimed;
  }
  closed_pages_.store(unsync_.protected_pages(), std::memory_order_relaxed);
  advance_epoch();
}

void ShadowPager::trim(unsigned cpu, u32 pages) {
  const SpinLock::Guard guard{lock_};
  reclaim(pages);
  pool_.recycle(epochs_, cpu);
  note_changes();
}

void ShadowPager::drop_parents(u32 n) {
  while (pool_[n].parents != NodePool::kNone) {
    zap(nodes_.first(pool_[n].parents));
  }
}

// Entries

// Removes a present entry.
void ShadowPager::zap(EntryRef ref) {
  ShadowPage& p = pool_[ref.page()];
  u64& entry = pool_.entry(ref);
  const u64 old = load(entry);
  store(entry, 0);
  --p.present;
  const unsigned level = p.role.level();
  if (is_leaf(old, level)) {
    leaves_.remove(nodes_, frame_of(old, level), ref);
  } else {
    --p.tables;
    const u32 child = pool_.of_table(old & npt::address);
    ShadowPage& c = pool_[child];
    nodes_.remove(c.parents, ref);
    if (--c.parent_count == 0 && c.use == PageUse::linked) {
      pool_.set_use(child, PageUse::orphan);
    }
  }
  changed_roots_ |= p.roots;
  ++stats_.zaps;
}

void ShadowPager::set_leaf(u32 n, unsigned index, u64 value) {
  const EntryRef ref{n, index};
  u64& entry = pool_.entry(ref);
  const u64 old = load(entry);
  const unsigned level = pool_[n].role.level();
  if ((old & npt::present) != 0) {
    if (is_leaf(old, level) && frame_of(old, level) == frame_of(value, level)) {
      if (((old ^ value) & kCompared) == 0) {
        ++stats_.spurious;
        return;
      }
      // Usually a widening. A narrowing may still be unknown to some TLB, as L1 has not
      // invalidated.
      store(entry, value);
      return;
    }
    zap(ref);
  }
  const u64 frame = frame_of(value, level);
  if (leaves_.full(frame)) {
    zap(leaves_.any(nodes_, frame));
  }
  leaves_.add(nodes_, frame, ref);
  ++pool_[n].present;
  ++stats_.leaves[level - 1];
  store(entry, value);
}

// Makes the entry lead to the shadow page that stands for `what`, and returns that page.
u32 ShadowPager::link(u32 parent, unsigned index, const Link& what) {
  const EntryRef ref{parent, index};
  u64& entry = pool_.entry(ref);
  const u64 old = load(entry);
  if ((old & npt::present) != 0) {
    if (!is_leaf(old, pool_[parent].role.level())) {
      const u32 child = pool_.of_table(old & npt::address);
      if (pool_[child].frame == what.frame && pool_[child].role == what.role) {
        const u64 value = pool_.table(child).value() | what.flags;
        if (((old ^ value) & kCompared) != 0) {
          store(entry, value);
        }
        return child;
      }
    }
    zap(ref);
  }
  u32 child = pool_.find(what.frame, what.role);
  if (child == ShadowPool::kNone) {
    child = pool_.take(what.frame, what.role);
    if (!what.role.direct()) {
      unsync_.add(child);
    }
  }
  ShadowPage& c = pool_[child];
  admit(child, pool_[parent].roots);
  if (c.parent_count >= kMaxParents) {
    zap(nodes_.first(c.parents));
  }
  if (c.use == PageUse::orphan) {
    pool_.set_use(child, PageUse::linked);
  }
  nodes_.push(c.parents, ref);
  ++c.parent_count;
  ++pool_[parent].present;
  ++pool_[parent].tables;
  store(entry, pool_.table(child).value() | what.flags);
  return child;
}

// The page is about to be reached by `roots`. What their INVEPTs have not done to it is made up
// for: they pass by orphans, pages that none of them reached, and (put_off()) pages that are marked
// stale. Of the latter two the tables below may be behind as well; those are let go, to be admitted
// one by one as faults come to them. Never more than one page's work.
void ShadowPager::admit(u32 n, u64 roots) {
  ShadowPage& p = pool_[n];
  const bool known = (p.roots & roots) == roots && !p.stale;
  if (known && p.use != PageUse::orphan) {
    return;
  }
  if (p.sync != SyncState::synced) {
    sync(n);
  }
  if (!known) {
    zap_tables(n);
    p.stale = false;
    p.roots |= roots;
  }
}

void ShadowPager::zap_tables(u32 n) {
  const unsigned level = pool_[n].role.level();
  for (u32 index = 0; pool_[n].tables != 0; ++index) {
    const u64 entry = load(pool_.entries(n)[index]);
    if ((entry & npt::present) != 0 && !is_leaf(entry, level)) {
      zap({n, index});
    }
  }
}

// Compares each present entry with the guest's and removes or narrows what the guest's does not
// allow any more. True if something changed.
bool ShadowPager::sync(u32 n) {
  ++stats_.visits;
  ShadowPage& p = pool_[n];
  const unsigned level = p.role.level();
  const u64* guest = memory_->pointer<const u64>(Gpa::of_frame(p.frame), kPageSize);
  u64* entries = pool_.entries(n);
  const EptShadowing shadow{p.role, context_};
  const u64 large = level > 1 ? npt::large : 0;
  bool changed = false;
  for (u32 index = 0, left = p.present; left != 0; ++index) {
    const u64 old = load(entries[index]);
    if (old == 0) {
      continue;
    }
    --left;
    const u64 now = guest != nullptr ? load(guest[index]) : ~u64{0};
    const ShadowedEntry s = shadow(now);
    if (s.kind == ShadowedEntry::Kind::leaf) [[likely]] {
      // The usual case: a leaf that is what it was, or (not writable yet) less.
      const u64 difference = (old ^ (s.address | s.flags | large)) & kCompared;
      if (difference == 0 || (difference == npt::write && (old & npt::write) == 0)) {
        continue;
      }
    }
    bool keep = false;
    if (s.kind == ShadowedEntry::Kind::leaf) {
      if (is_leaf(old, level)) {
        keep = frame_of(old, level) == s.address >> kPageShift;
      } else {
        const ShadowPage& child = pool_[pool_.of_table(old & npt::address)];
        keep = child.role.direct() && child.frame == s.address >> kPageShift;
      }
    } else if (s.kind == ShadowedEntry::Kind::table && !is_leaf(old, level)) {
      const ShadowPage& child = pool_[pool_.of_table(old & npt::address)];
      keep = !child.role.direct() && child.frame == s.address >> kPageShift;
    }
    if (!keep) {
      zap({n, index});
      changed = true;
      continue;
    }
    // Narrowed at once; widened by the fault that asks for it (L0's map may not allow the write).
    const u64 flags = (s.flags & ~npt::write) | (s.flags & old & npt::write);
    const u64 value = (old & ~(npt::no_execute | npt::write)) | flags;
    if (value != old) {
      store(entries[index], value);
      changed_roots_ |= p.roots;
      changed = true;
    }
  }
  return changed;
}

bool ShadowPager::writable_by_l2(u64 frame) const {
  bool writable = false;
  for (unsigned level = 1; level <= 3 && !writable; ++level) {
    const u64 first = frame & ~((shadow_size(level) - 1) >> kPageShift);
    leaves_.for_each(nodes_, first, [&](EntryRef ref) {
      const u64 entry = pool_.entry(ref);
      writable = pool_[ref.page()].role.level() == level && frame_of(entry, level) == first &&
                 (entry & npt::write) != 0;
      return !writable;
    });
  }
  return writable;
}

void ShadowPager::advance_epoch() {
  epochs_.advance();
  if (epoch_advanced_ != nullptr) {
    epoch_advanced_(epoch_listener_);
  }
}

// Something left these roots: what was derived from them (mmu/walk_cache.h) counts no more.
void ShadowPager::note_changes() {
  for (u64 left = changed_roots_; left != 0; left &= left - 1) {
    Root& root = roots_[static_cast<unsigned>(__builtin_ctzll(left))];
    root.generation.store(++last_generation_, std::memory_order_relaxed);
  }
  changed_roots_ = 0;
}

// Faults

FaultResult ShadowPager::handle_fault(unsigned cpu, const Root& root, Ngpa ngpa, u64 error) {
  const SpinLock::Guard guard{lock_};
  ++stats_.faults;
  FaultResult result;
  result.ngpa = ngpa;
  if (!ensure(cpu, kPagesPerFault, kNodesPerFault, result.kick)) {
    ++stats_.busy;
    result.kind = FaultResult::Kind::busy;
    return result;
  }

  const bool page_walk = (error & cpu::tdp_fault::page_walk) != 0;
  const bool host_writes = (error & cpu::pfec::write) != 0;
  u8 access = ept_access::read;
  if (page_walk) {
    // What the host counts as a write is one for EPT12 only with accessed and dirty flags.
    access = root.eptp.accessed_dirty() ? ept_access::read | ept_access::write : ept_access::read;
  } else if ((error & cpu::pfec::fetch) != 0) {
    access = ept_access::fetch;
  } else if (host_writes) {
    access = ept_access::write;
  }
  const EptWalk walk = walk_ept(*memory_, root.eptp, context_, ngpa, access);
  switch (walk.status) {
    case EptWalk::Status::retry:
      return result;  // run L2 again; it faults again if it must
    case EptWalk::Status::misconfiguration:
      ++stats_.misconfigurations;
      result.kind = FaultResult::Kind::misconfiguration;
      return result;
    case EptWalk::Status::violation: {
      ++stats_.violations;
      result.kind = FaultResult::Kind::violation;
      const bool linear = (error & (cpu::tdp_fault::page_walk | cpu::tdp_fault::final_access)) != 0;
      result.qualification = (access & 7u) | (u64{walk.rights & 7u} << 3) | (linear ? bit(7) : 0) |
                             (linear && !page_walk ? bit(8) : 0);
      return result;
    }
    case EptWalk::Status::ok:
      break;
  }
  result.gpa = walk.gpa;
  if (page_walk && host_writes && (walk.rights & ept_right::write) == 0) {
    ++stats_.walks_need_write;
    result.qualification =
        ept_access::read | ept_access::write | (u64{walk.rights & 7u} << 3) | bit(7);
    result.kind = FaultResult::Kind::walk_needs_write;
    return result;
  }
  HostMap::Lookup host = host_->lookup(walk.gpa);
  if (!host.present) {
    ++stats_.l0_owned;
    result.kind = FaultResult::Kind::l0_owned;
    return result;
  }
  if (!host.writable && host_writes && unsync_.written(walk.gpa.frame())) {
    ++stats_.write_faults;
    closed_pages_.store(unsync_.protected_pages(), std::memory_order_relaxed);
    host = host_->lookup(walk.gpa);
  }

  const unsigned target = std::min(walk.level, host.level);
  u32 n = root.page;
  u64 flags = shadow_flags::all;
  for (unsigned level = npt::levels; level > target; --level) {
    Link what{};
    const Role role = pool_[n].role.with_level(level - 1);
    if (level >= walk.level) {
      const u64 entry = walk.path.step[npt::levels - level].entry;
      const ShadowedEntry s = EptShadowing{pool_[n].role, context_}(entry);
      const bool large = s.kind == ShadowedEntry::Kind::leaf;
      what = {s.address >> kPageShift,
              large ? Role{}.with_level(level - 1).with_direct(true) : role, s.flags};
    } else {
      what = {align_down(walk.gpa.value(), shadow_size(level)) >> kPageShift, role,
              shadow_flags::all};
    }
    n = link(n, static_cast<unsigned>(EptFormat::index(ngpa.value(), level)), what);
  }
  if (target == walk.level) {
    flags = EptShadowing{pool_[n].role, context_}(walk.path.step[npt::levels - target].entry).flags;
  }
  if (!host.writable) {
    flags &= ~npt::write;
  }
  const u64 page = align_down(host.hpa.value(), shadow_size(target));
  const auto index = static_cast<unsigned>(EptFormat::index(ngpa.value(), target));
  set_leaf(n, index, page | flags | (target > 1 ? npt::large : 0));
  if (target == 1 && walk.level == 1) {
    prefetch(n, index, walk.path.step[npt::levels - 1].at.page(), walk.gpa, host);
  }
  note_changes();
  ++stats_.mapped;
  return result;
}

// The neighbours in the same cache line of the guest's table, where L1 has filled them in already.
// A processor may cache them as well, once they are accessed.
void ShadowPager::prefetch(u32 n, unsigned index, Gpa table, Gpa gpa, const HostMap::Lookup& host) {
  const u64* guest = memory_->pointer<const u64>(table, kPageSize);
  if (guest == nullptr) {
    return;
  }
  const EptShadowing shadow{pool_[n].role, context_};
  const unsigned first = index & ~7u;
  for (unsigned i = first; i < first + 8; ++i) {
    if (pool_.entries(n)[i] != 0) {
      continue;
    }
    const ShadowedEntry s = shadow(load(guest[i]));
    if (s.kind != ShadowedEntry::Kind::leaf || leaves_.full(s.address >> kPageShift)) {
      continue;
    }
    const bool same = host.level >= 2 && ((s.address ^ gpa.value()) & ~(shadow_size(2) - 1)) == 0;
    const HostMap::Lookup h = same ? host : host_->lookup(Gpa{s.address});
    if (h.present) {
      set_leaf(n, i, s.address | (h.writable ? s.flags : s.flags & ~npt::write));
      ++stats_.prefetched;
    }
  }
}

// Invalidations

void ShadowPager::invalidate(unsigned cpu, u64 roots) {
  const auto concerns = [&](const ShadowPage& p) {
    return (p.roots & roots) != 0 && p.use != PageUse::orphan;
  };
  u64 entries = 0;
  unsync_.for_each([&](u32 n) { entries += concerns(pool_[n]) ? pool_[n].present : 0; });
  const bool all = entries <= eager_entries_;
  if (!all) {
    put_off(roots);
  }
  bool advance = false;
  entries = 0;
  unsync_.for_each([&](u32 n) {
    const ShadowPage& p = pool_[n];
    if (entries > eager_entries_ || !concerns(p)) {
      return;
    }
    entries += p.present;
    advance |= unsync_.visit(
        n, epochs_, cpu, [&] { return sync(n); },
        [&] {
          return !memory_->writable(Gpa::of_frame(p.frame), kPageSize) || writable_by_l2(p.frame);
        });
    if (!all) {
      unsync_.defer(n);  // another time the others
    }
  });
  if (advance) {
    advance_epoch();
    closed_pages_.store(unsync_.protected_pages(), std::memory_order_relaxed);
  }
  changed_roots_ |= roots;
  note_changes();
}

// The first entry on a root after an INVEPT.
void ShadowPager::catch_up(unsigned cpu, const Root& root) {
  const SpinLock::Guard guard{lock_};
  cpus_[cpu].pending &= ~bit(root.index);
  invalidate(cpu, bit(root.index));
}

// An INVEPT with too much to look at: nothing is compared now, but everything must be before it is
// used. The roots let go of what they lead to; admit() does the rest.
void ShadowPager::put_off(u64 roots) {
  ++stats_.put_off;
  for (u32 n = 1; n < pool_.count(); ++n) {
    pool_[n].stale = pool_[n].stale || (pool_[n].roots & roots) != 0;
  }
  for (u64 left = roots; left != 0; left &= left - 1) {
    const u32 n = roots_[static_cast<unsigned>(__builtin_ctzll(left))].page;
    if (pool_[n].sync != SyncState::synced) {
      sync(n);
    }
    zap_tables(n);
    pool_[n].stale = false;
  }
}

GuestFlush ShadowPager::invept_single(unsigned cpu, Eptp eptp) {
  const SpinLock::Guard guard{lock_};
  ++stats_.invepts;
  u64 roots = 0;
  for (const Root& root : roots_) {
    if (root.key.load(std::memory_order_relaxed) != 0 && root.eptp.root() == eptp.root()) {
      roots |= bit(root.index);
    }
  }
  if (roots == 0) {
    return GuestFlush::none;
  }
  cpus_[cpu].pending |= roots;
  return GuestFlush::root;
}

GuestFlush ShadowPager::invept_all(unsigned cpu) {
  const SpinLock::Guard guard{lock_};
  ++stats_.invepts;
  u64 roots = 0;
  for (const Root& root : roots_) {
    if (root.key.load(std::memory_order_relaxed) != 0) {
      roots |= bit(root.index);
    }
  }
  cpus_[cpu].pending |= roots;
  return GuestFlush::all;
}

bool ShadowPager::l1_write_fault(Gpa gpa) {
  const SpinLock::Guard guard{lock_};
  const HostMap::Lookup host = host_->lookup(gpa);
  if (!host.present) {
    return false;
  }
  if (!host.writable) {
    if (!unsync_.written(gpa.frame())) {
      return false;
    }
    ++stats_.write_faults;
    closed_pages_.store(unsync_.protected_pages(), std::memory_order_relaxed);
  }
  return true;
}

ShadowPager::ShadowWalk ShadowPager::lookup(const Root& root, Ngpa ngpa) const {
  ShadowWalk walk;
  walk.write = walk.execute = true;
  u32 n = root.page;
  for (unsigned level = npt::levels;; --level) {
    const u64 entry = load(pool_.entries(n)[EptFormat::index(ngpa.value(), level)]);
    if ((entry & npt::present) == 0) {
      return {};
    }
    walk.write = walk.write && (entry & npt::write) != 0;
    walk.execute = walk.execute && (entry & npt::no_execute) == 0;
    if (is_leaf(entry, level)) {
      walk.present = true;
      walk.level = static_cast<u8>(level);
      walk.hpa =
          Hpa{(frame_of(entry, level) << kPageShift) | (ngpa.value() & (shadow_size(level) - 1))};
      return walk;
    }
    n = pool_.of_table(entry & npt::address);
  }
}

}  // namespace aerie::mmu
