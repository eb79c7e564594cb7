#include "tools/kut/plan.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/types.h"
#include "tools/cli/options.h"
#include "tools/kut/cpu_model.h"
#include "tools/kut/results.h"

namespace aerie::tools {
namespace {

constexpr double kDefaultTimeout = 90;  // as upstream's runner has it
constexpr std::uint64_t kDefaultMemory = std::uint64_t{1} << 30;

// Files whose arguments name tests within them.
constexpr std::array<absl::string_view, 4> kTestNamesAsArguments = {"vmx.flat", "svm.flat",
                                                                    "svm_npt.flat", "vmexit.flat"};

bool takes_test_names(const KutEntry& entry) {
  return std::find(kTestNamesAsArguments.begin(), kTestNamesAsArguments.end(), entry.file) !=
         kTestNamesAsArguments.end();
}

// What upstream's filters want: blanks in a test's name are written as underscores.
std::string test_filter(absl::string_view name) {
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(name), {{" ", "_"}});
}

std::string file_text(const std::string& path) {
  std::ifstream file{path};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// `check = PATH=VALUE ...`: the first that does not hold, as upstream words it.
std::string failed_check(const std::string& check) {
  for (absl::string_view word : absl::StrSplit(check, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const std::string text = file_text(parts.first);
    if (::access(parts.first.c_str(), R_OK) != 0 ||
        absl::StripTrailingAsciiWhitespace(text) != parts.second) {
      return absl::StrCat(parts.first, " not equal to ", parts.second);
    }
  }
  return {};
}

// The vendor that an entry is about, where its processor model leaves it open.
std::optional<CpuVendor> vendor_of_entry(const KutEntry& entry) {
  if (entry.in_group("vmx") || absl::StartsWith(entry.file, "vmx")) {
    if (entry.file != "vmxexit.flat" && !absl::StartsWith(entry.file, "vmexit")) {
      return CpuVendor::intel;
    }
  }
  if (entry.in_group("svm") || absl::StartsWith(entry.file, "svm")) {
    return CpuVendor::amd;
  }
  return std::nullopt;
}

// -machine's properties that are left once what belongs to an accelerator is gone.
std::string machine_properties(absl::string_view value) {
  std::vector<absl::string_view> kept;
  for (absl::string_view word : absl::StrSplit(value, ',', absl::SkipEmpty())) {
    if (!absl::StartsWith(word, "accel=") && !absl::StartsWith(word, "kernel-irqchip") &&
        !absl::StartsWith(word, "kernel_irqchip")) {
      kept.push_back(word);
    }
  }
  return absl::StrJoin(kept, ",");
}

// Sorts the words of qemu_params into what L1 is shown, what the machine is like, and what QEMU
// gets.
std::string take_qemu_params(const std::vector<std::string>& words, ShownCpu* cpu,
                             const std::vector<absl::string_view>& host_lacks, PlannedRun* run) {
  std::uint64_t memory = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string option = absl::StartsWith(words[i], "--") ? words[i].substr(1) : words[i];
    const bool has_value = i + 1 < words.size();
    const auto value = [&]() -> const std::string& { return words[++i]; };
    if (option == "-cpu" && has_value) {
      *cpu = translate_cpu(value(), host_lacks);
    } else if (option == "-m" && has_value) {
      const std::string text = value();
      MemorySize size;
      std::string error;
      if (!absl::ParseFlag(
              absl::StripPrefix(absl::string_view{text}.substr(0, text.find(',')), "size="), &size,
              &error)) {
        return absl::StrCat("-m ", text, " ", error);
      }
      memory = size.bytes;
    } else if (option == "-smp" && has_value) {
      unsigned cpus = 0;
      const std::string text = value();
      if (absl::SimpleAtoi(text.substr(0, text.find(',')), &cpus)) {
        run->spec.cpus = cpus;
      }
    } else if (option == "-enable-kvm" || option == "-no-reboot" || option == "-nodefaults") {
      continue;  // the accelerator is not the entry's to choose; the others are given anyway
    } else if (option == "-accel" && has_value) {
      ++i;
    } else if ((option == "-machine" || option == "-M") && has_value) {
      if (const std::string left = machine_properties(value()); !left.empty()) {
        run->spec.qemu_options.insert(run->spec.qemu_options.end(), {"-machine", left});
        run->own_qemu_options = true;
      }
    } else if (option == "-append" && has_value) {
      run->spec.append = value();
    } else if (option == "-initrd" && has_value) {
      run->spec.modules.push_back(value());
    } else {
      run->spec.qemu_options.push_back(words[i]);
      run->own_qemu_options = true;
    }
  }
  if (memory != 0) {
    // The entry means what L1 has; Aerie's own block comes on top.
    run->spec.memory =
        std::max(run->spec.memory, memory + (run->spec.host == Host::aerie ? run->spec.block : 0));
  }
  return {};
}

// Whether one of the entry's arguments selects the test.
bool selects(const KutEntry& entry, const std::string& filter) {
  const std::vector<std::string> words =
      absl::StrSplit(entry.test_args, absl::ByAnyChar(" '\""), absl::SkipEmpty());
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return glob_match(word, filter); });
}

