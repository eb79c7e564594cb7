// Which shadow pages must be looked at when L1 invalidates, and how L0 comes to know. All of the
// policy is in this file; the pager is right under any policy that visits at least the pages L1 has
// written.
//
// VMX lets a processor go on using what an EPT entry said until L1's INVEPT, so L1's writes to its
// EPT tables need not be seen when they happen. A shadow page therefore starts *unsync*: nothing is
// protected, and the entry after each INVEPT compares it with its guest table, entry by entry.
// Filling a fresh L2 costs no write faults that way. A page that was compared 2^patience times in a
// row with nothing changed is *closed*: its guest table is made read-only in L1's own map. Once
// every processor has flushed since, one last comparison makes it *synced*, and INVEPTs pass it by.
// L1's next write to it faults once, opens it, and doubles its patience, so that tables written all
// the time stay open.
//
// A frame that some L2 can write is never closed: the protection would not catch those writes. The
// other way round needs no rule: shadow leaves are writable only where L1's map is.
//
// Not seen: a device's DMA into a synced table, and L0's own stores on L1's behalf unless the
// storer calls written(). Both can only leave L1 with translations of its own that it meant to
// invalidate.
#pragma once

#include "mmu/host_map.h"
#include "mmu/shadow_page.h"

namespace aerie::mmu {

class UnsyncList {
 public:
  static constexpr u8 kFirstPatience = 1;
  static constexpr u8 kMaxPatience = 6;
  // How far closing pages may split the host map. L1 chooses where its tables lie.
  static constexpr u64 kHostTables = 1024;

  // `host`: L1's map, through which its writes are caught; null: pages are never closed.
  void init(ShadowPool* pool, HostMap* host, PageAllocator* allocator) {
    pool_ = pool;
    host_ = host;
    allocator_ = allocator;
    host_tables_ = host != nullptr ? host->table_pages() + kHostTables : 0;
  }

  u32 size() const { return size_; }
  u32 protected_pages() const { return protected_; }

  // A page that is new in use.
  void add(u32 n) {
    (*pool_)[n].patience = kFirstPatience;
    open(n);
  }

  // A page (not a direct one) about to be retired.
  void remove(u32 n) {
    ShadowPage& p = (*pool_)[n];
    if (p.sync != SyncState::synced) {
      unlist(n);
    }
    if (p.sync != SyncState::unsync) {
      --protected_;
      p.sync = SyncState::unsync;
      bool others = false;
      pool_->for_each_of(p.frame,
                         [&](u32 other) { others |= (*pool_)[other].sync != SyncState::unsync; });
      if (!others) {
        host_->release(Gpa::of_frame(p.frame));
      }
    }
    p.sync = SyncState::synced;
  }

  // f(u32 page) for each listed page; f may visit() and defer() it, but must retire none.
  template <class F>
  void for_each(F&& f) {
    const u32 last = tail_;
    for (u32 n = head_; n != ShadowPool::kNone;) {
      const u32 next = n == last ? ShadowPool::kNone : (*pool_)[n].unsync_next;
      f(n);
      n = next;
    }
  }
  // Moves a listed page to the end: the next for_each() comes to the others first.
  void defer(u32 n) {
    if ((*pool_)[n].sync != SyncState::synced) {
      unlist(n);
      append(n);
    }
  }

  // Looks at a listed page. `compare()` brings it up to date with its guest table and says whether
  // that changed anything; `writable()` says whether the table can be written unseen, by an L2 or
  // as no RAM. Returns true when the caller must advance the epoch once it is through with all
  // visits.
  template <class Compare, class Writable>
  bool visit(u32 n, const Epochs& epochs, unsigned self, Compare&& compare, Writable&& writable) {
    ShadowPage& p = (*pool_)[n];
    if (p.sync == SyncState::closing) {
      // Asked before the comparison: a write that comes after it must not get by.
      const bool closed_everywhere = epochs.laggards(p.epoch, self) == 0;
      compare();
      if (closed_everywhere) {
        unlist(n);
        p.sync = SyncState::synced;
      }
      return false;
    }
    p.quiet = compare() ? u8{0} : static_cast<u8>(p.quiet + 1);
    if (host_ == nullptr || p.quiet < (1u << p.patience)) {
      return false;
    }
    p.quiet = 0;
    if (writable() || host_->table_pages() > host_tables_ ||
        !host_->write_protect(*allocator_, Gpa::of_frame(p.frame))) {
      p.patience = kMaxPatience;
      return false;
    }
    ++protected_;
    p.sync = SyncState::closing;
    p.epoch = epochs.next();
    return true;
  }

  // The frame was, or is about to be, written. False where it is not a table that was closed.
  bool written(u64 frame) {
    bool any = false;
    pool_->for_each_of(frame, [&](u32 n) {
      ShadowPage& p = (*pool_)[n];
      if (p.sync == SyncState::unsync) {
        return;
      }
      any = true;
      --protected_;
      if (p.sync == SyncState::synced) {
        open(n);
      }
      p.sync = SyncState::unsync;
      p.quiet = 0;
      p.patience = p.patience < kMaxPatience ? static_cast<u8>(p.patience + 1) : kMaxPatience;
    });
    if (any) {
      host_->release(Gpa::of_frame(frame));
    }
    return any;
  }

 private:
  void open(u32 n) {
    ShadowPage& p = (*pool_)[n];
    p.sync = SyncState::unsync;
    p.quiet = 0;
    append(n);
  }
  void append(u32 n) {
    ShadowPage& p = (*pool_)[n];
    p.unsync_prev = tail_;
    p.unsync_next = ShadowPool::kNone;
    (tail_ != ShadowPool::kNone ? (*pool_)[tail_].unsync_next : head_) = n;
    tail_ = n;
    ++size_;
  }
  void unlist(u32 n) {
    const ShadowPage& p = (*pool_)[n];
    (p.unsync_prev != ShadowPool::kNone ? (*pool_)[p.unsync_prev].unsync_next : head_) =
        p.unsync_next;
    (p.unsync_next != ShadowPool::kNone ? (*pool_)[p.unsync_next].unsync_prev : tail_) =
        p.unsync_prev;
    --size_;
  }

  ShadowPool* pool_ = nullptr;
  HostMap* host_ = nullptr;
  PageAllocator* allocator_ = nullptr;
  u32 head_ = ShadowPool::kNone, tail_ = ShadowPool::kNone;
  u64 host_tables_ = 0;
  u32 size_ = 0;
  u32 protected_ = 0;
};

}  // namespace aerie::mmu
