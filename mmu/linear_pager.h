// Shadow paging of a guest's own page tables: the guest runs on tables that L0 derives from its
// tables and from L0's map of L1, without nested paging of the processor's (DESIGN §4, mode (b)).
//
// The shadow is what a TLB is: it may go on saying what a table entry said until the guest
// invalidates, and it need not be told of anything the architecture does not make a guest tell its
// processor. So no table of the guest's is ever write-protected; each shadow entry is kept together
// with the guest entry it was made from, and an invalidation compares the two:
//
//   INVLPG             the entries on the one path
//   MOV CR3, INVPCID…  all that the root reaches, at the next entry on that root
//   a table linked     all that it reaches: the new address has never been translated before
//
// A comparison costs some nine instructions an entry, and never drops a root. How much is compared
// in one exit is bounded (Options::eager_entries); beyond that tables are let go and compared when
// a fault links them again.
//
// All of it is under one lock but the root switch that hits. Nothing allocates after init().
#pragma once

#include <atomic>

#include "base/spinlock.h"
#include "mmu/epoch.h"
#include "mmu/host_map.h"
#include "mmu/l1_memory.h"
#include "mmu/linear_mode.h"
#include "mmu/prev_roots.h"
#include "mmu/rmap.h"
#include "mmu/shadow_page.h"
#include "mmu/walker.h"

namespace aerie::mmu {

// A shadow root: a CR3 value (with its PCID) in one paging mode.
struct LinearRoot {
  std::atomic<u64> key{0};  // LinearMode::key(); 0: nobody's
  u64 generation = 0;       // unique over all roots and times
  Hpa table{};              // for the control block
  LinearMode mode{};
  u32 page = 0;
  u8 index = 0;
  u64 used = 0;  // when it was last looked up under the lock
  std::array<u64, 4> pdptes{};
};

struct LinearFault {
  enum class Kind : u8 {
    mapped,      // run the guest again
    page_fault,  // the guest's, with `error`
    nested,      // `nested`: the second dimension's
    device,      // L1 has no memory at `gpa`: the access is to be emulated
    // CR0.WP is clear and the supervisor writes a page of the user's that the processor, which runs
    // with WP, cannot be let write without giving up SMAP's or a key's checks of it: the access to
    // `gpa` is to be emulated. Where that cannot be done, handle_fault() with `loosely` maps it.
    emulate,
    busy,  // no page can be had before the processors in `kick` have left their guests
  };
  Kind kind = Kind::mapped;
  u32 error = 0;
  u32 kick = 0;
  Gpa gpa{};
  NestedFault nested{};
};

class LinearPager {
 public:
  static constexpr unsigned kMaxRoots = 64;
  static constexpr unsigned kPrevRoots = 4;  // the current one and three more

  struct Options {
    u32 pages = 4096;  // shadow pages: 8 KiB each, and records
    u32 eager_entries = 65536;
    unsigned tags = 0;  // host tags for roots, [first_tag, first_tag + tags); 0: one for all
    u32 first_tag = 3;
  };
  struct Stats {
    u64 faults, mapped, page_faults, devices, busy;
    u64 leaves[3];  // made, by level - 1
    u64 prefetched;
    u64 zaps, narrowed;
    u64 compared;  // entries
    u64 tree_syncs, path_syncs, put_off;
    u64 roots_made, roots_evicted, root_misses;
    u64 reclaimed;
  };

  // `host` and `memory` must outlive the pager. False when memory runs out.
  [[nodiscard]] bool init(PageAllocator& allocator, const L1Memory& memory, const HostMap& host,
                          const PagingFeatures& features, Options options);

  // The root for CR3, which `cpu` runs on from now; brought up to date with what was invalidated on
  // this processor. Of the last kPrevRoots, without a pending invalidation: no lock, no allocation.
  // `pdptes`: PAE's, as they were loaded. nullptr, with `kick`: no page can be had yet.
  [[gnu::always_inline]] LinearRoot* switch_root(unsigned cpu, const LinearMode& mode, u64 cr3,
                                                 const u64* pdptes, u32& kick) {
    Cpu& c = cpus_[cpu];
    const u64 key = mode.key(cr3, cpu);
    LinearRoot* root = c.previous.find(key);
    if (root != nullptr) [[likely]] {
      c.active.store(root, std::memory_order_seq_cst);
      if (root->key.load(std::memory_order_seq_cst) == key) [[likely]] {
        if (((c.pending >> root->index) & 1) == 0 && c.seen[root->index] == c.logged) [[likely]] {
          return root;
        }
        return catch_up(cpu, *root, pdptes);
      }
      c.previous.drop_front();
    }
    return find_root(cpu, mode, cr3, pdptes, kick);
  }

  // The tag to run `root` with, and whether all of it must be flushed first.
  struct Tag {
    u32 tag;
    bool flush;
  };
  Tag tag_for(unsigned cpu, const LinearRoot& root);

  // A page fault of the processor's at `linear`; `access_bits`: mmu/permissions.h.
  LinearFault handle_fault(unsigned cpu, const LinearRoot& root, const GuestPaging& paging,
                           u64 linear, u32 access_bits, bool loosely = false);

  // What the guest on `cpu` has invalidated. Whole contexts are compared at the next switch_root(),
  // which must come before the guest runs again.
  //
  // INVLPG: the address in the current PCID, and global translations of it in any (`global`:
  // CR4.PGE). True: the processor's own translation of this one address is all there is to flush;
  // false: the tag (tag_for() will say so).
  bool flush_address(unsigned cpu, const LinearRoot& root, u64 linear, bool global);
  // INVPCID type 0.
  void flush_address_of(unsigned cpu, u16 pcid, u64 linear, unsigned space);
  // MOV CR3, INVPCID type 1: a PCID, but for what is global.
  void flush_context(unsigned cpu, u16 pcid, unsigned space);
  // All PCIDs, global translations too.
  void flush_all(unsigned cpu) { cpus_[cpu].pending = ~u64{0}; }
  // L0's map has changed under the shadow: every shadow entry goes. Every processor must flush.
  void drop_everything();

