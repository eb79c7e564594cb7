// The machine's memory as firmware describes it (E820), and the part of it a payload may be put in.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "base/types.h"

namespace aerie::vmm {

// Types as in E820 and multiboot 1's memory map (ACPI 6.5, table 15.4).
enum class MemoryType : u32 { ram = 1, reserved = 2, acpi_reclaimable = 3, acpi_nvs = 4, bad = 5 };

struct MemoryRange {
  u64 begin = 0;
  u64 end = 0;  // exclusive
  MemoryType type = MemoryType::ram;

  constexpr u64 size() const { return end - begin; }
  constexpr bool overlaps(u64 other_begin, u64 other_end) const {
    return begin < other_end && other_begin < end;
  }
  constexpr bool operator==(const MemoryRange&) const = default;
};

// A memory map of bounded size, ascending by start address.
class MemoryMap {
 public:
  static constexpr usize kCapacity = 128;  // what a Linux boot_params holds

  // Keeps the order. False, and nothing added, where the map is full; an empty range is not added.
  bool add(MemoryRange range);
  std::span<const MemoryRange> ranges() const { return {ranges_.data(), count_}; }

 private:
  std::array<MemoryRange, kCapacity> ranges_{};
  usize count_ = 0;
};

// What L1 is told: `machine` with every RAM range cut where `aerie` lies, and `aerie` itself listed
// as reserved, so that a guest neither uses it nor puts a PCI device's window there.
MemoryMap memory_map_of_l1(std::span<const MemoryRange> machine, MemoryRange aerie);

// RAM not yet given to anything: disjoint ascending ranges.
class FreeMemory {
 public:
  // The RAM of `map` that no other entry of it overlaps (firmware maps do overlap).
  explicit FreeMemory(std::span<const MemoryRange> map);

  bool contains(u64 begin, u64 end) const;
  // Takes [begin, end) away, whether or not all of it was free.
  void remove(u64 begin, u64 end);
  // Takes exactly [begin, end); false, and nothing taken, where some of it is not free.
  bool take(u64 begin, u64 end);
  // Takes `size` bytes aligned to `alignment` (a power of two) within [low, high), lowest or
  // highest first; nothing where no range is large enough.
  std::optional<u64> take_lowest(u64 size, u64 alignment, u64 low, u64 high);
  std::optional<u64> take_highest(u64 size, u64 alignment, u64 low, u64 high);
  std::span<const MemoryRange> ranges() const { return {ranges_.data(), count_}; }

 private:
  void insert(MemoryRange range);

  std::array<MemoryRange, 2 * MemoryMap::kCapacity> ranges_{};
  usize count_ = 0;
};

}  // namespace aerie::vmm
