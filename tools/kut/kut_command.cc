#include "tools/kut/kut_command.h"

#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/kut/plan.h"
#include "tools/kut/results.h"
#include "tools/run/exit_status.h"
#include "tools/run/interrupts.h"
#include "tools/run/parallel.h"
#include "tools/run/run_command.h"
#include "tools/run/runner.h"
#include "tools/run/staging.h"

namespace aerie::tools {
namespace {

namespace fs = std::filesystem;

constexpr int kAllSkipped = 38;  // what a test writes to isa-debug-exit when it skipped everything

int usage_error(absl::string_view message) {
  std::fprintf(stderr, "aerie kut: %s\n", std::string{message}.c_str());
  return kExitUsage;
}

struct Settings {
  KutOptions kut;
  std::string config;
  std::string expected;
  std::string logs;
  std::vector<std::string> filters;
  std::string tap;
  std::string junit;
  unsigned jobs = 0;
  bool list = false;
  bool show_fails = false;
};

// The environment file that upstream's runner passes as a module: what the tests may know of the
// host.
std::string environment_file(const std::string& accel) {
  const ShellEnvironment& shell = real_shell_environment();
  const std::string version = shell.run("qemu-system-x86_64 --version | head -1").value_or("");
  std::vector<std::string> numbers(3);
  const std::vector<std::string> words = absl::StrSplit(version, ' ');
  if (words.size() > 3) {
    const std::vector<std::string> parts = absl::StrSplit(words[3], '.');
    for (std::size_t i = 0; i < numbers.size() && i < parts.size(); ++i) {
      numbers[i] = parts[i];
    }
  }
  utsname host = {};
  ::uname(&host);
  const std::string release = host.release;
  std::vector<std::string> kernel = absl::StrSplit(release, absl::ByAnyChar(".-"));
  kernel.resize(4);
  for (std::string& part : kernel) {
    part = part.substr(0, part.find_first_not_of("0123456789"));
  }
  return absl::StrCat(
      "TARGET=\nQEMU_ACCEL=", accel, "\nQEMU_VERSION_STRING=", version,
      version.empty() || version.back() != '\n' ? "\n" : "", "QEMU_MAJOR=", numbers[0],
      "\nQEMU_MINOR=", numbers[1], "\nQEMU_MICRO=", numbers[2], "\nKERNEL_VERSION_STRING=", release,
      "\nKERNEL_VERSION=", kernel[0], "\nKERNEL_PATCHLEVEL=", kernel[1],
      "\nKERNEL_SUBLEVEL=", kernel[2], "\nKERNEL_EXTRAVERSION=", kernel[3], "\nERRATA_FORCE=y\n");
}

std::string log_name(absl::string_view entry) {
  std::string name;
  for (const char c : entry.substr(0, 100)) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
    name += plain ? c : '_';
  }
  return name + ".log";
}

// Verdict and reason from how the run ended and what it printed, before any expectation.
void judge(const RunResult& run, bool own_qemu_options, EntryResult* result) {
  switch (run.outcome) {
    case Outcome::guest_exit:
      if (run.value == kAllSkipped) {
        result->verdict = Verdict::skip;
        result->reason = "all its subtests were skipped";
        for (const Subtest& subtest : result->subtests) {
          if (subtest.mark == Mark::skip) {
            result->reason = subtest.name;
          }
        }
      } else if (run.value == 0 && result->count(Mark::fail) + result->count(Mark::xpass) == 0) {
        result->verdict = Verdict::pass;
      } else {
        result->verdict = Verdict::fail;
        result->reason = run.value == 0 ? "" : absl::StrCat("exit value ", run.value);
      }
      return;
    case Outcome::timeout:
      result->verdict = Verdict::hang;
      result->reason = absl::StrCat("no end ", run.detail);
      return;
    case Outcome::qemu_failed:
      // An entry may bring options that this QEMU does not know: not the test's fault.
      result->verdict = own_qemu_options ? Verdict::skip : Verdict::crash;
      result->reason = run.detail;
      return;
    default:
      result->verdict = Verdict::crash;
      result->reason = std::string{outcome_name(run.outcome)};
      if (!run.detail.empty()) {
        absl::StrAppend(&result->reason, ": ", run.detail);
      }
      return;
  }
}

std::string table_row(const EntryResult& result) {
  std::string row = absl::StrFormat("%-5s  %-38s %6u %5u %5u %7.1f s", verdict_name(result.verdict),
                                    result.name, result.count(Mark::pass),
                                    result.count(Mark::fail) + result.count(Mark::xpass),
                                    result.count(Mark::skip), result.seconds);
  if (!result.reason.empty()) {
    absl::StrAppend(&row, "  ", result.reason);
  }
  return row;
}

absl::Status write_report(const std::string& path, const std::string& text) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }
  std::ofstream file{path};
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::InternalError(absl::StrCat("cannot write ", path));
}

