// `aerie demo`: Aerie, Debian's Linux with KVM as L1, and an L2 that the QEMU inside that L1
// starts.
#pragma once

#include <string>
#include <vector>

namespace aerie::tools {

int demo_command(const std::vector<std::string>& arguments);

}  // namespace aerie::tools
