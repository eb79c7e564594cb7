// Pages for cases and the mapping of linear addresses. The first 4 GiB are mapped one to one.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::guest {

// Entry bits, legacy and IA-32e paging (SDM vol. 3, 4.5).
namespace pte {
inline constexpr u64 present = bit(0), writable = bit(1), user = bit(2), write_through = bit(3),
                     cache_disable = bit(4), accessed = bit(5), dirty = bit(6), large = bit(7),
                     global = bit(8), no_execute = bit(63), address = bit_mask(51, 12);
}

// A zeroed 4 KiB page (or `count` adjoining ones), identity mapped; given back when the case ends.
u64 alloc_page();
u64 alloc_pages(unsigned count, u64 alignment = kPageSize);
template <class T = u64>
T* page_pointer(u64 page) {
  return reinterpret_cast<T*>(page);
}

// Maps one 4 KiB page in the tables under `root` (the current CR3's), splitting a large page if
// necessary, and invalidates it. Tables come from pages that outlive the case.
void map_page(u64 linear, u64 physical, u64 flags = pte::present | pte::writable);
// The 4 KiB entry of `linear`, made by splitting if it lies in a large page.
u64* leaf_entry(u64 linear);

// Framework's: start of the free memory; everything allocated since the mark is free again.
void init_memory(u64 begin, u64 end);
u64 memory_mark();
void memory_release(u64 mark);
u64 memory_end();

}  // namespace aerie::guest
