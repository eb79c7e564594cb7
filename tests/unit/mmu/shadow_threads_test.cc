// Several processors in the pager at once: faults, root switches, INVEPTs, reclaim, L1's writes.
// What is checked is that nothing breaks and that the tables are right when it is quiet again.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "arena.h"
#include "cpu/exit.h"
#include "mmu/shadow_pager.h"

namespace aerie::mmu {
namespace {

using test::Arena;

TEST(ShadowThreads, ProcessorsDoNotDisturbEachOther) {
  Arena arena;
  HostMap host;
  const HostMap::Range excluded[] = {{Gpa{Arena::kL1Size}, Gpa{Arena::kL1Size + Arena::kL0Size}}};
  ASSERT_TRUE(host.build(arena.allocator, 36, excluded));
  const auto pager = std::make_unique<ShadowPager>();
  ASSERT_TRUE(pager->init(arena.allocator, arena.memory, host, {}, {.pages = 160}));
  // Six roots over shared PDPTs, 256 page tables in all: more than the budget.
  std::vector<u64> roots, pds, pts;
  const u64 pdpt = arena.page();
  for (u64 i = 0; i < 2; ++i) {
    pds.push_back(arena.page());
    arena.word(pdpt, i) = pds[i] | 7;
    for (u64 j = 0; j < 128; ++j) {
      pts.push_back(arena.page());
      arena.word(pds[i], j) = pts.back() | 7;
      for (u64 k = 0; k < 512; k += 64) {
        arena.word(pts.back(), k) = ((i * 128 + j) * kPageSize) | 0x37;
      }
    }
  }
  for (int i = 0; i < 6; ++i) {
    roots.push_back(arena.page());
    arena.word(roots.back(), 0) = pdpt | 7;
  }
  const auto run = [&](unsigned cpu) {
    std::mt19937_64 random{cpu};
    for (int step = 0; step < 4000; ++step) {
      pager->enter_guest(cpu);
      const u64 root = roots[random() % roots.size()];
      const Eptp eptp{root | 0x1e};
      u32 kick = 0;
      Root* r = pager->switch_root(cpu, eptp, kick);
      if (r == nullptr) {
        continue;
      }
      const u64 i = random() % 2, j = random() % 128;
      const Ngpa ngpa{i * kGiB + j * 2 * kMiB + (random() % 8) * 64 * kPageSize};
      const auto f = pager->handle_fault(cpu, *r, ngpa, 7 | cpu::tdp_fault::final_access);
      if (f.kind == FaultResult::Kind::mapped) {
        EXPECT_EQ(f.gpa.value(), (i * 128 + j) * kPageSize);
      }
      switch (random() % 64) {
        case 0:
          pager->invept_all(cpu);
          break;
        case 1:
          pager->trim(cpu, 3);
          break;
        case 2:
        case 3:
        case 4:
          pager->invept_single(cpu, eptp);
          break;
        case 5:
          pager->l1_write_fault(Gpa{pts[random() % pts.size()]});
          break;
        default:
          break;
      }
    }
    pager->leave_guest(cpu);
  };
  std::vector<std::thread> threads;
  for (unsigned cpu = 0; cpu < 4; ++cpu) {
    threads.emplace_back(run, cpu);
  }
  for (std::thread& t : threads) {
    t.join();
  }
  const char* wrong = pager->check_invariants();
  EXPECT_EQ(wrong, nullptr) << (wrong != nullptr ? wrong : "");
  EXPECT_GT(pager->stats().mapped, 1000u);
}

}  // namespace
}  // namespace aerie::mmu
