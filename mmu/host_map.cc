#include "mmu/host_map.h"

#include <algorithm>

#include "base/bits.h"
#include "base/panic.h"
#include "base/physical.h"

namespace aerie::mmu {
namespace {

constexpr unsigned shift(unsigned level) { return 12 + 9 * (level - 1); }
constexpr u64 size_of(unsigned level) { return bit(shift(level)); }
constexpr u64 index(u64 address, unsigned level) { return (address >> shift(level)) & 0x1ff; }
constexpr u64 kMap = npt::present | npt::write | npt::user;

u64* table_at(u64 entry) { return physical_pointer<u64>(Hpa{entry & npt::address}); }
u64 load(const u64& entry) { return __atomic_load_n(&entry, __ATOMIC_RELAXED); }
void store(u64& entry, u64 value) { __atomic_store_n(&entry, value, __ATOMIC_RELEASE); }
bool is_leaf(u64 entry, unsigned level) { return level == 1 || (entry & npt::large) != 0; }

}  // namespace

bool HostMap::build(PageAllocator& allocator, unsigned maxphyaddr, std::span<const Range> excluded,
                    bool gib_pages) {
  AERIE_CHECK(root_ == Hpa{});
  largest_ = gib_pages ? 3 : 2;
  end_ = bit(std::min(maxphyaddr, 48u));
  root_ = allocator.allocate();
  if (root_ == Hpa{}) {
    return false;
  }
  table_pages_ = 1;
  if (!map(allocator, 0, end_)) {
    return false;
  }
  return std::all_of(excluded.begin(), excluded.end(), [&](const Range& r) {
    AERIE_CHECK(r.begin.page_aligned() && r.end.page_aligned());
    return exclude(allocator, r.begin.value(), std::min(r.end.value(), end_));
  });
}

// Boot time only: maps whole pages of the largest size.
bool HostMap::map(PageAllocator& allocator, u64 begin, u64 end) {
  for (u64 at = begin; at < end; at += size_of(largest_)) {
    u64* table = physical_pointer<u64>(root_);
    for (unsigned level = npt::levels; level > largest_; --level) {
      u64& entry = table[index(at, level)];
      if (entry == 0) {
        const Hpa page = allocator.allocate();
        if (page == Hpa{}) {
          return false;
        }
        ++table_pages_;
        entry = page.value() | kMap;
      }
      table = table_at(entry);
    }
    table[index(at, largest_)] = at | kMap | npt::large;
  }
  return true;
}

// The entry that decides about `gpa`: a leaf, or one that is not present.
u64* HostMap::entry_for(Gpa gpa, unsigned& level) const {
  u64* table = physical_pointer<u64>(root_);
  for (level = npt::levels;; --level) {
    u64& entry = table[index(gpa.value(), level)];
    const u64 value = load(entry);
    if ((value & npt::present) == 0 || is_leaf(value, level)) {
      return &entry;
    }
    table = table_at(value);
  }
}

// Replaces a large leaf by a table of smaller ones that map the same.
bool HostMap::split(PageAllocator& allocator, u64& entry, unsigned level) {
  const Hpa page = allocator.allocate();
  if (page == Hpa{}) {
    return false;
  }
  ++table_pages_;
  const u64 old = load(entry);
  const u64 flags = (old & ~(npt::address | npt::large)) | (level > 2 ? npt::large : 0);
  u64* table = physical_pointer<u64>(page);
  for (u64 i = 0; i < 512; ++i) {
    table[i] = ((old & npt::address) + i * size_of(level - 1)) | flags;
  }
  store(entry, page.value() | kMap);
  return true;
}

bool HostMap::exclude(PageAllocator& allocator, u64 begin, u64 end) {
  for (u64 at = begin; at < end;) {
    unsigned level = 0;
    u64* entry = entry_for(Gpa{at}, level);
    const u64 start = align_down(at, size_of(level));
    if ((*entry & npt::present) == 0) {
      at = start + size_of(level);
    } else if (at == start && end - at >= size_of(level)) {
      *entry = 0;
      at += size_of(level);
    } else if (!split(allocator, *entry, level)) {
      return false;
    }
  }
  return true;
}

HostMap::Lookup HostMap::lookup(Gpa gpa) const {
  Lookup result;
  if (gpa.value() >= end_) {
    return result;
  }
  unsigned level = 0;
  const u64 entry = load(*entry_for(gpa, level));
  result.level = static_cast<u8>(level);
  result.present = (entry & npt::present) != 0;
  result.writable = result.present && (entry & npt::write) != 0;
  result.hidden = !result.present && entry != 0;
  const u64 low = size_of(level) - 1;
  result.hpa = Hpa{(entry & npt::address & ~low) | (gpa.value() & low)};
  return result;
}

// The 4 KiB entry of `gpa`, after splitting what covers it; nullptr where nothing maps it.
u64* HostMap::small_entry(PageAllocator& allocator, Gpa gpa) {
  if (gpa.value() >= end_) {
    return nullptr;
  }
  for (;;) {
    unsigned level = 0;
    u64* entry = entry_for(gpa, level);
    if ((load(*entry) & npt::present) == 0) {
      return nullptr;
    }
    if (level == 1) {
      return entry;
    }
    if (!split(allocator, *entry, level)) {
      return nullptr;
    }
  }
}

// The processor may set A and D at any time, so single bits are changed, not entries.
bool HostMap::write_protect(PageAllocator& allocator, Gpa gpa) {
  const SpinLock::Guard guard{lock_};
  u64* entry = small_entry(allocator, gpa);
  if (entry == nullptr) {
    return false;
  }
  __atomic_fetch_and(entry, ~npt::write, __ATOMIC_RELEASE);
  return true;
}

bool HostMap::release(Gpa gpa) {
  const SpinLock::Guard guard{lock_};
  if (gpa.value() >= end_) {
    return false;
  }
  unsigned level = 0;
  u64* entry = entry_for(gpa, level);
  if (level != 1 || load(*entry) == 0) {
    return false;
  }
  __atomic_fetch_or(entry, npt::write, __ATOMIC_RELEASE);
  return true;
}

bool HostMap::hide(PageAllocator& allocator, Gpa gpa) {
  const SpinLock::Guard guard{lock_};
  u64* entry = small_entry(allocator, gpa);
  if (entry == nullptr) {
    return false;
  }
  __atomic_fetch_and(entry, ~npt::present, __ATOMIC_RELEASE);
  return true;
}

bool HostMap::show(Gpa gpa) {
  const SpinLock::Guard guard{lock_};
  if (!lookup(gpa).hidden) {
    return false;
  }
  unsigned level = 0;
  __atomic_fetch_or(entry_for(gpa, level), npt::present, __ATOMIC_RELEASE);
  return true;
}

}  // namespace aerie::mmu
