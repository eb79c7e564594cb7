// unittests.cfg of kvm-unit-tests: what upstream's runner (scripts/common.bash there) reads from
// it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aerie::tools {

// One [name] section. Values are as written, quotes and backticks included; empty where absent.
struct KutEntry {
  std::string name;
  std::string file;
  std::string smp;
  std::string test_args;
  std::string qemu_params;  // or extra_params, its older name
  std::vector<std::string> groups;
  std::string arch;
  std::string machine;
  std::string check;
  std::string accel;
  std::string timeout;
  std::string disabled_if;

  bool in_group(absl::string_view group) const;
};

// Lines that are neither a section, nor a known `key = value`, nor blank, nor a comment, are passed
// over, as upstream does. Values in """ may go on over several lines.
std::vector<KutEntry> parse_kut_config(absl::string_view text);

}  // namespace aerie::tools
