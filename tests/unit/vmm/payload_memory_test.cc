#include "vmm/payload_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace aerie::vmm {
namespace {

constexpr MemoryType kRam = MemoryType::ram;
constexpr MemoryType kReserved = MemoryType::reserved;

std::vector<MemoryRange> list(std::span<const MemoryRange> ranges) {
  return {ranges.begin(), ranges.end()};
}

TEST(MemoryMap, L1SeesAeriesBlockAsReservedAndTheRestAsItWas) {
  const MemoryRange machine[] = {{0, 0x9fc00, kRam},
                                 {0xf0000, 0x100000, kReserved},
                                 {0x100000, 0x8000000, kRam},
                                 {0x1'0000'0000, 0x1'4000'0000, kRam}};
  const MemoryMap map = memory_map_of_l1(machine, {0x7000000, 0x7800000});
  const std::vector<MemoryRange> expected = {
      {0, 0x9fc00, kRam},           {0xf0000, 0x100000, kReserved},
      {0x100000, 0x7000000, kRam},  {0x7000000, 0x7800000, kReserved},
      {0x7800000, 0x8000000, kRam}, {0x1'0000'0000, 0x1'4000'0000, kRam}};
  EXPECT_EQ(list(map.ranges()), expected);
}

TEST(MemoryMap, AFullMapRefusesMore) {
  MemoryMap map;
  for (usize i = 0; i < MemoryMap::kCapacity; ++i) {
    EXPECT_TRUE(map.add({i * 0x2000, i * 0x2000 + 0x1000}));
  }
  EXPECT_FALSE(map.add({1, 2}));
  EXPECT_TRUE(map.add({1, 1}));  // empty: nothing to add
}

TEST(FreeMemory, IsRamThatNothingElseOverlaps) {
  const MemoryRange machine[] = {{0x1000, 0x9000, kRam},
                                 {0x5000, 0x20000, kRam},
                                 {0x3000, 0x4000, MemoryType::acpi_nvs},
                                 {0x10000, 0x11000, kReserved}};
  const FreeMemory free{machine};
  const std::vector<MemoryRange> expected = {
      {0x1000, 0x3000, kRam}, {0x4000, 0x10000, kRam}, {0x11000, 0x20000, kRam}};
  EXPECT_EQ(list(free.ranges()), expected);
}

TEST(FreeMemory, JoinsNeighboursOfTheMap) {
  const MemoryRange machine[] = {
      {0x2000, 0x3000, kRam}, {0x1000, 0x2000, kRam}, {0x3000, 0x4000, kRam}};
  FreeMemory free{machine};
  EXPECT_TRUE(free.take(0x1800, 0x3800));
}

TEST(FreeMemory, TakesOnlyWhatIsWhollyFree) {
  const MemoryRange machine[] = {{0x1000, 0x5000, kRam}};
  FreeMemory free{machine};
  EXPECT_FALSE(free.take(0x800, 0x1800));
  EXPECT_FALSE(free.take(0x4000, 0x5001));
  EXPECT_TRUE(free.take(0x2000, 0x3000));
  EXPECT_FALSE(free.take(0x2fff, 0x3001));
  EXPECT_EQ(list(free.ranges()),
            (std::vector<MemoryRange>{{0x1000, 0x2000, kRam}, {0x3000, 0x5000, kRam}}));
}

TEST(FreeMemory, LowestAndHighestObeyAlignmentAndBounds) {
  const MemoryRange machine[] = {{0x1234, 0x9000, kRam}, {0x20000, 0x40000, kRam}};
  FreeMemory free{machine};
  EXPECT_EQ(free.take_lowest(0x100, 0x1000, 0, 0x100000), 0x2000u);
  EXPECT_EQ(free.take_lowest(0x8000, 0x1000, 0, 0x100000), 0x20000u);
  EXPECT_EQ(free.take_highest(0x1800, 0x1000, 0, 0x100000), 0x3e000u);
  EXPECT_EQ(free.take_highest(0x1000, 0x1000, 0, 0x30000), 0x2f000u);
  EXPECT_EQ(free.take_lowest(0x1'0000'0000, 0x1000, 0, ~u64{0}), std::nullopt);
  EXPECT_EQ(free.take_highest(~u64{0}, 0x1000, 0, ~u64{0}), std::nullopt);
  EXPECT_EQ(free.take_lowest(0x1000, 0x1000, 0x50000, 0x40000), std::nullopt);
}

}  // namespace
}  // namespace aerie::vmm
