#include "tools/kut/results.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/report/json.h"

namespace aerie::tools {
namespace {

struct MarkPrefix {
  absl::string_view prefix;
  Mark mark;
};
constexpr std::array kMarks = {
    MarkPrefix{"PASS: ", Mark::pass},   MarkPrefix{"FAIL: ", Mark::fail},
    MarkPrefix{"SKIP: ", Mark::skip},   MarkPrefix{"XFAIL: ", Mark::xfail},
    MarkPrefix{"KFAIL: ", Mark::kfail}, MarkPrefix{"XPASS: ", Mark::xpass},
    MarkPrefix{"ABORT: ", Mark::fail},
};

bool fails(Mark mark) { return mark == Mark::fail || mark == Mark::xpass; }

}  // namespace

std::vector<Subtest> parse_subtests(absl::string_view console) {
  std::vector<Subtest> subtests;
  for (absl::string_view line : absl::StrSplit(console, '\n')) {
    line = absl::StripTrailingAsciiWhitespace(line);
    for (const MarkPrefix& mark : kMarks) {
      if (absl::StartsWith(line, mark.prefix)) {
        subtests.push_back({mark.mark, std::string{line.substr(mark.prefix.size())}});
        break;
      }
    }
  }
  return subtests;
}

absl::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "PASS";
    case Verdict::fail:
      return "FAIL";
    case Verdict::skip:
      return "SKIP";
    case Verdict::hang:
      return "HANG";
    case Verdict::crash:
      return "CRASH";
    case Verdict::expected:
      return "XFAIL";
    case Verdict::surprise:
      return "XPASS";
  }
  return "?";
}

bool is_bad(Verdict verdict) {
  return verdict == Verdict::fail || verdict == Verdict::hang || verdict == Verdict::crash ||
         verdict == Verdict::surprise;
}

unsigned EntryResult::count(Mark mark) const {
  return static_cast<unsigned>(std::count_if(subtests.begin(), subtests.end(),
                                             [mark](const Subtest& s) { return s.mark == mark; }));
}

bool glob_match(absl::string_view pattern, absl::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = absl::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

absl::StatusOr<std::vector<Expectation>> parse_expectations(absl::string_view text) {
  std::vector<Expectation> expectations;
  std::string host = "aerie";
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') {
      continue;
    }
    if (line.front() == '[' && line.back() == ']') {
      host = std::string{line.substr(1, line.size() - 2)};
      if (host != "aerie" && host != "none") {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", number, ": [", host, "] is neither [aerie] nor [none]"));
      }
      continue;
    }
    const std::size_t hash = line.find(" # ");
    if (hash == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": an expected deviation needs a reason: ENTRY # reason"));
    }
    Expectation expectation;
    expectation.host = host;
    expectation.reason = std::string{absl::StripAsciiWhitespace(line.substr(hash + 3))};
    const absl::string_view what = absl::StripAsciiWhitespace(line.substr(0, hash));
    const std::size_t colon = what.find(':');
    expectation.entry = std::string{absl::StripAsciiWhitespace(what.substr(0, colon))};
    if (colon != absl::string_view::npos) {
      expectation.subtest = std::string{absl::StripAsciiWhitespace(what.substr(colon + 1))};
    }
    expectations.push_back(std::move(expectation));
  }
  return expectations;
}

void apply_expectations(const std::vector<Expectation>& expectations, absl::string_view host,
                        bool whole, EntryResult* result) {
  if (result->verdict == Verdict::skip) {
    return;
  }
  std::vector<const Expectation*> mine;
  const Expectation* entry_level = nullptr;
  for (const Expectation& e : expectations) {
    if (e.host != host || !glob_match(e.entry, result->name)) {
      continue;
    }
    if (!e.subtest.empty()) {
      mine.push_back(&e);
    } else if (whole) {
      entry_level = &e;
    }
  }
  if (entry_level != nullptr) {
    if (result->verdict == Verdict::pass) {
      result->verdict = Verdict::surprise;
      result->reason = absl::StrCat("passes; expected not to: ", entry_level->reason);
    } else {
      result->verdict = Verdict::expected;
      result->reason = entry_level->reason;
    }
    return;
  }
  const auto expected = [&mine](const Subtest& subtest) -> const Expectation* {
    for (const Expectation* e : mine) {
      if (glob_match(e->subtest, subtest.name)) {
        return e;
      }
    }
    return nullptr;
  };
  const Expectation* deviation = nullptr;
  const Subtest* unexpected = nullptr;
  for (const Subtest& subtest : result->subtests) {
    if (fails(subtest.mark)) {
      const Expectation* e = expected(subtest);
      deviation = e != nullptr ? e : deviation;
      unexpected = e == nullptr && unexpected == nullptr ? &subtest : unexpected;
    }
  }
  // A subtest that was to fail and only ever passes.
  for (const Expectation* e : mine) {
    bool passes = false;
    bool failed = false;
    for (const Subtest& subtest : result->subtests) {
      if (glob_match(e->subtest, subtest.name)) {
        passes = passes || subtest.mark == Mark::pass;
        failed = failed || fails(subtest.mark);
      }
    }
    if (passes && !failed && result->verdict != Verdict::hang &&
        result->verdict != Verdict::crash) {
      result->verdict = Verdict::surprise;
      result->reason = absl::StrCat("\"", e->subtest, "\" passes; expected not to: ", e->reason);
      return;
    }
  }
  if (result->verdict == Verdict::fail) {
    if (unexpected != nullptr) {
      result->reason = unexpected->name;
    } else if (deviation != nullptr) {
      result->verdict = Verdict::expected;
      result->reason = deviation->reason;
    }
  }
}

