// Random EPT tables, L1's and L2's writes to them, INVEPTs on two processors, root switches,
// reclaim: after each access the same translation or the same fault as a plain reading of the
// tables allows, and after each step no shadow entry that allows more.
//
// What the manual allows: a processor may use, for each entry, any value the entry had since its
// first entry on the root after its last INVEPT that covers the root (SDM vol. 3, 29.4.3). A fault,
// though, is judged by the present tables.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

#include "arena.h"
#include "cpu/exit.h"
#include "mmu/shadow_pager.h"

namespace aerie::mmu {
namespace {

using test::Arena;
using Kind = FaultResult::Kind;

constexpr unsigned kTables = 9, kRoots = 4;
constexpr u64 kIndexes[] = {0, 1, 3};         // entries that are ever written
constexpr u64 kLastIndexes[] = {0, 1, 3, 7};  // 7: only large leaves map it
constexpr u64 kLargeOffsets[] = {0x0, 0x1000, 0x3000, 0x7000};

struct Plain {
  enum class Outcome { ok, violation, misconfiguration } outcome;
  u64 gpa = 0;
  unsigned rights = 0;  // RWX
};

struct Access {
  bool read, write, fetch, walk;
  unsigned needed(bool ad) const {
    if (walk) {
      return ad ? 3 : 1;
    }
    return fetch ? 4 : write ? 2 : 1;
  }
  u64 error() const {
    return cpu::pfec::user | (write || walk ? u64{cpu::pfec::write} : 0) |
           (fetch ? u64{cpu::pfec::fetch} : 0) |
           (walk ? cpu::tdp_fault::page_walk : cpu::tdp_fault::final_access);
  }
};

class Driver {
 public:
  explicit Driver(u64 seed) : random_{seed} {
    const HostMap::Range excluded[] = {{Gpa{Arena::kL1Size}, Gpa{Arena::kL1Size + Arena::kL0Size}},
                                       {Gpa{0xfee00000}, Gpa{0xfef00000}}};
    EXPECT_TRUE(host_.build(arena_.allocator, 36, excluded));
    EXPECT_TRUE(pager_->init(arena_.allocator, arena_.memory, host_, {},
                             {.pages = 128,
                              .track_writes = pick(4) != 0,
                              .eager_entries = one_of({0u, 2u, 6u, 1000u})}));
    for (u64& t : tables_) {
      t = arena_.page();
    }
    eptp_ = {Eptp{tables_[0] | 0x1e}, Eptp{tables_[1] | 0x1e}, Eptp{tables_[1] | 0x5e},
             Eptp{tables_[2] | 0x5e}};
    for (int i = 0; i < 40; ++i) {
      write_entry(pick(2));
    }
  }

  void step() {
    ++now_;
    const unsigned cpu = pick(2);
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
        write_entry(cpu);
        break;
      case 3:
        invept(cpu, pick(kRoots));
        break;
      case 4:
        if (pick(4) == 0) {
          pager_->invept_all(cpu);
          pending_[cpu].fill(true);
        }
        break;
      case 5:
        enter(cpu);
        break;
      case 6:
        if (pick(8) == 0) {
          pager_->trim(cpu, pick(8));
        }
        break;
      default:
        access(cpu);
    }
    if (now_ % 8 == 0) {
      const char* wrong = pager_->check_invariants();
      ASSERT_EQ(wrong, nullptr) << wrong;
      check_everything();
    }
  }
  const ShadowPager::Stats& stats() const { return pager_->stats(); }

 private:
  unsigned pick(unsigned n) { return static_cast<unsigned>(random_() % n); }
  template <class T, usize N>
  T one_of(const T (&list)[N]) {
    return list[pick(N)];
  }

