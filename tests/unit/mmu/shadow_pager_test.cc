#include "mmu/shadow_pager.h"

#include <gtest/gtest.h>

#include <memory>

#include "arena.h"
#include "cpu/exit.h"

namespace aerie::mmu {
namespace {

using test::Arena;
using Kind = FaultResult::Kind;
namespace pfec = cpu::pfec;

constexpr u64 kFinal = cpu::tdp_fault::final_access, kWalk = cpu::tdp_fault::page_walk;
constexpr u64 kRead = pfec::user | kFinal, kWrite = pfec::user | pfec::write | kFinal,
              kFetch = pfec::user | pfec::fetch | kFinal,
              kWalkWrite = pfec::user | pfec::write | kWalk;

struct ShadowPagerTest : ::testing::Test {
  Arena arena;
  HostMap host;
  std::unique_ptr<ShadowPager> pager = std::make_unique<ShadowPager>();
  u64 pml4 = arena.page(), pdpt = arena.page(), pd = arena.page(), pt = arena.page();
  u32 kick = 0;

  ShadowPagerTest() {
    const HostMap::Range excluded[] = {{Gpa{Arena::kL1Size}, Gpa{Arena::kL1Size + Arena::kL0Size}},
                                       {Gpa{0xfee00000}, Gpa{0xfef00000}}};
    EXPECT_TRUE(host.build(arena.allocator, 36, excluded));
    start(512);
  }
  ~ShadowPagerTest() override { check(); }
  void start(u32 pages, u32 eager = 32768) {
    pager = std::make_unique<ShadowPager>();
    ASSERT_TRUE(pager->init(arena.allocator, arena.memory, host, {},
                            {.pages = pages, .eager_entries = eager}));
  }
  void check() {
    const char* wrong = pager->check_invariants();
    EXPECT_EQ(wrong, nullptr) << (wrong != nullptr ? wrong : "");
  }