// A test within a file that takes test names: its name is a string of that file. Each such file
// gives one selection, on the machine of the entry that would run the test, else of the file's
// first entry.
void add_tests_within(const std::vector<KutEntry>& entries, const std::string& name,
                      const std::function<std::string(const std::string& file)>& contents,
                      std::vector<KutSelection>* selected) {
  for (const absl::string_view file : kTestNamesAsArguments) {
    const KutEntry* best = nullptr;
    for (const KutEntry& entry : entries) {
      if (entry.file == file && (best == nullptr || (!selects(*best, test_filter(name)) &&
                                                     selects(entry, test_filter(name))))) {
        best = &entry;
      }
    }
    if (best == nullptr) {
      continue;
    }
    const std::string text = contents(best->file);
    for (const std::string& spelling : {name, absl::StrReplaceAll(name, {{"_", " "}})}) {
      const std::string needle = std::string(1, '\0') + spelling + std::string(1, '\0');
      if (absl::StrContains(text, needle)) {
        selected->push_back({*best, absl::StrCat(best->name, ":", name), test_filter(name), true});
        break;
      }
    }
  }
}

}  // namespace

std::optional<double> parse_duration(absl::string_view text) {
  double unit = 1;
  if (!text.empty()) {
    switch (text.back()) {
      case 's':
        break;
      case 'm':
        unit = 60;
        break;
      case 'h':
        unit = 3600;
        break;
      default:
        unit = 0;
        break;
    }
    if (unit == 0) {
      unit = 1;
    } else {
      text.remove_suffix(1);
    }
  }
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !(number >= 0)) {
    return std::nullopt;
  }
  return number * unit;
}

absl::StatusOr<std::vector<KutSelection>> select_entries(
    const std::vector<KutEntry>& entries, const std::vector<std::string>& filters,
    const std::function<std::string(const std::string& file)>& contents) {
  std::vector<KutSelection> selected;
  if (filters.empty()) {
    for (const KutEntry& entry : entries) {
      selected.push_back({entry, entry.name, std::nullopt, false});
    }
    return selected;
  }
  for (const std::string& filter : filters) {
    const std::size_t colon = filter.find(':');
    const std::string pattern = filter.substr(0, colon);
    std::optional<std::string> arguments;
    if (colon != std::string::npos) {
      arguments = filter.substr(colon + 1);
    }
    const auto add = [&](const KutEntry& entry, bool named) {
      std::optional<std::string> given = arguments;
      if (given.has_value() && takes_test_names(entry)) {
        given = test_filter(*given);
      }
      selected.push_back(
          {entry, given.has_value() ? absl::StrCat(entry.name, ":", *arguments) : entry.name, given,
           named});
    };
    const std::size_t before = selected.size();
    const auto add_where = [&](auto&& matches, bool named) {
      for (const KutEntry& entry : entries) {
        if (selected.size() == before || !named) {
          if (matches(entry)) {
            add(entry, named);
          }
        }
      }
    };
    add_where([&](const KutEntry& e) { return e.name == pattern; }, true);
    if (selected.size() == before) {
      add_where([&](const KutEntry& e) { return glob_match(pattern, e.name); }, false);
    }
    if (selected.size() == before) {
      add_where([&](const KutEntry& e) { return absl::StrContains(e.name, pattern); }, false);
    }
    if (selected.size() == before && !arguments.has_value()) {
      add_tests_within(entries, pattern, contents, &selected);
    }
    if (selected.size() == before) {
      return absl::NotFoundError(
          absl::StrCat("option --filter: no entry matches \"", filter, "\""));
    }
  }
  return selected;
}

