// The Linux images that images/build makes out of Debian packages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/run/machine.h"

namespace aerie::tools {

// Builds what is missing or out of date; an error says what images/build said.
absl::Status build_images();

// The root of the source tree that this build belongs to.
std::string source_root();

// Fills in Linux with KVM as L1: payload, initrd and command line. `words` are more kernel
// parameters.
void use_linux_l1(MachineSpec* spec, absl::string_view words);

}  // namespace aerie::tools
