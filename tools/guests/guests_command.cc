#include "tools/guests/guests_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/cli/options.h"
#include "tools/guests/manifest.h"
#include "tools/kut/results.h"
#include "tools/run/exit_status.h"
#include "tools/run/interrupts.h"
#include "tools/run/parallel.h"
#include "tools/run/run_command.h"
#include "tools/run/runner.h"

namespace aerie::tools {
namespace {

namespace fs = std::filesystem;

struct GuestResult {
  bool passed = false;
  std::string why;
  double seconds = 0;
};

int usage_error(absl::string_view message) {
  std::fprintf(stderr, "aerie guests: %s\n", std::string{message}.c_str());
  return kExitUsage;
}

// The lines that tell of a failed case.
std::vector<absl::string_view> failed_cases(absl::string_view console) {
  std::vector<absl::string_view> lines;
  for (const absl::string_view line : absl::StrSplit(console, '\n')) {
    if (absl::StartsWith(line, "FAIL ")) {
      lines.push_back(absl::StripTrailingAsciiWhitespace(line));
    }
  }
  return lines;
}

GuestResult run_guest(const GuestRun& run, double timeout_scale, const std::string& log_path) {
  std::string console;
  RunIo io;
  io.timeout_seconds = run.timeout_seconds * timeout_scale;
  io.show_qemu_messages = false;
  io.console = [&console](absl::string_view bytes) {
    absl::StrAppend(&console, bytes);
    return true;
  };
  const RunResult end = run_machine(run.spec, io);
  std::ofstream{log_path} << console << "\n--- " << outcome_name(end.outcome) << " " << end.value
                          << " " << end.detail << "\n--- Aerie's log\n"
                          << end.log_tail;

  GuestResult result;
  result.seconds = end.seconds;
  const std::vector<absl::string_view> failed = failed_cases(console);
  if (end.outcome != Outcome::guest_exit) {
    result.why =
        absl::StrCat(outcome_name(end.outcome), end.detail.empty() ? "" : ": ", end.detail);
  } else if (!failed.empty()) {
    result.why = absl::StrCat(failed.size(), " failed: ", failed[0]);
  } else if (end.value != run.status) {
    result.why = absl::StrCat("exit value ", end.value, ", not ", run.status);
  } else {
    result.passed = true;
  }
  return result;
}

}  // namespace

int guests_command(const std::vector<std::string>& arguments) {
  const std::string root = fs::path{build_folder()}.parent_path().parent_path().string();
  std::string manifest = root + "/tests/guests/manifest.txt";
  std::string folder = build_folder() + "/tests/guests";
  std::string logs = root + "/build/guests";
  std::string image = default_image();
  unsigned jobs = default_jobs();
  double timeout_scale = 1;
  bool list = false;
  OptionTable options(
      "aerie guests", "[PATTERN...]",
      "Runs the L1 guests of tests/guests under Aerie and raw, as the manifest says: those runs\n"
      "whose name (as --list shows it) contains a PATTERN, or matches it (* and ?).");
  options.add("manifest", "FILE", "the manifest (default: tests/guests/manifest.txt)", &manifest);
  options.add("folder", "DIR", "where the guests are (default: this build's)", &folder);
  options.add("image", "FILE", "Aerie's own image (default: this build's)", &image);
  options.add("logs", "DIR", "where each run's console goes (default: build/guests)", &logs);
  options.add("jobs", "N", "runs at a time (default: the processors of this machine)", &jobs);
  options.add("timeout-scale", "X", "factor on every time-out (default 1)", &timeout_scale);
  options.add_switch("list", "print the selected runs and end", &list);
  const absl::StatusOr<Arguments> parsed = options.parse(arguments);
  if (!parsed.ok()) {
    return usage_error(parsed.status().message());
  }
  if (parsed->help) {
    std::fputs(options.help().c_str(), stdout);
    return kExitOk;
  }
  const absl::StatusOr<std::string> text = read_file("manifest", manifest);
  absl::StatusOr<std::vector<GuestRun>> runs = text.ok() ? parse_manifest(*text) : text.status();
  if (!runs.ok()) {
    return usage_error(absl::StrCat(manifest, ": ", runs.status().message()));
  }
  if (!parsed->positional.empty()) {
    const auto wanted = [&](const GuestRun& run) {
      return std::any_of(
          parsed->positional.begin(), parsed->positional.end(), [&](const std::string& pattern) {
            return absl::StrContains(run.name, pattern) || glob_match(pattern, run.name);
          });
    };
    runs->erase(std::remove_if(runs->begin(), runs->end(),
                               [&](const GuestRun& run) { return !wanted(run); }),
                runs->end());
  }
  if (runs->empty()) {
    return usage_error("no run selected");
  }
  if (list) {
    for (const GuestRun& run : *runs) {
      std::printf("%s\n", run.name.c_str());
    }
    return kExitOk;
  }
  std::error_code error;
  fs::create_directories(logs, error);
  std::vector<GuestResult> results(runs->size());
  std::mutex printing;
  run_parallel(jobs, static_cast<unsigned>(runs->size()), [&](unsigned i) {
    GuestRun run = (*runs)[i];
    run.spec.payload = absl::StrCat(folder, "/", run.guest, ".elf");
    run.spec.image = image;
    std::string log = run.name;
    std::replace_if(
        log.begin(), log.end(),
        [](unsigned char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '='; }, '_');
    results[i] = run_guest(run, timeout_scale, absl::StrCat(logs, "/", log, ".log"));
    const std::lock_guard<std::mutex> guard{printing};
    std::printf("%s  %-50s %6.1f s  %s\n", results[i].passed ? "PASS" : "FAIL", run.name.c_str(),
                results[i].seconds, results[i].why.c_str());
    std::fflush(stdout);
  });
  if (interrupt_signal() != 0) {
    return 128 + interrupt_signal();
  }
  const auto passed = std::count_if(results.begin(), results.end(),
                                    [](const GuestResult& result) { return result.passed; });
  const auto failed = static_cast<std::ptrdiff_t>(results.size()) - passed;
  std::printf("\nconsoles in %s\n%td passed, %td failed\n", logs.c_str(), passed, failed);
  return failed == 0 ? kExitOk : 1;
}

}  // namespace aerie::tools