PlannedRun plan_run(const KutSelection& selection, const KutOptions& options,
                    const ShellEnvironment& environment) {
  const KutEntry& entry = selection.entry;
  PlannedRun run;
  run.spec = options.machine;
  run.spec.memory = kDefaultMemory;
  const auto skip = [&run](auto&&... reason) {
    run.skip = absl::StrCat(reason...);
    return run;
  };

  if (entry.in_group("nodefault") && options.group.empty() && !options.all && !selection.named) {
    return skip("test marked as manual run only");
  }
  if (!entry.arch.empty() && entry.arch != "x86_64") {
    return skip(entry.arch, " only");
  }
  if (!entry.machine.empty() && entry.machine != "pc") {
    run.spec.qemu_options = {"-machine", entry.machine};
    run.own_qemu_options = true;
  }
  if (!entry.accel.empty() && !absl::StartsWith(options.machine.accel, entry.accel)) {
    return skip(entry.accel, " only, but the accelerator is ", options.machine.accel);
  }
  if (entry.in_group("migration")) {
    return skip("migration is not supported");
  }
  if (entry.in_group("panic")) {
    return skip("the panic device is not watched");
  }
  if (!entry.disabled_if.empty()) {
    const absl::StatusOr<std::string> output =
        environment.run(absl::StrCat("if ", entry.disabled_if, "; then echo yes; fi"));
    if (output.ok() && absl::StrContains(*output, "yes")) {
      return skip("disabled because: ", entry.disabled_if);
    }
  }
  if (const std::string failed = failed_check(entry.check); !failed.empty()) {
    return skip(failed);
  }
  run.spec.payload = absl::StrCat(options.folder, "/", entry.file);
  if (entry.file.empty() || ::access(run.spec.payload.c_str(), R_OK) != 0) {
    return skip("test file '", run.spec.payload, "' not found");
  }

  absl::StatusOr<std::vector<std::string>> smp = split_shell_words(entry.smp, environment);
  absl::StatusOr<std::vector<std::string>> args = split_shell_words(entry.test_args, environment);
  absl::StatusOr<std::vector<std::string>> params =
      split_shell_words(entry.qemu_params, environment);
  for (const auto* words : {&smp, &args, &params}) {
    if (!words->ok()) {
      return skip(words->status().message());
    }
  }
  if (!smp->empty()) {
    unsigned cpus = 0;
    if (!absl::SimpleAtoi((*smp)[0].substr(0, (*smp)[0].find(',')), &cpus) || cpus == 0) {
      return skip("smp = ", entry.smp, " is no number of processors");
    }
    run.spec.cpus = cpus;
  }
  const std::vector<absl::string_view> no_lacks;
  ShownCpu cpu;
  // Unquoted words after the first are QEMU options to upstream's runner; nobody means that.
  run.spec.append = selection.arguments.value_or(absl::StrJoin(*args, " "));
  if (std::string wrong = take_qemu_params(
          *params, &cpu, options.machine.accel == "tcg" ? tcg_lacks() : no_lacks, &run);
      !wrong.empty()) {
    return skip(wrong);
  }
  if (!cpu.cannot_show.empty()) {
    return skip(cpu.cannot_show);
  }
  if (run.spec.cpus > kMaxCpus) {
    return skip("wants ", run.spec.cpus, " processors; Aerie runs ", kMaxCpus, " at most");
  }
  const std::optional<CpuVendor> wanted =
      cpu.vendor.has_value() ? cpu.vendor : vendor_of_entry(entry);
  if (wanted.has_value() && options.machine.cpu.has_value() && *wanted != *options.machine.cpu) {
    return skip("wants --cpu ", AbslUnparseFlag(*wanted));
  }
  if (wanted.has_value() && !options.machine.cpu.has_value()) {
    run.spec.cpu = wanted;
  }
  if (run.spec.host == Host::none) {
    // QEMU's own processor: hide by QEMU's names only what the entry itself takes away.
    run.spec.cpu = cpu.vendor.has_value() && !absl::StrContains(entry.qemu_params, "vmx")
                       ? cpu.vendor
                       : run.spec.cpu;
    if (wanted == CpuVendor::intel && vendor_of_entry(entry) == CpuVendor::intel) {
      return skip("QEMU's software processor has no VMX");
    }
  } else {
    for (const std::string& feature : cpu.hide) {
      run.spec.hide.push_back(feature);
    }
  }
  double timeout = kDefaultTimeout;
  if (!entry.timeout.empty()) {
    const std::optional<double> given = parse_duration(entry.timeout);
    if (!given.has_value()) {
      return skip("timeout = ", entry.timeout, " is no duration");
    }
    timeout = *given;
  }
  run.timeout_seconds = timeout * options.timeout_scale;
  return run;
}

}  // namespace aerie::tools
