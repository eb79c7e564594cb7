#include "cpu/decode/decode_cache.h"

namespace aerie::cpu {

const Instruction* DecodeCache::find_short(const Entry& entry, const u8* code, usize readable) {
  const unsigned length = entry.instruction.length;
  if (length > readable) {
    return nullptr;
  }
  u8 copy[16] = {};
  std::memcpy(copy, code, length);
  Entry now;
  now.set_bytes(load(copy), load(copy + 8), length);
  return now.bytes[0] == entry.bytes[0] && now.bytes[1] == entry.bytes[1] ? &entry.instruction : nullptr;
}

DecodeCache::Result DecodeCache::decode(u64 rip, CodeMode mode, std::span<const u8> code) {
  // The guest may be rewriting them on another processor: decode and keep the same copy.
  u8 copy[16] = {};
  const usize size = std::min(code.size(), usize{kMaxInstructionLength});
  if (size == 0) {
    return {nullptr, DecodeStatus::incomplete};
  }
  std::memcpy(copy, code.data(), size);
  Instruction instruction;
  const DecodeStatus status = decode_instruction(mode, {copy, size}, instruction);
  if (status != DecodeStatus::ok) {
    return {nullptr, status};
  }
  Entry& entry = entries_[slot(rip)];
  entry.key = key(rip, mode);
  entry.instruction = instruction;
  entry.set_bytes(load(copy), load(copy + 8), instruction.length);
  return {&entry.instruction, status};
}

}  // namespace aerie::cpu
