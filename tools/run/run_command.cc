#include "tools/run/run_command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tools/run/console.h"
#include "tools/run/exit_status.h"
#include "tools/run/runner.h"
#include "tools/run/telemetry.h"

namespace aerie::tools {
namespace {

namespace fs = std::filesystem;

int usage_error(absl::string_view message) {
  std::fprintf(stderr, "aerie run: %s\n", std::string{message}.c_str());
  return kExitUsage;
}

std::string status_help() {
  std::string text =
      "QEMU options after -- are added to QEMU's command line.\n\n"
      "On a terminal Ctrl-C goes to L1; Ctrl-A x ends the run, Ctrl-A a sends Ctrl-A.\n\n"
      "exit status:\n"
      "  0-127    what L1 wrote to isa-debug-exit (port 0xf4); 0 too when L1 powered off or reset\n"
      "  128 + n  signal n ended the run\n";
  for (const ExitStatusMeaning& row : kExitStatusMeanings) {
    absl::StrAppendFormat(&text, "  %-8d %s\n", row.status, row.meaning);
  }
  return text;
}

// What the user must know about the end of a run, on standard error.
void report_end(const MachineSpec& spec, const RunResult& result, bool log_kept) {
  std::string line;
  switch (result.outcome) {
    case Outcome::guest_exit:
    case Outcome::power_off:
    case Outcome::quit:
    case Outcome::interrupted:
      return;
    case Outcome::reset:
      line = "L1 reset the machine";
      break;
    case Outcome::bad_payload:
      line = "";
      break;
    case Outcome::qemu_failed:
      line = spec.host == Host::bochs ? "Bochs failed" : "QEMU failed";
      break;
    default:
      line = std::string{outcome_name(result.outcome)};
      break;
  }
  if (!result.detail.empty()) {
    absl::StrAppend(&line, line.empty() ? "" : ": ", result.detail);
  }
  std::fprintf(stderr, "aerie: %s\n", line.c_str());
  const bool of_aerie = result.outcome == Outcome::panic ||
                        result.outcome == Outcome::triple_fault ||
                        result.outcome == Outcome::emulation_failed ||
                        result.outcome == Outcome::timeout || result.outcome == Outcome::no_result;
  if (of_aerie && !log_kept && !result.log_tail.empty()) {
    std::fprintf(stderr, "aerie: the end of Aerie's log:\n%s", result.log_tail.c_str());
  }
}

}  // namespace

std::string build_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().parent_path().string();
}

std::string default_image() {
  const char* named = std::getenv("AERIE_IMAGE");
  return named != nullptr ? named : absl::StrCat(build_folder(), "/vmm/aerie.elf");
}

void add_machine_options(OptionTable& options, MachineSpec* spec) {
  options.add_setter("cpu", "intel|amd", "the vendor of the processor that L1 sees (default intel)",
                     [spec](absl::string_view text) {
                       CpuVendor vendor{};
                       std::string error;
                       if (!absl::ParseFlag(text, &vendor, &error)) {
                         return absl::InvalidArgumentError(error);
                       }
                       spec->cpu = vendor;
                       return absl::OkStatus();
                     });
  options.add_setter("tdp", "on|off",
                     "whether L1 runs on nested paging or on shadow pages (default on)",
                     [spec](absl::string_view text) {
                       OnOff value;
                       std::string error;
                       if (!absl::ParseFlag(text, &value, &error)) {
                         return absl::InvalidArgumentError(error);
                       }
                       spec->tdp = value.on;
                       return absl::OkStatus();
                     });
  options.add_setter(
      "hide", "FEATURE,...",
      "features that L1 does not get: npt, ept, pku, smap, ... (may be repeated)",
      [spec](absl::string_view text) {
        for (absl::string_view word : absl::StrSplit(text, ',')) {
          word = absl::StripAsciiWhitespace(word);
          if (word.empty() || word.find_first_not_of("abcdefghijklmnopqrstuvwxyz"
                                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
                                  absl::string_view::npos) {
            return absl::InvalidArgumentError("is not a list of feature names");
          }
          spec->hide.push_back(absl::AsciiStrToLower(word));
        }
        return absl::OkStatus();
      });
  options.add_setter("accel", "tcg|kvm", "QEMU's accelerator (default tcg)",
                     [spec](absl::string_view text) {
                       if (text != "tcg" && text != "kvm") {
                         return absl::InvalidArgumentError("is neither tcg nor kvm");
                       }
                       spec->accel = std::string{text};
                       return absl::OkStatus();
                     });
  options.add("host", "aerie|none|bochs",
              "what runs the payload: Aerie in QEMU (default), QEMU alone, or Bochs alone",
              &spec->host);
  options.add("bochs-cpu", "MODEL",
              "Bochs' CPU model (default corei7_icelake_u, with --cpu amd ryzen)",
              &spec->bochs_cpu);
  options.add("image", "FILE", "Aerie's own image (default: this build's)", &spec->image);
}

absl::Status finish_machine_options(MachineSpec* spec) {
  if (spec->image.empty()) {
    spec->image = default_image();
  }
  if (spec->cpus < 1 || spec->cpus > kMaxCpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --cpus: ", spec->cpus, " is not within 1 to ", kMaxCpus));
  }
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;
  const std::uint64_t least =
      spec->host == Host::aerie ? spec->block + kSmallestL1Memory : std::uint64_t{16} << 20;
  if (spec->memory < least || spec->memory > kLargest) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "option --memory: %u MiB is not within %u MiB (L1's least%s) and 1 TiB", spec->memory >> 20,
        least >> 20, spec->host == Host::aerie ? " and Aerie's own block" : ""));
  }
  if (spec->host == Host::aerie) {
    for (const std::string& feature : spec->hide) {
      if (!known_feature(feature)) {
        return absl::InvalidArgumentError(absl::StrCat("option --hide: there is no feature \"",
                                                       feature,
                                                       "\"; docs/what_l1_sees.md names them"));
      }
    }
  }
  if (spec->host == Host::bochs) {
    if (spec->icount) {
      return absl::InvalidArgumentError(
          "option --icount: Bochs has none; its TSC counts instructions anyway");
    }
    if (!spec->hide.empty()) {
      return absl::InvalidArgumentError(
          "option --hide: Bochs' features come with its CPU model (--bochs-cpu)");
    }
    if (!spec->qemu_options.empty()) {
      return absl::InvalidArgumentError("QEMU options after -- mean nothing to --host bochs");
    }
  }
  if (spec->icount && spec->accel == "kvm") {
    return absl::InvalidArgumentError("option --icount: needs --accel tcg");
  }
  return absl::OkStatus();
}

