// `-cpu MODEL,+f,-f,vendor=...` of an entry, as what L1 is shown. QEMU's own processor stays what
// it is: the processor that the test sees is Aerie's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/run/machine.h"

namespace aerie::tools {

struct ShownCpu {
  std::optional<CpuVendor> vendor;  // what the model demands, if it does
  std::vector<std::string> hide;    // names of vmm/policy/feature.h
  std::string cannot_show;          // why this processor cannot be shown; empty if it can
};

// `argument` is what follows -cpu. `host_lacks` names features that the processor under Aerie is
// without.
ShownCpu translate_cpu(absl::string_view argument,
                       const std::vector<absl::string_view>& host_lacks);

// QEMU 7.2's software processor: what `-cpu max` is without.
const std::vector<absl::string_view>& tcg_lacks();

}  // namespace aerie::tools
