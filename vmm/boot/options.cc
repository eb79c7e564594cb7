#include "vmm/boot/options.h"

namespace aerie::vmm {
namespace {

bool parse_size(std::string_view text, u64& bytes) {
  u64 value = 0;
  usize i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    value = value * 10 + static_cast<u64>(text[i] - '0');
    if (value > u64{1} << 40) {
      return false;
    }
  }
  if (i == 0 || i + 1 < text.size()) {
    return false;
  }
  const u64 unit = i == text.size() ? 1
                   : text[i] == 'K' ? kKiB
                   : text[i] == 'M' ? kMiB
                   : text[i] == 'G' ? kGiB
                                    : 0;
  bytes = value * unit;
  return unit != 0;
}

bool apply(std::string_view key, std::string_view value, BootOptions& o) {
  if (key == "cpu") {
    o.cpu = value == "amd" ? L1Cpu::amd : L1Cpu::intel;
    return value == "amd" || value == "intel";
  }
  if (key == "tdp") {
    o.tdp = value == "on";
    return value == "on" || value == "off";
  }
  if (key == "block") {
    // Image, telemetry and control blocks take 8 MiB; less than 16 leaves the MMU no room.
    return parse_size(value, o.block_bytes) && o.block_bytes % (2 * kMiB) == 0 &&
           o.block_bytes >= 16 * kMiB && o.block_bytes <= kGiB;
  }
  if (key == "log") {
    constexpr std::string_view names[] = {"error", "warning", "info", "debug"};
    for (unsigned i = 0; i < 4; ++i) {
      if (value == names[i]) {
        o.log_level = static_cast<LogLevel>(i);
        return true;
      }
    }
    return false;
  }
  if (key == "hide") {
    o.hide = value;
    return true;
  }
  return false;
}

}  // namespace

std::string_view parse_boot_options(std::string_view line, BootOptions& options) {
  bool first = true;
  while (!line.empty()) {
    const usize space = line.find(' ');
    const std::string_view word = line.substr(0, space);
    line = space == std::string_view::npos ? std::string_view{} : line.substr(space + 1);
    const usize equals = word.find('=');
    // The loader puts the image's own path first.
    if (word.empty() || (first && equals == std::string_view::npos)) {
      first = first && word.empty();
      continue;
    }
    first = false;
    if (equals == std::string_view::npos ||
        !apply(word.substr(0, equals), word.substr(equals + 1), options)) {
      return word;
    }
  }
  return {};
}

}  // namespace aerie::vmm