  // ngpa [0, 2 MiB) by 4 KiB pages to gpa [4 MiB, 6 MiB), ngpa [2, 4 MiB) large to gpa [8, 10 MiB),
  // ngpa [1 GiB, 2 GiB) large to gpa [8 GiB, 9 GiB).
  void map(u64 flags = 7) {
    arena.word(pml4, 0) = pdpt | 7;
    arena.word(pdpt, 0) = pd | 7;
    arena.word(pdpt, 1) = 8 * kGiB | 0xb0 | flags;
    arena.word(pd, 0) = pt | 7;
    arena.word(pd, 1) = 8 * kMiB | 0xb0 | flags;
    for (u64 i = 0; i < 512; ++i) {
      arena.word(pt, i) = (4 * kMiB + i * kPageSize) | 0x30 | flags;
    }
  }
  Eptp eptp(u64 root = 0, bool ad = false) const {
    return Eptp{(root ? root : pml4) | 0x1e | (ad ? 0x40 : 0)};
  }
  Root& use(Eptp e, unsigned cpu = 0) {
    Root* r = pager->switch_root(cpu, e, kick);
    EXPECT_NE(r, nullptr);
    return *r;
  }
  FaultResult fault(const Root& r, u64 ngpa, u64 error, unsigned cpu = 0) {
    const FaultResult f = pager->handle_fault(cpu, r, Ngpa{ngpa}, error);
    check();
    return f;
  }
  // L1's INVEPT on processor 0, and its entry.
  void invept(Eptp e) {
    EXPECT_EQ(pager->invept_single(0, e), GuestFlush::root);
    use(e);
  }
  void invept_all(Eptp e) {
    EXPECT_EQ(pager->invept_all(0), GuestFlush::all);
    use(e);
  }
  // As a processor does: walk the shadow, fault until it holds.
  FaultResult access(const Root& r, u64 ngpa, u64 error, unsigned cpu = 0) {
    FaultResult f;
    for (int i = 0; i < 3; ++i) {
      const auto w = pager->lookup(r, Ngpa{ngpa});
      if (w.present && ((error & pfec::write) == 0 || w.write) &&
          ((error & pfec::fetch) == 0 || w.execute)) {
        f.kind = Kind::mapped;
        f.gpa = Gpa{w.hpa.value()};
        return f;
      }
      f = fault(r, ngpa, error, cpu);
      if (f.kind != Kind::mapped) {
        return f;
      }
    }
    ADD_FAILURE() << "access does not come to an end";
    return f;
  }
};

TEST_F(ShadowPagerTest, MapsWhatBothTablesMap) {
  map();
  Root& r = use(eptp());
  EXPECT_EQ(access(r, 0x3123, kWrite).gpa.value(), 4 * kMiB + 0x3123);
  EXPECT_EQ(pager->lookup(r, Ngpa{0x3000}).level, 1);
  EXPECT_EQ(access(r, 2 * kMiB + 0x3123, kFetch).gpa.value(), 8 * kMiB + 0x3123);
  EXPECT_EQ(pager->lookup(r, Ngpa{2 * kMiB}).level, 2);
  EXPECT_EQ(access(r, kGiB + 0x123456, kRead).gpa.value(), 8 * kGiB + 0x123456);
  EXPECT_EQ(pager->lookup(r, Ngpa{kGiB}).level, 3);
  EXPECT_EQ(pager->stats().mapped, 3u);
}

TEST_F(ShadowPagerTest, LargeGuestPagesAreSplitWhereTheHostMapIs) {
  map();
  arena.word(pdpt, 1) = 0xb7;  // gpa [0, 1 GiB) holds Aerie's block
  arena.word(pdpt, 3) = 3 * kGiB | 0xb7;
  Root& r = use(eptp());
  EXPECT_EQ(access(r, kGiB + 5 * kMiB, kWrite).gpa.value(), 5 * kMiB);
  EXPECT_EQ(pager->lookup(r, Ngpa{kGiB + 5 * kMiB}).level, 2);
  const FaultResult f = access(r, kGiB + Arena::kL1Size, kWrite);
  EXPECT_EQ(f.kind, Kind::l0_owned);
  EXPECT_EQ(f.gpa.value(), Arena::kL1Size);
  EXPECT_EQ(access(r, 3 * kGiB + (0xfee00300 & (kGiB - 1)), kRead).kind, Kind::l0_owned);
  EXPECT_EQ(access(r, 3 * kGiB + (0xfef00300 & (kGiB - 1)), kRead).gpa.value(), 0xfef00300u);
}

TEST_F(ShadowPagerTest, ASplitLargePageThatL1MovesIsLetGo) {
  map();
  arena.word(pdpt, 1) = 3 * kGiB | 0xb7;
  Root& r = use(eptp());
  EXPECT_EQ(access(r, kGiB + 5 * kMiB, kWrite).gpa.value(), 3 * kGiB + 5 * kMiB);
  EXPECT_EQ(pager->lookup(r, Ngpa{kGiB + 5 * kMiB}).level, 2);
  arena.word(pdpt, 1) = 0 | 0xb7;  // also split in the host map
  invept(eptp());
  EXPECT_FALSE(pager->lookup(r, Ngpa{kGiB + 5 * kMiB}).present);
  EXPECT_EQ(access(r, kGiB + 5 * kMiB, kWrite).gpa.value(), 5 * kMiB);
  arena.word(pdpt, 1) = 0 | 0xb5;
  invept(eptp());
  EXPECT_TRUE(pager->lookup(r, Ngpa{kGiB + 5 * kMiB}).present);
  EXPECT_FALSE(pager->lookup(r, Ngpa{kGiB + 5 * kMiB}).write);
}

TEST_F(ShadowPagerTest, ViolationsAreL1sWithTheirQualification) {
  map();
  arena.word(pt, 1) = 4 * kMiB | 0x31;
  arena.word(pt, 2) = 0;
  arena.word(pt, 4) = 4 * kMiB | 0x35;
  Root& r = use(eptp());
  EXPECT_EQ(access(r, 0x1000, kRead).kind, Kind::mapped);
  FaultResult f = access(r, 0x1000, kWrite);
  EXPECT_EQ(f.kind, Kind::violation);
  EXPECT_EQ(f.qualification, 0x182u | 1 << 3);
  f = access(r, 0x1000, kFetch);
  EXPECT_EQ(f.qualification, 0x184u | 1 << 3);
  f = access(r, 0x2000, kRead);
  EXPECT_EQ(f.qualification, 0x181u);
  f = access(r, 0x2000, kWalkWrite);
  EXPECT_EQ(f.qualification, 0x081u);
  EXPECT_EQ(access(r, 0x4000, kFetch).kind, Kind::mapped);
  EXPECT_EQ(access(r, 4 * kGiB, kWrite).qualification, 0x182u);
  // The access was not through a linear address (a PDPTE load).
  EXPECT_EQ(fault(r, 0x2000, pfec::user).qualification, 0x1u);
}

TEST_F(ShadowPagerTest, MisconfigurationsAreToldFromViolations) {
  map();
  arena.word(pt, 1) = 4 * kMiB | 0x32;
  arena.word(pt, 2) = 4 * kMiB | 0x1f;  // memory type 3
  arena.word(pd, 1) |= bit(13);
  Root& r = use(eptp());
  EXPECT_EQ(access(r, 0x1000, kRead).kind, Kind::misconfiguration);
  EXPECT_EQ(access(r, 0x2000, kRead).kind, Kind::misconfiguration);
  EXPECT_EQ(access(r, 2 * kMiB, kRead).kind, Kind::misconfiguration);
  EXPECT_EQ(access(r, 0x3000, kRead).kind, Kind::mapped);
}

TEST_F(ShadowPagerTest, WithFlagsAPageIsWritableOnceItIsDirty) {
  map();
  Root& r = use(eptp(0, true));
  access(r, 0x3000, kRead);
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x3000}).write);
  EXPECT_EQ(arena.word(pt, 3) & 0x300, 0x100u);
  EXPECT_EQ(arena.word(pml4, 0) & 0x300, 0x100u);
  access(r, 0x3000, kWrite);
  EXPECT_TRUE(pager->lookup(r, Ngpa{0x3000}).write);
  EXPECT_EQ(arena.word(pt, 3) & 0x300, 0x300u);
  // L1 clears both; after its INVEPT the next access sets them again.
  arena.word(pt, 3) &= ~u64{0x300};
  invept(eptp(0, true));
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x3000}).present);
  access(r, 0x3000, kRead);
  EXPECT_EQ(arena.word(pt, 3) & 0x300, 0x100u);
  // A walk of L2's tables counts as a write.
  EXPECT_EQ(access(r, 0x5000, kWalkWrite).kind, Kind::mapped);
  EXPECT_EQ(arena.word(pt, 5) & 0x300, 0x300u);
}

