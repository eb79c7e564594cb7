#include "mmu/walker.h"

#include <gtest/gtest.h>

#include "arena.h"

namespace aerie::mmu {
namespace {

using test::Arena;
namespace pfec = cpu::pfec;

constexpr u64 kCr0 = cpu::cr0::pg | cpu::cr0::pe | cpu::cr0::wp;

struct WalkerTest : ::testing::Test {
  Arena arena;
  u64 cr3 = arena.page(), pdpt = arena.page(), pd = arena.page(), pt = arena.page(),
      data = arena.page();
  static constexpr u64 kLinear = 0x0000'0080'0040'3123;  // entries 1, 0, 2, 3
  PagingFeatures features{};

  void map4(u64 flags = 7) {
    arena.word(cr3, 1) = pdpt | 7;
    arena.word(pdpt, 0) = pd | 7;
    arena.word(pd, 2) = pt | 7;
    arena.word(pt, 3) = data | flags;
  }
  GuestPaging long_mode(u64 cr4 = 0, u64 efer = cpu::efer::nxe, u64 cr0 = kCr0) {
    return GuestPaging::make(cr0, cr3, cr4 | cpu::cr4::pae, efer | cpu::efer::lma, features);
  }
  GuestWalk walk(const GuestPaging& p, u32 a, u64 linear = kLinear, WalkOptions o = {}) {
    return walk_l1(arena.memory, p, linear, a, o);
  }
  void expect_fault(const GuestWalk& w, u32 code) {
    EXPECT_EQ(w.status, GuestWalk::Status::page_fault);
    EXPECT_EQ(w.pfec, code);
  }
};

TEST_F(WalkerTest, TranslatesAndSetsAccessedAndDirty) {
  map4();
  const GuestWalk r = walk(long_mode(), access::read);
  ASSERT_EQ(r.status, GuestWalk::Status::ok);
  EXPECT_EQ(r.gpa.value(), data + 0x123);
  EXPECT_EQ(r.level, 1);
  EXPECT_EQ(arena.word(pt, 3), data | 7 | 0x20);
  EXPECT_EQ(arena.word(cr3, 1), pdpt | 7 | 0x20);
  walk(long_mode(), access::write);
  EXPECT_EQ(arena.word(pt, 3), data | 7 | 0x60);
  EXPECT_EQ(arena.word(pd, 2), pt | 7 | 0x20);
}

TEST_F(WalkerTest, AFaultSetsNothing) {
  map4(5);
  expect_fault(walk(long_mode(), access::write), pfec::present | pfec::write);
  EXPECT_EQ(arena.word(cr3, 1), pdpt | 7);
}

TEST_F(WalkerTest, ErrorCodes) {
  map4(0);
  expect_fault(walk(long_mode(), access::write | access::user), pfec::write | pfec::user);
  expect_fault(walk(long_mode(), access::fetch), pfec::fetch);
  // I/D is reported only with NXE or SMEP (SDM vol. 3, 4.7).
  expect_fault(walk(long_mode(0, 0), access::fetch), 0);
  expect_fault(walk(long_mode(cpu::cr4::smep, 0), access::fetch), pfec::fetch);
  map4(7);
  arena.word(pd, 2) |= bit(51);
  expect_fault(walk(long_mode(), access::read), pfec::present | pfec::reserved);
  map4(3);
  expect_fault(walk(long_mode(), access::user), pfec::present | pfec::user);
  map4(7);
  expect_fault(walk(long_mode(cpu::cr4::smap), access::write), pfec::present | pfec::write);
  EXPECT_EQ(walk(long_mode(cpu::cr4::smap), access::write | access::smap_exempt).status,
            GuestWalk::Status::ok);
  expect_fault(walk(long_mode(cpu::cr4::smep), access::fetch), pfec::present | pfec::fetch);
}

TEST_F(WalkerTest, ReservedBits) {
  const auto reserved = [&](u64 table, u64 index, u64 bits, u64 efer = cpu::efer::nxe) {
    map4();
    arena.word(table, index) |= bits;
    const GuestWalk w = walk(long_mode(0, efer), access::read);
    return w.status == GuestWalk::Status::page_fault && w.pfec == (pfec::present | pfec::reserved);
  };
  EXPECT_TRUE(reserved(cr3, 1, bit(7)));
  EXPECT_TRUE(reserved(cr3, 1, bit(40)));
  EXPECT_TRUE(reserved(pd, 2, bit(7)));   // 2 MiB page not aligned
  EXPECT_FALSE(reserved(pt, 3, bit(7)));  // PAT
  EXPECT_FALSE(reserved(pt, 3, bit(63)));
  EXPECT_TRUE(reserved(pt, 3, bit(63), 0));
  EXPECT_FALSE(reserved(pt, 3, bit(52) | bit(62) | bit(11)));
  map4();
  arena.word(pdpt, 0) = 0x83;
  EXPECT_EQ(walk(long_mode(), access::read).gpa.value(), kLinear & (kGiB - 1));
  features.gib_pages = false;
  expect_fault(walk(long_mode(), access::read), pfec::present | pfec::reserved);
}

TEST_F(WalkerTest, TheRightsAreThoseOfTheWholePath) {
  map4(7);
  arena.word(pdpt, 0) = pd | 5;
  expect_fault(walk(long_mode(), access::write), pfec::present | pfec::write);
  arena.word(pdpt, 0) = pd | 3;
  expect_fault(walk(long_mode(), access::user), pfec::present | pfec::user);
  arena.word(pdpt, 0) = pd | 7 | bit(63);
  expect_fault(walk(long_mode(), access::fetch), pfec::present | pfec::fetch);
  // Without CR0.WP a supervisor writes where it likes.
  arena.word(pdpt, 0) = pd | 5;
  EXPECT_EQ(walk(long_mode(0, cpu::efer::nxe, cpu::cr0::pg), access::write).status,
            GuestWalk::Status::ok);
}

TEST_F(WalkerTest, ProtectionKeys) {
  map4(7 | (u64{3} << 59));
  GuestPaging p = long_mode(cpu::cr4::pke);
  p.pkru = 2u << 6;
  EXPECT_EQ(walk(p, access::user).status, GuestWalk::Status::ok);
  expect_fault(walk(p, access::user | access::write),
               pfec::present | pfec::user | pfec::write | pfec::protection_key);
  p.pkru = 1u << 6;
  EXPECT_EQ(walk(p, access::user | access::fetch).status, GuestWalk::Status::ok);
  map4(3 | (u64{3} << 59));
  p = long_mode(cpu::cr4::pks);
  p.pkrs = 1u << 6;
  expect_fault(walk(p, access::read), pfec::present | pfec::protection_key);
}

TEST_F(WalkerTest, TablesOutsideMemoryReadAsOnes) {
  map4();
  arena.word(pd, 2) = 0xfee00000 | 7;
  expect_fault(walk(long_mode(), access::read), pfec::present | pfec::reserved);
}

TEST_F(WalkerTest, TablesInRomKeepTheirBits) {
  map4();
  const L1Memory::Range ranges[] = {
      {Gpa{0}, Gpa{pt}}, {Gpa{pt}, Gpa{pt + kPageSize}, false}, {Gpa{data}, Gpa{Arena::kL1Size}}};
  arena.memory.set_ranges(ranges);
  EXPECT_EQ(walk(long_mode(), access::write).status, GuestWalk::Status::ok);
  EXPECT_EQ(arena.word(pt, 3), data | 7);
  EXPECT_EQ(arena.word(pd, 2), pt | 7 | 0x20);
}

TEST_F(WalkerTest, Pae) {
  const u64 linear = 0x4020'3123;  // entries 1, 1, 3
  const auto p = [&](u64 efer = cpu::efer::nxe) {
    return GuestPaging::make(kCr0, cr3 | 0x20, cpu::cr4::pae, efer, features);
  };
  arena.word(cr3, 5) = pd | 1;
  arena.word(pd, 1) = pt | 7;
  arena.word(pt, 3) = data | 7;
  EXPECT_EQ(walk(p(), access::write | access::user, linear).gpa.value(), data + 0x123);
  EXPECT_EQ(arena.word(cr3, 5), pd | 1);  // a PDPTE has no accessed bit
  EXPECT_EQ(arena.word(pd, 1), pt | 0x27);
  arena.word(cr3, 5) = pd | 1 | bit(63);
  expect_fault(walk(p(), access::read, linear), pfec::present | pfec::reserved);
  arena.word(cr3, 5) = pd | 1 | bit(5);  // set by TCG
  EXPECT_EQ(walk(p(), access::read, linear).status, GuestWalk::Status::ok);
  arena.word(pt, 3) = data | 7 | bit(52);
  expect_fault(walk(p(), access::read, linear), pfec::present | pfec::reserved);
  // Held in registers, the PDPTEs in memory do not count.
  arena.word(pt, 3) = data | 7;
  arena.word(cr3, 5) = 0;
  const u64 pdptes[4] = {0, pd | 1, 0, 0};
  GuestPaging registers = p();
  registers.pdptes = pdptes;
  EXPECT_EQ(walk(registers, access::read, linear).status, GuestWalk::Status::ok);
  expect_fault(walk(p(), access::read, linear), 0);
}

TEST_F(WalkerTest, LegacyWithPse36) {
  const u64 linear = 0x00c0'3123;  // entries 3, 3
  const auto p = [&](u64 cr4) { return GuestPaging::make(kCr0, cr3, cr4, 0, features); };
  arena.half(cr3, 3) = static_cast<u32>(pt | 7);
  arena.half(pt, 3) = static_cast<u32>(data | 7);
  EXPECT_EQ(walk(p(0), access::write, linear).gpa.value(), data + 0x123);
  EXPECT_EQ(arena.half(pt, 3), static_cast<u32>(data | 0x67));
  arena.half(cr3, 3) = 0x00800087 | (0x12 << 13);
  features.maxphyaddr = 40;
  EXPECT_EQ(walk(p(cpu::cr4::pse), access::read, linear).address, 0x12'0080'3123u);
  features.maxphyaddr = 36;
  expect_fault(walk(p(cpu::cr4::pse), access::read, linear), pfec::present | pfec::reserved);
  features.maxphyaddr = 40;
  arena.half(cr3, 3) = 0x00800087 | (1 << 21);
  expect_fault(walk(p(cpu::cr4::pse), access::read, linear), pfec::present | pfec::reserved);
  features.pse36 = false;
  arena.half(cr3, 3) = 0x00800087 | (1 << 13);
  expect_fault(walk(p(cpu::cr4::pse), access::read, linear), pfec::present | pfec::reserved);
}

// EPT
struct EptWalkerTest : WalkerTest {
  u64 root = arena.page(), e3 = arena.page(), e2 = arena.page(), e1 = arena.page();
  EptFormat::Context context{};
  Eptp eptp(bool ad = false) { return Eptp{root | 0x1e | (ad ? 0x40 : 0)}; }

