#include "cpu/decode/exit_match.h"

#include <gtest/gtest.h>

namespace aerie::cpu {
namespace {

TEST(ExitMatch, KnowsWhatEachInstructionExitsAs) {
  EXPECT_TRUE(exit_fits(ExitReason::cpuid, Op::cpuid));
  EXPECT_FALSE(exit_fits(ExitReason::cpuid, Op::rdmsr));
  EXPECT_FALSE(exit_fits(ExitReason::cpuid, Op::other));
  EXPECT_TRUE(exit_fits(ExitReason::io, Op::outs));
  EXPECT_TRUE(exit_fits(ExitReason::cr_write, Op::clts));
  EXPECT_TRUE(exit_fits(ExitReason::cr0_selective, Op::lmsw));
  EXPECT_FALSE(exit_fits(ExitReason::cr0_selective, Op::smsw));
  EXPECT_TRUE(exit_fits(ExitReason::descriptor_table, Op::sldt));
  EXPECT_EQ(exit_reason_of(Op::vmread), ExitReason::unknown);
}

TEST(ExitMatch, AllowsForTheNamesTcgMixesUp) {
  EXPECT_TRUE(exit_fits(ExitReason::wbinvd, Op::invd));
  EXPECT_EQ(exit_reason_of(Op::invd), ExitReason::invd);
  EXPECT_TRUE(exit_fits(ExitReason::rdtsc, Op::rdtscp));
  EXPECT_FALSE(exit_fits(ExitReason::rdtscp, Op::rdtsc));
}

}  // namespace
}  // namespace aerie::cpu