TEST_F(ShadowPagerTest, WithoutFlagsL1sTablesAreNotWritten) {
  map();
  Root& r = use(eptp());
  access(r, 0x3000, kWrite);
  EXPECT_EQ(arena.word(pt, 3) & 0x300, 0u);
  EXPECT_EQ(arena.word(pml4, 0) & 0x300, 0u);
}

TEST_F(ShadowPagerTest, WideningNeedsNoInvept) {
  map();
  arena.word(pt, 1) = 4 * kMiB | 0x31;
  arena.word(pd, 1) = 0;
  Root& r = use(eptp());
  access(r, 0x1000, kRead);
  EXPECT_EQ(access(r, 0x1000, kWrite).kind, Kind::violation);
  EXPECT_EQ(access(r, 2 * kMiB, kWrite).kind, Kind::violation);
  arena.word(pt, 1) |= 7;
  arena.word(pd, 1) = 8 * kMiB | 0xb7;
  EXPECT_EQ(access(r, 0x1000, kWrite).kind, Kind::mapped);
  EXPECT_EQ(access(r, 2 * kMiB, kWrite).kind, Kind::mapped);
}

TEST_F(ShadowPagerTest, NarrowingHoldsAfterInvept) {
  map();
  Root& r = use(eptp());
  access(r, 0x1000, kWrite);
  access(r, 0x2000, kWrite);
  access(r, 0x3000, kWrite);
  access(r, 2 * kMiB, kWrite);
  access(r, kGiB, kWrite);
  arena.word(pt, 1) = 0;
  arena.word(pt, 2) &= ~u64{2};
  arena.word(pt, 3) = 5 * kMiB | 0x37;
  arena.word(pd, 1) &= ~u64{4};
  invept(eptp());
  check();
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x2000}).write);
  EXPECT_TRUE(pager->lookup(r, Ngpa{0x2000}).present);
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x3000}).present);
  EXPECT_FALSE(pager->lookup(r, Ngpa{2 * kMiB}).execute);
  // What it does not concern survives.
  EXPECT_TRUE(pager->lookup(r, Ngpa{kGiB}).write);
  EXPECT_EQ(access(r, 0x3000, kRead).gpa.value(), 5 * kMiB);
}