int run_command(const std::vector<std::string>& arguments) {
  MachineSpec spec;
  RunIo io;
  MemorySize memory{spec.memory};
  MemorySize block{spec.block};
  bool stats = false;
  std::string stats_json;

  OptionTable options(
      "aerie run", "PAYLOAD [-- QEMU options]",
      "Runs PAYLOAD, a multiboot 1 program or a Linux bzImage, as L1. Its serial console "
      "is on\nstandard input and output.");
  add_machine_options(options, &spec);
  options.add("cpus", "N", "processors, 1 to 8 (default 1)", &spec.cpus);
  options.add("memory", "SIZE", "memory of the machine, Aerie's block included (default 1024M)",
              &memory);
  options.add("append", "ARGS", "the payload's command line or arguments", &spec.append);
  options.add("initrd", "FILE", "Linux: the initial RAM disk; multiboot: the first module",
              &spec.initrd);
  options.add_list("module", "FILE", "a multiboot module (may be repeated)", &spec.modules);
  options.add_switch("icount", "count instructions: deterministic, the TSC counts instructions",
                     &spec.icount);
  options.add("timeout", "SECONDS", "end the run after this long (default: never)",
              &io.timeout_seconds);
  options.add("log", "FILE", "Aerie's own log ('-': standard error)", &io.log_path);
  options.add_setter(
      "log-level", "LEVEL", "error, warning, info or debug (default info)",
      [&spec](absl::string_view text) {
        for (const absl::string_view level : {"error", "warning", "info", "debug"}) {
          if (text == level) {
            spec.log_level = std::string{text};
            return absl::OkStatus();
          }
        }
        return absl::InvalidArgumentError("is not one of error, warning, info, debug");
      });
  options.add_switch("stats", "print exits by level and reason, and Aerie's memory, at the end",
                     &stats);
  options.add("stats-json", "FILE", "write the same as JSON ('-': standard output)", &stats_json);
  options.add("block", "SIZE", "Aerie's own memory (default 64M)", &block);
  options.add("aerie-options", "WORDS", "more words for Aerie's own command line",
              &spec.aerie_options);
  options.add_switch("print-command", "print the command that starts the machine",
                     &io.print_command);

  absl::StatusOr<Arguments> parsed = options.parse(arguments);
  if (!parsed.ok()) {
    return usage_error(parsed.status().message());
  }
  if (parsed->help) {
    std::fputs(options.help(status_help()).c_str(), stdout);
    return kExitOk;
  }
  if (parsed->positional.empty()) {
    return usage_error("no PAYLOAD given (see `aerie run --help`)");
  }
  if (parsed->positional.size() > 1) {
    return usage_error(absl::StrCat("one PAYLOAD, not also \"", parsed->positional[1],
                                    "\"; arguments for it go into --append"));
  }
  spec.payload = parsed->positional[0];
  spec.qemu_options = std::move(parsed->after_dashes);
  spec.memory = memory.bytes;
  spec.block = block.bytes;
  if (!(io.timeout_seconds >= 0 && io.timeout_seconds < 1e9)) {
    return usage_error("option --timeout: not a time in seconds");
  }
  if (io.log_path == "-") {
    io.log_path = "/dev/stderr";
  }
  if (const absl::Status status = finish_machine_options(&spec); !status.ok()) {
    return usage_error(status.message());
  }
  if ((stats || !stats_json.empty()) && spec.host != Host::aerie) {
    return usage_error("option --stats: only Aerie has them (--host aerie)");
  }

  io.standard_input = true;
  io.console = [](absl::string_view bytes) { return write_all(STDOUT_FILENO, bytes); };
  const RunResult result = run_machine(spec, io);
  report_end(spec, result, !io.log_path.empty());
  if (stats || !stats_json.empty()) {
    if (result.telemetry == nullptr) {
      std::fprintf(stderr, "aerie: no statistics: Aerie left no telemetry\n");
    } else {
      if (stats) {
        std::fprintf(stdout, "\n%s", telemetry_table(*result.telemetry).c_str());
      }
      if (stats_json == "-") {
        std::fputs(telemetry_json(*result.telemetry).c_str(), stdout);
      } else if (!stats_json.empty()) {
        std::ofstream file{stats_json};
        file << telemetry_json(*result.telemetry);
        if (!file.flush()) {
          std::fprintf(stderr, "aerie: cannot write %s\n", stats_json.c_str());
        }
      }
    }
  }
  std::fflush(stdout);
  return result.exit_status();
}

}  // namespace aerie::tools
