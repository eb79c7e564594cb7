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
  return now.bytes[0] == entry.bytes[0] && now.bytes[1] == entry.bytes[1] ? &entry.instruction
                                                                          : nullptr;
}

const Instruction* DecodeCache::find_in_second_place(u64 rip, CodeMode mode, const u8* code,
                                                     usize readable) const {
  const Entry& entry = entries_[second_place(rip)];
  return entry.key == key(rip, mode) ? compare(entry, code, readable) : nullptr;
}

// A hit writes nothing, so which of two entries is still in use is not known. Chance decides: hot
// ones that throw each other out end up apart, where a fixed rule can keep two of them changing
// places for ever.
DecodeCache::Entry& DecodeCache::make_room(u64 rip, CodeMode mode) {
  const u64 wanted = key(rip, mode);
  Entry& first = entries_[first_place(rip)];
  Entry& second = entries_[second_place(rip)];
  if (first.key == wanted || second.key == wanted) {
    return first.key == wanted ? first : second;
  }
  if (first.key == kNoKey || second.key == kNoKey) {
    return first.key == kNoKey ? first : second;
  }
  // The first place, where a hit is cheaper, three times in four. Multiplier and increment: Knuth's
  // MMIX.
  random_ = random_ * 6364136223846793005 + 1442695040888963407;
  return random_ >> 62 != 0 ? first : second;
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
  Entry& entry = make_room(rip, mode);
  entry.key = key(rip, mode);
  entry.instruction = instruction;
  entry.set_bytes(load(copy), load(copy + 8), instruction.length);
  return {&entry.instruction, status};
}

}  // namespace aerie::cpu