TEST_F(ShadowPagerTest, AnUpperEntrysRightsComeAndGoWithoutItsTable) {
  map();
  Root& r = use(eptp());
  access(r, 0x1000, kWrite);
  arena.word(pdpt, 0) = pd | 5;
  invept(eptp());
  const u64 zaps = pager->stats().zaps;
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).write);
  EXPECT_TRUE(pager->lookup(r, Ngpa{0x1000}).present);
  const FaultResult f = access(r, 0x1000, kWrite);
  EXPECT_EQ(f.kind, Kind::violation);
  EXPECT_EQ(f.qualification, 0x182u | 5 << 3);
  arena.word(pdpt, 0) = pd | 7;
  EXPECT_EQ(access(r, 0x1000, kWrite).kind, Kind::mapped);
  EXPECT_EQ(pager->stats().zaps, zaps);
}

TEST_F(ShadowPagerTest, OneTableUnderTwoParentsHasTheRightsOfEachPath) {
  map();
  arena.word(pd, 2) = pt | 5;
  Root& r = use(eptp());
  EXPECT_EQ(access(r, 0x1000, kWrite).kind, Kind::mapped);
  EXPECT_EQ(access(r, 4 * kMiB + 0x1000, kRead).kind, Kind::mapped);
  const FaultResult f = access(r, 4 * kMiB + 0x1000, kWrite);
  EXPECT_EQ(f.kind, Kind::violation);
  EXPECT_EQ(f.qualification, 0x182u | 5 << 3);
  EXPECT_TRUE(pager->lookup(r, Ngpa{0x1000}).write);
}

TEST_F(ShadowPagerTest, AReplacedTableIsUnlinkedAndALargePageTakesItsPlace) {
  map();
  Root& r = use(eptp());
  access(r, 0x1000, kWrite);
  arena.word(pd, 0) = 12 * kMiB | 0xb7;
  invept_all(eptp());
  check();
  EXPECT_EQ(access(r, 0x1000, kWrite).gpa.value(), 12 * kMiB + 0x1000);
  EXPECT_EQ(pager->lookup(r, Ngpa{0x1000}).level, 2);
  // And back: the page is found again, and what L1 did to the table meanwhile is seen.
  arena.word(pt, 1) = 6 * kMiB | 0x37;
  arena.word(pd, 0) = pt | 7;
  invept_all(eptp());
  const u32 pages = pager->pages_in_use();
  EXPECT_EQ(access(r, 0x1000, kWrite).gpa.value(), 6 * kMiB);
  EXPECT_EQ(pager->pages_in_use(), pages);
}

TEST_F(ShadowPagerTest, AnInveptWithTooMuchToLookAtIsPutOff) {
  start(512, 8);
  map();
  const u64 other = arena.page(), pt2 = arena.page();
  arena.word(other, 0) = pdpt | 7;
  arena.word(pd, 2) = pt2 | 7;
  arena.word(pt2, 1) = 0x9037;
  Root& a = use(eptp());
  Root& b = use(eptp(other));
  for (Root* r : {&a, &b}) {
    access(*r, 0x1000, kWrite);
    access(*r, 0x9000, kWrite);
    access(*r, 4 * kMiB + 0x1000, kWrite);
  }
  arena.word(pt, 1) = 0;
  arena.word(pt2, 1) = 0xa037;
  invept(eptp());
  check();
  EXPECT_EQ(pager->stats().put_off, 1u);
  EXPECT_FALSE(pager->lookup(a, Ngpa{0x9000}).present);
  EXPECT_TRUE(pager->lookup(b, Ngpa{0x9000}).present);  // not B's INVEPT
  const u32 pages = pager->pages_in_use();
  access(a, 0xa000, kWrite);
  EXPECT_FALSE(pager->lookup(a, Ngpa{0x1000}).present);
  EXPECT_TRUE(pager->lookup(a, Ngpa{0x9000}).present);  // one fault for the table
  EXPECT_FALSE(pager->lookup(a, Ngpa{4 * kMiB + 0x1000}).present);
  EXPECT_EQ(access(a, 4 * kMiB + 0x1000, kWrite).gpa.value(), 0xa000u);
  EXPECT_EQ(pager->pages_in_use(), pages);
}