class Suite {
 public:
  Suite(const Settings& settings, std::vector<Expectation> expectations,
        std::string environment_path)
      : settings_{settings},
        expectations_{std::move(expectations)},
        environment_path_{std::move(environment_path)},
        table_{settings.tap == "-" || settings.junit == "-" ? stderr : stdout} {}

  EntryResult run(const KutSelection& selection) {
    EntryResult result;
    result.name = selection.name;
    PlannedRun plan = plan_run(selection, settings_.kut, real_shell_environment());
    if (!plan.skip.empty()) {
      result.reason = plan.skip;
    } else {
      plan.spec.modules.insert(plan.spec.modules.begin(), environment_path_);
      run_planned(plan, &result);
      apply_expectations(expectations_, AbslUnparseFlag(settings_.kut.machine.host),
                         !selection.arguments.has_value(), &result);
    }
    const std::lock_guard<std::mutex> guard{printing_};
    std::fprintf(table_, "%s\n", table_row(result).c_str());
    if (settings_.show_fails) {
      for (const Subtest& subtest : result.subtests) {
        if (subtest.mark == Mark::fail || subtest.mark == Mark::xpass) {
          std::fprintf(table_, "         FAIL: %s\n", subtest.name.c_str());
        }
      }
    }
    std::fflush(table_);
    return result;
  }

  std::FILE* table() const { return table_; }

 private:
  void run_planned(const PlannedRun& plan, EntryResult* result) {
    std::string console;
    RunIo io;
    io.timeout_seconds = plan.timeout_seconds;
    io.show_qemu_messages = false;
    io.console = [&console](absl::string_view bytes) {
      absl::StrAppend(&console, bytes);
      return true;
    };
    const RunResult run = run_machine(plan.spec, io);
    result->seconds = run.seconds;
    result->subtests = parse_subtests(console);
    judge(run, plan.own_qemu_options, result);
    std::ofstream log{absl::StrCat(settings_.logs, "/", log_name(result->name))};
    log << console << "\n--- " << outcome_name(run.outcome) << " " << run.value << " " << run.detail
        << "\n--- Aerie's log\n"
        << run.log_tail;
  }

  const Settings& settings_;
  const std::vector<Expectation> expectations_;
  const std::string environment_path_;
  std::FILE* table_;
  std::mutex printing_;
};

