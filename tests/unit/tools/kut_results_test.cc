#include "tools/kut/results.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

EntryResult result_of(const std::string& name, Verdict verdict, absl::string_view console) {
  EntryResult result;
  result.name = name;
  result.verdict = verdict;
  result.subtests = parse_subtests(console);
  return result;
}

EntryResult judged(absl::string_view list, EntryResult result, bool whole = true) {
  const auto expectations = parse_expectations(list);
  EXPECT_TRUE(expectations.ok()) << expectations.status();
  apply_expectations(*expectations, "aerie", whole, &result);
  return result;
}

TEST(KutResults, SubtestsComeFromLinesThatBeginWithAMark) {
  const auto subtests = parse_subtests(
      "enabling apic\r\nPASS: a: b\r\nFAIL: c\nSKIP: d\nXFAIL: e\nKFAIL: f\nXPASS: g\nABORT: h\n"
      "not PASS: i\nPASS:j\nSUMMARY: 7 tests\n");
  ASSERT_EQ(subtests.size(), 7u);
  EXPECT_EQ(subtests[0].name, "a: b");
  EXPECT_EQ(subtests[0].mark, Mark::pass);
  EXPECT_EQ(subtests[1].mark, Mark::fail);
  EXPECT_EQ(subtests[2].mark, Mark::skip);
  EXPECT_EQ(subtests[3].mark, Mark::xfail);
  EXPECT_EQ(subtests[4].mark, Mark::kfail);
  EXPECT_EQ(subtests[5].mark, Mark::xpass);
  EXPECT_EQ(subtests[6].mark, Mark::fail);
}

TEST(KutResults, AnExpectedFailureIsTold) {
  const auto result =
      judged("a: case*  # the host cannot",
             result_of("a", Verdict::fail, "PASS: x\nFAIL: case 1\nFAIL: case 2\n"));
  EXPECT_EQ(result.verdict, Verdict::expected);
  EXPECT_EQ(result.reason, "the host cannot");
}

TEST(KutResults, OneUnexpectedFailureSpoilsIt) {
  const auto result =
      judged("a: case*  # why", result_of("a", Verdict::fail, "FAIL: case 1\nFAIL: other\n"));
  EXPECT_EQ(result.verdict, Verdict::fail);
  EXPECT_EQ(result.reason, "other");
}

TEST(KutResults, AnUnexpectedPassIsTold) {
  EXPECT_EQ(judged("a: case 1  # why", result_of("a", Verdict::pass, "PASS: case 1\n")).verdict,
            Verdict::surprise);
  EXPECT_EQ(judged("a  # why", result_of("a", Verdict::pass, "")).verdict, Verdict::surprise);
}

TEST(KutResults, WhatWasSkippedSaysNothing) {
  EXPECT_EQ(judged("a: case 1  # why", result_of("a", Verdict::pass, "SKIP: case 1\n")).verdict,
            Verdict::pass);
  EXPECT_EQ(judged("a  # why", result_of("a", Verdict::skip, "")).verdict, Verdict::skip);
}

TEST(KutResults, AWholeEntryMayBeExpectedToHangOrCrash) {
  EXPECT_EQ(judged("a*  # why", result_of("abc", Verdict::hang, "")).verdict, Verdict::expected);
  EXPECT_EQ(judged("a  # why", result_of("a", Verdict::crash, "")).verdict, Verdict::expected);
  EXPECT_EQ(judged("a  # why", result_of("a:x", Verdict::pass, ""), false).verdict, Verdict::pass);
}

TEST(KutResults, ASubtestsExpectationDoesNotExcuseAHang) {
  EXPECT_EQ(judged("a: x  # why", result_of("a", Verdict::hang, "FAIL: x\n")).verdict,
            Verdict::hang);
}

TEST(KutResults, ExpectationsHoldForTheirHostOnly) {
  EXPECT_EQ(judged("[none]\na  # why\n", result_of("a", Verdict::fail, "")).verdict, Verdict::fail);
  EXPECT_FALSE(parse_expectations("a\n").ok()) << "a reason is wanted";
  EXPECT_FALSE(parse_expectations("[moon]\n").ok());
}

TEST(KutResults, GlobsMatchWholeTexts) {
  struct Case {
    const char* pattern;
    const char* text;
    bool matches;
  };
  for (const Case& c : {Case{"a*c", "abbc", true},
                        {"a*c", "abcd", false},
                        {"*", "", true},
                        {"?", "", false},
                        {"a?c", "abc", true},
                        {"*b*b", "abab", true},
                        {"", "", true},
                        {"", "a", false},
                        {"a**", "a", true},
                        {"*?", "*", true}}) {
    EXPECT_EQ(glob_match(c.pattern, c.text), c.matches) << c.pattern << " " << c.text;
  }
}

TEST(KutResults, TapNumbersEveryLine) {
  const std::vector<EntryResult> results = {result_of("a", Verdict::pass, "PASS: x\nSKIP: y\n"),
                                            judged("b  # slow", result_of("b", Verdict::hang, "")),
                                            result_of("c", Verdict::fail, "FAIL: z\n")};
  EXPECT_EQ(tap_report(results),
            "TAP version 13\nok 1 - a: x\nok 2 - a: y # SKIP\nok 3 - a\nnot ok 4 - b # TODO slow\n"
            "not ok 5 - c: z\nnot ok 6 - c: FAIL\n1..6\n");
}

TEST(KutResults, JunitCountsAndEscapes) {
  const std::string xml =
      junit_report({result_of("a", Verdict::fail, "FAIL: <&\"\x1b\nPASS: p\n")});
  EXPECT_NE(xml.find("<testsuites tests=\"3\" failures=\"2\" skipped=\"0\">"), std::string::npos)
      << xml;
  EXPECT_NE(xml.find("name=\"&lt;&amp;&quot;?\""), std::string::npos) << xml;
}

}  // namespace
}  // namespace aerie::tools
