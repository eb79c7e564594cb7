// The shadow pager: what L2 runs on. L1's EPT composed with L0's map of L1 (mmu/host_map.h) into
// tables the processor walks, filled at faults, kept across L1's root switches, brought up to date
// at the first entry after an INVEPT of L1's (mmu/unsync.h).
//
// All of it is under one lock but the root switch that hits. Nothing allocates after init(): pages
// and nodes are set aside there, taken back from what was used longest ago when they run out, and
// L1 sees no more of that than some faults again.
//
// What a processor may still have in its TLB is the caller's to flush: enter_guest() before every
// entry says when everything must go, and invept_*() say what must go for them.
#pragma once

#include <atomic>

#include "base/spinlock.h"
#include "mmu/epoch.h"
#include "mmu/host_map.h"
#include "mmu/l1_memory.h"
#include "mmu/prev_roots.h"
#include "mmu/rmap.h"
#include "mmu/shadow_entry.h"
#include "mmu/shadow_page.h"
#include "mmu/unsync.h"
#include "mmu/walker.h"

namespace aerie::mmu {

// One table that an L2 may run on. Roots live in a fixed array and are reused; a Root* stays valid
// memory, `key` says whose it is.
struct Root {
  std::atomic<u64> key{0};  // what of the EPTP tells roots apart; 0: nobody's
  std::atomic<u64> generation{
      0};       // unique over all roots and times; new whenever something left it
  Hpa table{};  // for the control block
  Eptp eptp{};
  u32 page = 0;
  u8 index = 0;  // 0 .. kMaxRoots-1, e.g. to choose a tag (ASID) by
  u64 used = 0;  // when it was last looked up under the lock
};

struct FaultResult {
  enum class Kind : u8 {
    mapped,            // run L2 again
    violation,         // L1's: EPT violation with `qualification`
    misconfiguration,  // L1's: EPT misconfiguration
    // EPT12 allows it, but L1 itself has no memory there (APIC page, IOAPIC, Aerie's block): the
    // access is to be done, by emulation, as L1's own physical access to `gpa`.
    l0_owned,
    // The processor's walk of L2's tables wants to write a page that EPT12 maps read-only, which
    // EPT12 without accessed and dirty flags need not allow: this host's format cannot say it
    // (DESIGN §4, mode (f)). The walk, or the instruction, must be done by other means.
    // `qualification`: of the violation that L1 is due if the walk had an accessed or dirty bit of
    // L2's entry to set.
    walk_needs_write,
    busy,  // no page can be had before the processors in `kick` have left their guests
  };
  Kind kind = Kind::mapped;
  u32 kick = 0;
  u64 qualification = 0;  // SDM vol. 3, table 28-7, bits 8:0
  Ngpa ngpa{};
  Gpa gpa{};  // l0_owned, walk_needs_write
};

// What must leave this processor's TLB before its next entry.
enum class GuestFlush : u8 { none, root, all };

class ShadowPager {
 public:
  static constexpr unsigned kMaxRoots = 64;
  static constexpr unsigned kPrevRoots = 4;  // the current one and three more

  struct Options {
    u32 pages = 4096;          // shadow pages: 4 KiB each, and a half more for records
    bool track_writes = true;  // close quiet tables by write protection in the host map
    // How many entries are compared at once for an INVEPT; beyond that the rest is put off to the
    // faults that need it. At 45 instructions an entry: 1.5 million.
    u32 eager_entries = 32768;
    // Called (under the pager's lock) whenever enter_guest() has become due on every processor, for
    // those who would rather post a request to each than call it before every entry.
    void (*epoch_advanced)(void* who) = nullptr;
    void* who = nullptr;
  };
  struct Stats {
    u64 faults, mapped, violations, misconfigurations, l0_owned, walks_need_write, busy;
    u64 spurious;   // faults that found the entry as it should be
    u64 leaves[3];  // leaves made, by level - 1
    u64 prefetched;
    u64 zaps;             // entries removed
    u64 invepts, visits;  // and pages compared
    u64 put_off;          // times that most of it was left to later faults
    u64 write_faults;     // of L1 (or L2) on closed tables
    u64 reclaimed;        // pages taken back
    u64 roots_made, roots_evicted, root_misses;
  };

  // False when memory runs out. `host` and `memory` must outlive the pager; L0's stores into
  // `memory` are watched from now on.
  [[nodiscard]] bool init(PageAllocator& allocator, L1Memory& memory, HostMap& host,
                          const EptFormat::Context& context, Options options);
  [[nodiscard]] bool init(PageAllocator& allocator, L1Memory& memory, HostMap& host,
                          const EptFormat::Context& context) {
    return init(allocator, memory, host, context, Options{});
  }

  // The root for an EPTP, which is now the one `cpu` runs on, and what this processor's INVEPTs
  // asked for is done: to be called before every entry by L1. One of the last kPrevRoots: no lock,
  // no allocation. nullptr where the shadow's format cannot hold it (5 levels) or, with `kick` set,
  // where no page can be had before those processors have left their guests.
  Root* switch_root(unsigned cpu, Eptp eptp, u32& kick) {
    CpuState& c = cpus_[cpu];
    const u64 key = key_of(eptp);
    Root* root = c.previous.find(key);
    if (root != nullptr) [[likely]] {
      c.active.store(root, std::memory_order_seq_cst);
      if (root->key.load(std::memory_order_seq_cst) == key) [[likely]] {
        if ((c.pending & bit(root->index)) != 0) [[unlikely]] {
          catch_up(cpu, *root);
        }
        return root;
      }
      c.previous.drop_front();
    }
    return find_root(cpu, eptp, kick);
  }