TEST_F(ShadowPagerTest, TablesOutsideL1sMemoryAreNeverClosed) {
  const u64 tables = host.table_pages();
  for (u64 i = 0; i < 8; ++i) {
    use(Eptp{(4 * kGiB + i * kGiB) | 0x1e});
  }
  for (int i = 0; i < 5; ++i) {
    for (u64 j = 0; j < 8; ++j) {
      invept_all(Eptp{(4 * kGiB + j * kGiB) | 0x1e});
    }
  }
  EXPECT_EQ(host.table_pages(), tables);
  EXPECT_EQ(pager->protected_pages(), 0u);
}

TEST_F(ShadowPagerTest, TwoEptpsInTurn) {
  map();
  const u64 other = arena.page();
  arena.word(other, 0) = pdpt | 7;  // shares everything below
  Root& a = use(eptp(), 1);
  access(a, 0x1000, kWrite, 1);
  Root& b = use(eptp(other), 0);
  access(b, 0x1000, kWrite, 0);
  // While B runs, A's tables change; A was last used on another processor.
  arena.word(pt, 1) = 0;
  invept(eptp());
  EXPECT_FALSE(pager->lookup(a, Ngpa{0x1000}).present);
  // A's INVEPT, with A's own table changed, leaves B what is B's.
  access(b, 0x2000, kWrite);
  arena.word(pml4, 0) = 0;
  invept(eptp());
  check();
  EXPECT_FALSE(pager->lookup(a, Ngpa{0x2000}).present);
  EXPECT_TRUE(pager->lookup(b, Ngpa{0x2000}).present);
}

TEST_F(ShadowPagerTest, APageThatARootComesToShareIsFreshForIt) {
  map();
  const u64 other = arena.page();
  Root& a = use(eptp());
  access(a, 0x1000, kWrite);
  Root& b = use(eptp(other));
  // Changed without INVEPT for A, then linked under B, which has never seen the old entry.
  arena.word(pt, 1) = 0;
  arena.word(other, 0) = pdpt | 7;
  access(b, 0x2000, kWrite);
  EXPECT_FALSE(pager->lookup(b, Ngpa{0x1000}).present);
}

TEST_F(ShadowPagerTest, QuietTablesAreClosedAndOpenedByAWrite) {
  map();
  Root& r = use(eptp());
  pager->enter_guest(0);
  access(r, 0x1000, kWrite);
  EXPECT_EQ(pager->unsync_pages(), 4u);
  for (int i = 0; i < 4; ++i) {
    invept(eptp());
    check();
    pager->enter_guest(0);
  }
  EXPECT_EQ(pager->unsync_pages(), 0u);
  EXPECT_EQ(pager->protected_pages(), 4u);
  EXPECT_FALSE(host.lookup(Gpa{pt}).writable);
  EXPECT_TRUE(host.lookup(Gpa{pt + kPageSize}).writable);
  const u64 visits = pager->stats().visits;
  invept(eptp());
  EXPECT_EQ(pager->stats().visits, visits);
  // L1 writes: one fault, then its next INVEPT sees the change.
  EXPECT_TRUE(pager->l1_write_fault(Gpa{pt + 8}));
  check();
  EXPECT_TRUE(host.lookup(Gpa{pt}).writable);
  EXPECT_EQ(pager->unsync_pages(), 1u);
  arena.word(pt, 1) = 0;
  invept(eptp());
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
  EXPECT_EQ(pager->stats().visits, visits + 1);
  // A fault of L1's that is none of ours.
  EXPECT_FALSE(pager->l1_write_fault(Gpa{0xfee00000}));
}

TEST_F(ShadowPagerTest, AStoreOfL0sOpensATableToo) {
  map();
  Root& r = use(eptp());
  access(r, 0x1000, kWrite);
  for (int i = 0; i < 4; ++i) {
    invept(eptp());
  }
  ASSERT_EQ(pager->unsync_pages(), 0u);
  const u64 zero[2] = {0, 0};
  EXPECT_TRUE(arena.memory.write(Gpa{pt}, zero, sizeof(zero)));
  EXPECT_EQ(pager->unsync_pages(), 1u);
  invept(eptp());
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
}

