// Shadow pages: the table pages that L0 derives from a guest's, with what L0 must know of each.
// Their number is fixed at boot; page n's table is the n-th page of one contiguous block, so that
// an entry leads to its child's record by arithmetic, and L1 cannot make L0 use more memory than
// was set aside.
//
// A page's life:
//   free → in use (hashed by frame and role; linked from parents, or a root, or an orphan that may
//   be linked again) → retired (unlinked; a processor's TLB may still know the table) → free.
#pragma once

#include <span>

#include "base/page_allocator.h"
#include "base/panic.h"
#include "base/physical.h"
#include "mmu/epoch.h"
#include "mmu/rmap.h"
#include "mmu/role.h"

namespace aerie::mmu {

// How L0 knows whether the guest table still says what the shadow page was made from
// (mmu/unsync.h).
enum class SyncState : u8 {
  unsync,   // L1 may have written it since; on the unsync list
  closing,  // write-protected, but some processor may still have a writable translation; on the
            // list
  synced,   // write-protected everywhere: unchanged
};

enum class PageUse : u8 { free, linked, orphan, root, retired };

// 64 bytes: a record is found by a shift, and is one cache line.
struct ShadowPage {
  u64 frame = 0;  // the guest table's, or (direct) the first one covered
  u64 roots = 0;  // bit per root that may reach this page
  u64 epoch = 0;  // closing, retired: every processor must have reached it
  Role role{};
  u32 hash_next = 0;
  u32 parents = NodePool::kNone;         // the entries that point here
  u32 prev = 0, next = 0;                // of the list that `use` names
  u32 unsync_prev = 0, unsync_next = 0;  // of the unsync list
  u16 parent_count = 0;
  u16 present = 0;  // entries that are present
  u16 tables = 0;   // those of them that point to shadow pages
  SyncState sync = SyncState::synced;
  PageUse use = PageUse::free;
  u8 quiet = 0;        // visits in a row that found nothing changed
  u8 patience = 0;     // log2 of how many it takes to close the page
  bool stale = false;  // an INVEPT of one of its roots was put off; see ShadowPager::admit()
};
static_assert(sizeof(ShadowPage) == 64);

class ShadowPool {
 public:
  static constexpr u32 kNone = 0;  // page 0 is never used

  [[nodiscard]] bool init(PageAllocator& allocator, u32 pages) {
    count_ = pages;
    const Hpa tables = allocator.allocate_contiguous(pages);
    const Hpa records =
        allocator.allocate_contiguous((pages * sizeof(ShadowPage) + kPageMask) / kPageSize);
    hash_bits_ = 9;
    while ((u32{1} << hash_bits_) < pages) {
      ++hash_bits_;
    }
    const Hpa heads = allocator.allocate_contiguous((u64{4} << hash_bits_) / kPageSize + 1);
    if (tables == Hpa{} || records == Hpa{} || heads == Hpa{}) {
      return false;
    }
    tables_ = tables;
    records_ = physical_pointer<ShadowPage>(records);
    heads_ = physical_pointer<u32>(heads);
    for (u32 n = count_ - 1; n > 0; --n) {
      records_[n] = ShadowPage{};
      push_back(free_, n);
    }
    return true;
  }

  u32 count() const { return count_; }
  u32 free() const { return free_.size; }
  u32 retired() const { return retired_.size; }
  u32 orphans() const { return orphans_.size; }

  ShadowPage& operator[](u32 n) { return records_[n]; }
  const ShadowPage& operator[](u32 n) const { return records_[n]; }
  Hpa table(u32 n) const { return tables_ + n * kPageSize; }
  u64* entries(u32 n) const { return physical_pointer<u64>(table(n)); }
  u64& entry(EntryRef ref) const { return entries(ref.page())[ref.index()]; }
  // The page whose table a (non-leaf) shadow entry points to.
  u32 of_table(u64 address) const {
    return static_cast<u32>((address - tables_.value()) >> kPageShift);
  }

  // The page in use with this key, or kNone.
  u32 find(u64 frame, Role role) const {
    for (u32 n = heads_[hash(frame)]; n != kNone; n = records_[n].hash_next) {
      if (records_[n].frame == frame && records_[n].role == role) {
        return n;
      }
    }
    return kNone;
  }
  // f(u32 page) for each page in use that shadows the guest table in `frame`.
  template <class F>
  void for_each_of(u64 frame, F&& f) {
    for (u32 n = heads_[hash(frame)]; n != kNone; n = records_[n].hash_next) {
      if (records_[n].frame == frame && !records_[n].role.direct()) {
        f(n);
      }
    }
  }

  // A free page, its table all zero, now in use as an orphan. One must be free.
  u32 take(u64 frame, Role role) {
    const u32 n = free_.tail;
    AERIE_CHECK(n != kNone);
    erase(free_, n);
    records_[n] = ShadowPage{};
    records_[n].frame = frame;
    records_[n].role = role;
    records_[n].use = PageUse::orphan;
    push_back(orphans_, n);
    u32& head = heads_[hash(frame)];
    records_[n].hash_next = head;
    head = n;
    return n;
  }
  // Changes which list a page in use is on; the newest is last.
  void set_use(u32 n, PageUse use) {
    erase(list_of(records_[n].use), n);
    records_[n].use = use;
    push_back(list_of(use), n);
  }
  // Its table must be all zero and no entry may lead to it.
  void retire(u32 n, u64 epoch) {
    u32* at = &heads_[hash(records_[n].frame)];
    while (*at != n) {
      at = &records_[*at].hash_next;
    }
    *at = records_[n].hash_next;
    records_[n].epoch = epoch;
    set_use(n, PageUse::retired);
  }
  // Moves to the free list what no processor can know any more. Returns the processors that stand
  // in the way of the first page that stays, 0 if none does.
  u32 recycle(const Epochs& epochs, unsigned self) {
    while (retired_.head != kNone) {
      const u32 n = retired_.head;
      if (const u32 laggards = epochs.laggards(records_[n].epoch, self); laggards != 0) {
        return laggards;
      }
      erase(retired_, n);
      records_[n].use = PageUse::free;
      push_back(free_, n);
    }
    return 0;
  }
  u32 first_orphan() const { return orphans_.head; }
  u32 first_linked() const { return linked_.head; }

 private:
  struct List {
    u32 head = kNone, tail = kNone, size = 0;
  };
  void push_back(List& list, u32 n) {
    records_[n].prev = list.tail;
    records_[n].next = kNone;
    (list.tail != kNone ? records_[list.tail].next : list.head) = n;
    list.tail = n;
    ++list.size;
  }
  void erase(List& list, u32 n) {
    const ShadowPage& p = records_[n];
    (p.prev != kNone ? records_[p.prev].next : list.head) = p.next;
    (p.next != kNone ? records_[p.next].prev : list.tail) = p.prev;
    --list.size;
  }
  List& list_of(PageUse use) {
    switch (use) {
      case PageUse::linked:
        return linked_;
      case PageUse::orphan:
        return orphans_;
      case PageUse::root:
        return roots_;
      case PageUse::retired:
        return retired_;
      case PageUse::free:
        break;
    }
    return free_;
  }
  u32 hash(u64 frame) const {
    return static_cast<u32>((frame * 0x9e37'79b9'7f4a'7c15) >> (64 - hash_bits_));
  }

  u32 count_ = 0;
  unsigned hash_bits_ = 0;
  Hpa tables_{};
  ShadowPage* records_ = nullptr;
  u32* heads_ = nullptr;
  List free_, linked_, orphans_, roots_, retired_;
};

}  // namespace aerie::mmu
