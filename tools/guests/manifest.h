// tests/guests/manifest.txt: which L1 guest of our own runs where. Its head tells the format.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/run/machine.h"

namespace aerie::tools {

// One run: a guest on one machine.
struct GuestRun {
  std::string name;   // "timer 1 intel icount", for reports
  std::string guest;  // the file's name without .elf
  MachineSpec spec;   // without payload and image
  double timeout_seconds = 0;
  int status = 0;  // the exit value that is right
};

absl::StatusOr<std::vector<GuestRun>> parse_manifest(absl::string_view text);

}  // namespace aerie::tools
