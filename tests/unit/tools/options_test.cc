#include "tools/cli/options.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

struct Parsed {
  unsigned cpus = 1;
  std::string append;
  MemorySize memory;
  OnOff tdp;
  bool stats = false;
  std::vector<std::string> modules;

  absl::StatusOr<Arguments> operator()(const std::vector<std::string>& arguments) {
    OptionTable table("aerie run", "PAYLOAD", "Runs it.");
    table.add("cpus", "N", "processors", &cpus);
    table.add("append", "ARGS", "arguments", &append);
    table.add("memory", "SIZE", "memory", &memory);
    table.add("tdp", "on|off", "paging", &tdp);
    table.add_switch("stats", "statistics", &stats);
    table.add_list("module", "FILE", "a module", &modules);
    return table.parse(arguments);
  }
};

std::string error_of(const std::vector<std::string>& arguments) {
  Parsed parse;
  return std::string{parse(arguments).status().message()};
}

TEST(Options, MayStandBeforeAndAfterOperands) {
  Parsed parse;
  const auto rest = parse({"--cpus", "4", "a.elf", "--stats", "--memory=2G"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(parse.cpus, 4u);
  EXPECT_TRUE(parse.stats);
  EXPECT_EQ(parse.memory.bytes, 2ull << 30);
  EXPECT_EQ(rest->positional, std::vector<std::string>{"a.elf"});
}

TEST(Options, WhatFollowsTwoDashesIsHandedBackApart) {
  Parsed parse;
  const auto rest = parse({"a.elf", "--", "-device", "edu", "--stats"});
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->after_dashes, (std::vector<std::string>{"-device", "edu", "--stats"}));
  EXPECT_FALSE(parse.stats);
}

TEST(Options, AValueMayLookLikeAnOption) {
  Parsed parse;
  ASSERT_TRUE(parse({"--append", "-ept_access* --all", "x"}).ok());
  EXPECT_EQ(parse.append, "-ept_access* --all");
}

TEST(Options, AreCollectedWhereTheyMayBeRepeated) {
  Parsed parse;
  ASSERT_TRUE(parse({"--module", "a", "--module=b c"}).ok());
  EXPECT_EQ(parse.modules, (std::vector<std::string>{"a", "b c"}));
}

TEST(Options, ErrorsNameTheOption) {
  EXPECT_EQ(error_of({"--cpis", "4"}),
            "unknown option --cpis; did you mean --cpus? (see `aerie run --help`)");
  EXPECT_EQ(error_of({"--cpus"}), "option --cpus needs a value: N");
  EXPECT_EQ(error_of({"--stats=yes"}), "option --stats takes no value");
  EXPECT_EQ(error_of({"--tdp", "maybe"}), "option --tdp: \"maybe\" is neither on nor off");
  EXPECT_NE(error_of({"--cpus", "many"}).find("--cpus"), std::string::npos);
  EXPECT_NE(error_of({"-m", "4"}).find("after --"), std::string::npos);
}

TEST(Options, HelpWinsOverErrors) {
  Parsed parse;
  const auto rest = parse({"--help", "--nonsense"});
  ASSERT_TRUE(rest.ok());
  EXPECT_TRUE(rest->help);
}

TEST(MemorySize, UnderstandsSuffixesAndRefusesNonsense) {
  struct Case {
    const char* text;
    unsigned long long bytes;  // 0: refused
  };
  for (const Case& c : {Case{"512", 512ull << 20},
                        {"512M", 512ull << 20},
                        {"4g", 4ull << 30},
                        {"16K", 16384},
                        {"1T", 1ull << 40},
                        {"", 0},
                        {"G", 0},
                        {"-1", 0},
                        {"1.5G", 0},
                        {"99999999999999T", 0},
                        {"12x", 0}}) {
    MemorySize size;
    std::string error;
    EXPECT_EQ(absl::ParseFlag(c.text, &size, &error), c.bytes != 0) << c.text;
    if (c.bytes != 0) {
      EXPECT_EQ(size.bytes, c.bytes) << c.text;
    }
  }
}

}  // namespace
}  // namespace aerie::tools