std::string tap_report(const std::vector<EntryResult>& results) {
  std::string out = "TAP version 13\n";
  int number = 0;
  const auto line = [&](bool ok, absl::string_view text, absl::string_view directive) {
    absl::StrAppendFormat(&out, "%s %d - %s%s%s\n", ok ? "ok" : "not ok", ++number, text,
                          directive.empty() ? "" : " # ", directive);
  };
  for (const EntryResult& result : results) {
    const std::string todo =
        result.verdict == Verdict::expected ? absl::StrCat("TODO ", result.reason) : "";
    for (const Subtest& subtest : result.subtests) {
      const bool bad = fails(subtest.mark);
      line(!bad, absl::StrCat(result.name, ": ", subtest.name),
           subtest.mark == Mark::skip ? "SKIP"
           : bad                      ? absl::string_view{todo}
                                      : "");
    }
    const std::string why = result.reason.empty() ? "" : absl::StrCat(" (", result.reason, ")");
    switch (result.verdict) {
      case Verdict::pass:
        line(true, result.name, "");
        break;
      case Verdict::skip:
        line(true, result.name, absl::StrCat("SKIP ", result.reason));
        break;
      case Verdict::expected:
        line(false, result.name, todo);
        break;
      default:
        line(false, absl::StrCat(result.name, ": ", verdict_name(result.verdict), why), "");
        break;
    }
  }
  absl::StrAppendFormat(&out, "1..%d\n", number);
  return out;
}

std::string junit_report(const std::vector<EntryResult>& results) {
  std::string suites;
  int all_tests = 0;
  int all_failures = 0;
  int all_skipped = 0;
  for (const EntryResult& result : results) {
    std::string cases;
    int tests = 0;
    int failures = 0;
    int skipped = 0;
    const auto add = [&](absl::string_view name, absl::string_view inner) {
      absl::StrAppendFormat(&cases, "    <testcase classname=\"%s\" name=\"%s\"",
                            xml_text(result.name), xml_text(name));
      absl::StrAppend(&cases, inner.empty() ? "/>\n" : absl::StrCat(">", inner, "</testcase>\n"));
      ++tests;
    };
    const bool tolerated = result.verdict == Verdict::expected;
    for (const Subtest& subtest : result.subtests) {
      if (subtest.mark == Mark::skip || (tolerated && fails(subtest.mark))) {
        add(subtest.name, absl::StrFormat("<skipped message=\"%s\"/>",
                                          tolerated ? xml_text(result.reason) : "skipped"));
        ++skipped;
      } else if (fails(subtest.mark)) {
        add(subtest.name, "<failure message=\"FAIL\"/>");
        ++failures;
      } else {
        add(subtest.name, "");
      }
    }
    if (result.verdict == Verdict::skip || tolerated) {
      add("(entry)", absl::StrFormat("<skipped message=\"%s\"/>", xml_text(result.reason)));
      ++skipped;
    } else if (is_bad(result.verdict)) {
      add("(entry)", absl::StrFormat("<failure message=\"%s\">%s</failure>",
                                     verdict_name(result.verdict), xml_text(result.reason)));
      ++failures;
    } else {
      add("(entry)", "");
    }
    absl::StrAppendFormat(
        &suites,
        "  <testsuite name=\"%s\" tests=\"%d\" failures=\"%d\" skipped=\"%d\" time=\"%.3f\">\n%s"
        "  </testsuite>\n",
        xml_text(result.name), tests, failures, skipped, result.seconds, cases);
    all_tests += tests;
    all_failures += failures;
    all_skipped += skipped;
  }
  return absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"%d\" failures=\"%d\" "
      "skipped=\"%d\">\n%s</testsuites>\n",
      all_tests, all_failures, all_skipped, suites);
}

}  // namespace aerie::tools
