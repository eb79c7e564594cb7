// Bytes to Instruction. Thousands of instructions a call: exits go through DecodeCache.
#pragma once

#include <span>

#include "cpu/decode/instruction.h"

namespace aerie::cpu {

inline constexpr unsigned kMaxInstructionLength = 15;

enum class DecodeStatus : u8 {
  ok,
  incomplete,  // the bytes end before the instruction does
  invalid,     // #UD: no instruction, or a prefix it does not take
  too_long,    // #GP: more than 15 bytes
};

// Decodes the instruction at the start of `bytes`; reads no byte past its end. `result` is written
// only with ok.
DecodeStatus decode_instruction(CodeMode mode, std::span<const u8> bytes, Instruction& result);

}  // namespace aerie::cpu