  bool enter_guest(unsigned cpu) { return epochs_.enter(cpu); }
  void leave_guest(unsigned cpu) { epochs_.leave(cpu); }

  const Stats& stats() const { return stats_; }
  u32 pages_in_use() const { return pool_.count() - 1 - pool_.free() - pool_.retired(); }

  // Walks the shadow as the processor would; for tests.
  struct Walk {
    bool present = false;
    u8 level = 0;
    u8 rights = 0;  // mmu::right bits
    u8 key = 0;     // protection key
    Hpa hpa{};
  };
  Walk lookup(const LinearRoot& root, u64 linear) const;
  const char* check_invariants() const;

 private:
  static constexpr u32 kPagesPerFault = 6, kNodesPerFault = 8, kReclaimBatch = 16, kMaxParents = 64;
  static constexpr unsigned kLog = 8, kTags = 32;

  struct alignas(64) Cpu {
    PrevRoots<kPrevRoots, LinearRoot> previous;
    std::atomic<LinearRoot*> active{nullptr};
    u64 pending = 0;  // roots to be compared before this processor enters them
    // Addresses that INVLPG named, whose global translations must go from all roots: root i has
    // seen the first seen[i] of them.
    u32 logged = 0;
    std::array<u32, kMaxRoots> seen{};
    std::array<u64, kLog> log{};
    // Whose translations the processor's tags hold, and as of which changes.
    std::array<u64, kTags> tag_owner{};
    std::array<u64, kTags> tag_changes{};
    std::array<u64, kTags> tag_structure{};
    u32 stale_tags = 0;  // must be flushed before they are used
  };
  // A guest entry and the shadow page's own business with it.
  struct Bitmap {
    u64 word[8];
  };

  [[gnu::noinline]] LinearRoot* catch_up(unsigned cpu, LinearRoot& root, const u64* pdptes);
  [[gnu::noinline]] LinearRoot* find_root(unsigned cpu, const LinearMode& mode, u64 cr3,
                                          const u64* pdptes, u32& kick);
  LinearRoot* free_root(unsigned cpu);
  void evict(LinearRoot& root);
  void make_root(LinearRoot& root, const LinearMode& mode, u64 cr3, unsigned cpu);
  void bring_up_to_date(unsigned cpu, LinearRoot& root, const u64* pdptes);

  bool ensure(unsigned cpu, u32 pages, u32 nodes, u32& kick);
  void reclaim(u32 pages);

  template <class Second>
  LinearFault fault(unsigned cpu, const LinearRoot& root, const GuestPaging& paging,
                    const Second& second, u64 linear, u32 access_bits, bool loosely);
  void install(const LinearRoot& root, const GuestWalk& walk, u64 linear, u32 access_bits);
  void prefetch(u32 n, unsigned index, const HostMap::Lookup& host);
  void link_known_tables(u32 n);

  u32 link(u32 parent, unsigned index, u64 frame, Role role, u64 flags, u64 raw);
  void set_leaf(u32 n, unsigned index, u64 value, u64 raw);
  void store_entry(u32 n, unsigned index, u64 value, u64 raw);
  void zap(EntryRef ref);
  void zap_all(u32 n, bool tables_only);
  void drop_parents(u32 n);

  const void* guest_table(const ShadowPage& p) const;
  u64 guest_entry(const ShadowPage& p, const void* table, unsigned index) const;
  void sync_entry(u32 n, unsigned index, u64 now);
  void sync_page(u32 n);
  void sync_tree(u32 top);
  void sync_path(const LinearRoot& root, u64 linear);
  void sync_parents(u32 n);
  void load_pdptes(LinearRoot& root, const u64* pdptes);

  bool is_present(u32 n, unsigned index) const {
    return ((present_[n].word[index / 64] >> (index % 64)) & 1) != 0;
  }
  static bool is_leaf(u64 entry, unsigned level) { return level == 1 || (entry & npt::large) != 0; }
  static unsigned shadow_index(u64 linear, unsigned level) {
    return static_cast<unsigned>(linear >> (12 + 9 * (level - 1))) & 0x1ff;
  }
  static unsigned index_at(const LinearMode& mode, u64 linear, unsigned level) {
    return shadow_index(linear, level) & (level == mode.top() && !mode.long_mode() ? 3u : 0x1ffu);
  }
  // A shadow page that stands for no table of the guest's.
  static bool has_guest_table(const ShadowPage& p) { return !p.role.direct(); }

  SpinLock lock_;
  const L1Memory* memory_ = nullptr;
  const HostMap* host_ = nullptr;
  PagingFeatures features_{};
  Options options_{};
  ShadowPool pool_;
  NodePool nodes_;
  Epochs epochs_;
  u64* raw_ = nullptr;  // per page 512 guest entries, as the shadow entries were made from them
  Bitmap* present_ = nullptr;
  u64* stamp_of_ = nullptr;
  u64 stamp_ = 0;
  std::array<LinearRoot, kMaxRoots> roots_{};
  std::array<Cpu, kMaxCpus> cpus_{};
  u64 last_generation_ = 0;
  // Counts what left the shadow: entries, and those of them that led to tables or large pages.
  std::atomic<u64> changes_{1}, structure_{1};
  u64 clock_ = 0;
  Stats stats_{};
};

}  // namespace aerie::mmu