TEST_F(ShadowPagerTest, ATableIsNotSyncedBeforeEveryProcessorHasFlushed) {
  map();
  pager->enter_guest(0);
  pager->enter_guest(1);
  Root& r = use(eptp());
  access(r, 0x1000, kWrite);
  for (int i = 0; i < 6; ++i) {
    invept(eptp());
    pager->enter_guest(0);
  }
  // Processor 1 may still write through its TLB.
  EXPECT_EQ(pager->unsync_pages(), 4u);
  arena.word(pt, 1) = 0;
  invept(eptp());
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
  EXPECT_TRUE(pager->enter_guest(1));
  EXPECT_FALSE(pager->enter_guest(1));
  invept(eptp());
  EXPECT_EQ(pager->unsync_pages(), 0u);
}

TEST_F(ShadowPagerTest, ATableThatAnL2CanWriteIsNotClosed) {
  map();
  arena.word(pt, 7) = pt | 0x37;
  Root& r = use(eptp());
  access(r, 0x7000, kWrite);
  for (int i = 0; i < 8; ++i) {
    invept_all(eptp());
  }
  check();
  EXPECT_EQ(pager->unsync_pages(), 1u);
  EXPECT_TRUE(host.lookup(Gpa{pt}).writable);
  // A closed one is opened by an L2's write to it.
  arena.word(pt, 8) = pd | 0x37;
  access(r, 0x8000, kRead);
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x8000}).write);
  EXPECT_EQ(access(r, 0x8000, kWrite).kind, Kind::mapped);
  EXPECT_EQ(pager->unsync_pages(), 2u);
}

TEST_F(ShadowPagerTest, WalksThatThisHostCannotDoAreReported) {
  map();
  arena.word(pt, 1) = 4 * kMiB | 0x31;
  Root& r = use(eptp());
  const FaultResult f = access(r, 0x1008, kWalkWrite);
  EXPECT_EQ(f.kind, Kind::walk_needs_write);
  EXPECT_EQ(f.gpa.value(), 4 * kMiB + 8);
  EXPECT_EQ(f.qualification, 0x83u | 1 << 3);
  EXPECT_EQ(access(r, 0x2008, kWalkWrite).kind, Kind::mapped);
  Root& ad = use(eptp(0, true));
  EXPECT_EQ(access(ad, 0x1008, kWalkWrite).qualification, 0x83u | 1 << 3);
}

TEST_F(ShadowPagerTest, RootSwitchesHitAmongTheLastFew) {
  std::vector<u64> roots;
  for (int i = 0; i < 5; ++i) {
    roots.push_back(arena.page());
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      use(eptp(roots[i]));
    }
  }
  EXPECT_EQ(pager->stats().root_misses, 4u);
  use(eptp(roots[4]));
  use(eptp(roots[0]));  // fell out
  EXPECT_EQ(pager->stats().root_misses, 6u);
  EXPECT_EQ(pager->stats().roots_made, 5u);
  EXPECT_NE(&use(eptp(roots[0])), &use(eptp(roots[0], true)));
  EXPECT_EQ(pager->switch_root(0, Eptp{roots[0] | 0x26}, kick), nullptr);  // five levels
}

TEST_F(ShadowPagerTest, RootsOfOneAddressAreInvalidatedTogether) {
  map();
  Root& a = use(eptp());
  access(a, 0x1000, kWrite);
  Root& b = use(eptp(0, true));
  access(b, 0x1000, kWrite);
  arena.word(pt, 1) = 0;
  pager->invept_single(0, eptp());
  use(eptp());
  EXPECT_FALSE(pager->lookup(a, Ngpa{0x1000}).present);
  use(eptp(0, true));
  EXPECT_FALSE(pager->lookup(b, Ngpa{0x1000}).present);
}

