// The part of a shell's word splitting that unittests.cfg relies on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aerie::tools {

struct ShellEnvironment {
  // What a command in backticks or $( ) prints.
  std::function<absl::StatusOr<std::string>(const std::string& command)> run;
  // The value of a variable, empty where it is not set.
  std::function<std::string(const std::string& name)> variable;
};

// /bin/sh for commands, the process's environment for variables.
const ShellEnvironment& real_shell_environment();

// Splits as a shell would: '...', "...", backslashes, $'...' with \n and \t, `command`, $(command),
// $NAME and ${NAME}. Results of the latter are split into words when they stand outside quotes.
// File name patterns stay as they are: upstream's test filters look like them.
absl::StatusOr<std::vector<std::string>> split_shell_words(absl::string_view text,
                                                           const ShellEnvironment& environment);

}  // namespace aerie::tools
