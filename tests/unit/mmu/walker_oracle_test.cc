// Random tables of every guest paging format, walked by the walker and by a reading of the manual
// that shares nothing with it: same address, same error code, same accessed and dirty bits.
#include <gtest/gtest.h>

#include <random>

#include "arena.h"
#include "mmu/walker.h"

namespace aerie::mmu {
namespace {

using test::Arena;

struct Format {
  const char* name;
  int levels;
  bool wide;  // 8-byte entries
  u64 cr4, efer;
};
constexpr Format kFormats[] = {
    {"legacy", 2, false, 0, 0},
    {"legacy with PSE", 2, false, cpu::cr4::pse, 0},
    {"PAE", 3, true, cpu::cr4::pae, 0},
    {"4-level", 4, true, cpu::cr4::pae, cpu::efer::lma},
    {"5-level", 5, true, cpu::cr4::pae | cpu::cr4::la57, cpu::efer::lma},
};

struct Plain {
  bool fault;
  u32 code;
  u64 address;
};

class WalkerOracle {
 public:
  WalkerOracle(const Format& format, u64 seed) : f_{format}, random_{seed} {
    for (u64& t : tables_) {
      t = arena_.page();
    }
  }

  void step() {
    for (int i = 0; i < 6; ++i) {
      write_entry();
    }
    features_.maxphyaddr = static_cast<u8>(pick(2) ? 40 : 36);
    features_.gib_pages = pick(4) != 0;
    features_.pse36 = pick(4) != 0;
    cr0_ = cpu::cr0::pg | cpu::cr0::pe | (pick(2) ? cpu::cr0::wp : 0);
    cr4_ = f_.cr4 | (pick(2) ? cpu::cr4::smep : 0) | (pick(2) ? cpu::cr4::smap : 0) |
           (pick(2) ? cpu::cr4::pke : 0) | (pick(2) ? cpu::cr4::pks : 0);
    efer_ = f_.efer | (pick(2) ? cpu::efer::nxe : 0);
    GuestPaging p = GuestPaging::make(cr0_, tables_[0], cr4_, efer_, features_);
    pkru_ = p.pkru = static_cast<u32>(random_());
    pkrs_ = p.pkrs = static_cast<u32>(random_());

    u64 linear = pick(4096);
    for (int level = 1; level <= f_.levels; ++level) {
      linear |= u64{pick(3)} << shift(level);
    }
    u32 a = access::read;
    switch (pick(3)) {
      case 0:
        a = access::write;
        break;
      case 1:
        a = access::fetch;
        break;
      default:
        break;
    }
    a |= pick(2) ? u32{access::user} : pick(2) ? u32{access::smap_exempt} : 0;
    const std::vector<u8> before(arena_.at<u8>(tables_[0]), arena_.at<u8>(tables_[5] + kPageSize));
    const Plain expected = plain(linear, a);
    const std::vector<u8> after(arena_.at<u8>(tables_[0]), arena_.at<u8>(tables_[5] + kPageSize));
    std::memcpy(arena_.at<u8>(tables_[0]), before.data(), before.size());

    const GuestWalk w = walk_l1(arena_.memory, p, linear, a);
    const auto where = [&] {
      return testing::Message() << f_.name << " linear " << std::hex << linear << " access " << a;
    };
    if (expected.fault) {
      ASSERT_EQ(w.status, GuestWalk::Status::page_fault) << where();
      ASSERT_EQ(w.pfec, expected.code) << where();
    } else {
      ASSERT_EQ(w.status, GuestWalk::Status::ok) << where() << " code " << w.pfec;
      ASSERT_EQ(w.gpa.value(), expected.address) << where();
      ++translated;
    }
    ASSERT_EQ(std::memcmp(arena_.at<u8>(tables_[0]), after.data(), after.size()), 0) << where();
  }
  int translated = 0;

 private:
  unsigned pick(unsigned n) { return static_cast<unsigned>(random_() % n); }
  int shift(int level) const { return f_.wide ? 12 + 9 * (level - 1) : 12 + 10 * (level - 1); }

  void write_entry() {
    const u64 table = tables_[pick(6)];
    const unsigned index = pick(3);
    u64 e = pick(3) ? tables_[pick(6)]
                    : u64{pick(8)} * 2 * kMiB + (pick(4) == 0 ? u64{pick(16)} * kPageSize : 0);
    const bool clean = pick(20) != 0;  // deep walks want most entries to be in order
    e |= clean || pick(8) ? 1 : 0;
    e |= pick(6) ? 2 : 0;
    e |= pick(6) ? 4 : 0;
    e |= !clean && pick(2) ? 0x80 : 0;
    e |= pick(2) ? 0x20 : 0;
    e |= pick(4) == 0 ? 0x40 : 0;
    if (f_.wide) {
      e |= !clean && pick(2) ? u64{1} << (36 + pick(28)) : 0;
      e |= !clean && pick(2) ? u64{1} << 63 : 0;
      e |= f_.levels >= 4 || !clean ? u64{pick(16)} << 59 : 0;  // PAE reserves what is a key there
      if (f_.levels == 3 && table == tables_[0] && clean) {
        e &= 0x0000'000f'ffff'f021;
      }
      arena_.word(table, index) = e;
    } else {
      e |= pick(4) == 0 ? u64{1} << (13 + pick(9)) : 0;
      arena_.half(table, index) = static_cast<u32>(e);
    }
  }