TEST_F(ShadowPagerTest, EditsBetweenInveptAndEntryAreSeen) {
  map();
  Root& r = use(eptp());
  for (const bool all : {false, true}) {
    access(r, 0x1000, kWrite);
    access(r, 0x2000, kWrite);
    if (all) {
      pager->invept_all(0);
    } else {
      pager->invept_single(0, eptp());
    }
    arena.word(pt, 1) = 0;
    arena.word(pt, 2) = 5 * kMiB | 0x35;
    use(eptp());
    EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
    EXPECT_FALSE(pager->lookup(r, Ngpa{0x2000}).write);
    EXPECT_EQ(access(r, 0x1000, kRead).kind, Kind::violation);
    EXPECT_EQ(access(r, 0x2000, kRead).gpa.value(), 5 * kMiB);
    map();
    // Once is enough: the next entry looks at nothing.
    const u64 visits = pager->stats().visits;
    use(eptp());
    EXPECT_EQ(pager->stats().visits, visits);
  }
}

TEST_F(ShadowPagerTest, AProcessorsInveptIsDoneAtItsOwnEntry) {
  map();
  Root& r = use(eptp(), 0);
  use(eptp(), 1);
  access(r, 0x1000, kWrite);
  pager->invept_single(0, eptp());
  pager->invept_single(1, eptp());
  use(eptp(), 1);
  // Processor 1 has entered since, processor 0 has not: what L1 edits now, 0 must see.
  access(r, 0x1000, kWrite, 1);
  arena.word(pt, 1) = 0;
  use(eptp(), 1);
  EXPECT_TRUE(pager->lookup(r, Ngpa{0x1000}).present);  // 1 may go on using it
  use(eptp(), 0);
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
}

TEST_F(ShadowPagerTest, AnInveptWaitsForARootThatIsEnteredLater) {
  map();
  Root& r = use(eptp());
  access(r, 0x1000, kWrite);
  pager->invept_all(0);
  for (unsigned i = 0; i < ShadowPager::kPrevRoots; ++i) {  // pushes it out of the last few
    use(eptp(arena.page()));
  }
  arena.word(pt, 1) = 0;
  EXPECT_EQ(&use(eptp()), &r);
  EXPECT_FALSE(pager->lookup(r, Ngpa{0x1000}).present);
}

TEST_F(ShadowPagerTest, MoreRootsThanThereAreEvictsTheOldest) {
  map();
  Root& first = use(eptp());
  access(first, 0x1000, kWrite);
  for (unsigned i = 0; i < ShadowPager::kMaxRoots; ++i) {
    const u64 page = arena.page();
    arena.word(page, 0) = pdpt | 7;
    Root& r = use(eptp(page));
    access(r, 0x2000, kWrite);
  }
  check();
  EXPECT_EQ(pager->stats().roots_evicted, 1u);
  arena.word(pt, 2) = 0;
  Root& again = use(eptp());
  EXPECT_EQ(pager->stats().roots_evicted, 2u);
  // Changed while nobody's INVEPT covered it: gone when it is found again.
  EXPECT_FALSE(pager->lookup(again, Ngpa{0x2000}).present);
  access(again, 0x9000, kWrite);
  EXPECT_FALSE(pager->lookup(again, Ngpa{0x2000}).present);
  check();
}

TEST_F(ShadowPagerTest, ASmallBudgetCostsFaultsAndNothingElse) {
  start(128);
  const u64 big = arena.page(), l3 = arena.page();
  arena.word(big, 0) = l3 | 7;
  for (u64 i = 0; i < 2; ++i) {
    const u64 l2 = arena.page();
    arena.word(l3, i) = l2 | 7;
    for (u64 j = 0; j < 512; ++j) {
      const u64 l1 = arena.page();
      arena.word(l2, j) = l1 | 7;
      arena.word(l1, j) = (i * 512 + j) * kPageSize | 0x37;
    }
  }
  Root& r = use(eptp(big));
  for (int round = 0; round < 2; ++round) {
    for (u64 i = 0; i < 1024; ++i) {
      const u64 ngpa = i * 2 * kMiB + (i % 512) * kPageSize;
      ASSERT_EQ(access(r, ngpa, kWrite).kind, Kind::mapped);
      ASSERT_EQ(pager->lookup(r, Ngpa{ngpa}).hpa.value(), i * kPageSize);
    }
  }
  EXPECT_GT(pager->stats().reclaimed, 1000u);
}

