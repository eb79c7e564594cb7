#include "tools/report/json.h"

#include "absl/strings/str_format.h"

namespace aerie::tools {

std::string json_string(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string xml_text(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        out += (byte < 0x20 && c != '\n' && c != '\t') || byte >= 0x7f ? '?' : c;
      }
    }
  }
  return out;
}

}  // namespace aerie::tools
