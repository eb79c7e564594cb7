#include "vmm/payload_memory.h"

#include <algorithm>

#include "base/bits.h"

namespace aerie::vmm {
namespace {

// Inserts by start address; false where there is no room.
template <usize N>
bool insert_sorted(std::array<MemoryRange, N>& ranges, usize& count, const MemoryRange& range) {
  if (count == N) {
    return false;
  }
  usize at = count;
  while (at > 0 && ranges[at - 1].begin > range.begin) {
    ranges[at] = ranges[at - 1];
    --at;
  }
  ranges[at] = range;
  ++count;
  return true;
}

}  // namespace

bool MemoryMap::add(MemoryRange range) {
  return range.begin >= range.end || insert_sorted(ranges_, count_, range);
}

MemoryMap memory_map_of_l1(std::span<const MemoryRange> machine, MemoryRange aerie) {
  MemoryMap map;
  aerie.type = MemoryType::reserved;
  map.add(aerie);
  for (const MemoryRange& range : machine) {
    if (range.type != MemoryType::ram || !range.overlaps(aerie.begin, aerie.end)) {
      map.add(range);
      continue;
    }
    if (range.begin < aerie.begin) {
      map.add({range.begin, aerie.begin, range.type});
    }
    if (aerie.end < range.end) {
      map.add({aerie.end, range.end, range.type});
    }
  }
  return map;
}

FreeMemory::FreeMemory(std::span<const MemoryRange> map) {
  for (const MemoryRange& range : map) {
    if (range.type == MemoryType::ram && range.begin < range.end) {
      remove(range.begin, range.end);  // two RAM entries may overlap: keep the ranges disjoint
      insert(range);
    }
  }
  for (const MemoryRange& range : map) {
    if (range.type != MemoryType::ram) {
      remove(range.begin, range.end);
    }
  }
}

// Neighbours are joined, so that one object may lie across two entries of the firmware's map. Where
// there is no room the range is forgotten: less memory to choose from, never a wrong answer.
void FreeMemory::insert(MemoryRange range) {
  for (usize i = 0; i < count_;) {
    if (ranges_[i].end == range.begin || ranges_[i].begin == range.end) {
      range.begin = std::min(range.begin, ranges_[i].begin);
      range.end = std::max(range.end, ranges_[i].end);
      std::move(&ranges_[i] + 1, ranges_.data() + count_, &ranges_[i]);
      --count_;
      i = 0;
    } else {
      ++i;
    }
  }
  insert_sorted(ranges_, count_, range);
}

bool FreeMemory::contains(u64 begin, u64 end) const {
  return std::any_of(ranges_.begin(), ranges_.begin() + count_, [&](const MemoryRange& r) {
    return r.begin <= begin && begin <= end && end <= r.end;
  });
}

void FreeMemory::remove(u64 begin, u64 end) {
  if (begin >= end) {
    return;
  }
  for (usize i = 0; i < count_;) {
    MemoryRange& r = ranges_[i];
    if (!r.overlaps(begin, end)) {
      ++i;
      continue;
    }
    const MemoryRange above{end, r.end, r.type};
    if (r.begin < begin) {
      r.end = begin;
      ++i;
    } else {
      std::move(&ranges_[i] + 1, ranges_.data() + count_, &ranges_[i]);
      --count_;
    }
    if (above.begin < above.end) {
      insert_sorted(ranges_, count_, above);
      return;  // ranges are disjoint: no further one reaches below `end`
    }
  }
}

bool FreeMemory::take(u64 begin, u64 end) {
  if (!contains(begin, end)) {
    return false;
  }
  remove(begin, end);
  return true;
}

std::optional<u64> FreeMemory::take_lowest(u64 size, u64 alignment, u64 low, u64 high) {
  for (const MemoryRange& r : ranges()) {
    const u64 floor = std::max(r.begin, low);
    const u64 begin = align_up(floor, alignment);
    const u64 end = std::min(r.end, high);
    if (begin >= floor && begin <= end && size <= end - begin) {
      remove(begin, begin + size);
      return begin;
    }
  }
  return std::nullopt;
}

std::optional<u64> FreeMemory::take_highest(u64 size, u64 alignment, u64 low, u64 high) {
  for (usize i = count_; i-- > 0;) {
    const MemoryRange& r = ranges_[i];
    const u64 floor = std::max(r.begin, low);
    const u64 end = std::min(r.end, high);
    if (end < floor || size > end - floor) {
      continue;
    }
    const u64 begin = align_down(end - size, alignment);
    if (begin >= floor) {
      remove(begin, begin + size);
      return begin;
    }
  }
  return std::nullopt;
}

}  // namespace aerie::vmm