TEST_F(ShadowPagerTest, PagesWaitForProcessorsThatMayKnowThem) {
  start(128);
  pager->enter_guest(0);
  pager->enter_guest(1);
  const u64 big = arena.page(), l3 = arena.page(), l2 = arena.page();
  arena.word(big, 0) = l3 | 7;
  arena.word(l3, 0) = l2 | 7;
  for (u64 j = 0; j < 512; ++j) {
    const u64 l1 = arena.page();
    arena.word(l2, j) = l1 | 7;
    arena.word(l1, 0) = 0x37;
  }
  Root& r = use(eptp(big));
  FaultResult f;
  u64 i = 0;
  for (; i < 512 && f.kind == Kind::mapped; ++i) {
    f = access(r, i * 2 * kMiB, kWrite);
  }
  EXPECT_EQ(f.kind, Kind::busy);
  EXPECT_EQ(f.kick, 2u);
  EXPECT_GT(i, 100u);
  EXPECT_EQ(access(r, i * 2 * kMiB, kWrite).kind, Kind::busy);
  EXPECT_TRUE(pager->enter_guest(1));
  EXPECT_EQ(access(r, i * 2 * kMiB, kWrite).kind, Kind::mapped);
}

TEST_F(ShadowPagerTest, WhoAsksIsToldOfEpochs) {
  pager = std::make_unique<ShadowPager>();
  int told = 0;
  ASSERT_TRUE(pager->init(arena.allocator, arena.memory, host, {},
                          {.pages = 128,
                           .epoch_advanced = [](void* who) { ++*static_cast<int*>(who); },
                           .who = &told}));
  map();
  pager->enter_guest(0);
  access(use(eptp()), 0x1000, kWrite);
  invept(eptp());
  EXPECT_EQ(told, 0);
  EXPECT_FALSE(pager->enter_guest(0));
  invept(eptp());  // closes all four tables
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(pager->enter_guest(0));
  pager->trim(0, 1);
  EXPECT_EQ(told, 2);
}

TEST_F(ShadowPagerTest, NeighboursAreFilledInWithALeaf) {
  map();
  arena.word(pt, 10) = 0;
  arena.word(pt, 12) = 0xfee00000 | 0x37;
  Root& r = use(eptp());
  access(r, 0x9000, kRead);
  for (const u64 there : {8, 9, 11, 13, 14, 15}) {
    EXPECT_EQ(pager->lookup(r, Ngpa{there << 12}).hpa.value(), 4 * kMiB + (there << 12));
  }
  for (const u64 absent : {7, 10, 12, 16}) {
    EXPECT_FALSE(pager->lookup(r, Ngpa{absent << 12}).present);
  }
}

TEST_F(ShadowPagerTest, TheGenerationChangesWhenSomethingLeaves) {
  map();
  Root& r = use(eptp());
  const u64 g0 = r.generation;
  access(r, 0x1000, kWrite);
  EXPECT_EQ(r.generation, g0);
  invept(eptp());
  EXPECT_NE(r.generation, g0);
  EXPECT_NE(use(eptp(0, true)).generation, r.generation);
}

TEST_F(ShadowPagerTest, OnePageMappedEverywhereKeepsItsChainShort) {
  const u64 big = arena.page(), l3 = arena.page(), l2 = arena.page(), l1 = arena.page();
  arena.word(big, 0) = l3 | 7;
  for (u64 i = 0; i < 512; ++i) {
    arena.word(l3, i) = l2 | 7;
    arena.word(l2, i) = l1 | 7;
    arena.word(l1, i) = 0x5000 | 0x37;
  }
  Root& r = use(eptp(big));
  for (u64 i = 0; i < 200; ++i) {
    for (u64 j = 0; j < 10; ++j) {
      pager->handle_fault(0, r, Ngpa{i * kGiB + i * 2 * kMiB + j * 0x8000}, kWrite);
    }
  }
  check();
  EXPECT_EQ(pager->pages_in_use(), 4u);
}

TEST_F(ShadowPagerTest, TablesThatAreNotMemoryAreMisconfigured) {
  arena.word(pml4, 0) = 0xfee00000 | 7;
  Root& r = use(eptp());
  EXPECT_EQ(access(r, 0, kRead).kind, Kind::misconfiguration);
  Root& nowhere = use(Eptp{0xfee00000 | 0x1e});
  EXPECT_EQ(access(nowhere, 0, kRead).kind, Kind::misconfiguration);
}

}  // namespace
}  // namespace aerie::mmu
