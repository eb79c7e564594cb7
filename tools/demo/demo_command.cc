#include "tools/demo/demo_command.h"

#include <chrono>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/run/console.h"
#include "tools/run/exit_status.h"
#include "tools/run/images.h"
#include "tools/run/run_command.h"
#include "tools/run/runner.h"
#include "tools/run/telemetry.h"

namespace aerie::tools {
namespace {

using Clock = std::chrono::steady_clock;

// The line by which the inits of images/ tell that all went well.
constexpr absl::string_view kL2Done = "L2: powering off";

// Shows of the console what the inits say, and at times how far the kernels are.
class Progress {
 public:
  explicit Progress(bool verbose) : verbose_{verbose} {}

  bool feed(absl::string_view bytes) {
    if (verbose_) {
      write_all(1, bytes);
    }
    for (const char c : bytes) {
      if (c == '\n') {
        take(absl::StripAsciiWhitespace(line_));
        line_.clear();
      } else {
        line_ += c;
      }
    }
    return true;
  }
  bool l2_done() const { return l2_done_; }
  void say(absl::string_view text) {
    std::printf("%7.1f s  %s\n", seconds(), std::string{text}.c_str());
    std::fflush(stdout);
    last_ = Clock::now();
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  void take(absl::string_view line) {
    l2_done_ = l2_done_ || absl::StartsWith(line, kL2Done);
    if (verbose_) {
      return;
    }
    const bool told = absl::StartsWith(line, "L1: ") || absl::StartsWith(line, "L2: ");
    if (told || absl::StrContains(line, "Kernel panic")) {
      say(line);
    } else if (Clock::now() - last_ > std::chrono::seconds{5} && !line.empty()) {
      say(absl::StrCat("... ", line.substr(0, 85)));
    }
  }

  const bool verbose_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  std::string line_;
  bool l2_done_ = false;
};

int usage_error(absl::string_view message) {
  std::fprintf(stderr, "aerie demo: %s\n", std::string{message}.c_str());
  return kExitUsage;
}

}  // namespace

int demo_command(const std::vector<std::string>& arguments) {
  MachineSpec spec;
  spec.memory = std::uint64_t{1536} << 20;
  RunIo io;
  io.timeout_seconds = 900;
  std::string words;
  bool verbose = false;
  OptionTable options(
      "aerie demo", "",
      "Boots Aerie, Debian's Linux with KVM on it as L1, and Linux again as L2, started by the\n"
      "QEMU inside L1; then prints the exits that were taken. The images are built out of Debian\n"
      "packages, which are downloaded and unpacked, not installed.");
  add_machine_options(options, &spec);
  options.add("cpus", "N", "processors of L1 (default 1)", &spec.cpus);
  options.add("timeout", "SECONDS", "end the run after this long (default 900)",
              &io.timeout_seconds);
  options.add("l1-append", "WORDS", "more kernel parameters for L1 (images/l1-init tells its own)",
              &words);
  options.add("log", "FILE", "Aerie's own log", &io.log_path);
  options.add_switch("verbose", "show L1's and L2's whole console", &verbose);
  const absl::StatusOr<Arguments> parsed = options.parse(arguments);
  if (!parsed.ok()) {
    return usage_error(parsed.status().message());
  }
  if (parsed->help) {
    std::fputs(options.help().c_str(), stdout);
    return kExitOk;
  }
  if (!parsed->positional.empty()) {
    return usage_error(absl::StrCat("takes no \"", parsed->positional[0], "\""));
  }
  spec.qemu_options = parsed->after_dashes;
  if (const absl::Status status = finish_machine_options(&spec); !status.ok()) {
    return usage_error(status.message());
  }
  if (spec.host == Host::bochs) {
    return usage_error("option --host: Bochs runs no bzImage");
  }

  Progress progress{verbose};
  progress.say("images: Debian's kernel, QEMU and busybox, packed for L1 and L2");
  if (const absl::Status built = build_images(); !built.ok()) {
    std::fprintf(stderr, "aerie demo: %s\n", std::string{built.message()}.c_str());
    return kExitPayload;
  }
  use_linux_l1(&spec, words);
  progress.say(absl::StrFormat("Aerie starts L1: Linux on %u %s processor(s), %u MiB", spec.cpus,
                               AbslUnparseFlag(spec.cpu.value_or(CpuVendor::intel)),
                               spec.memory >> 20));
  io.console = [&progress](absl::string_view bytes) { return progress.feed(bytes); };
  const RunResult result = run_machine(spec, io);
  if (result.telemetry != nullptr) {
    std::printf("\n%s", telemetry_table(*result.telemetry).c_str());
  }
  const bool ok = result.exit_status() == 0 && progress.l2_done();
  std::printf(
      "\n%s after %.1f s\n",
      ok ? "L2 ran to its init and powered off"
         : absl::StrCat("failed: ", outcome_name(result.outcome), " ", result.detail).c_str(),
      result.seconds);
  if (!ok && !result.log_tail.empty()) {
    std::printf("the end of Aerie's log:\n%s\n", result.log_tail.c_str());
  }
  return ok ? kExitOk : result.exit_status() != 0 ? result.exit_status() : 1;
}

}  // namespace aerie::tools
