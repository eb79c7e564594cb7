#include "mmu/walk_cache.h"

#include <gtest/gtest.h>

#include "arena.h"

namespace aerie::mmu {
namespace {

using test::Arena;

constexpr u64 kPg = cpu::cr0::pg | cpu::cr0::pe;
constexpr ModeBits kLong{kPg, cpu::cr4::pae, cpu::efer::lma | cpu::efer::nxe};
constexpr ModeBits kLong5{kPg, cpu::cr4::pae | cpu::cr4::la57, cpu::efer::lma | cpu::efer::nxe};
constexpr ModeBits kPae{kPg, cpu::cr4::pae, 0};
constexpr ModeBits kLegacy{kPg, cpu::cr4::pse, 0};
constexpr ModeBits kReal{0, 0, 0};

struct WalkCacheTest : ::testing::Test {
  Arena arena;
  WalkCache cache;
  u64 cr3 = arena.page(), pdpt = arena.page(), pd = arena.page(), pt = arena.page(),
      code = arena.page(), other = arena.page();
  static constexpr u64 kRip = 0xffff'8000'0040'3123;  // entries 256, 0, 2, 3

  void map4() {
    arena.word(cr3, 256) = pdpt | 3;
    arena.word(pdpt, 0) = pd | 3;
    arena.word(pd, 2) = pt | 3;
    arena.word(pt, 3) = code | 3;
  }
  const u8* get(u64 c, u64 rip, ModeBits mode = kLong) {
    return cache.code_bytes(mode, c, rip, arena.memory);
  }
  const u8* byte(u64 address) { return arena.at<u8>(address); }
};

TEST_F(WalkCacheTest, TranslatesThroughFourLevelsAndHitsTheSecondTime) {
  map4();
  EXPECT_EQ(get(cr3, kRip), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
  EXPECT_EQ(get(cr3, kRip + 1), byte(code + 0x124));
  EXPECT_EQ(cache.misses(), 1u);
}

TEST_F(WalkCacheTest, SetsNoAccessedBits) {
  map4();
  get(cr3, kRip);
  EXPECT_EQ(arena.word(pt, 3), code | 3);
}

TEST_F(WalkCacheTest, AChangeOfAnyEntryIsSeen) {
  const auto at = [&](unsigned level) -> u64& {
    return level == 4   ? arena.word(cr3, 256)
           : level == 3 ? arena.word(pdpt, 0)
           : level == 2 ? arena.word(pd, 2)
                        : arena.word(pt, 3);
  };
  for (unsigned level = 1; level <= 4; ++level) {
    map4();
    ASSERT_EQ(get(cr3, kRip), byte(code + 0x123));
    at(level) = 0;
    EXPECT_EQ(get(cr3, kRip), nullptr) << "level " << level;
    map4();
    EXPECT_EQ(get(cr3, kRip), byte(code + 0x123));
  }
  arena.word(pt, 3) = other | 3;
  EXPECT_EQ(get(cr3, kRip), byte(other + 0x123));
}

TEST_F(WalkCacheTest, AccessedAndDirtyBitsDoNotMatter) {
  map4();
  get(cr3, kRip);
  arena.word(cr3, 256) |= 0x20;
  arena.word(pt, 3) |= 0x60;
  EXPECT_EQ(get(cr3, kRip), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
}

TEST_F(WalkCacheTest, PcidAndTheNoFlushBitDoNotMatter) {
  map4();
  get(cr3 | 5, kRip);
  EXPECT_EQ(get(cr3 | 7 | bit(63), kRip), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
  EXPECT_EQ(get(pd, kRip), nullptr);
}

TEST_F(WalkCacheTest, TheModeIsPartOfTheKey) {
  map4();
  get(cr3, kRip);
  // The same CR3 as a PML5: entry 0x1ff of it is not present.
  EXPECT_EQ(get(cr3, kRip, kLong5), nullptr);
  EXPECT_EQ(get(cr3, kRip), byte(code + 0x123));
}

TEST_F(WalkCacheTest, FiveLevels) {
  const u64 root = arena.page();
  map4();
  arena.word(root, 0x1ff) = cr3 | 3;
  EXPECT_EQ(get(root, kRip, kLong5), byte(code + 0x123));
  EXPECT_EQ(get(root, kRip, kLong5), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
  arena.word(root, 0x1ff) = 0;
  EXPECT_EQ(get(root, kRip, kLong5), nullptr);
}

TEST_F(WalkCacheTest, LargePages) {
  map4();
  arena.word(pd, 2) = 0x200000 | 0x83;
  EXPECT_EQ(get(cr3, kRip), byte(0x203123));
  EXPECT_EQ(get(cr3, kRip), byte(0x203123));
  EXPECT_EQ(cache.misses(), 1u);
  arena.word(pdpt, 0) = 0x83;  // 1 GiB at 0
  EXPECT_EQ(get(cr3, kRip), byte(0x403123));
  EXPECT_EQ(get(cr3, kRip), byte(0x403123));
  EXPECT_EQ(cache.misses(), 2u);
}

TEST_F(WalkCacheTest, PaeUsesCr3DownToBitFive) {
  const u64 rip = 0x4000'3123;  // entries 1, 0, 3
  arena.word(cr3, 4 + 1) = pd | 1;
  arena.word(pd, 0) = pt | 3;
  arena.word(pt, 3) = code | 3;
  EXPECT_EQ(get(cr3 | 0x20, rip, kPae), byte(code + 0x123));
  EXPECT_EQ(get(cr3 | 0x20 | 0x18, rip, kPae), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
  EXPECT_EQ(get(cr3, rip, kPae), nullptr);
}

TEST_F(WalkCacheTest, LegacyTablesOfBothSizes) {
  const u64 rip = 0x00c0'3123;  // entries 3, 3
  arena.half(cr3, 3) = static_cast<u32>(pt | 3);
  arena.half(pt, 3) = static_cast<u32>(code | 3);
  EXPECT_EQ(get(cr3, rip, kLegacy), byte(code + 0x123));
  EXPECT_EQ(get(cr3, rip, kLegacy), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
  arena.half(cr3, 3) = 0x00400083;
  EXPECT_EQ(get(cr3, rip, kLegacy), byte(0x403123));
  EXPECT_EQ(get(cr3, rip, kLegacy), byte(0x403123));
  EXPECT_EQ(cache.misses(), 2u);
  arena.half(cr3, 3) = 0;
  EXPECT_EQ(get(cr3, rip, kLegacy), nullptr);
}

TEST_F(WalkCacheTest, WithoutPagingLinearIsPhysical) {
  EXPECT_EQ(get(0, 0x1234, kReal), byte(0x1234));
  EXPECT_EQ(get(77 << 12, 0x1235, kReal), byte(0x1235));
  EXPECT_EQ(get(0, 0xfffffff0, kReal), nullptr);
}

TEST_F(WalkCacheTest, NothingOutsideMemoryIsTouched) {
  map4();
  arena.word(pt, 3) = 0xfee00000 | 3;
  EXPECT_EQ(get(cr3, kRip), nullptr);
  arena.word(pd, 2) = 0xfee00000 | 3;
  EXPECT_EQ(get(cr3, kRip), nullptr);
  EXPECT_EQ(get(0xfee00000, kRip), nullptr);
  EXPECT_EQ(get(Arena::kL1Size, kRip), nullptr);
}

TEST_F(WalkCacheTest, AnL2GoesThroughEptAndItsGeneration) {
  map4();
  const u64 root = arena.page(), e3 = arena.page(), e2 = arena.page();
  // L2's physical addresses are L1's plus 1 GiB.
  arena.word(root, 0) = e3 | 7;
  arena.word(e3, 1) = e2 | 7;
  for (u64 i = 0; i < 32; ++i) {
    arena.word(e2, i) = i * 2 * kMiB | 0xb7;
  }
  for (u64* e :
       {&arena.word(cr3, 256), &arena.word(pdpt, 0), &arena.word(pd, 2), &arena.word(pt, 3)}) {
    *e += kGiB;
  }
  const ModeBits mode{kPg, cpu::cr4::pae, cpu::efer::lma | cpu::efer::nxe, true};
  const Eptp eptp{root | 0x1e};
  const auto run = [&](u64 generation) {
    return cache.code_bytes(mode, cr3 + kGiB, kRip, generation, arena.memory, eptp, {});
  };
  EXPECT_EQ(run(1), byte(code + 0x123));
  EXPECT_EQ(run(1), byte(code + 0x123));
  EXPECT_EQ(cache.misses(), 1u);
  // The second dimension may be remembered until the generation changes.
  arena.word(e3, 1) = 0;
  EXPECT_EQ(run(1), byte(code + 0x123));
  EXPECT_EQ(run(2), nullptr);
  // L1's own address space with the same numbers is another one.
  EXPECT_EQ(get(cr3 + kGiB, kRip), nullptr);
}

}  // namespace
}  // namespace aerie::mmu
