// The tool's own exit statuses. 0 to 127 is the value that L1 wrote to isa-debug-exit (it has seven
// bits); 128 + n says that signal n ended the tool; what Aerie or the tool has to say lies above.
#pragma once

#include <array>
#include "absl/strings/string_view.h"

namespace aerie::tools {

enum ExitStatus : int {
  kExitOk = 0,
  kExitUsage = 192,
  kExitPayload = 193,
  kExitQemu = 194,
  kExitTimeout = 195,
  kExitPanic = 196,
  kExitTripleFault = 197,
  kExitUnsupportedHost = 198,
  kExitEmulation = 199,
  kExitNoResult = 200,
};

struct ExitStatusMeaning {
  int status;
  absl::string_view meaning;
};
inline constexpr std::array kExitStatusMeanings = {
    ExitStatusMeaning{kExitUsage, "bad usage"},
    ExitStatusMeaning{kExitPayload, "the payload, initrd or a module cannot be loaded"},
    ExitStatusMeaning{kExitQemu, "QEMU (or Bochs) is missing, does not start or dies"},
    ExitStatusMeaning{kExitTimeout, "--timeout ran out"},
    ExitStatusMeaning{kExitPanic, "Aerie panicked: a fault of Aerie's own"},
    ExitStatusMeaning{kExitTripleFault, "L1 took a triple fault"},
    ExitStatusMeaning{kExitUnsupportedHost, "the processor lacks what Aerie needs"},
    ExitStatusMeaning{kExitEmulation, "L1 did to a trapped page what Aerie cannot perform"},
    ExitStatusMeaning{kExitNoResult, "L1 ended without telling a result (--host bochs)"},
};

}  // namespace aerie::tools
