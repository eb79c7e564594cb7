// Running a multiboot program on Bochs, an independent implementation of VMX and SVM.
#pragma once

#include "tools/run/runner.h"

namespace aerie::tools {

// Bochs has no isa-debug-exit: the program tells its result by a console line of its own,
// `AERIE-GUEST-EXIT n`, after which Bochs is ended.
inline constexpr absl::string_view kGuestExitLine = "AERIE-GUEST-EXIT ";

RunResult run_bochs(const MachineSpec& spec, const RunIo& io);

// The configuration file for a run (bochsrc), for tests.
std::string bochs_configuration(const MachineSpec& spec, const std::string& iso,
                                const std::string& console_path, const std::string& log_path);
// GRUB's menu for the program, its arguments and modules, for tests.
std::string grub_configuration(const MachineSpec& spec);

}  // namespace aerie::tools
