// A hit is right or a miss; what is read is no more than may be.
#include "cpu/decode/decode_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/unit/cpu/code_bytes.h"

namespace aerie::cpu {
namespace {

constexpr auto M64 = CodeMode::bits64;
constexpr u64 kRip = 0xffff'ffff'8100'0123;

// Code with room behind it, so that 16 bytes may be read.
std::vector<u8> padded(std::string_view text) {
  std::vector<u8> code = bytes(text);
  code.resize(code.size() + 16, 0xcc);
  return code;
}

TEST(DecodeCache, FindsWhatItDecoded) {
  DecodeCache cache;
  for (const char* text :
       {"f4", "0f a2", "0f 01 c1", "c7 87 b0 00 00 00 00 00 00 00", "48 8b 84 91 78 56 34 12",
        "48 b8 88 77 66 55 44 33 22 11", "66 66 66 66 66 66 66 66 66 66 66 66 66 0f a2",
        "65 48 8b 04 25 10 00 00 00"}) {
    SCOPED_TRACE(text);
    const std::vector<u8> code = padded(text);
    EXPECT_EQ(cache.find(kRip, M64, code.data(), code.size()), nullptr);
    const auto decoded = cache.decode(kRip, M64, code);
    ASSERT_EQ(decoded.status, DecodeStatus::ok);
    EXPECT_EQ(decoded.instruction->length, code.size() - 16);
    EXPECT_EQ(cache.find(kRip, M64, code.data(), code.size()), decoded.instruction);
    EXPECT_EQ(cache.length_at(kRip, M64), code.size() - 16);
  }
}

TEST(DecodeCache, MissesWhenAnyByteOfTheInstructionChanged) {
  for (const char* text : {"f4", "0f a2", "48 8b 84 91 78 56 34 12", "65 48 8b 04 25 10 00 00 00",
                           "66 66 66 66 66 66 66 66 66 66 66 66 66 0f a2"}) {
    DecodeCache cache;
    const std::vector<u8> code = padded(text);
    ASSERT_EQ(cache.decode(kRip, M64, code).status, DecodeStatus::ok);
    for (usize at = 0; at < code.size(); ++at) {
      for (unsigned b = 0; b < 8; ++b) {
        std::vector<u8> changed = code;
        changed[at] = static_cast<u8>(changed[at] ^ (1u << b));
        const bool own = at < code.size() - 16;
        EXPECT_EQ(cache.find(kRip, M64, changed.data(), changed.size()) == nullptr, own)
            << text << " byte " << at;
        // The same near the end of a page, with exactly the instruction readable.
        EXPECT_EQ(cache.find(kRip, M64, changed.data(), code.size() - 16) == nullptr, own);
      }
    }
  }
}

TEST(DecodeCache, TellsAddressesAndModesApart) {
  DecodeCache cache;
  const std::vector<u8> code = padded("48 0f 22 d8");
  ASSERT_EQ(cache.decode(kRip, M64, code).status, DecodeStatus::ok);
  EXPECT_EQ(cache.find(kRip, CodeMode::bits32, code.data(), code.size()), nullptr);
  EXPECT_EQ(cache.find(kRip, CodeMode::bits16, code.data(), code.size()), nullptr);
  EXPECT_EQ(cache.find(kRip + 1, M64, code.data(), code.size()), nullptr);
  EXPECT_EQ(cache.find(kRip & bit_mask(46, 0), M64, code.data(), code.size()), nullptr);
  EXPECT_EQ(cache.find(kRip ^ bit(46), M64, code.data(), code.size()), nullptr);
  EXPECT_NE(cache.find(kRip, M64, code.data(), code.size()), nullptr);
}

TEST(DecodeCache, ReadsNothingPastWhatIsReadable) {
  DecodeCache cache;
  const std::vector<u8> code = bytes("0f 01 c1");
  // Exactly as long as the instruction: AddressSanitizer watches.
  const auto exact = std::make_unique<u8[]>(3);
  std::copy(code.begin(), code.end(), exact.get());
  ASSERT_EQ(cache.decode(kRip, M64, {exact.get(), 3}).status, DecodeStatus::ok);
  EXPECT_NE(cache.find(kRip, M64, exact.get(), 3), nullptr);
  EXPECT_EQ(cache.find(kRip, M64, exact.get(), 2), nullptr);
  EXPECT_EQ(cache.find(kRip, M64, nullptr, 0), nullptr);
}

// Two pages of guest code that may be unreadable each; counts what is asked for.
struct TwoPages {
  std::vector<u8> memory = std::vector<u8>(2 * kPageSize, 0xcc);
  u64 first = 0x7000;
  bool second_readable = true;
  int fetches_of_second = 0;

