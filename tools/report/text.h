// Between the core's std::string_view and Abseil's, which are two types in Debian's build of
// Abseil. tools/ uses absl::string_view throughout.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace aerie::tools {

constexpr absl::string_view absl_view(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace aerie::tools
