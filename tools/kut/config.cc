#include "tools/kut/config.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aerie::tools {
namespace {

struct Key {
  absl::string_view name;
  std::string KutEntry::*field;
};
constexpr std::array kKeys = {
    Key{"file", &KutEntry::file},
    Key{"smp", &KutEntry::smp},
    Key{"test_args", &KutEntry::test_args},
    Key{"qemu_params", &KutEntry::qemu_params},
    Key{"extra_params", &KutEntry::qemu_params},
    Key{"arch", &KutEntry::arch},
    Key{"machine", &KutEntry::machine},
    Key{"check", &KutEntry::check},
    Key{"accel", &KutEntry::accel},
    Key{"timeout", &KutEntry::timeout},
    Key{"disabled_if", &KutEntry::disabled_if},
};

constexpr absl::string_view kTripleQuote = "\"\"\"";

// A value that begins with """ goes on until the line that ends with """; a backslash at the end of
// a line joins it with the next.
std::string multi_line_value(absl::string_view first, const std::vector<absl::string_view>& lines,
                             std::size_t* at) {
  std::string value;
  absl::string_view line = first;
  while (true) {
    const absl::string_view stripped = absl::StripTrailingAsciiWhitespace(line);
    if (absl::EndsWith(stripped, kTripleQuote)) {
      absl::StrAppend(&value, absl::StripSuffix(stripped, kTripleQuote));
      return value;
    }
    const std::size_t backslashes =
        line.size() - std::min(line.size(), line.find_last_not_of('\\') + 1);
    if (backslashes % 2 == 1) {
      absl::StrAppend(&value, line.substr(0, line.size() - 1));
    } else {
      absl::StrAppend(&value, line, "\n");
    }
    if (*at + 1 >= lines.size()) {
      return value;
    }
    line = lines[++*at];
  }
}

}  // namespace

bool KutEntry::in_group(absl::string_view group) const {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

std::vector<KutEntry> parse_kut_config(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  std::vector<KutEntry> entries;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const absl::string_view line = absl::StripAsciiWhitespace(lines[i]);
    if (line.empty() || line[0] == '#') {
      continue;
    }
    if (line.front() == '[' && line.back() == ']') {
      entries.emplace_back();
      entries.back().name = std::string{line.substr(1, line.size() - 2)};
      continue;
    }
    const std::size_t equals = line.find('=');
    if (equals == absl::string_view::npos || entries.empty()) {
      continue;
    }
    const absl::string_view key = absl::StripAsciiWhitespace(line.substr(0, equals));
    const absl::string_view value = absl::StripAsciiWhitespace(line.substr(equals + 1));
    KutEntry& entry = entries.back();
    if (key == "groups") {
      entry.groups = absl::StrSplit(value, absl::ByAnyChar(" \t"), absl::SkipEmpty());
      continue;
    }
    for (const Key& known : kKeys) {
      if (key == known.name) {
        entry.*known.field = absl::StartsWith(value, kTripleQuote)
                                 ? multi_line_value(value.substr(kTripleQuote.size()), lines, &i)
                                 : std::string{value};
      }
    }
  }
  return entries;
}

}  // namespace aerie::tools
