// From an entry of unittests.cfg to the machine that runs it, or to the reason why it is not run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/kut/config.h"
#include "tools/kut/shell_words.h"
#include "tools/run/machine.h"

namespace aerie::tools {

// What the user chose for all entries.
struct KutOptions {
  MachineSpec machine;  // host, cpu, accel, hide, image; the rest comes from the entry
  std::string folder;   // that holds the .flat files
  double timeout_scale = 3;
  std::string group;
  bool all = false;  // entries of group nodefault too
};

// An entry that the user selected, perhaps with other arguments than the configuration gives it.
struct KutSelection {
  KutEntry entry;
  std::string name;                      // in reports
  std::optional<std::string> arguments;  // instead of test_args
  bool named = false;                    // by its full name: nodefault does not matter
};

// What --filter selects: entries whose name is PATTERN, else those that match it as a pattern with
// * and ?, else those whose name contains it; `PATTERN:ARGUMENTS` gives them other arguments.
// Without a match among the names, a test within a file that takes test names as arguments
// (vmx.flat, svm.flat, ...). `contents` reads such a file, and gives an empty string if it is not
// there.
absl::StatusOr<std::vector<KutSelection>> select_entries(
    const std::vector<KutEntry>& entries, const std::vector<std::string>& filters,
    const std::function<std::string(const std::string& file)>& contents);

struct PlannedRun {
  std::string skip;  // the reason; empty: run it
  MachineSpec spec;
  double timeout_seconds = 0;
  bool own_qemu_options = false;  // the entry brings some, which QEMU may refuse
};

PlannedRun plan_run(const KutSelection& selection, const KutOptions& options,
                    const ShellEnvironment& environment);

// Seconds of a timeout(1) duration ("90", "90s", "2m"); nothing if it is none.
std::optional<double> parse_duration(absl::string_view text);

}  // namespace aerie::tools
