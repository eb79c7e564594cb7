#include "tools/kut/shell_words.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

const ShellEnvironment kEnvironment = {
    .run = [](const std::string& command) -> absl::StatusOr<std::string> {
      return command == "date +%s" ? "1796139784\n" : "[" + command + "]";
    },
    .variable = [](const std::string& name) { return name == "MAX_SMP" ? "8" : ""; },
};

std::vector<std::string> split(absl::string_view text) {
  const auto words = split_shell_words(text, kEnvironment);
  EXPECT_TRUE(words.ok()) << words.status();
  return words.value_or(std::vector<std::string>{});
}
using Words = std::vector<std::string>;

TEST(ShellWords, QuotesKeepBlanksTogether) {
  EXPECT_EQ(split("'cpuid'"), Words{"cpuid"});
  EXPECT_EQ(split("\"-a_test -b* c\" d"), (Words{"-a_test -b* c", "d"}));
  EXPECT_EQ(split("a'b c'\"d e\"f"), Words{"ab cd ef"});
  EXPECT_EQ(split("''"), Words{""});
  EXPECT_EQ(split("  "), Words{});
}

TEST(ShellWords, CommandsAreReplacedByTheirOutput) {
  EXPECT_EQ(split("\"10000000 `date +%s`\""), Words{"10000000 1796139784"});
  EXPECT_EQ(split("$(echo (a))"), (Words{"[echo", "(a)]"}));
  EXPECT_EQ(split("\"$(echo (a))\""), Words{"[echo (a)]"});
  EXPECT_EQ(split("'`date +%s`'"), Words{"`date +%s`"});
}

TEST(ShellWords, VariablesAreReplaced) {
  EXPECT_EQ(split("$MAX_SMP x${MAX_SMP}y \"$NOTHING\""), (Words{"8", "x8y", ""}));
}

TEST(ShellWords, BackslashesEscape) {
  EXPECT_EQ(split("a\\ b \"\\\"\" \\$X"), (Words{"a b", "\"", "$X"}));
  EXPECT_EQ(split("a \\\n b"), (Words{"a", "b"}));
  EXPECT_EQ(split("$'a\\nb'"), Words{"a\nb"});
}

TEST(ShellWords, FileNamePatternsStay) { EXPECT_EQ(split("vmx_* [a]"), (Words{"vmx_*", "[a]"})); }

TEST(ShellWords, UnclosedQuotesAreErrors) {
  for (const char* text : {"'a", "\"a", "`a", "$(a", "${A", "\"`a\"", "$'a"}) {
    EXPECT_FALSE(split_shell_words(text, kEnvironment).ok()) << text;
  }
}

TEST(ShellWords, ARealShellRunsCommands) {
  const auto words = split_shell_words("`echo a b; echo c >&2`", real_shell_environment());
  ASSERT_TRUE(words.ok());
  EXPECT_EQ(*words, (Words{"a", "b"}));
}

}  // namespace
}  // namespace aerie::tools
