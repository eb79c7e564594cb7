// L1's physical memory, as far as L0 may touch it on L1's behalf. Every address that comes from a
// guest passes here before it is used: device memory is never touched (a read could have effects),
// and Aerie's own block is not part of L1's memory at all.
//
// gpa == hpa for L1 (DESIGN §1); this file is one of the places that rely on it.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>

#include "base/address.h"
#include "base/physical.h"

namespace aerie::mmu {

class L1Memory {
 public:
  struct Range {
    Gpa begin;
    Gpa end;               // exclusive
    bool writable = true;  // false for ROM
  };
  static constexpr usize kMaxRanges = 32;

  // Ranges must be ascending and disjoint. More than kMaxRanges: the rest is not touched by L0.
  void set_ranges(std::span<const Range> ranges) {
    count_ = 0;
    for (const Range& r : ranges) {
      if (count_ < kMaxRanges) {
        ranges_[count_++] = r;
      }
    }
  }
  std::span<const Range> ranges() const { return {ranges_.data(), count_}; }

  // Whether [gpa, gpa + size) lies within RAM or ROM that L0 may read, or RAM that it may write.
  bool readable(Gpa gpa, u64 size) const { return find(gpa, size) != nullptr; }
  bool writable(Gpa gpa, u64 size) const {
    const Range* r = find(gpa, size);
    return r != nullptr && r->writable;
  }

  // A pointer to L1's memory, or nullptr where it is not readable. What is read through it can
  // change under L0's eyes at any time: copy once, check the copy.
  template <class T>
  T* pointer(Gpa gpa, u64 size = sizeof(T)) const {
    return readable(gpa, size) ? physical_pointer<T>(Hpa{gpa.value()}) : nullptr;
  }

  // Whoever write-protects pages of L1's to learn of its writes (mmu/unsync.h) must hear of L0's,
  // too: it is told of each page before the store, while `armed` is not zero.
  struct WriteWatch {
    const std::atomic<u32>* armed = nullptr;
    void (*before_write)(void* who, Gpa page) = nullptr;
    void* who = nullptr;
  };
  void set_write_watch(const WriteWatch& watch) { watch_ = watch; }

  // Copies; false, with nothing copied, where some of the range is not memory. Stores of L0 on L1's
  // behalf go through write(), or announce themselves by announce_write().
  bool read(Gpa gpa, void* to, u64 size) const {
    const u8* from = pointer<u8>(gpa, size);
    if (from == nullptr) {
      return false;
    }
    std::memcpy(to, from, size);
    return true;
  }
  bool write(Gpa gpa, const void* from, u64 size) const {
    if (!writable(gpa, size)) {
      return false;
    }
    announce_write(gpa, size);
    std::memcpy(physical_pointer<u8>(Hpa{gpa.value()}), from, size);
    return true;
  }
  void announce_write(Gpa gpa, u64 size) const {
    if (watch_.armed != nullptr && watch_.armed->load(std::memory_order_relaxed) != 0)
        [[unlikely]] {
      for (u64 page = gpa.frame(); page <= (gpa + (size - 1)).frame(); ++page) {
        watch_.before_write(watch_.who, Gpa::of_frame(page));
      }
    }
  }
  template <class T>
  std::optional<T> read(Gpa gpa) const {
    T value;
    if (!read(gpa, &value, sizeof(T))) {
      return std::nullopt;
    }
    return value;
  }

 private:
  const Range* find(Gpa gpa, u64 size) const {
    for (usize i = 0; i < count_; ++i) {
      const Range& r = ranges_[i];
      if (gpa >= r.begin && gpa < r.end && size <= r.end - gpa) {
        return &r;
      }
    }
    return nullptr;
  }

  std::array<Range, kMaxRanges> ranges_{};
  usize count_ = 0;
  WriteWatch watch_{};
};

}  // namespace aerie::mmu
