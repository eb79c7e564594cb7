// What L1 may reach of the machine when it runs on two-dimensional paging (DESIGN §4, mode (a)):
// the identity map of all physical addresses, in NPT format, less what is Aerie's.
//
// It is also the lower half of every shadow table: an L2 page is mapped no larger than its gpa is
// here, and writable only where it is writable here. gpa == hpa relies on this file: it maps
// nothing elsewhere.
//
// Built at boot; later only single 4 KiB pages are write-protected and released (write tracking,
// mmu/unsync.h) or hidden and shown (an APIC page that L1 moves), under a lock of the map's own
// while others walk the tables: every change is one 8-byte store of a finished entry. Whoever
// narrows the map must have each processor flush L1's translations.
#pragma once

#include <span>

#include "base/address.h"
#include "base/page_allocator.h"
#include "base/spinlock.h"

namespace aerie::mmu {

// Entry bits of an NPT (APM vol. 2, 15.25), the format of everything L0 builds for an SVM host.
namespace npt {
inline constexpr u64 present = u64{1} << 0, write = u64{1} << 1, user = u64{1} << 2,
                     accessed = u64{1} << 5, dirty = u64{1} << 6, large = u64{1} << 7,
                     no_execute = u64{1} << 63;
inline constexpr u64 address = ((u64{1} << 52) - 1) & ~u64{kPageMask};
inline constexpr unsigned levels = 4;
}  // namespace npt

class HostMap {
 public:
  struct Range {
    Gpa begin;
    Gpa end;  // exclusive; both page aligned
  };
  struct Lookup {
    bool present = false;
    bool writable = false;
    bool hidden = false;  // not present, but only because of hide(): `hpa` is still L1's
    u8 level = 0;         // of the entry that says so: 1, 2, 3 (4 KiB, 2 MiB, 1 GiB)
    Hpa hpa{};
    u64 page_size() const { return u64{1} << (12 + 9 * (level - 1)); }
  };

  // Maps [0, 2^maxphyaddr) (at most 2^48, what four levels hold) less `excluded`, with the largest
  // pages that fit. False when memory runs out.
  [[nodiscard]] bool build(PageAllocator& allocator, unsigned maxphyaddr,
                           std::span<const Range> excluded, bool gib_pages = true);

  // The table's root, for the control block.
  Hpa root() const { return root_; }
  Lookup lookup(Gpa gpa) const;

  // Makes the 4 KiB page of `gpa` read-only (splitting what covers it) or writable again. False,
  // with nothing changed, where the page is not mapped or no table page is to be had.
  [[nodiscard]] bool write_protect(PageAllocator& allocator, Gpa gpa);
  bool release(Gpa gpa);

  // Takes the 4 KiB page of `gpa` out of the map, or puts it back as it was. Results as above.
  [[nodiscard]] bool hide(PageAllocator& allocator, Gpa gpa);
  bool show(Gpa gpa);

  u64 table_pages() const { return table_pages_; }

 private:
  u64* entry_for(Gpa gpa, unsigned& level) const;
  u64* small_entry(PageAllocator& allocator, Gpa gpa);
  bool split(PageAllocator& allocator, u64& entry, unsigned level);
  bool map(PageAllocator& allocator, u64 begin, u64 end);
  bool exclude(PageAllocator& allocator, u64 begin, u64 end);

  Hpa root_{};
  unsigned largest_ = 3;
  u64 end_ = 0;
  u64 table_pages_ = 0;
  SpinLock lock_;
};

}  // namespace aerie::mmu