  void map_ept(u64 flags = 7) {
    arena.word(root, 0) = e3 | 7;
    arena.word(e3, 0) = e2 | 7;
    arena.word(e2, 1) = e1 | 7;
    for (u64 i = 0; i < 512; ++i) {
      arena.word(e1, i) = i * kPageSize | 0x30 | flags;
    }
    arena.word(e2, 0) = 0xb7;
  }
  EptWalk ept(u64 address, u8 a, bool ad = false) {
    return walk_ept(arena.memory, eptp(ad), context, Ngpa{address}, a);
  }
};

TEST_F(EptWalkerTest, TranslatesEverySize) {
  map_ept();
  EXPECT_EQ(ept(0x203123, ept_access::write).gpa.value(), 0x3123u);
  EXPECT_EQ(ept(0x203123, ept_access::write).level, 1);
  EXPECT_EQ(ept(0x103123, ept_access::write).gpa.value(), 0x103123u);
  EXPECT_EQ(ept(0x103123, ept_access::write).level, 2);
  arena.word(e3, 2) = kGiB | 0xb7;
  EXPECT_EQ(ept(2 * kGiB + 5, ept_access::fetch).gpa.value(), kGiB + 5);
  EXPECT_EQ(arena.word(e1, 3), 0x3037u);
}

TEST_F(EptWalkerTest, ViolationsCarryTheRightsOfThePath) {
  map_ept(7);
  arena.word(e2, 1) = e1 | 5;
  EptWalk w = ept(0x203000, ept_access::write);
  EXPECT_EQ(w.status, EptWalk::Status::violation);
  EXPECT_EQ(w.rights & 7, 5);
  arena.word(e1, 3) = 0;
  w = ept(0x203000, ept_access::write);
  EXPECT_EQ(w.status, EptWalk::Status::violation);
  EXPECT_EQ(w.rights, 0);
  EXPECT_EQ(ept(u64{1} << 39, ept_access::read).rights, 0);
}

TEST_F(EptWalkerTest, Misconfigurations) {
  const auto bad = [&](u64 leaf) {
    map_ept();
    arena.word(e1, 3) = leaf;
    return ept(0x203000, ept_access::read).status == EptWalk::Status::misconfiguration;
  };
  EXPECT_TRUE(bad(0x3032));           // write-only
  EXPECT_TRUE(bad(0x3036));           // write and execute
  EXPECT_TRUE(bad(0x3034));           // execute-only, not offered
  EXPECT_TRUE(bad(0x3007 | 2 << 3));  // memory types 2, 3, 7
  EXPECT_TRUE(bad(0x3007 | 3 << 3));
  EXPECT_TRUE(bad(0x3007 | 7 << 3));
  EXPECT_TRUE(bad(0x3037 | bit(45)));
  EXPECT_FALSE(bad(0x3007));  // uncacheable
  EXPECT_FALSE(bad(0x3037 | bit(63) | bit(11) | bit(55)));
  EXPECT_FALSE(bad(bit(45)));  // not present: nothing else matters
  map_ept();
  arena.word(e2, 1) |= bit(3);
  EXPECT_EQ(ept(0x203000, 1).status, EptWalk::Status::misconfiguration);
  map_ept();
  arena.word(root, 0) |= bit(7);
  EXPECT_EQ(ept(0x203000, 1).status, EptWalk::Status::misconfiguration);
  map_ept();
  arena.word(e2, 0) |= bit(12);
  EXPECT_EQ(ept(0x3000, 1).status, EptWalk::Status::misconfiguration);
  context.execute_only = true;
  EXPECT_FALSE(bad(0x3034));
}

TEST_F(EptWalkerTest, AccessedAndDirtyFlagsAreWrittenOnlyWhenEnabled) {
  map_ept();
  ept(0x203000, ept_access::read, true);
  EXPECT_EQ(arena.word(e1, 3), 0x3037u | bit(8));
  EXPECT_EQ(arena.word(e2, 1), e1 | 7 | bit(8));
  ept(0x203000, ept_access::write, true);
  EXPECT_EQ(arena.word(e1, 3), 0x3037u | bit(8) | bit(9));
  EXPECT_EQ(arena.word(e2, 1), e1 | 7 | bit(8));
}

TEST_F(EptWalkerTest, TwoDimensions) {
  // ngpa [2 MiB, 4 MiB) is gpa [0, 2 MiB); the guest's tables hold ngpas.
  map_ept();
  map4();
  for (u64* e :
       {&arena.word(cr3, 1), &arena.word(pdpt, 0), &arena.word(pd, 2), &arena.word(pt, 3)}) {
    *e += 2 * kMiB;
  }
  GuestPaging p =
      GuestPaging::make(kCr0, cr3 + 2 * kMiB, cpu::cr4::pae, cpu::efer::lma, features, true);
  const auto run = [&](u32 a, bool ad = false) {
    return walk_guest(arena.memory, p, EptDimension{arena.memory, eptp(ad), context}, kLinear, a);
  };
  GuestWalk w = run(access::write);
  ASSERT_EQ(w.status, GuestWalk::Status::ok);
  EXPECT_EQ(w.address, data + 0x123 + 2 * kMiB);
  EXPECT_EQ(w.gpa.value(), data + 0x123);
  EXPECT_EQ(arena.word(pt, 3), (data + 2 * kMiB) | 0x67);

  // A table page that EPT does not map.
  arena.word(e1, pd >> 12) = 0;
  w = run(access::write);
  ASSERT_EQ(w.status, GuestWalk::Status::nested_fault);
  EXPECT_EQ(w.nested.address.value(), pd + 2 * kMiB + 2 * 8);
  EXPECT_EQ(w.nested.qualification(), 0x81u);
  w = run(access::write, true);
  EXPECT_EQ(w.nested.qualification(), 0x83u);
  // Read-only, flags off: enough while no bit of the guest's entry must be set.
  arena.word(e1, pd >> 12) = pd | 0x35;
  EXPECT_EQ(run(access::write).status, GuestWalk::Status::ok);
  arena.word(pd, 2) &= ~u64{0x20};
  w = run(access::write);
  ASSERT_EQ(w.status, GuestWalk::Status::nested_fault);
  EXPECT_EQ(w.nested.qualification(), 0x83u | 5 << 3);
  arena.word(pd, 2) |= 0x20;
  EXPECT_EQ(run(access::write, true).nested.qualification(), 0x83u | 5 << 3);
  // The page itself.
  map_ept();
  arena.word(e1, data >> 12) = data | 0x31;
  w = run(access::fetch);
  ASSERT_EQ(w.status, GuestWalk::Status::nested_fault);
  EXPECT_EQ(w.nested.address.value(), data + 0x123 + 2 * kMiB);
  EXPECT_EQ(w.nested.qualification(), 0x184u | 1 << 3);
  arena.word(e1, data >> 12) = data | 0x32;
  EXPECT_EQ(run(access::read).nested.kind, NestedFault::Kind::misconfiguration);
}

TEST_F(EptWalkerTest, NptCountsTheGuestsWalkAsUserWrites) {
  // L1's NPT: 4-level tables with the same layout as map_ept's.
  arena.word(root, 0) = e3 | 7;
  arena.word(e3, 0) = e2 | 7;
  arena.word(e2, 0) = 0x87;
  arena.word(e2, 1) = e1 | 7;
  for (u64 i = 0; i < 512; ++i) {
    arena.word(e1, i) = i * kPageSize | 7;
  }
  map4();
  const GuestPaging host =
      GuestPaging::make(kCr0, root, cpu::cr4::pae, cpu::efer::lma | cpu::efer::nxe, features);
  const auto run = [&](u32 a) {
    return walk_guest(arena.memory, long_mode(), NptDimension{arena.memory, host}, kLinear, a);
  };
  EXPECT_EQ(run(access::read).status, GuestWalk::Status::ok);
  arena.word(cr3, 1) = (pdpt + 2 * kMiB) | 7;
  arena.word(e1, pdpt >> 12) = pdpt | 5;
  const GuestWalk w = run(access::read);
  ASSERT_EQ(w.status, GuestWalk::Status::nested_fault);
  EXPECT_TRUE(w.nested.page_walk);
  EXPECT_EQ(w.nested.pfec, u32{pfec::present | pfec::write | pfec::user});
}

}  // namespace
}  // namespace aerie::mmu
