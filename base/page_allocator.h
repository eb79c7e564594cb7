// Pages of Aerie's own block. A free list under a lock; exit handlers never call it: they draw on
// caches that are topped up before a fault handler starts.
#pragma once

#include "base/address.h"
#include "base/spinlock.h"

namespace aerie {

class PageAllocator {
 public:
  // Gives the allocator the pages [begin, end), both page aligned.
  void add_range(Hpa begin, Hpa end);

  // A zeroed 4 KiB page, or Hpa{0} when none is left.
  Hpa allocate();
  // `pages` contiguous zeroed pages, or Hpa{0}; only from memory never handed out before (boot
  // time).
  Hpa allocate_contiguous(u64 pages);
  void free(Hpa page);

  u64 free_pages() const { return free_pages_; }
  u64 total_pages() const { return total_pages_; }

 private:
  SpinLock lock_;
  Hpa next_{};  // never handed out: [next_, end_)
  Hpa end_{};
  Hpa free_list_{};  // linked through the pages' first words
  u64 free_pages_ = 0;
  u64 total_pages_ = 0;
};

}  // namespace aerie
