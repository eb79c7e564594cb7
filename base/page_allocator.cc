#include "base/page_allocator.h"

#include "base/panic.h"
#include "base/physical.h"

namespace aerie {
namespace {

void clear_page(Hpa page) { __builtin_memset(physical_pointer<u8>(page), 0, kPageSize); }

}  // namespace

void PageAllocator::add_range(Hpa begin, Hpa end) {
  const SpinLock::Guard guard{lock_};
  AERIE_CHECK(next_ == end_ && begin.page_aligned() && end.page_aligned());
  next_ = begin;
  end_ = end;
  free_pages_ += (end - begin) / kPageSize;
  total_pages_ += (end - begin) / kPageSize;
}

Hpa PageAllocator::allocate() {
  Hpa page{};
  {
    const SpinLock::Guard guard{lock_};
    if (free_list_ != Hpa{}) {
      page = free_list_;
      free_list_ = Hpa{*physical_pointer<u64>(page)};
    } else if (next_ != end_) {
      page = next_;
      next_ += kPageSize;
    } else {
      return Hpa{};
    }
    --free_pages_;
  }
  clear_page(page);
  return page;
}

Hpa PageAllocator::allocate_contiguous(u64 pages) {
  Hpa first{};
  {
    const SpinLock::Guard guard{lock_};
    if ((end_ - next_) / kPageSize < pages) {
      return Hpa{};
    }
    first = next_;
    next_ += pages * kPageSize;
    free_pages_ -= pages;
  }
  for (u64 i = 0; i < pages; ++i) {
    clear_page(first + i * kPageSize);
  }
  return first;
}

void PageAllocator::free(Hpa page) {
  AERIE_CHECK(page.page_aligned() && page != Hpa{});
  const SpinLock::Guard guard{lock_};
  *physical_pointer<u64>(page) = free_list_.value();
  free_list_ = page;
  ++free_pages_;
  total_pages_ = free_pages_ > total_pages_ ? free_pages_ : total_pages_;
}

}  // namespace aerie
