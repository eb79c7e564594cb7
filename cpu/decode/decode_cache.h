// Exit sites (DESIGN §3): what the instruction at an address was when last seen there. A hit compares the
// instruction's own bytes with the ones in memory now, so a guest that rewrites its code is a miss, never a
// wrong answer; nothing has to be invalidated.
//
// One table a processor, no lock. A hit costs about 25 instructions, a miss a Zydis decode (decoder.h).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "cpu/decode/decoder.h"
#include "cpu/decode/instruction.h"

namespace aerie::cpu {

class DecodeCache {
 public:
  static constexpr usize kEntries = 256;

  struct Result {
    const Instruction* instruction;  // nullptr unless status is ok; good until the next call
    DecodeStatus status;
  };

  // The instruction at linear address `rip` when it is known and its bytes have not changed, else nullptr.
  // `code` holds its bytes, of which `readable` may be read: all up to the end of the page, say.
  // At least 16 being readable is the fast case; fewer than the instruction has is a miss.
  const Instruction* find(u64 rip, CodeMode mode, const u8* code, usize readable) const {
    const Entry& entry = entries_[slot(rip)];
    if (entry.key != key(rip, mode)) [[unlikely]] {
      return nullptr;
    }
    if (readable < 16) [[unlikely]] {
      return find_short(entry, code, readable);
    }
    // Bytes past the instruction's are shifted out.
    const u64 low = load(code);
    if (!entry.two_words) [[likely]] {
      return low << entry.shift == entry.bytes[0] ? &entry.instruction : nullptr;
    }
    const u64 high = load(code + 8) << entry.shift;
    return low == entry.bytes[0] && high == entry.bytes[1] ? &entry.instruction : nullptr;
  }

  // Decodes `code` (at most 15 bytes are looked at) and remembers it.
  Result decode(u64 rip, CodeMode mode, std::span<const u8> code);

  // Length of the instruction last seen there, 0 if none: how far to read when it may cross a page.
  unsigned length_at(u64 rip, CodeMode mode) const {
    const Entry& entry = entries_[slot(rip)];
    return entry.key == key(rip, mode) ? entry.instruction.length : 0;
  }

  // The whole protocol. `fetch(linear)` gives the readable bytes from that linear address to the end of its
  // page, as a std::span<const u8>; an empty one where no byte may be read (not RAM or ROM, not mapped).
  // The second page is fetched only for an instruction that reaches into it. With `incomplete` it could
  // not be.
  template <class Fetch>
  Result lookup(u64 rip, CodeMode mode, Fetch&& fetch) {
    const std::span<const u8> code = fetch(rip);
    if (const Instruction* known = find(rip, mode, code.data(), code.size())) [[likely]] {
      return {known, DecodeStatus::ok};
    }
    if (code.size() >= kMaxInstructionLength) {
      return decode(rip, mode, code);
    }
    return lookup_at_page_end(rip, mode, code, fetch);
  }

  void clear() { entries_ = {}; }

 private:
  struct alignas(64) Entry {
    u64 key = ~u64{0};
    u64 bytes[2] = {};  // the instruction's, the last at the top of its word
    u8 shift = 0;       // what moves it there: 64 or 128 less 8 times the length
    bool two_words = false;
    Instruction instruction{};

    void set_bytes(u64 low, u64 high, unsigned length) {
      two_words = length > 8;
      shift = static_cast<u8>((two_words ? 128 : 64) - 8 * length);
      bytes[0] = two_words ? low : low << shift;
      bytes[1] = two_words ? high << shift : 0;
    }
  };
  static_assert(sizeof(Entry) == 64);

  // The upper bits of a canonical address are copies of one another, so two may go: linear addresses and
  // modes map to keys one to one. All ones is no key: a mode is never 3.
  static constexpr u64 key(u64 rip, CodeMode mode) { return (rip << 2) | static_cast<u64>(mode); }
  static constexpr usize slot(u64 rip) { return (rip ^ (rip >> 8)) % kEntries; }
  static u64 load(const u8* bytes) {
    u64 word;
    __builtin_memcpy(&word, bytes, sizeof(word));
    return word;
  }

  // Out of line and last, so that a hit saves no register for it.
  static const Instruction* find_short(const Entry& entry, const u8* code, usize readable);

  template <class Fetch>
  [[gnu::noinline]] Result lookup_at_page_end(u64 rip, CodeMode mode, std::span<const u8> code,
                                              Fetch&& fetch) {
    if (code.empty()) {
      return {nullptr, DecodeStatus::incomplete};
    }
    u8 buffer[16];
    std::memcpy(buffer, code.data(), code.size());
    if (length_at(rip, mode) <= code.size()) {
      const Result whole = decode(rip, mode, code);
      if (whole.status != DecodeStatus::incomplete) {
        return whole;
      }
    }
    u64 next = rip + code.size();
    if (mode != CodeMode::bits64) {
      next = static_cast<u32>(next);
    }
    const std::span<const u8> rest = fetch(next);
    const usize more = std::min(rest.size(), usize{kMaxInstructionLength} - code.size());
    if (more != 0) {
      std::memcpy(buffer + code.size(), rest.data(), more);
    }
    const usize size = code.size() + more;
    if (const Instruction* known = find(rip, mode, buffer, size)) {
      return {known, DecodeStatus::ok};
    }
    return decode(rip, mode, {buffer, size});
  }

  std::array<Entry, kEntries> entries_{};
};

}  // namespace aerie::cpu
