// Instruction bytes written as hexadecimal text: bytes("0f a2").
#pragma once

#include <string_view>
#include <vector>

#include "base/types.h"

namespace aerie::cpu {

inline std::vector<u8> bytes(std::string_view text) {
  std::vector<u8> result;
  int digits = 0;
  unsigned value = 0;
  for (const char c : text) {
    if (c == ' ') {
      continue;
    }
    value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    if (++digits == 2) {
      result.push_back(static_cast<u8>(value));
      digits = 0;
      value = 0;
    }
  }
  return result;
}

}  // namespace aerie::cpu
