// Aerie's own command line: `key=value` words, as the host tool or a GRUB menu writes them.
#pragma once

#include <array>
#include <string_view>

#include "base/log.h"
#include "base/types.h"

namespace aerie::vmm {

enum class L1Cpu : u8 { intel, amd };

struct BootOptions {
  L1Cpu cpu = L1Cpu::intel;
  bool tdp = true;
  u64 block_bytes = 64 * kMiB;
  LogLevel log_level = LogLevel::info;
  std::string_view hide{};  // comma-separated feature names, see vmm/policy
};

// Parses the words after the image's own name. An unknown word or value yields its text, else
// empty.
std::string_view parse_boot_options(std::string_view line, BootOptions& options);

}  // namespace aerie::vmm
