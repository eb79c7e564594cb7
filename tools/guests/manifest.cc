#include "tools/guests/manifest.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aerie::tools {
namespace {

constexpr double kTimeout = 30;
constexpr double kBochsTimeout = 120;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

absl::Status wrong(int line, absl::string_view word) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line, ": \"", word, "\" is not understood"));
}

// The machine that a word of WHERE stands for.
bool place(absl::string_view where, MachineSpec* spec) {
  if (where == "intel" || where == "amd") {
    spec->host = Host::aerie;
    spec->cpu = where == "intel" ? CpuVendor::intel : CpuVendor::amd;
  } else if (where == "none") {
    spec->host = Host::none;
  } else if (where == "bochs" || where == "bochs-amd") {
    spec->host = Host::bochs;
    spec->cpu = where == "bochs" ? CpuVendor::intel : CpuVendor::amd;
  } else {
    return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<GuestRun>> parse_manifest(absl::string_view text) {
  std::vector<GuestRun> runs;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) {
      continue;
    }
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    GuestRun base;
    base.spec.memory = 512 * kMiB;
    if (words.size() < 3 || !absl::SimpleAtoi(words[1], &base.spec.cpus)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": wants NAME CPUS WHERE [OPTION...]"));
    }
    base.guest = std::string{words[0]};
    std::vector<absl::string_view> options;
    for (std::size_t i = 3; i < words.size(); ++i) {
      absl::string_view word = words[i];
      if (word == "icount") {
        base.spec.icount = true;
      } else if (absl::ConsumePrefix(&word, "memory=")) {
        if (!absl::SimpleAtoi(word, &base.spec.memory)) {
          return wrong(number, words[i]);
        }
        base.spec.memory *= kMiB;
      } else if (absl::ConsumePrefix(&word, "timeout=")) {
        if (!absl::SimpleAtod(word, &base.timeout_seconds)) {
          return wrong(number, words[i]);
        }
      } else if (absl::ConsumePrefix(&word, "status=")) {
        if (!absl::SimpleAtoi(word, &base.status)) {
          return wrong(number, words[i]);
        }
      } else if (absl::ConsumePrefix(&word, "args=")) {
        base.spec.append = absl::StrReplaceAll(word, {{",", " "}});
      } else if (absl::ConsumePrefix(&word, "hide=")) {
        base.spec.hide = absl::StrSplit(word, ',');
      } else if (word == "tdp=off" || word == "tdp=on") {
        base.spec.tdp = word == "tdp=on";
      } else if (absl::ConsumePrefix(&word, "qemu=")) {
        for (absl::string_view option : absl::StrSplit(word, ',')) {
          base.spec.qemu_options.push_back(absl::StrReplaceAll(option, {{";", ","}}));
        }
      } else {
        return wrong(number, words[i]);
      }
      options.push_back(words[i]);
    }
    for (absl::string_view where : absl::StrSplit(words[2], ',')) {
      GuestRun run = base;
      if (!place(where, &run.spec)) {
        return wrong(number, where);
      }
      if (run.spec.host == Host::bochs) {
        run.spec.qemu_options.clear();
        run.spec.hide.clear();
        if (base.timeout_seconds == 0) {
          run.timeout_seconds = kBochsTimeout;
        }
      }
      if (run.timeout_seconds == 0) {
        run.timeout_seconds = kTimeout;
      }
      if (run.spec.host == Host::aerie) {
        // What the line gives is for L1; Aerie's block, which keeps the guest's file, comes on top.
        run.spec.memory =
            std::max(base.spec.memory, kSmallestL1Memory) + run.spec.block + 16 * kMiB;
      }
      run.name = absl::StrCat(words[0], " ", words[1], " ", where, options.empty() ? "" : " ",
                              absl::StrJoin(options, " "));
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

}  // namespace aerie::tools