  std::span<const u8> operator()(u64 linear) {
    const u64 offset = linear - first;
    if (offset < kPageSize) {
      return std::span{memory}.subspan(offset, kPageSize - offset);
    }
    ++fetches_of_second;
    return second_readable ? std::span{memory}.subspan(offset, 2 * kPageSize - offset)
                           : std::span<const u8>{};
  }
};

TEST(DecodeCache, LooksUpAcrossAPageEnd) {
  const std::vector<u8> code = bytes("c7 87 b0 00 00 00 00 00 00 00");
  for (usize in_first = 1; in_first <= 20; ++in_first) {
    SCOPED_TRACE(in_first);
    DecodeCache cache;
    TwoPages pages;
    const u64 rip = pages.first + kPageSize - in_first;
    std::copy(code.begin(), code.end(),
              pages.memory.begin() + static_cast<long>(kPageSize - in_first));
    const bool crosses = in_first < code.size();
    for (int round = 1; round <= 3; ++round) {
      const auto found = cache.lookup(rip, M64, pages);
      ASSERT_EQ(found.status, DecodeStatus::ok);
      EXPECT_EQ(found.instruction->op, Op::mov);
      EXPECT_EQ(pages.fetches_of_second, crosses ? round : 0);
    }
    // The byte in the other page changes: 10 becomes 11 (the last immediate byte).
    pages.memory[kPageSize - in_first + 9] = 0x11;
    EXPECT_EQ(cache.lookup(rip, M64, pages).instruction->immediate, 0x11000000);
    // The other page goes away.
    pages.second_readable = false;
    EXPECT_EQ(cache.lookup(rip, M64, pages).status,
              crosses ? DecodeStatus::incomplete : DecodeStatus::ok);
  }
}

TEST(DecodeCache, ShorterInstructionAfterACrossingOneNeedsNoSecondPage) {
  DecodeCache cache;
  TwoPages pages;
  const u64 rip = pages.first + kPageSize - 2;
  pages.memory[kPageSize - 2] = 0x0f;
  pages.memory[kPageSize - 1] = 0x01;
  pages.memory[kPageSize] = 0xc1;
  EXPECT_EQ(cache.lookup(rip, M64, pages).instruction->op, Op::vmcall);
  pages.memory[kPageSize - 1] = 0xa2;  // now CPUID, two bytes
  EXPECT_EQ(cache.lookup(rip, M64, pages).instruction->op, Op::cpuid);
  // Also when the second page has become unreadable meanwhile.
  pages.memory[kPageSize - 1] = 0x01;
  EXPECT_EQ(cache.lookup(rip, M64, pages).instruction->op, Op::vmcall);
  pages.memory[kPageSize - 1] = 0xa2;
  pages.second_readable = false;
  EXPECT_EQ(cache.lookup(rip, M64, pages).instruction->op, Op::cpuid);
}

// Sixty exit sites that are all used in turn, in a table full of what booting left behind: after a
// few rounds nothing misses any more.
TEST(DecodeCache, HotSitesStopMissing) {
  std::mt19937_64 random{7};
  const std::vector<u8> code = padded("0f 78 c8");
  int unsettled = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const auto cache = std::make_unique<DecodeCache>();
    const auto some_site = [&] { return 0xffff'ffff'8000'0000 + random() % 0x4000'0000; };
    for (int stale = 0; stale < 3000; ++stale) {
      cache->decode(some_site(), M64, code);
    }
    std::vector<u64> hot(60);
    for (usize n = 0; n < hot.size(); ++n) {
      // Some close together, as in one function.
      hot[n] = n % 4 == 0 ? some_site() : hot[n - 1] + 5 + random() % 60;
    }
    int misses = 0;
    for (int round = 0; round < 30; ++round) {
      misses = 0;
      for (const u64 rip : hot) {
        if (cache->find(rip, M64, code.data(), code.size()) == nullptr) {
          ++misses;
          cache->decode(rip, M64, code);
        }
      }
    }
    unsettled += misses != 0 ? 1 : 0;
  }
  EXPECT_LE(unsettled, 4);
}

TEST(DecodeCache, AgreesWithTheDecoderOnRandomBytes) {
  DecodeCache cache;
  std::mt19937_64 random{1};
  std::vector<std::vector<u8>> sites(400);
  for (int step = 0; step < 20000; ++step) {
    const usize site = random() % sites.size();
    if (sites[site].empty() || random() % 4 == 0) {
      sites[site].resize(32);
      for (u8& b : sites[site]) {
        b = static_cast<u8>(random() % 3 == 0 ? 0x0f : random());
      }
    }
    const auto mode = static_cast<CodeMode>(random() % 3);
    const usize readable = random() % 8 == 0 ? 1 + random() % 15 : 32;
    Instruction expected{};
    const DecodeStatus status =
        decode_instruction(mode, std::span{sites[site]}.first(readable), expected);
    const u64 rip = 0x1000 + site * 3;
    const Instruction* found = cache.find(rip, mode, sites[site].data(), readable);
    if (found == nullptr) {
      const auto result = cache.decode(rip, mode, std::span{sites[site]}.first(readable));
      EXPECT_EQ(result.status, status);
      found = result.instruction;
    }
    if (status == DecodeStatus::ok) {
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->op, expected.op);
      EXPECT_EQ(found->length, expected.length);
      EXPECT_EQ(found->immediate, expected.immediate);
      EXPECT_EQ(found->displacement, expected.displacement);
    } else {
      EXPECT_EQ(found, nullptr);
    }
  }
}

}  // namespace
}  // namespace aerie::cpu
