// The tool's one waiting loop: carries bytes between a child process and the user until the child
// ends, its time is up, or somebody wants it to stop.
#pragma once

#include <functional>
#include <vector>
#include "absl/strings/string_view.h"

#include "tools/run/subprocess.h"

namespace aerie::tools {

enum class RelayEnd { exited, timeout, interrupted, quit, stopped };

struct RelaySource {
  int fd;
  // Gets what was read; false ends the relay with RelayEnd::stopped.
  std::function<bool(absl::string_view)> deliver;
};

struct RelaySpec {
  std::vector<RelaySource> sources;
  bool standard_input = false;  // forward the tool's standard input to the child's
  double timeout_seconds = 0;   // 0: none
};

// On return the child has ended: by itself (RelayEnd::exited), or at the tool's hands.
RelayEnd relay(Subprocess& process, const RelaySpec& spec);

}  // namespace aerie::tools