absl::Status read_settings(const std::vector<std::string>& arguments, Settings* settings,
                           bool* helped) {
  OptionTable options(
      "aerie kut", "DIR",
      "Runs the kvm-unit-tests suite in DIR, where its .flat files and unittests.cfg are.");
  options.add("group", "GROUP", "only entries of this group", &settings->kut.group);
  options.add_setter(
      "filter", "TEST",
      "only the entry TEST, entries that match it (* and ?), or whose name contains it;\n"
      "TEST:ARGS gives them other arguments (vmx:null runs one test of vmx.flat);\n"
      "may be repeated",
      [settings](absl::string_view text) {
        settings->filters.emplace_back(text);
        return absl::OkStatus();
      });
  options.add("jobs", "N", "entries at a time (default: the processors of this machine)",
              &settings->jobs);
  options.add("timeout-scale", "X", "factor on every time-out (default 3: upstream's are for KVM)",
              &settings->kut.timeout_scale);
  options.add("tap", "FILE",
              "write a TAP report ('-': standard output, the table to standard error)",
              &settings->tap);
  options.add("junit", "FILE", "write a JUnit report ('-' as above)", &settings->junit);
  options.add("config", "FILE", "the configuration (default: DIR/unittests.cfg)",
              &settings->config);
  options.add("expected", "FILE",
              "expected deviations (default: tests/kvm-unit-tests/expected.txt of this tree;\n"
              "'none': there are none)",
              &settings->expected);
  options.add("logs", "DIR", "where each entry's console goes (default: build/kut)",
              &settings->logs);
  options.add_switch("all", "also entries of group nodefault", &settings->kut.all);
  options.add_switch("fails", "print the failed subtests of each entry", &settings->show_fails);
  options.add_switch("list", "print the selected entries and end", &settings->list);
  add_machine_options(options, &settings->kut.machine);

  absl::StatusOr<Arguments> parsed = options.parse(arguments);
  if (!parsed.ok()) {
    return parsed.status();
  }
  if (parsed->help) {
    std::fputs(
        options
            .help("The table's columns: verdict, entry, subtests passed, failed, skipped, time.\n"
                  "The exit status is 0 if nothing failed that was expected to pass and nothing\n"
                  "passed that was expected to fail, else 1.\n")
            .c_str(),
        stdout);
    *helped = true;
    return absl::OkStatus();
  }
  // `--tap DIR`: the report to standard output.
  for (std::string* report : {&settings->tap, &settings->junit}) {
    std::error_code error;
    if (parsed->positional.empty() && !report->empty() && fs::is_directory(*report, error)) {
      parsed->positional.push_back(*report);
      *report = "-";
    }
  }
  if (parsed->positional.size() != 1) {
    return absl::InvalidArgumentError(
        "one DIR, the folder of the .flat files (see `aerie kut --help`)");
  }
  if (!parsed->after_dashes.empty()) {
    return absl::InvalidArgumentError("QEMU options come from the configuration, not from --");
  }
  if (settings->kut.machine.host == Host::bochs) {
    return absl::InvalidArgumentError("option --host: the suite needs QEMU (aerie or none)");
  }
  if (!(settings->kut.timeout_scale > 0 && settings->kut.timeout_scale < 1e6)) {
    return absl::InvalidArgumentError("option --timeout-scale: not a positive number");
  }
  std::error_code error;
  settings->kut.folder = parsed->positional[0];
  if (!fs::is_directory(settings->kut.folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat(settings->kut.folder, ": no such folder"));
  }
  // The root of a kvm-unit-tests tree will do as well.
  if (settings->config.empty() && !fs::exists(settings->kut.folder + "/unittests.cfg", error) &&
      fs::exists(settings->kut.folder + "/x86/unittests.cfg", error)) {
    settings->kut.folder += "/x86";
  }
  if (settings->config.empty()) {
    settings->config = settings->kut.folder + "/unittests.cfg";
  }
  const std::string root = fs::path{build_folder()}.parent_path().parent_path().string();
  if (settings->expected.empty()) {
    settings->expected = root + "/tests/kvm-unit-tests/expected.txt";
  }
  if (settings->logs.empty()) {
    settings->logs = root + "/build/kut";
  }
  if (settings->jobs == 0) {
    settings->jobs = default_jobs();
  }
  return finish_machine_options(&settings->kut.machine);
}

}  // namespace

