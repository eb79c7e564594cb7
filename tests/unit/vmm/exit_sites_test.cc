#include "vmm/exit_sites.h"

#include <gtest/gtest.h>

#include "tests/unit/mmu/arena.h"

namespace aerie::vmm {
namespace {

using mmu::ModeBits;

constexpr u64 kPg = cpu::cr0::pg | cpu::cr0::pe;
constexpr u64 kEfer = cpu::efer::lma | cpu::efer::nxe;
constexpr ModeBits kLong4{kPg, cpu::cr4::pae, kEfer};
constexpr ModeBits kLong5{kPg, cpu::cr4::pae | cpu::cr4::la57, kEfer};

// A page of code under four or five levels of tables, all of them at entry 1 but the top's, 0.
struct ExitSitesTest : ::testing::TestWithParam<unsigned> {
  mmu::test::Arena arena;
  mmu::WalkCache walks;
  ExitSites sites;
  unsigned levels = GetParam();
  ModeBits mode = levels == 5 ? kLong5 : kLong4;
  u64 table[5]{};  // from the top
  u64 code = arena.page();
  u64 rip = 0;
  cpu::Instruction instruction{};

  ExitSitesTest() {
    for (unsigned i = 0; i < levels; ++i) {
      table[i] = arena.page();
    }
    for (unsigned i = 0; i < levels; ++i) {
      entry(i) = (i + 1 < levels ? table[i + 1] : code) | 3;
      if (i != 0) {
        rip |= u64{1} << (12 + 9 * (levels - 1 - i));
      }
    }
    rip += 0x123;
    instruction.length = 3;
    instruction.op = cpu::Op::vmread;
    arena.at<u8>(code)[0x123] = 0x0f;
    arena.at<u8>(code)[0x124] = 0x78;
    arena.at<u8>(code)[0x125] = 0xc1;
  }
  u64& entry(unsigned level) { return arena.word(table[level], level == 0 ? 0 : 1); }
  bool add() {
    const u8* bytes = walks.code_bytes(mode, table[0], rip, arena.memory);
    mmu::WalkCache::Path path;
    if (bytes == nullptr || !walks.path(mode, table[0], rip, 0, path)) {
      return false;
    }
    sites.add(rip, table[0], mode, 0, path, bytes, instruction);
    return true;
  }
  const cpu::Instruction* find() { return sites.find(rip, table[0], mode); }
};

TEST_P(ExitSitesTest, FindsWhatWasAdded) {
  EXPECT_EQ(find(), nullptr);
  ASSERT_TRUE(add());
  ASSERT_NE(find(), nullptr);
  EXPECT_EQ(find()->op, cpu::Op::vmread);
}

TEST_P(ExitSitesTest, AChangeOfAnyEntryIsSeen) {
  ASSERT_TRUE(add());
  for (unsigned level = 0; level < levels; ++level) {
    const u64 was = entry(level);
    entry(level) = was + kPageSize;
    EXPECT_EQ(find(), nullptr) << "level " << level << " from the top";
    entry(level) = was;
    EXPECT_NE(find(), nullptr);
  }
}

TEST_P(ExitSitesTest, AccessedAndDirtyBitsDoNotMatter) {
  ASSERT_TRUE(add());
  for (unsigned level = 0; level < levels; ++level) {
    entry(level) |= 0x60;
  }
  EXPECT_NE(find(), nullptr);
}

TEST_P(ExitSitesTest, AChangeOfTheInstructionIsSeenAndOfTheNextOneIsNot) {
  ASSERT_TRUE(add());
  arena.at<u8>(code)[0x126] ^= 1;
  EXPECT_NE(find(), nullptr);
  arena.at<u8>(code)[0x125] ^= 1;
  EXPECT_EQ(find(), nullptr);
}

TEST_P(ExitSitesTest, AnotherNumberOfLevelsIsAnotherPlace) {
  ASSERT_TRUE(add());
  EXPECT_EQ(sites.find(rip, table[0], levels == 5 ? kLong4 : kLong5), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Levels, ExitSitesTest, ::testing::Values(4u, 5u));

}  // namespace
}  // namespace aerie::vmm
