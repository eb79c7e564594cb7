// What a test said and how its run ended, and what was expected of it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aerie::tools {

enum class Mark { pass, fail, skip, xfail, kfail, xpass };

struct Subtest {
  Mark mark;
  std::string name;
};

// Lines of the form `PASS: name` in console output.
std::vector<Subtest> parse_subtests(absl::string_view console);

enum class Verdict {
  pass,
  fail,
  skip,      // not run, or all its subtests were skipped
  hang,      // its time-out
  crash,     // triple fault, reset, panic, or QEMU's death
  expected,  // it deviates, as the list of expected deviations says
  surprise,  // it passes where the list says that it does not
};
absl::string_view verdict_name(Verdict verdict);
bool is_bad(Verdict verdict);

struct EntryResult {
  std::string name;
  Verdict verdict = Verdict::skip;
  std::string reason;  // why it was skipped, how it crashed, what was unexpected
  std::vector<Subtest> subtests;
  double seconds = 0;

  unsigned count(Mark mark) const;
};

// A line of the list of expected deviations:
//
//   ENTRY  # reason               the entry as a whole does not pass
//   ENTRY: SUBTEST  # reason      a subtest of it fails; SUBTEST may use * and ?
//
// A line [aerie] or [none] says for which --host the lines after it hold; ENTRY may use * and ?
// too.
struct Expectation {
  std::string host;
  std::string entry;
  std::string subtest;  // empty: the entry as a whole
  std::string reason;
};
absl::StatusOr<std::vector<Expectation>> parse_expectations(absl::string_view text);

// Compares a result (pass, fail, hang or crash) with what is expected and sets verdict and reason
// anew. `whole` tells whether the entry ran as configured, not with other arguments.
void apply_expectations(const std::vector<Expectation>& expectations, absl::string_view host,
                        bool whole, EntryResult* result);

// File-name patterns with * and ?, without special treatment of slashes.
bool glob_match(absl::string_view pattern, absl::string_view text);

// The reports. `results` in the order of the configuration.
std::string tap_report(const std::vector<EntryResult>& results);
std::string junit_report(const std::vector<EntryResult>& results);

}  // namespace aerie::tools