  // An L2 on `root` faulted at `ngpa`; `error` as cpu::Exit::error_code has it (tdp_fault bits).
  FaultResult handle_fault(unsigned cpu, const Root& root, Ngpa ngpa, u64 error);

  // INVEPT by L1. SDM vol. 3, 29.4.3.1: single-context goes by bits 51:12 of the EPTP.
  // Only notes what this processor must not use any more. L1 may go on editing until it enters: the
  // processor can have cached nothing since, so the tables count as they are at the entry. Another
  // processor's next entry on the root is not concerned: it may use what is old until its own
  // INVEPT.
  GuestFlush invept_single(unsigned cpu, Eptp eptp);
  GuestFlush invept_all(unsigned cpu);

  // L1 (running on the host map) faulted writing a page that is present there. True: run it again.
  bool l1_write_fault(Gpa gpa);
  // Before a processor's first entry into a guest, L1 or L2, and then before every one (or every
  // one after Options::epoch_advanced was called). True: flush everything.
  bool enter_guest(unsigned cpu) { return epochs_.enter(cpu); }
  // The processor halts in L0, or waits for SIPI.
  void leave_guest(unsigned cpu) { epochs_.leave(cpu); }

  // Takes back up to `pages` of the pages used longest ago (they come free when processors have
  // flushed).
  void trim(unsigned cpu, u32 pages);

  const Stats& stats() const { return stats_; }
  u32 pages_in_use() const { return pool_.count() - 1 - pool_.free() - pool_.retired(); }
  u32 unsync_pages() const { return unsync_.size(); }
  u32 protected_pages() const { return unsync_.protected_pages(); }

  // Walks the shadow tables as the processor would; for tests and for emulation.
  struct ShadowWalk {
    bool present = false;
    u8 level = 0;
    bool write = false, execute = false;
    Hpa hpa{};
  };
  ShadowWalk lookup(const Root& root, Ngpa ngpa) const;

  // Every structure against every other; nullptr, or what is wrong. Slow: tests call it.
  const char* check_invariants() const;

 private:
  struct alignas(64) CpuState {
    PrevRoots<kPrevRoots> previous;
    std::atomic<Root*> active{nullptr};
    u64 pending =
        0;  // roots, by index, that it must bring up to date before it enters them; its own
  };
  struct Link {
    u64 frame;
    Role role;
    u64 flags;
  };

  static constexpr u64 key_of(Eptp eptp) {
    return (eptp.value() & (kAddressMask | bit_mask(6, 3))) | bit(0);
  }
  static constexpr u32 kPagesPerFault = 4, kNodesPerFault = 16, kReclaimBatch = 16,
                       kMaxParents = 64;

  [[gnu::cold, gnu::noinline]] Root* find_root(unsigned cpu, Eptp eptp, u32& kick);
  [[gnu::cold, gnu::noinline]] void catch_up(unsigned cpu, const Root& root);
  Root* free_root(unsigned cpu);
  void evict(Root& root);
  bool is_active(const Root& root) const;

  bool ensure(unsigned cpu, u32 pages, u32 nodes, u32& kick);
  void reclaim(u32 pages);
  void retire(u32 n);

  u32 link(u32 parent, unsigned index, const Link& what);
  void admit(u32 n, u64 roots);
  void zap_tables(u32 n);
  void set_leaf(u32 n, unsigned index, u64 value);
  void zap(EntryRef ref);
  void drop_parents(u32 n);
  bool sync(u32 n);
  bool writable_by_l2(u64 frame) const;
  void prefetch(u32 n, unsigned index, Gpa table, Gpa gpa, const HostMap::Lookup& host);
  void invalidate(unsigned cpu, u64 roots);
  void put_off(u64 roots);
  void note_changes();
  void advance_epoch();
  static bool is_leaf(u64 entry, unsigned level) { return level == 1 || (entry & npt::large) != 0; }

  SpinLock lock_;
  const L1Memory* memory_ = nullptr;
  HostMap* host_ = nullptr;
  EptFormat::Context context_{};
  u32 eager_entries_ = 0;
  ShadowPool pool_;
  NodePool nodes_;
  LeafMap leaves_;
  UnsyncList unsync_;
  std::atomic<u32> closed_pages_{0};  // unsync_.protected_pages(), for those without the lock
  Epochs epochs_;
  void (*epoch_advanced_)(void*) = nullptr;
  void* epoch_listener_ = nullptr;
  std::array<Root, kMaxRoots> roots_{};
  std::array<CpuState, kMaxCpus> cpus_{};
  u64 last_generation_ = 0;
  u64 changed_roots_ = 0;  // roots that lost something since note_changes()
  u64 clock_ = 0;
  Stats stats_{};
};

}  // namespace aerie::mmu
