// `aerie run`.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/options.h"
#include "tools/run/machine.h"

namespace aerie::tools {

int run_command(const std::vector<std::string>& arguments);

// Options that describe the machine, the same in every subcommand that starts one.
void add_machine_options(OptionTable& options, MachineSpec* spec);
// Settles what depends on more than one option; an error names the option.
absl::Status finish_machine_options(MachineSpec* spec);

// aerie.elf of this build, or what AERIE_IMAGE names.
std::string default_image();
// The root of this build (build/release), found from the tool's own path.
std::string build_folder();

}  // namespace aerie::tools
