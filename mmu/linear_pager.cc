#include "mmu/linear_pager.h"

#include <algorithm>

namespace aerie::mmu {
namespace {

u64 load(const u64& entry) { return __atomic_load_n(&entry, __ATOMIC_RELAXED); }
void store(u64& entry, u64 value) { __atomic_store_n(&entry, value, __ATOMIC_RELEASE); }

// The frame by which a root page is found that stands for no table of the guest's.
constexpr u64 kInternalFrame = bit(50);
// What a piece of a large guest page, or of memory without paging, allows of itself.
constexpr u64 kAllRights = npt::present | npt::write | npt::user | npt::accessed | npt::dirty;

}  // namespace

bool LinearPager::init(PageAllocator& allocator, const L1Memory& memory, const HostMap& host,
                       const PagingFeatures& features, Options options) {
  memory_ = &memory;
  host_ = &host;
  features_ = features;
  options_ = options;
  options_.tags = std::min(options.tags, kTags);
  const u32 pages = std::max(options.pages, u32{64});
  const auto table = [&](u64 bytes) {
    return allocator.allocate_contiguous(align_up(bytes, kPageSize) / kPageSize);
  };
  const Hpa raw = table(u64{pages} * kPageSize), present = table(pages * sizeof(Bitmap)),
            stamps = table(pages * sizeof(u64));
  if (raw == Hpa{} || present == Hpa{} || stamps == Hpa{} || !pool_.init(allocator, pages) ||
      !nodes_.init(allocator, pages * 8)) {
    return false;
  }
  raw_ = physical_pointer<u64>(raw);
  present_ = physical_pointer<Bitmap>(present);
  stamp_of_ = physical_pointer<u64>(stamps);
  for (unsigned i = 0; i < kMaxRoots; ++i) {
    roots_[i].index = static_cast<u8>(i);
  }
  return true;
}

// Roots

void LinearPager::evict(LinearRoot& root) {
  ++stats_.roots_evicted;
  ShadowPage& p = pool_[root.page];
  if (--p.parent_count == 0) {
    pool_.set_use(root.page, PageUse::orphan);
  }
  root.page = ShadowPool::kNone;
}

// As ShadowPager::free_root(): of a processor that takes a root without the lock and one that takes
// it away, at least one sees the other.
LinearRoot* LinearPager::free_root(unsigned cpu) {
  cpus_[cpu].active.store(nullptr, std::memory_order_seq_cst);
  const auto active = [&](const LinearRoot& root) {
    return std::any_of(cpus_.begin(), cpus_.end(), [&](const Cpu& c) {
      return c.active.load(std::memory_order_seq_cst) == &root;
    });
  };
  LinearRoot* oldest = nullptr;
  for (LinearRoot& root : roots_) {
    if (root.key.load(std::memory_order_relaxed) == 0) {
      return &root;
    }
    if (!active(root) && (oldest == nullptr || root.used < oldest->used)) {
      oldest = &root;
    }
  }
  if (oldest == nullptr) {
    return nullptr;
  }
  const u64 key = oldest->key.exchange(0, std::memory_order_seq_cst);
  if (active(*oldest)) {
    oldest->key.store(key, std::memory_order_seq_cst);
    return nullptr;
  }
  evict(*oldest);
  return oldest;
}

// Root pages count the roots that use them where other pages count their parents: two PCIDs may
// share a table.
void LinearPager::make_root(LinearRoot& root, const LinearMode& mode, u64 cr3, unsigned) {
  const bool internal = !mode.long_mode();
  const u64 frame = internal ? kInternalFrame | root.index : mode.table(cr3) >> kPageShift;
  const Role role = mode.role().with_level(mode.top()).with_direct(internal);
  u32 n = pool_.find(frame, role);
  ++stamp_;
  if (n == ShadowPool::kNone) {
    n = pool_.take(frame, role);
  } else if (internal) {
    zap_all(n, false);
  } else {
    sync_tree(n);
  }
  if (pool_[n].use != PageUse::root) {
    pool_.set_use(n, PageUse::root);
  }
  ++pool_[n].parent_count;
  root.page = n;
  root.table = pool_.table(n);
  root.mode = mode;
  root.generation = ++last_generation_;
  root.pdptes = {};
  if (!internal) {
    link_known_tables(n);
  }
}

// A new address space begins with what the guest's root table already leads to and L0 knows: the
// kernel's half, mostly.
void LinearPager::link_known_tables(u32 n) {
  const ShadowPage p = pool_[n];
  const void* table = guest_table(p);
  if (table == nullptr || p.role.space() != 0) {
    return;
  }
  for (unsigned index = 0; index < 512 && nodes_.free() > kNodesPerFault; ++index) {
    const u64 raw = guest_entry(p, table, index);
    if ((raw & (npt::present | npt::accessed)) != (npt::present | npt::accessed) ||
        is_present(n, index)) {
      continue;
    }
    const LinearEntry e = derive_linear(p.role, index, raw, features_);
    const Role role = p.role.with_level(p.role.level() - 1).with_access(e.access);
    if (e.kind == LinearEntry::Kind::table &&
        pool_.find(e.address >> kPageShift, role) != ShadowPool::kNone) {
      link(n, index, e.address >> kPageShift, role, e.flags, raw);
    }
  }
}

LinearRoot* LinearPager::find_root(unsigned cpu, const LinearMode& mode, u64 cr3, const u64* pdptes,
                                   u32& kick) {
  kick = 0;
  const SpinLock::Guard guard{lock_};
  ++stats_.root_misses;
  const u64 key = mode.key(cr3, cpu);
  Cpu& c = cpus_[cpu];
  LinearRoot* root = nullptr;
  for (LinearRoot& candidate : roots_) {
    if (candidate.key.load(std::memory_order_relaxed) == key) {
      root = &candidate;
    }
  }
  if (root == nullptr) {
    if (!ensure(cpu, 1, kNodesPerFault, kick)) {
      return nullptr;
    }
    root = free_root(cpu);
    if (root == nullptr) {
      kick = epochs_.laggards(~u64{0} - 1, cpu);
      return nullptr;
    }
    make_root(*root, mode, cr3, cpu);
    load_pdptes(*root, pdptes);
    root->key.store(key, std::memory_order_seq_cst);
    ++stats_.roots_made;
    c.pending &= ~bit(root->index);
    c.seen[root->index] = c.logged;
  }
  root->used = ++clock_;
  c.active.store(root, std::memory_order_seq_cst);
  c.previous.insert(key, root);
  bring_up_to_date(cpu, *root, pdptes);
  return root;
}

LinearRoot* LinearPager::catch_up(unsigned cpu, LinearRoot& root, const u64* pdptes) {
  const SpinLock::Guard guard{lock_};
  root.used = ++clock_;
  bring_up_to_date(cpu, root, pdptes);
  return &root;
}

LinearPager::Tag LinearPager::tag_for(unsigned cpu, const LinearRoot& root) {
  Cpu& c = cpus_[cpu];
  const unsigned t = options_.tags == 0 ? 0 : root.index % options_.tags;
  Tag tag{options_.first_tag + t, false};
  if (c.tag_owner[t] != root.generation || ((c.stale_tags >> t) & 1) != 0) {
    tag.flush = true;
    c.stale_tags &= ~(u32{1} << t);
    c.tag_owner[t] = root.generation;
    c.tag_changes[t] = changes_.load(std::memory_order_relaxed);
    c.tag_structure[t] = structure_.load(std::memory_order_relaxed);
  }
  return tag;
}

// Pages

bool LinearPager::ensure(unsigned cpu, u32 pages, u32 nodes, u32& kick) {
  kick = 0;
  if (pool_.free() >= pages && nodes_.free() >= nodes) [[likely]] {
    return true;
  }
  pool_.recycle(epochs_, cpu);
  if (pool_.free() < pages || nodes_.free() < nodes) {
    if (pool_.retired() < kReclaimBatch || nodes_.free() < nodes) {
      reclaim(kReclaimBatch);
    }
    kick = pool_.recycle(epochs_, cpu);
  }
  if (pool_.free() >= pages && nodes_.free() >= nodes) {
    return true;
  }
  epochs_.leave(cpu);  // two processors must not wait for each other
  return false;
}

void LinearPager::reclaim(u32 pages) {
  const u64 epoch = epochs_.next();
  for (u32 i = 0; i < pages; ++i) {
    const u32 n =
        pool_.first_orphan() != ShadowPool::kNone ? pool_.first_orphan() : pool_.first_linked();
    if (n == ShadowPool::kNone) {
      break;
    }
    drop_parents(n);
    zap_all(n, false);
    pool_.retire(n, epoch);
    ++stats_.reclaimed;
  }
  epochs_.advance();
}

void LinearPager::drop_parents(u32 n) {
  while (pool_[n].parents != NodePool::kNone) {
    zap(nodes_.first(pool_[n].parents));
  }
}

void LinearPager::drop_everything() {
  const SpinLock::Guard guard{lock_};
  for (u32 n = 1; n < pool_.count(); ++n) {
    if (pool_[n].use != PageUse::free && pool_[n].use != PageUse::retired) {
      zap_all(n, false);
    }
  }
  epochs_.advance();
}

// Entries

void LinearPager::zap(EntryRef ref) {
  ShadowPage& p = pool_[ref.page()];
  u64& entry = pool_.entry(ref);
  const u64 old = load(entry);
  store(entry, 0);
  present_[ref.page()].word[ref.index() / 64] &= ~bit(ref.index() % 64);
  --p.present;
  const unsigned level = p.role.level();
  if (!is_leaf(old, level)) {
    --p.tables;
    const u32 child = pool_.of_table(old & npt::address);
    ShadowPage& c = pool_[child];
    nodes_.remove(c.parents, ref);
    if (--c.parent_count == 0 && c.use == PageUse::linked) {
      pool_.set_use(child, PageUse::orphan);
    }
  }
  if (level > 1) {
    structure_.fetch_add(1, std::memory_order_relaxed);
  }
  changes_.fetch_add(1, std::memory_order_relaxed);
  ++stats_.zaps;
}

void LinearPager::zap_all(u32 n, bool tables_only) {
  const unsigned level = pool_[n].role.level();
  for (u32 word = 0; word < 8; ++word) {
    for (u64 left = present_[n].word[word]; left != 0; left &= left - 1) {
      const u32 index = word * 64 + static_cast<u32>(__builtin_ctzll(left));
      if (!tables_only || !is_leaf(load(pool_.entries(n)[index]), level)) {
        zap({n, index});
      }
    }
  }
}

void LinearPager::store_entry(u32 n, unsigned index, u64 value, u64 raw) {
  u64& word = present_[n].word[index / 64];
  if ((word & bit(index % 64)) == 0) {
    word |= bit(index % 64);
    ++pool_[n].present;
  }
  raw_[u64{n} * 512 + index] = raw;
  store(pool_.entries(n)[index], value);
}

void LinearPager::set_leaf(u32 n, unsigned index, u64 value, u64 raw) {
  const unsigned level = pool_[n].role.level();
  if (is_present(n, index)) {
    const u64 old = load(pool_.entries(n)[index]);
    if (!is_leaf(old, level) || ((old ^ value) & npt::address) != 0) {
      zap({n, index});
    } else if ((old & ~value & (npt::write | npt::user)) != 0 ||
               (value & ~old & npt::no_execute) != 0) {
      changes_.fetch_add(1, std::memory_order_relaxed);
      ++stats_.narrowed;
    }
  }
  ++stats_.leaves[level - 1];
  store_entry(n, index, value, raw);
}

// Makes the entry lead to the shadow page for (frame, role), and returns that page. Where that page
// is not new, what it says may be old, and this address has never been translated: all that the new
// link reaches is compared, and so are the other entries that lead to the page, since a table may
// have been taken from one place and put in another without the old address being named in an
// invalidation.
u32 LinearPager::link(u32 parent, unsigned index, u64 frame, Role role, u64 flags, u64 raw) {
  const EntryRef ref{parent, index};
  if (is_present(parent, index)) {
    const u64 old = load(pool_.entry(ref));
    if (!is_leaf(old, pool_[parent].role.level())) {
      const u32 child = pool_.of_table(old & npt::address);
      if (pool_[child].frame == frame && pool_[child].role == role) {
        const u64 value = pool_.table(child).value() | flags;
        if (value != old || raw_[u64{parent} * 512 + index] != raw) {
          if ((old & ~value & (npt::write | npt::user)) != 0 ||
              (value & ~old & npt::no_execute) != 0) {
            changes_.fetch_add(1, std::memory_order_relaxed);
          }
          store_entry(parent, index, value, raw);
        }
        return child;
      }
    }
    zap(ref);
  }
  u32 child = pool_.find(frame, role);
  if (child == ShadowPool::kNone) {
    child = pool_.take(frame, role);
  } else if (!role.direct()) {
    sync_parents(child);
    sync_tree(child);
  }
  ShadowPage& c = pool_[child];
  if (c.parent_count >= kMaxParents) {
    zap(nodes_.first(c.parents));
  }
  if (c.use == PageUse::orphan) {
    pool_.set_use(child, PageUse::linked);
  }
  nodes_.push(c.parents, ref);
  ++c.parent_count;
  ++pool_[parent].tables;
  store_entry(parent, index, pool_.table(child).value() | flags, raw);
  return child;
}

// Faults

namespace {

// A supervisor's write that CR0.WP = 0 allows and the processor, running with WP, does not. Making
// the page the supervisor's alone would do (install()), but for what SMAP or a protection key says
// of user pages; and keys of supervisor pages (PKS) leave no way at all.
bool needs_emulation(const GuestPaging& paging, const GuestWalk& walk, u32 access_bits) {
  if ((access_bits & (access::write | access::user)) != access::write || walk.path.depth == 0) {
    return false;
  }
  const u64 leaf = walk.path.step[walk.path.depth - 1].entry;
  const auto key = static_cast<unsigned>((leaf >> 59) & 15);
  if ((walk.rights & right::user) == 0) {
    return paging.pks && key_denies(paging.pkrs, key, true, true);
  }
  return (walk.rights & right::write) == 0 ||
         (paging.pke && key_denies(paging.pkru, key, true, true));
}

}  // namespace

template <class Second>
LinearFault LinearPager::fault(unsigned cpu, const LinearRoot& root, const GuestPaging& paging,
                               const Second& second, u64 linear, u32 access_bits, bool loosely) {
  const SpinLock::Guard guard{lock_};
  ++stats_.faults;
  LinearFault result;
  if (!ensure(cpu, kPagesPerFault, kNodesPerFault, result.kick)) [[unlikely]] {
    ++stats_.busy;
    result.kind = LinearFault::Kind::busy;
    return result;
  }
  const GuestWalk walk = walk_guest(*memory_, paging, second, linear, access_bits);
  switch (walk.status) {
    case GuestWalk::Status::page_fault:
      ++stats_.page_faults;
      result.kind = LinearFault::Kind::page_fault;
      result.error = walk.pfec;
      return result;
    case GuestWalk::Status::nested_fault:
      result.kind = LinearFault::Kind::nested;
      result.nested = walk.nested;
      return result;
    case GuestWalk::Status::retry:
      return result;  // run the guest again; it faults again if it must
    case GuestWalk::Status::ok:
      break;
  }
  result.gpa = walk.gpa;
  const HostMap::Lookup host = host_->lookup(walk.gpa);
  if (!host.present || (!host.writable && (access_bits & access::write) != 0)) {
    ++stats_.devices;
    result.kind = LinearFault::Kind::device;
    return result;
  }
  if ((root.mode.role().permission_mode() & linear::kOwnerChecked) != 0 && !loosely &&
      needs_emulation(paging, walk, access_bits)) {
    result.kind = LinearFault::Kind::emulate;
    return result;
  }
  install(root, walk, linear, access_bits);
  ++stats_.mapped;
  return result;
}

LinearFault LinearPager::handle_fault(unsigned cpu, const LinearRoot& root,
                                      const GuestPaging& paging, u64 linear, u32 access_bits,
                                      bool loosely) {
  return fault(cpu, root, paging, NoSecondDimension{}, linear, access_bits, loosely);
}

// The path of a walk that succeeded, down to a leaf as large as the guest's entry and L0's map
// allow.
void LinearPager::install(const LinearRoot& root, const GuestWalk& walk, u64 linear,
                          u32 access_bits) {
  const LinearMode& mode = root.mode;
  const HostMap::Lookup host = host_->lookup(walk.gpa);
  const bool narrow = linear::is_narrow(mode.role().format());
  const unsigned walk_top = narrow ? 2 : mode.top();
  ++stamp_;
  u32 n = root.page;
  for (unsigned level = mode.top();; --level) {
    const unsigned index = index_at(mode, linear, level);
    const Role role = pool_[n].role;
    if (level == 3 && !mode.long_mode()) {
      // The processor's own PDPT: nothing of the guest's but PAE's registers is in it.
      const Role below = mode.role().with_level(2);
      if (mode.flat()) {
        n = link(n, index, u64{index} << 18, below.with_direct(true), npt::present, 0);
      } else if (narrow) {
        n = link(n, index, walk.path.step[0].at.frame(), below.with_quadrant(index), npt::present,
                 0);
      } else {
        n = link(n, index, walk.path.step[1].at.frame(), below, npt::present,
                 walk.path.step[0].entry);
      }
      continue;
    }
    u64 address = 0, flags = kAllRights, raw = 0;
    u8 leaf_bits = 0;
    if (role.direct()) {
      address = (pool_[n].frame << kPageShift) + index * linear::page_size(level);
      leaf_bits = static_cast<u8>(role.leaf_bits());
    } else {
      const unsigned depth = walk_top - level;
      const WalkPath::Step& step = walk.path.step[depth];
      raw = step.entry;
      // ROM keeps no flags; it counts as accessed and dirty.
      const bool keeps = step.memory && memory_->writable(step.at, sizeof(u32));
      const u64 seen = keeps ? raw : raw | Ia32e<4>::kAccessed | Ia32e<4>::kDirty;
      const LinearEntry e = derive_linear(role, index, seen, features_);
      if (e.kind == LinearEntry::Kind::table) {
        Role below = role.with_level(level - 1).with_access(e.access);
        if (narrow) {
          below = below.with_quadrant(index & 1);
        }
        n = link(n, index, walk.path.step[depth + 1].at.frame(), below, e.flags, raw);
        continue;
      }
      if (e.kind == LinearEntry::Kind::none) {
        return;  // L1 cannot be shown what the walk saw: the fault comes again
      }
      address = e.address;
      flags = e.flags;
      leaf_bits = e.leaf_bits;
      if (!linear::has_wp(role) &&
          (access_bits & (access::write | access::user)) == access::write &&
          (flags & (npt::write | npt::user)) == npt::user) {
        // A supervisor writes a read-only page of the user's: the page is the supervisor's alone
        // until the user comes back. SMEP must not see a supervisor page where it would have
        // stopped a fetch.
        flags = (flags & ~npt::user) | npt::write | npt::dirty;
        flags |= (role.permission_mode() & linear::kSmep) != 0 ? npt::no_execute : 0;
      }
    }
    if (host.level < level) {
      const Role below = Role{}
                             .with_format(TableFormat::flat)
                             .with_direct(true)
                             .with_permission_mode(linear::kWp)
                             .with_access(right::all)
                             .with_level(level - 1)
                             .with_leaf_bits(leaf_bits)
                             .with_space(role.space());
      n = link(n, index, address >> kPageShift, below, flags, raw);
      continue;
    }
    if (!host.writable) {
      flags &= ~(npt::write | npt::dirty);
    }
    set_leaf(n, index,
             address | flags | linear::unpack_leaf_bits(leaf_bits, level > 1) |
                 (level > 1 ? npt::large : 0),
             raw);
    if (level == 1 && !role.direct()) {
      prefetch(n, index, host);
    }
    return;
  }
}

// The neighbours in the same cache line of the guest's table that are in use already and lie where
// L0's map says the same as of this one.
void LinearPager::prefetch(u32 n, unsigned index, const HostMap::Lookup& host) {
  constexpr u64 kInUse = npt::present | npt::accessed;
  const ShadowPage& p = pool_[n];
  const void* table = guest_table(p);
  if (table == nullptr || host.level < 2) {
    return;
  }
  const unsigned first = index & ~7u;
  for (unsigned i = first; i < first + 8; ++i) {
    const u64 raw = guest_entry(p, table, i);
    if ((raw & kInUse) != kInUse || is_present(n, i)) {
      continue;
    }
    const LinearEntry e = derive_linear(p.role, i, raw, features_);
    if (e.kind == LinearEntry::Kind::leaf &&
        ((e.address ^ host.hpa.value()) & ~(linear::page_size(host.level) - 1)) == 0) {
      const u64 flags = host.writable ? e.flags : e.flags & ~(npt::write | npt::dirty);
      store_entry(n, i, e.address | flags | linear::unpack_leaf_bits(e.leaf_bits, false), raw);
      ++stats_.prefetched;
    }
  }
}

LinearPager::Walk LinearPager::lookup(const LinearRoot& root, u64 linear) const {
  Walk walk;
  walk.rights = right::all;
  u32 n = root.page;
  for (unsigned level = root.mode.top();; --level) {
    const u64 entry = load(pool_.entries(n)[index_at(root.mode, linear, level)]);
    if ((entry & npt::present) == 0) {
      return {};
    }
    if (level != 3 || root.mode.long_mode()) {
      const auto rights = static_cast<u8>(((entry & npt::user) != 0 ? right::user : 0) |
                                          ((entry & npt::write) != 0 ? right::write : 0) |
                                          ((entry & npt::no_execute) == 0 ? right::execute : 0));
      walk.rights &= rights;
    }
    if (is_leaf(entry, level)) {
      const u64 low = linear::page_size(level) - 1;
      walk.present = true;
      walk.level = static_cast<u8>(level);
      walk.key = static_cast<u8>((entry >> 59) & 15);
      walk.hpa = Hpa{(entry & npt::address & ~low) | (linear & low)};
      return walk;
    }
    n = pool_.of_table(entry & npt::address);
  }
}

}  // namespace aerie::mmu
