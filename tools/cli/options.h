// Command-line options of one subcommand, as a table that both parsing and --help read.
//
//   OptionTable options("aerie run", "PAYLOAD", "Runs PAYLOAD as L1.");
//   options.add("cpus", "N", "processors of L1", &cpus);
//   absl::StatusOr<Arguments> rest = options.parse(args);
//
// Values are converted by Abseil's flag marshalling (absl::ParseFlag, AbslParseFlag for own types),
// so an option's type is its variable's type. Options and positional arguments may be mixed; `--`
// ends both, and what follows it is handed back apart.
#pragma once

#include <functional>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace aerie::tools {

struct Arguments {
  std::vector<std::string> positional;
  std::vector<std::string> after_dashes;  // what follows `--`
  bool help = false;                      // --help or -h was given; nothing else was checked
};

class OptionTable {
 public:
  // `operands` is shown after the options in the usage line.
  OptionTable(std::string command, std::string operands, std::string summary)
      : command_{std::move(command)},
        operands_{std::move(operands)},
        summary_{std::move(summary)} {}

  // An option with a value; given twice, the last one counts.
  template <class T>
  void add(absl::string_view name, absl::string_view value_name, absl::string_view help,
           T* target) {
    add_setter(name, value_name, help, [target](absl::string_view text) -> absl::Status {
      std::string error;
      T value{};
      if (!absl::ParseFlag(text, &value, &error)) {
        return absl::InvalidArgumentError(error.empty() ? "is not understood" : error);
      }
      *target = value;
      return absl::OkStatus();
    });
  }
  // An option that may be given several times.
  void add_list(absl::string_view name, absl::string_view value_name, absl::string_view help,
                std::vector<std::string>* target);
  // An option without a value.
  void add_switch(absl::string_view name, absl::string_view help, bool* target);
  void add_setter(absl::string_view name, absl::string_view value_name, absl::string_view help,
                  std::function<absl::Status(absl::string_view)> set);

  // Errors name the option and what is wrong with it.
  absl::StatusOr<Arguments> parse(const std::vector<std::string>& arguments) const;

  // The text of --help; `footer` follows the options.
  std::string help(absl::string_view footer = {}) const;

 private:
  struct Option {
    std::string name;
    std::string value_name;  // empty: a switch
    std::string help;
    std::function<absl::Status(absl::string_view)> set;
  };
  const Option* find(absl::string_view name) const;
  absl::Status unknown(absl::string_view name) const;

  std::string command_;
  std::string operands_;
  std::string summary_;
  std::vector<Option> options_;
};

// Bytes, written as a number with K, M, G or T (powers of 1024); without a suffix they are MiB, as
// QEMU's -m has it.
struct MemorySize {
  unsigned long long bytes = 0;
  friend bool AbslParseFlag(absl::string_view text, MemorySize* size, std::string* error);
  friend std::string AbslUnparseFlag(MemorySize size);
};

// `on` or `off`, and the usual other spellings of a boolean.
struct OnOff {
  bool on = false;
  friend bool AbslParseFlag(absl::string_view text, OnOff* value, std::string* error);
  friend std::string AbslUnparseFlag(OnOff value) { return value.on ? "on" : "off"; }
};

}  // namespace aerie::tools
