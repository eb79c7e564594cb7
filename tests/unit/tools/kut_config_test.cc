#include "tools/kut/config.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

TEST(KutConfig, ReadsSectionsAndTheirFields) {
  const auto entries = parse_kut_config(R"(
# a comment
[x2apic]
file = apic.flat
smp = 2
qemu_params = -cpu qemu64,+x2apic
arch = x86_64
timeout = 30
groups = apic  machine
check = /a=1 /b=2
accel = kvm
disabled_if = [[ "$TARGET" != qemu ]]

#[init]
#file = init.flat
[next]
file=next.flat
extra_params = -m 2g
test_args = "a = b"
)");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "x2apic");
  EXPECT_EQ(entries[0].file, "apic.flat");
  EXPECT_EQ(entries[0].smp, "2");
  EXPECT_EQ(entries[0].qemu_params, "-cpu qemu64,+x2apic");
  EXPECT_EQ(entries[0].timeout, "30");
  EXPECT_EQ(entries[0].groups, (std::vector<std::string>{"apic", "machine"}));
  EXPECT_TRUE(entries[0].in_group("machine"));
  EXPECT_FALSE(entries[0].in_group("mach"));
  EXPECT_EQ(entries[0].check, "/a=1 /b=2");
  EXPECT_EQ(entries[0].disabled_if, "[[ \"$TARGET\" != qemu ]]");
  EXPECT_EQ(entries[1].file, "next.flat");
  EXPECT_EQ(entries[1].qemu_params, "-m 2g");
  EXPECT_EQ(entries[1].test_args, "\"a = b\"");
}

TEST(KutConfig, TripleQuotesSpanLines) {
  const auto entries =
      parse_kut_config("[a]\nqemu_params = \"\"\"-m 2g \\\n -device edu\n-smp 2\"\"\"\nsmp = 3\n");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].qemu_params, "-m 2g  -device edu\n-smp 2");
  EXPECT_EQ(entries[0].smp, "3");
}

TEST(KutConfig, PassesOverWhatItDoesNotKnow) {
  const auto entries =
      parse_kut_config("file = lost.flat\nnonsense\n[a]\ncolour = red\nfile = a\n");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].file, "a");
}

}  // namespace
}  // namespace aerie::tools