int kut_command(const std::vector<std::string>& arguments) {
  Settings settings;
  bool helped = false;
  if (const absl::Status status = read_settings(arguments, &settings, &helped); !status.ok()) {
    return usage_error(status.message());
  }
  if (helped) {
    return kExitOk;
  }
  absl::StatusOr<std::string> config = read_file("configuration", settings.config);
  if (!config.ok()) {
    return usage_error(config.status().message());
  }
  std::vector<Expectation> expectations;
  if (settings.expected != "none") {
    absl::StatusOr<std::string> text = read_file("expected deviations", settings.expected);
    absl::StatusOr<std::vector<Expectation>> parsed =
        text.ok() ? parse_expectations(*text) : text.status();
    if (!parsed.ok()) {
      return usage_error(absl::StrCat(settings.expected, ": ", parsed.status().message()));
    }
    expectations = std::move(*parsed);
  }
  absl::StatusOr<std::vector<KutSelection>> selected =
      select_entries(parse_kut_config(*config), settings.filters, [&](const std::string& file) {
        return read_file("test", absl::StrCat(settings.kut.folder, "/", file)).value_or("");
      });
  if (!selected.ok()) {
    return usage_error(selected.status().message());
  }
  if (!settings.kut.group.empty()) {
    selected->erase(std::remove_if(selected->begin(), selected->end(),
                                   [&](const KutSelection& s) {
                                     return !s.entry.in_group(settings.kut.group);
                                   }),
                    selected->end());
  }
  if (selected->empty()) {
    return usage_error(absl::StrCat("no entry selected from ", settings.config));
  }
  if (settings.list) {
    for (const KutSelection& selection : *selected) {
      std::printf("%s\n", selection.name.c_str());
    }
    return kExitOk;
  }

  TemporaryFolder folder;
  std::error_code error;
  fs::create_directories(settings.logs, error);
  if (const absl::Status made = folder.make(); !made.ok() || error) {
    return usage_error(error ? absl::StrCat(settings.logs, ": ", error.message()) : made.message());
  }
  const std::string environment_path = folder.path() + "/environment";
  std::ofstream{environment_path} << environment_file(settings.kut.machine.accel);

  Suite suite{settings, std::move(expectations), environment_path};
  std::vector<EntryResult> results(selected->size());
  std::fprintf(suite.table(), "%-5s  %-38s %6s %5s %5s %9s\n", "", "entry", "pass", "fail", "skip",
               "time");
  run_parallel(settings.jobs, static_cast<unsigned>(selected->size()),
               [&](unsigned i) { results[i] = suite.run((*selected)[i]); });
  if (interrupt_signal() != 0) {
    return 128 + interrupt_signal();
  }

  for (const auto& [path, text] : {std::pair{settings.tap, tap_report(results)},
                                   std::pair{settings.junit, junit_report(results)}}) {
    if (const absl::Status written = write_report(path, text); !written.ok()) {
      std::fprintf(stderr, "aerie kut: %s\n", std::string{written.message()}.c_str());
      return kExitUsage;
    }
  }
  unsigned passed = 0;
  unsigned bad = 0;
  unsigned skipped = 0;
  unsigned expected = 0;
  for (const EntryResult& result : results) {
    passed += result.verdict == Verdict::pass ? 1 : 0;
    bad += is_bad(result.verdict) ? 1 : 0;
    skipped += result.verdict == Verdict::skip ? 1 : 0;
    expected += result.verdict == Verdict::expected ? 1 : 0;
  }
  std::fprintf(suite.table(), "\nconsoles in %s\n", settings.logs.c_str());
  if (expected > 0) {
    std::fprintf(suite.table(), "%u deviate as %s expects (counted as skipped)\n", expected,
                 settings.expected.c_str());
  }
  std::fprintf(suite.table(), "%u passed, %u failed, %u skipped\n", passed, bad,
               skipped + expected);
  return bad == 0 ? kExitOk : 1;
}

}  // namespace aerie::tools