  // SDM vol. 3, chapter 4.
  Plain plain(u64 linear, u32 a) {
    const bool nxe = (efer_ & cpu::efer::nxe) != 0, wp = (cr0_ & cpu::cr0::wp) != 0;
    const bool fetch = (a & access::fetch) != 0, write = (a & access::write) != 0,
               user = (a & access::user) != 0;
    const bool reports_fetch = (f_.wide && nxe) || (cr4_ & cpu::cr4::smep) != 0;
    const u32 base = (write ? 2 : 0) | (user ? 4 : 0) | (fetch && reports_fetch ? 16 : 0);
    bool u = true, w = true, x = true;
    struct {
      u64 at;
      bool sets;
    } path[5]{};
    int depth = 0;
    u64 table = tables_[0], leaf = 0, address = 0;
    for (int level = f_.levels;; --level) {
      const u64 index =
          (linear >> shift(level)) & (f_.wide ? (f_.levels == 3 && level == 3 ? 3 : 511) : 1023);
      const u64 at = table + index * (f_.wide ? 8 : 4);
      const u64 e = at + 8 > Arena::kL1Size ? (f_.wide ? ~u64{0} : 0xffffffff)
                    : f_.wide               ? *arena_.at<u64>(at)
                                            : *arena_.at<u32>(at);
      if ((e & 1) == 0) return {true, base, 0};
      const bool pdpte = f_.levels == 3 && level == 3;
      bool large = false;
      if (level == 2) large = (e & 0x80) != 0 && (f_.wide || (cr4_ & cpu::cr4::pse) != 0);
      if (level == 3 && !pdpte) large = (e & 0x80) != 0;
      bool bad = false;
      const auto any = [&](int high, int low) {
        for (int b = low; b <= high; ++b) bad |= ((e >> b) & 1) != 0;
      };
      if (f_.wide) {
        any(51, features_.maxphyaddr);
        if (f_.levels == 3) any(62, 52);
        if (!nxe || pdpte) any(63, 63);
        if (pdpte) {
          any(2, 1);
          any(8, 6);
        }
        if (level >= 4) any(7, 7);
        if (large && level == 2) any(20, 13);
        if (large && level == 3) {
          any(29, 13);
          if (!features_.gib_pages) any(7, 7);
        }
      } else if (large) {
        any(21, 21);
        any(20, features_.pse36 ? 13 + (features_.maxphyaddr - 32) : 13);
      }
      if (bad) return {true, base | 1 | 8, 0};
      if (!pdpte) {
        w &= (e & 2) != 0;
        u &= (e & 4) != 0;
        x &= !f_.wide || (e >> 63) == 0;
      }
      path[depth++] = {at, !pdpte && at + 8 <= Arena::kL1Size};
      if (level == 1 || large) {
        leaf = e;
        if (f_.wide) {
          const u64 low = (u64{1} << shift(level)) - 1;
          address = (e & 0x000f'ffff'ffff'f000 & ~low) | (linear & low);
        } else if (large) {
          address = (e & 0xffc00000) | (((e >> 13) & 0xff) << 32) | (linear & 0x3fffff);
        } else {
          address = (e & 0xfffff000) | (linear & 0xfff);
        }
        break;
      }
      table = f_.wide ? e & 0x000f'ffff'ffff'f000 : e & 0xfffff000;
    }
    bool denied = user && !u;
    if (fetch) {
      denied |= nxe && !x;
      denied |= !user && u && (cr4_ & cpu::cr4::smep) != 0;
    } else {
      denied |= write && !w && (user || wp);
      denied |= !user && u && (cr4_ & cpu::cr4::smap) != 0 && (a & access::smap_exempt) == 0;
    }
    u32 code = denied ? base | 1 : 0;
    if (f_.levels >= 4 && !fetch && (cr4_ & (u ? cpu::cr4::pke : cpu::cr4::pks)) != 0) {
      const u32 key = ((u ? pkru_ : pkrs_) >> (2 * ((leaf >> 59) & 15))) & 3;
      if ((key & 1) != 0 || ((key & 2) != 0 && write && (user || wp))) code = base | 1 | 32;
    }
    if (code != 0) return {true, code, 0};
    for (int i = 0; i < depth; ++i) {
      const u32 bits = 0x20 | (i == depth - 1 && write ? 0x40 : 0);
      if (path[i].sets) *arena_.at<u8>(path[i].at) |= static_cast<u8>(bits);
    }
    return {false, 0, address};
  }

  const Format& f_;
  std::mt19937_64 random_;
  Arena arena_;
  u64 tables_[6]{};
  PagingFeatures features_{};
  u64 cr0_ = 0, cr4_ = 0, efer_ = 0;
  u32 pkru_ = 0, pkrs_ = 0;
};

TEST(WalkerOracle, EveryFormatReadsAsTheManualDoes) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    WalkerOracle oracle{format, 7};
    for (int i = 0; i < 2500; ++i) {
      oracle.step();
      if (testing::Test::HasFatalFailure()) {
        GTEST_FAIL() << "at step " << i;
      }
    }
    EXPECT_GT(oracle.translated, 100);
  }
}

}  // namespace
}  // namespace aerie::mmu
