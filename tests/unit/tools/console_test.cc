#include "tools/run/console.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

TEST(EscapeKey, LetsEverythingElseThrough) {
  EscapeKey key;
  const auto result = key.feed("ls\r\x03");
  EXPECT_EQ(result.bytes, "ls\r\x03");
  EXPECT_FALSE(result.quit);
}

TEST(EscapeKey, QuitsAlsoWhenTheKeysComeApart) {
  EscapeKey key;
  EXPECT_EQ(key.feed("a\x01").bytes, "a");
  EXPECT_TRUE(key.feed("x").quit);
}

TEST(EscapeKey, SendsItselfWhenDoubled) {
  EscapeKey key;
  EXPECT_EQ(key.feed("\x01\x01").bytes, "\x01");
  EXPECT_EQ(key.feed("\x01"
                     "a")
                .bytes,
            "\x01");
  EXPECT_EQ(key.feed("\x01z!").bytes, "!");
}

}  // namespace
}  // namespace aerie::tools
