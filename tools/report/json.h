// Quoting for the formats that reports are written in.
#pragma once

#include <string>
#include "absl/strings/string_view.h"

namespace aerie::tools {

// A JSON string, quotes included.
std::string json_string(absl::string_view text);
// Text for XML content or a quoted attribute; bytes that XML 1.0 cannot hold become '?'.
std::string xml_text(absl::string_view text);

}  // namespace aerie::tools
