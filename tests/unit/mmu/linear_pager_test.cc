#include "mmu/linear_pager.h"

#include "linear_machine.h"

namespace aerie::mmu {
namespace {

using test::LinearMachine;
using test::Omit;
namespace cr0 = cpu::cr0;
namespace cr4 = cpu::cr4;

constexpr u64 kP = 1, kW = 2, kU = 4, kA = 0x20, kD = 0x40, kPs = 0x80, kG = 0x100;
constexpr u64 kNx = bit(63);
constexpr u32 kRead = access::read, kWrite = access::write, kUser = access::user,
              kFetch = access::fetch;

struct LinearPagerTest : ::testing::Test {
  LinearMachine m;
  u64 pml4 = m.arena.page(), pdpt = m.arena.page(), pd = m.arena.page(), pt = m.arena.page();
  static constexpr u64 kData = 16 * kMiB;

  // [0, 2 MiB) by 4 KiB pages to kData; [2 MiB, 4 MiB) large to 4 MiB; [4, 6) large to 8 MiB, of
  // which L0 has the first page; [1 GiB, 2 GiB) to 1 GiB.
  LinearPagerTest() {
    m.arena.word(pml4, 0) = pdpt | kP | kW | kU;
    m.arena.word(pdpt, 0) = pd | kP | kW | kU;
    m.arena.word(pdpt, 1) = kGiB | kP | kW | kU | kPs;
    m.arena.word(pd, 0) = pt | kP | kW | kU;
    m.arena.word(pd, 1) = 4 * kMiB | kP | kW | kU | kPs;
    m.arena.word(pd, 2) = 8 * kMiB | kP | kW | kU | kPs;
    for (u64 i = 0; i < 512; ++i) {
      m.arena.word(pt, i) = (kData + i * kPageSize) | kP | kW | kU;
    }
    m.cpus[0].cr3 = m.cpus[1].cr3 = pml4;
  }
  ~LinearPagerTest() override {
    const char* wrong = m.pager->check_invariants();
    EXPECT_EQ(wrong, nullptr) << (wrong != nullptr ? wrong : "");
  }
  void expect_gpa(u64 linear, u32 bits, u64 gpa) {
    const auto r = m.access(0, linear, bits);
    EXPECT_TRUE(r.ok) << std::hex << linear;
    EXPECT_EQ(r.gpa, gpa);
  }
  void expect_fault(u64 linear, u32 bits, u32 error) {
    const auto r = m.access(0, linear, bits);
    EXPECT_FALSE(r.ok) << std::hex << linear;
    EXPECT_EQ(r.error, error);
  }
  LinearPager::Walk shadow(u64 linear) { return m.pager->lookup(*m.cpus[0].root, linear); }
};

TEST_F(LinearPagerTest, TranslatesEverySize) {
  expect_gpa(0x3123, kRead, kData + 0x3123);
  expect_gpa(2 * kMiB + 0x12345, kRead, 4 * kMiB + 0x12345);
  EXPECT_EQ(shadow(2 * kMiB).level, 2);
  expect_gpa(kGiB + 0x1234567, kRead, kGiB + 0x1234567);
  EXPECT_EQ(shadow(kGiB).level, 3);
}

// A large page of which L0 keeps a part is mapped by small ones.
TEST_F(LinearPagerTest, LargePageIsBrokenWhereHostMapIs) {
  expect_gpa(4 * kMiB + 0x1000, kWrite, 8 * kMiB + 0x1000);
  EXPECT_EQ(shadow(4 * kMiB + 0x1000).level, 1);
  const auto r = m.access(0, 4 * kMiB + 8, kRead);
  EXPECT_TRUE(r.emulated);
  EXPECT_EQ(r.gpa, 8 * kMiB + 8);
  // Its entry goes with one INVLPG for any address in it.
  m.arena.word(pd, 2) = 0;
  m.invlpg(0, 4 * kMiB + 0x5000);
  expect_fault(4 * kMiB + 0x1000, kRead, 0);
}

// SDM vol. 3, 4.8.
TEST_F(LinearPagerTest, AccessedAndDirtyAreSetWhenTheyMust) {
  expect_gpa(0x1000, kRead, kData + 0x1000);
  EXPECT_EQ(m.arena.word(pt, 1) & (kA | kD), kA);
  EXPECT_NE(m.arena.word(pml4, 0) & kA, 0u);
  expect_gpa(0x1000, kWrite, kData + 0x1000);
  EXPECT_EQ(m.arena.word(pt, 1) & (kA | kD), kA | kD);
  // Cleared and invalidated: set again by the next access.
  m.arena.word(pt, 1) &= ~(kA | kD);
  m.invlpg(0, 0x1000);
  expect_gpa(0x1000, kWrite, kData + 0x1000);
  EXPECT_EQ(m.arena.word(pt, 1) & (kA | kD), kA | kD);
  EXPECT_EQ(m.arena.word(pt, 2) & kA, 0u) << "nothing has touched the neighbour";
}

TEST_F(LinearPagerTest, FaultsSayWhatTheManualSays) {
  m.arena.word(pt, 5) = 0;
  expect_fault(0x5000, kWrite | kUser, cpu::pfec::write | cpu::pfec::user);
  m.arena.word(pt, 6) = (kData + 0x6000) | kP | kU;
  expect_fault(0x6000, kWrite | kUser, cpu::pfec::present | cpu::pfec::write | cpu::pfec::user);
  m.arena.word(pt, 7) |= kNx;
  expect_fault(0x7000, kFetch, cpu::pfec::present | cpu::pfec::fetch);
  m.arena.word(pt, 8) |= bit(45);  // beyond MAXPHYADDR
  expect_fault(0x8000, kRead, cpu::pfec::present | cpu::pfec::reserved);
  // More permissive without an invalidation: the fault that comes of it is not the guest's.
  m.arena.word(pt, 6) |= kW;
  expect_gpa(0x6000, kWrite | kUser, kData + 0x6000);
}

TEST_F(LinearPagerTest, StaleUntilInvalidated) {
  expect_gpa(0x1000, kRead, kData + 0x1000);
  m.arena.word(pt, 1) = (kData + 0x9000) | kP | kW | kU | kA | kD;
  expect_gpa(0x1000, kRead, kData + 0x1000);
  m.invlpg(0, 0x2000);
  expect_gpa(0x1000, kRead, kData + 0x1000);
  m.invlpg(0, 0x1000);
  expect_gpa(0x1000, kRead, kData + 0x9000);
  m.arena.word(pt, 1) = 0;
  m.mov_cr3(0, pml4);
  expect_fault(0x1000, kRead, 0);
}

// SDM vol. 3, 4.10.4.1: MOV CR3 with bit 63 keeps, and costs no look at any table.
TEST_F(LinearPagerTest, NoFlushSwitchComparesNothing) {
  m.cpus[0].cr4 |= cr4::pcide;
  m.mode_changed(0);
  const u64 other = m.arena.page();
  m.arena.word(other, 0) = pdpt | kP | kW | kU;
  m.mov_cr3(0, pml4 | 1);
  expect_gpa(0x1000, kRead, kData + 0x1000);
  m.mov_cr3(0, other | 2);
  expect_gpa(0x1000, kRead, kData + 0x1000);
  const u64 compared = m.pager->stats().compared, syncs = m.pager->stats().tree_syncs;
  for (unsigned i = 0; i < 10; ++i) {
    m.mov_cr3(0, pml4 | 1 | bit(63));
    expect_gpa(0x1000, kRead, kData + 0x1000);
    m.mov_cr3(0, other | 2 | bit(63));
    expect_gpa(0x1000, kRead, kData + 0x1000);
  }
  EXPECT_EQ(m.pager->stats().compared, compared);
  EXPECT_EQ(m.pager->stats().tree_syncs, syncs);
  // An INVPCID of the other context comes due when that is entered.
  m.arena.word(pt, 1) = 0;
  m.invpcid(0, 1, 1, 0);
  m.mov_cr3(0, pml4 | 1 | bit(63));
  expect_fault(0x1000, kRead, 0);
}

TEST_F(LinearPagerTest, InvlpgReachesGlobalPagesOfOtherContexts) {
  m.cpus[0].cr4 |= cr4::pcide;
  m.mode_changed(0);
  // Another context with tables of its own.
  const u64 pml4b = m.arena.page(), pdptb = m.arena.page(), pdb = m.arena.page(),
            ptb = m.arena.page();
  m.arena.word(pml4b, 0) = pdptb | kP | kW;
  m.arena.word(pdptb, 0) = pdb | kP | kW;
  m.arena.word(pdb, 0) = ptb | kP | kW;
  m.arena.word(ptb, 1) = (kData + 0x1000) | kP | kW | kG;
  m.mov_cr3(0, pml4b | 2);
  expect_gpa(0x1000, kRead, kData + 0x1000);
  m.arena.word(ptb, 1) = 0;
  m.mov_cr3(0, pml4 | 1);
  m.invlpg(0, 0x1000);
  m.mov_cr3(0, pml4b | 2 | bit(63));
  expect_fault(0x1000, kRead, 0);
}

// A table taken out of one place and put in another, with an invalidation of neither's pages but
// one that drops all paging-structure caches (SDM vol. 3, 4.10.4.1).
TEST_F(LinearPagerTest, TableThatMovesIsForgottenWhereItWas) {
  expect_gpa(0x1000, kRead, kData + 0x1000);
  m.arena.word(pd, 0) = 0;
  m.invlpg(0, 0x7f'0000'0000);
  m.arena.word(pt, 3) = 20 * kMiB | kP | kW | kU;
  m.arena.word(pd, 9) = pt | kP | kW | kU;
  expect_gpa(9 * 2 * kMiB + 0x3000, kRead, 20 * kMiB);
  expect_fault(0x3000, kRead, 0);
}

// CR0.WP = 0: SDM vol. 3, 4.6.1.
TEST_F(LinearPagerTest, SupervisorWritesReadOnlyPagesWithoutWp) {
  m.cpus[0].cr0 &= ~cr0::wp;
  m.mode_changed(0);
  m.arena.word(pt, 1) = (kData + 0x1000) | kP | kU;
  m.arena.word(pt, 2) = (kData + 0x2000) | kP;
  expect_gpa(0x1000, kRead | kUser, kData + 0x1000);
  expect_gpa(0x1000, kWrite, kData + 0x1000);
  EXPECT_NE(m.arena.word(pt, 1) & kD, 0u);
  expect_fault(0x1000, kWrite | kUser, cpu::pfec::present | cpu::pfec::write | cpu::pfec::user);
  expect_gpa(0x1000, kRead | kUser, kData + 0x1000);
  expect_gpa(0x2000, kWrite, kData + 0x2000);
  EXPECT_NE(m.arena.word(pt, 2) & kD, 0u);
  expect_fault(0x2000, kRead | kUser, cpu::pfec::present | cpu::pfec::user);
  // A table above that is read-only says no more than the leaf would.
  m.arena.word(pd, 0) = pt | kP | kU;
  m.flush_all(0);
  expect_fault(0x3000, kWrite | kUser, cpu::pfec::present | cpu::pfec::write | cpu::pfec::user);
  expect_gpa(0x3000, kWrite, kData + 0x3000);
  m.cpus[0].cr0 |= cr0::wp;
  m.mode_changed(0);
  expect_fault(0x3000, kWrite, cpu::pfec::present | cpu::pfec::write);
}

// SMEP and SMAP see the user page for what it is, also after the supervisor has written it.
TEST_F(LinearPagerTest, SmapAndSmepWithoutWp) {
  m.cpus[0].cr0 &= ~cr0::wp;
  m.cpus[0].cr4 |= cr4::smep;
  m.mode_changed(0);
  m.arena.word(pt, 1) = (kData + 0x1000) | kP | kU;
  expect_gpa(0x1000, kWrite, kData + 0x1000);
  expect_fault(0x1000, kFetch, cpu::pfec::present | cpu::pfec::fetch);
  m.cpus[0].cr4 |= cr4::smap;
  m.mode_changed(0);
  EXPECT_TRUE(m.access(0, 0x1000, kWrite | access::smap_exempt).emulated);
  expect_fault(0x1000, kRead, cpu::pfec::present);
}

TEST_F(LinearPagerTest, ProtectionKeys) {
  m.cpus[0].cr4 |= cr4::pke;
  m.mode_changed(0);
  m.arena.word(pt, 1) |= u64{3} << 59;
  expect_gpa(0x1000, kWrite | kUser, kData + 0x1000);
  m.cpus[0].pkru = 2u << 6;  // WD
  expect_gpa(0x1000, kRead | kUser, kData + 0x1000);
  expect_fault(0x1000, kWrite | kUser, 0x27);
  m.cpus[0].pkru = 1u << 6;  // AD
  expect_fault(0x1000, kRead | kUser, 0x25);
  expect_gpa(0x1000, kFetch | kUser, kData + 0x1000);
}

// SDM vol. 3, 4.3: 4 MiB pages, PSE-36, and pages of 1024 entries in shadow tables of 512.
TEST_F(LinearPagerTest, ThirtyTwoBitPaging) {
  auto& c = m.cpus[0];
  c.efer = 0;
  c.cr4 = cr4::pse;
  const u64 dir = m.arena.page(), table = m.arena.page();
  c.cr3 = dir;
  m.mode_changed(0);
  m.arena.half(dir, 0) = static_cast<u32>(table | kP | kW | kU);
  m.arena.half(dir, 0x301) = 0x0040'0000 | kP | kW | kPs;  // 3 GiB + 4 MiB
  m.arena.half(dir, 2) = 0x0000'2000 | kP | kW | kPs;      // bits 39:32 are 1: 4 GiB
  m.arena.half(table, 1) = static_cast<u32>(kData | kP | kW | kU);
  m.arena.half(table, 1023) = static_cast<u32>((kData + 0x5000) | kP | kU);
  expect_gpa(0x1008, kRead | kUser, kData + 8);
  expect_gpa(0x3ff010, kRead | kUser, kData + 0x5010);
  expect_gpa(0xc040'0010, kWrite, 0x40'0010);
  expect_gpa(0xc060'0010, kWrite, 0x60'0010);
  expect_gpa(0x0080'0010, kRead, 4 * kGiB + 0x10);
  // INVLPG anywhere in a 4 MiB page drops all of it.
  m.arena.half(dir, 0x301) = 0;
  m.invlpg(0, 0xc040'0000);
  expect_fault(0xc060'0010, kRead, 0);
}

// SDM vol. 3, 4.4.1: the four PDPTEs are the processor's until CR3 is loaded again.
TEST_F(LinearPagerTest, PaePdptesAreRegisters) {
  auto& c = m.cpus[0];
  c.efer = 0;
  c.cr4 = cr4::pae;
  const u64 top = m.arena.page();
  m.arena.word(top, 4) = pd | kP;
  m.arena.word(top, 7) = pd | kP;
  c.cr3 = top + 0x20;
  m.mode_changed(0);
  expect_gpa(0x1008, kRead | kUser, kData + 0x1008);
  expect_gpa(0xc000'1008, kRead | kUser, kData + 0x1008);
  m.arena.word(top, 7) = 0;
  m.flush_all(0);
  expect_gpa(0xc000'1008, kRead | kUser, kData + 0x1008);
  m.mov_cr3(0, c.cr3);
  expect_fault(0xc000'1008, kRead | kUser, cpu::pfec::user);
  expect_gpa(0x1008, kRead | kUser, kData + 0x1008);
}

TEST_F(LinearPagerTest, NoPaging) {
  auto& c = m.cpus[0];
  c.cr0 = cr0::pe;
  c.efer = 0;
  c.cr4 = cr4::smep | cr4::smap;
  m.mode_changed(0);
  expect_gpa(0x12345, kWrite | kUser, 0x12345);
  expect_gpa(0x12345, kFetch, 0x12345);
  EXPECT_TRUE(m.access(0, 8 * kMiB, kRead).emulated);
}

// Pages run out and come back; nothing is ever wrong.
TEST(LinearPagerReclaim, ManyAddressSpaces) {
  LinearMachine m{{.pages = 64, .tags = 5}};
  for (unsigned round = 0; round < 200; ++round) {
    const u64 root = kMiB + (round % 16) * 4 * kPageSize;
    for (unsigned level = 0; level < 3; ++level) {
      m.arena.word(root + level * kPageSize, round % 8) = (root + (level + 1) * kPageSize) | 7;
    }
    m.arena.word(root + 3 * kPageSize, round % 8) = (16 * kMiB + round * kPageSize) | 7;
    const u64 i = round % 8, linear = i << 39 | i << 30 | i << 21 | i << 12;
    m.mov_cr3(round % 2, root);
    EXPECT_EQ(m.access(round % 2, linear, access::read).gpa, 16 * kMiB + round * kPageSize);
    const char* wrong = m.pager->check_invariants();
    ASSERT_EQ(wrong, nullptr) << wrong;
  }
  EXPECT_GT(m.pager->stats().reclaimed, 0u);
}

}  // namespace
}  // namespace aerie::mmu
