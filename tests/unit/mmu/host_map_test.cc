#include "mmu/host_map.h"

#include <gtest/gtest.h>

#include "arena.h"

namespace aerie::mmu {
namespace {

using test::Arena;

const HostMap::Range kExcluded[] = {
    {Gpa{0x3c000000}, Gpa{0x40000000}},  // Aerie's block: 64 MiB
    {Gpa{0xfec00000}, Gpa{0xfec01000}},  // the IOAPIC's page
    {Gpa{0xfee00000}, Gpa{0xfef00000}},  // the APIC region
};

TEST(HostMap, MapsEverythingButWhatIsExcluded) {
  Arena arena;
  HostMap map;
  ASSERT_TRUE(map.build(arena.allocator, 40, kExcluded));
  for (const u64 address : {u64{0}, u64{0x1234567}, 5 * kGiB + 123, (u64{1} << 40) - 1}) {
    const HostMap::Lookup l = map.lookup(Gpa{address});
    EXPECT_TRUE(l.present);
    EXPECT_TRUE(l.writable);
    EXPECT_EQ(l.hpa.value(), address);
  }
  EXPECT_EQ(map.lookup(Gpa{5 * kGiB}).level, 3);
  EXPECT_FALSE(map.lookup(Gpa{u64{1} << 40}).present);
  for (const HostMap::Range& r : kExcluded) {
    EXPECT_TRUE(map.lookup(r.begin - 1).present);
    EXPECT_FALSE(map.lookup(r.begin).present);
    EXPECT_FALSE(map.lookup(r.end - 1).present);
    EXPECT_TRUE(map.lookup(r.end).present);
  }
  // Two PDPTs cover 1 TiB; splits: GiB 0 to 2 MiB, GiB 3 to 2 MiB, two of its 2 MiB pages to 4 KiB.
  EXPECT_EQ(map.lookup(Gpa{0x3bffffff}).level, 2);
  EXPECT_EQ(map.lookup(Gpa{0xfebfffff}).level, 2);
  EXPECT_EQ(map.lookup(Gpa{0xfec01000}).level, 1);
  EXPECT_EQ(map.table_pages(), 1 + 2 + 2 + 2u);
}

TEST(HostMap, TablesHoldWhatAWalkerOfNptExpects) {
  Arena arena;
  HostMap map;
  ASSERT_TRUE(map.build(arena.allocator, 36, {}));
  const u64 pml4e = arena.word(map.root().value(), 0);
  EXPECT_EQ(pml4e & 0xfff, 7u);
  const u64 pdpte = arena.word(pml4e & npt::address, 3);
  EXPECT_EQ(pdpte, 3 * kGiB | 0x87);
  EXPECT_EQ(arena.word(pml4e & npt::address, 64), 0u);
}

TEST(HostMap, WorksWithoutGigabytePages) {
  Arena arena;
  HostMap map;
  ASSERT_TRUE(map.build(arena.allocator, 33, kExcluded, false));
  EXPECT_EQ(map.lookup(Gpa{5 * kGiB}).level, 2);
  EXPECT_FALSE(map.lookup(Gpa{0xfec00000}).present);
}

TEST(HostMap, WriteProtectsSinglePagesAndReleasesThem) {
  Arena arena;
  HostMap map;
  ASSERT_TRUE(map.build(arena.allocator, 36, kExcluded));
  ASSERT_TRUE(map.write_protect(arena.allocator, Gpa{0x1234567}));
  EXPECT_FALSE(map.lookup(Gpa{0x1234000}).writable);
  EXPECT_TRUE(map.lookup(Gpa{0x1234000}).present);
  EXPECT_EQ(map.lookup(Gpa{0x1234567}).hpa.value(), 0x1234567u);
  EXPECT_TRUE(map.lookup(Gpa{0x1233fff}).writable);
  EXPECT_TRUE(map.lookup(Gpa{0x1235000}).writable);
  EXPECT_EQ(map.lookup(Gpa{0x1400000}).level, 2);
  EXPECT_TRUE(map.release(Gpa{0x1234000}));
  EXPECT_TRUE(map.lookup(Gpa{0x1234000}).writable);
  EXPECT_FALSE(map.write_protect(arena.allocator, Gpa{0xfee00000}));
  EXPECT_FALSE(map.write_protect(arena.allocator, Gpa{u64{1} << 40}));
}

TEST(HostMap, HidesSinglePagesAndShowsThemAsTheyWere) {
  Arena arena;
  HostMap map;
  ASSERT_TRUE(map.build(arena.allocator, 36, kExcluded));
  ASSERT_TRUE(map.write_protect(arena.allocator, Gpa{0x1235000}));
  for (const u64 page : {0x1234000, 0x1235000}) {
    ASSERT_TRUE(map.hide(arena.allocator, Gpa{page}));
    const HostMap::Lookup hidden = map.lookup(Gpa{page + 8});
    EXPECT_FALSE(hidden.present);
    EXPECT_FALSE(hidden.writable);
    EXPECT_TRUE(hidden.hidden);
    EXPECT_EQ(hidden.hpa.value(), page + 8);
    EXPECT_FALSE(map.hide(arena.allocator, Gpa{page}));
    EXPECT_TRUE(map.show(Gpa{page}));
    EXPECT_TRUE(map.lookup(Gpa{page}).present);
    EXPECT_EQ(map.lookup(Gpa{page}).writable, page == 0x1234000);
    EXPECT_FALSE(map.show(Gpa{page}));
  }
  EXPECT_TRUE(map.lookup(Gpa{0x1233fff}).present);
  EXPECT_TRUE(map.lookup(Gpa{0x1236000}).present);
  // What was never mapped is neither hidden nor shown.
  EXPECT_FALSE(map.lookup(Gpa{0xfee00000}).hidden);
  EXPECT_FALSE(map.hide(arena.allocator, Gpa{0xfee00000}));
  EXPECT_FALSE(map.show(Gpa{0xfee00000}));
  EXPECT_FALSE(map.hide(arena.allocator, Gpa{u64{1} << 40}));
}

TEST(HostMap, FailsCleanlyWithoutMemory) {
  Arena arena{2 * kPageSize};
  HostMap map;
  EXPECT_FALSE(map.build(arena.allocator, 40, kExcluded));
}

}  // namespace
}  // namespace aerie::mmu
