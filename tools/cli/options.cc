#include "tools/cli/options.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace aerie::tools {
namespace {

// Edits (insert, delete, replace) from one word to another; for "did you mean".
std::size_t edit_distance(absl::string_view a, absl::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

void OptionTable::add_list(absl::string_view name, absl::string_view value_name,
                           absl::string_view help, std::vector<std::string>* target) {
  add_setter(name, value_name, help, [target](absl::string_view text) {
    target->emplace_back(text);
    return absl::OkStatus();
  });
}

void OptionTable::add_switch(absl::string_view name, absl::string_view help, bool* target) {
  add_setter(name, "", help, [target](absl::string_view) {
    *target = true;
    return absl::OkStatus();
  });
}

void OptionTable::add_setter(absl::string_view name, absl::string_view value_name,
                             absl::string_view help,
                             std::function<absl::Status(absl::string_view)> set) {
  options_.push_back(
      {std::string{name}, std::string{value_name}, std::string{help}, std::move(set)});
}

const OptionTable::Option* OptionTable::find(absl::string_view name) const {
  const auto it = std::find_if(options_.begin(), options_.end(),
                               [name](const Option& option) { return option.name == name; });
  return it == options_.end() ? nullptr : &*it;
}

absl::Status OptionTable::unknown(absl::string_view name) const {
  const Option* nearest = nullptr;
  std::size_t distance = 3;  // farther than this is no typing mistake
  for (const Option& option : options_) {
    const std::size_t d = edit_distance(name, option.name);
    if (d < distance) {
      distance = d;
      nearest = &option;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown option --", name,
                   nearest != nullptr ? absl::StrCat("; did you mean --", nearest->name, "?") : "",
                   " (see `", command_, " --help`)"));
}

absl::StatusOr<Arguments> OptionTable::parse(const std::vector<std::string>& arguments) const {
  Arguments result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      result.after_dashes.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                 arguments.end());
      break;
    }
    if (argument == "--help" || argument == "-h") {
      result.help = true;
      return result;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      result.positional.push_back(argument);
      continue;
    }
    if (argument[1] != '-') {
      return absl::InvalidArgumentError(absl::StrCat("unknown option ", argument,
                                                     "; options of QEMU go after -- (see `",
                                                     command_, " --help`)"));
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const Option* option = find(name);
    if (option == nullptr) {
      return unknown(name);
    }
    std::string value;
    if (option->value_name.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat("option --", name, " takes no value"));
      }
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("option --", name, " needs a value: ", option->value_name));
    }
    if (const absl::Status status = option->set(value); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option --", name, ": ", "\"", value, "\" ", status.message()));
    }
  }
  return result;
}

std::string OptionTable::help(absl::string_view footer) const {
  std::string text = absl::StrCat("usage: ", command_, " [options] ", operands_, "\n\n", summary_,
                                  "\n\noptions:\n");
  for (const Option& option : options_) {
    const std::string left =
        absl::StrCat("--", option.name, option.value_name.empty() ? "" : " ", option.value_name);
    const std::vector<std::string> lines = absl::StrSplit(option.help, '\n');
    absl::StrAppendFormat(&text, "  %-24s %s\n", left, lines[0]);
    for (std::size_t i = 1; i < lines.size(); ++i) {
      absl::StrAppendFormat(&text, "  %-24s %s\n", "", lines[i]);
    }
  }
  absl::StrAppendFormat(&text, "  %-24s %s\n", "--help", "this text");
  if (!footer.empty()) {
    absl::StrAppend(&text, "\n", footer);
  }
  return text;
}

bool AbslParseFlag(absl::string_view text, MemorySize* size, std::string* error) {
  int shift = 20;
  absl::string_view digits = text;
  if (!digits.empty()) {
    switch (std::toupper(static_cast<unsigned char>(digits.back()))) {
      case 'K':
        shift = 10;
        break;
      case 'M':
        shift = 20;
        break;
      case 'G':
        shift = 30;
        break;
      case 'T':
        shift = 40;
        break;
      default:
        shift = -1;
        break;
    }
    if (shift >= 0) {
      digits.remove_suffix(1);
    } else {
      shift = 20;
    }
  }
  unsigned long long number = 0;
  const bool only_digits =
      !digits.empty() && std::all_of(digits.begin(), digits.end(),
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!only_digits || !absl::SimpleAtoi(digits, &number) || number > (~0ULL >> shift)) {
    *error = "is not a size; write a number with K, M or G, e.g. 2048M";
    return false;
  }
  size->bytes = number << shift;
  return true;
}

std::string AbslUnparseFlag(MemorySize size) { return absl::StrCat(size.bytes >> 20, "M"); }

bool AbslParseFlag(absl::string_view text, OnOff* value, std::string* error) {
  if (absl::ParseFlag(text, &value->on, error)) {
    return true;
  }
  if (text == "on" || text == "off") {
    value->on = text == "on";
    return true;
  }
  *error = "is neither on nor off";
  return false;
}

}  // namespace aerie::tools