  u64 random_entry() {
    const unsigned kind = pick(10);
    u64 entry = 0;
    if (kind < 5) {
      entry = tables_[pick(kTables)];  // a table, or (in a level-1 table) a page that is one
    } else if (kind < 8) {
      entry = one_of({u64{0}, 2 * kMiB, 4 * kMiB, 6 * kMiB + 0x3000, u64{0x5000}, 5 * kGiB,
                      6 * kGiB, 4 * kGiB + 2 * kMiB}) |
              0x30 | (pick(2) ? 0x80 : 0);
    } else if (kind == 8) {
      entry =
          one_of({Arena::kL1Size, u64{0xfee00000}, 3 * kGiB, u64{0}}) | 0x30 | (pick(2) ? 0x80 : 0);
    } else {
      return pick(2) ? 0 : random_() & 0xfff;
    }
    entry |= pick(3) ? 7 : pick(8);
    if (pick(12) == 0) {
      entry |= one_of({bit(45), bit(3), bit(4) | bit(3), bit(12), bit(63), bit(11)});
    }
    return entry | (pick(2) ? 0x100 : 0) | (pick(2) ? 0x200 : 0);
  }

  // L1 writes an entry on a processor, through its TLB or through its map.
  void write_entry(unsigned cpu) {
    const unsigned t = pick(kTables);
    const u64 index = one_of(kIndexes);
    u64 value = random_entry();
    if (pick(4) == 0) {
      value = arena_.word(tables_[t], index) ^
              one_of({u64{1}, u64{2}, u64{4}, u64{0x100}, u64{0x200}, u64{0x300}});
    }
    if (tlb_[cpu].count(t) == 0) {
      if (!host_.lookup(Gpa{tables_[t]}).writable) {
        ASSERT_TRUE(pager_->l1_write_fault(Gpa{tables_[t] + index * 8}));
        ASSERT_TRUE(host_.lookup(Gpa{tables_[t]}).writable);
      }
      tlb_[cpu].insert(t);
    }
    set(t, index, value);
  }
  void set(unsigned t, u64 index, u64 value) {
    u64& entry = arena_.word(tables_[t], index);
    past_[{tables_[t], index}].push_back({now_, entry});
    entry = value;
  }

  void enter(unsigned cpu) {
    if (pager_->enter_guest(cpu)) {
      tlb_[cpu].clear();
    }
  }
  void invept(unsigned cpu, unsigned r) {
    pager_->invept_single(cpu, eptp_[r]);
    for (unsigned i = 0; i < kRoots; ++i) {
      if (eptp_[i].root() == eptp_[r].root()) {
        pending_[cpu][i] = true;
      }
    }
  }

  // The manual, plainly.
  static bool misconfigured(u64 e, unsigned level, bool leaf) {
    if ((e & 7) == 2 || (e & 7) == 4 || (e & 7) == 6) return true;
    if ((e & 0x000f'ff00'0000'0000) != 0) return true;
    if (!leaf) return (e & 0xf8) != 0;
    const u64 type = (e >> 3) & 7;
    if (type == 2 || type == 3 || type == 7) return true;
    if (level == 2) return (e & 0x1ff000) != 0;
    if (level == 3) return (e & 0x3ffff000) != 0;
    return false;
  }
  static bool leaf(u64 e, unsigned level) {
    return level == 1 || ((level == 2 || level == 3) && (e & 0x80) != 0);
  }
  static u64 low(unsigned level) { return (u64{1} << (12 + 9 * (level - 1))) - 1; }

  Plain plain(unsigned r, u64 ngpa, unsigned needed) const {
    u64 table = eptp_[r].root();
    unsigned rights = 7;
    for (unsigned level = 4;; --level) {
      const u64 e = entry_at(table, (ngpa >> (12 + 9 * (level - 1))) & 511);
      if ((e & 7) == 0) return {Plain::Outcome::violation};
      if (misconfigured(e, level, leaf(e, level))) return {Plain::Outcome::misconfiguration};
      rights &= e & 7;
      if (leaf(e, level)) {
        const u64 gpa = (e & 0x000f'ffff'ffff'f000 & ~low(level)) | (ngpa & low(level));
        return {(needed & ~rights) != 0 ? Plain::Outcome::violation : Plain::Outcome::ok, gpa,
                rights};
      }
      table = e & 0x000f'ffff'ffff'f000;
    }
  }
  u64 entry_at(u64 table, u64 index) const {
    return table + kPageSize <= Arena::kL1Size ? arena_.word(table, index) : ~u64{0};
  }

  // Whether the values that entries had since the root's last INVEPT can translate ngpa to gpa with
  // these rights.
  bool possible(unsigned r, u64 table, unsigned level, u64 ngpa, unsigned needed, u64 gpa) const {
    const u64 index = (ngpa >> (12 + 9 * (level - 1))) & 511;
    const auto through = [&](u64 e) {
      if ((e & 7) == 0 || misconfigured(e, level, leaf(e, level)) || (needed & ~e) != 0)
        return false;
      // With flags, nothing may be cached that is not accessed, nor for writing that is not dirty.
      if (eptp_[r].accessed_dirty() && (e & 0x100) == 0) return false;
      if (leaf(e, level)) {
        if (eptp_[r].accessed_dirty() && (needed & 2) != 0 && (e & 0x200) == 0) return false;
        return ((e & 0x000f'ffff'ffff'f000 & ~low(level)) | (ngpa & low(level))) == gpa;
      }
      return possible(r, e & 0x000f'ffff'ffff'f000, level - 1, ngpa, needed, gpa);
    };
    if (through(entry_at(table, index))) return true;
    const auto old = past_.find({table, index});
    if (old != past_.end()) {
      for (auto i = old->second.rbegin(); i != old->second.rend() && i->until > collapsed_[r];
           ++i) {
        if (through(i->value)) return true;
      }
    }
    return false;
  }
  bool possible(unsigned r, u64 ngpa, unsigned needed, u64 gpa) const {
    return possible(r, eptp_[r].root(), 4, ngpa, needed, gpa);
  }

  u64 random_ngpa() {
    return one_of(kIndexes) << 39 | one_of(kIndexes) << 30 | one_of(kIndexes) << 21 |
           one_of(kLastIndexes) << 12 | (pick(512) * 8);
  }

  void access(unsigned cpu) {
    const unsigned r = pick(kRoots);
    const bool ad = eptp_[r].accessed_dirty();
    u32 kick = 0;
    Root* root = pager_->switch_root(cpu, eptp_[r], kick);
    if (root == nullptr) {
      ASSERT_NE(kick, 0u);
      enter(1 - cpu);
      return;
    }
    if (made_[r] != root) {
      made_[r] = root;  // a new root starts with what the tables say now
      collapsed_[r] = now_ - 1;
    }
    collapse(cpu, r, now_ - 1);  // before what L2 may write in this step
    const u64 ngpa = random_ngpa();
    const unsigned kind = pick(4);
    const Access a{kind == 0, kind == 1, kind == 2, kind == 3};
    const unsigned needed = a.needed(ad);
    for (int tries = 0;; ++tries) {
      ASSERT_LT(tries, 8) << "the access does not come to an end";
      const auto w = pager_->lookup(*root, Ngpa{ngpa});
      if (w.present && (!(a.write || a.walk) || w.write) && (!a.fetch || w.execute)) {
        ASSERT_TRUE(possible(r, ngpa, needed, w.hpa.value()))
            << std::hex << ngpa << " -> " << w.hpa.value();
        if (a.write) {
          l2_writes(w.hpa.value());
        }
        return;
      }
      const FaultResult f = pager_->handle_fault(cpu, *root, Ngpa{ngpa}, a.error());
      const Plain p = plain(r, ngpa, needed);
      switch (f.kind) {
        case Kind::mapped:
          ASSERT_EQ(p.outcome, Plain::Outcome::ok);
          if (ad) {
            check_flags(r, ngpa, needed);
          }
          continue;
        case Kind::violation:
          ASSERT_EQ(p.outcome, Plain::Outcome::violation);
          ASSERT_EQ(f.qualification, needed | p.rights << 3 | 0x80 | (a.walk ? 0 : 0x100));
          return;
        case Kind::misconfiguration:
          ASSERT_EQ(p.outcome, Plain::Outcome::misconfiguration);
          return;
        case Kind::l0_owned:
          ASSERT_EQ(p.outcome, Plain::Outcome::ok);
          ASSERT_EQ(f.gpa.value(), p.gpa);
          ASSERT_FALSE(host_.lookup(f.gpa).present);
          return;
        case Kind::walk_needs_write:
          ASSERT_EQ(p.outcome, Plain::Outcome::ok);
          ASSERT_TRUE(a.walk && !ad && (p.rights & 2) == 0);
          return;
        case Kind::busy:
          ASSERT_NE(f.kick, 0u);
          enter(1 - cpu);
          continue;
      }
    }
  }
  // After a walk: accessed on the whole path, dirty on the leaf of a write.
  void check_flags(unsigned r, u64 ngpa, unsigned needed) {
    u64 table = eptp_[r].root();
    for (unsigned level = 4;; --level) {
      const u64 e = entry_at(table, (ngpa >> (12 + 9 * (level - 1))) & 511);
      ASSERT_NE(e & 0x100, 0u);
      if (leaf(e, level)) {
        ASSERT_TRUE((needed & 2) == 0 || (e & 0x200) != 0);
        return;
      }
      table = e & 0x000f'ffff'ffff'f000;
    }
  }
  // L2 scribbles on one of the tables, if that is what it may write.
  void l2_writes(u64 hpa) {
    for (unsigned t = 0; t < kTables; ++t) {
      if ((hpa & ~kPageMask) == tables_[t] && pick(2) == 0) {
        ASSERT_TRUE(host_.lookup(Gpa{hpa}).writable);
        set(t, one_of(kIndexes), random_entry());
      }
    }
  }

  // No entry of any root allows more than the tables did since its last INVEPT.
  void check_everything() {
    for (unsigned r = 0; r < kRoots; ++r) {
      u32 kick = 0;
      if (made_[r] == nullptr || made_[r]->key.load() == 0) {
        continue;
      }
      Root* root = pager_->switch_root(0, eptp_[r], kick);
      if (root != made_[r]) {
        made_[r] = root;
        continue;
      }
      collapse(0, r, now_);
      for (const u64 a : kIndexes)
        for (const u64 b : kIndexes)
          for (const u64 c : kIndexes)
            for (const u64 d : kLastIndexes) {
              const u64 ngpa = a << 39 | b << 30 | c << 21 | d << 12;
              const auto w = pager_->lookup(*root, Ngpa{ngpa});
              if (!w.present) {
                continue;
              }
              ASSERT_TRUE(host_.lookup(Gpa{w.hpa.value()}).present);
              ASSERT_TRUE(possible(r, ngpa, 1, w.hpa.value()))
                  << std::hex << ngpa << " -> " << w.hpa.value() << " root " << r;
              ASSERT_TRUE(!w.write || possible(r, ngpa, 2, w.hpa.value()))
                  << std::hex << ngpa << " root " << r;
              ASSERT_TRUE(!w.execute || possible(r, ngpa, 4, w.hpa.value()))
                  << std::hex << ngpa << " root " << r;
            }
    }
  }

  // The processor entered: it uses nothing that was older when it last had to enter afresh.
  void collapse(unsigned cpu, unsigned r, u64 when) {
    if (pending_[cpu][r]) {
      pending_[cpu][r] = false;
      collapsed_[r] = when;
    }
  }

  struct Old {
    u64 until;
    u64 value;
  };

  Arena arena_;
  HostMap host_;
  std::unique_ptr<ShadowPager> pager_ = std::make_unique<ShadowPager>();
  std::mt19937_64 random_;
  u64 now_ = 1;
  std::array<u64, kTables> tables_{};
  std::array<Eptp, kRoots> eptp_{};
  std::array<u64, kRoots> collapsed_{};
  std::array<std::array<bool, kRoots>, 2> pending_{};  // INVEPT, and no entry since
  std::array<Root*, kRoots> made_{};
  std::map<std::pair<u64, u64>, std::vector<Old>> past_;
  std::array<std::set<unsigned>, 2> tlb_;  // tables that a processor's TLB lets L1 write
};

TEST(ShadowOracle, NeverMoreThanTheTablesSay) {
  const u64 first = 1;
  for (u64 seed = first; seed < first + 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Driver driver{seed};
    for (int i = 0; i < 1500; ++i) {
      driver.step();
      if (testing::Test::HasFatalFailure()) {
        GTEST_FAIL() << "at step " << i;
      }
    }
  }
}

}  // namespace
}  // namespace aerie::mmu
