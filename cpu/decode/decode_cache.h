// Exit sites (DESIGN §3): what the instruction at an address was when last seen there. A hit
// compares the instruction's own bytes with the ones in memory now, so a guest that rewrites its
// code is a miss, never a wrong answer; nothing has to be invalidated.
//
// One table a processor, no lock. A hit costs about 25 instructions, a miss a Zydis decode
// (decoder.h): forty times as much, so each address has two places in the table, by unrelated
// hashes. Sites that are hot together (the VMREADs of one hypervisor's exit path) and once met in
// one place drift apart, and stay.
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
  static constexpr usize kEntries = 512;

  struct Result {
    const Instruction* instruction;  // nullptr unless status is ok; good until the next call
    DecodeStatus status;
  };

  // The instruction at linear address `rip` when it is known and its bytes have not changed, else
  // nullptr. `code` holds its bytes, of which `readable` may be read: all up to the end of the
  // page, say. At least 16 being readable is the fast case; fewer than the instruction has is a
  // miss.
  const Instruction* find(u64 rip, CodeMode mode, const u8* code, usize readable) const {
    const Entry& entry = entries_[first_place(rip)];
    if (entry.key != key(rip, mode)) [[unlikely]] {
      return find_in_second_place(rip, mode, code, readable);
    }
    return compare(entry, code, readable);
  }

  // Decodes `code` (at most 15 bytes are looked at) and remembers it.
  Result decode(u64 rip, CodeMode mode, std::span<const u8> code);

  // Length of the instruction last seen there, 0 if none: how far to read when it may cross a page.
  unsigned length_at(u64 rip, CodeMode mode) const {
    const u64 wanted = key(rip, mode);
    for (const Entry* entry : {&entries_[first_place(rip)], &entries_[second_place(rip)]}) {
      if (entry->key == wanted) {
        return entry->instruction.length;
      }
    }
    return 0;
  }

  // The whole protocol. `fetch(linear)` gives the readable bytes from that linear address to the
  // end of its page, as a std::span<const u8>; an empty one where no byte may be read (not RAM or
  // ROM, not mapped). The second page is fetched only for an instruction that reaches into it. With
  // `incomplete` it could not be.
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

  void clear() { entries_.fill(Entry{}); }

 private:
  static constexpr u64 kNoKey = ~u64{0};

  struct alignas(64) Entry {
    u64 key = kNoKey;
    u64 bytes[2] = {};  // the instruction's own, others zero
    u64 mask = 0;       // of them, in the word the last one is in
    Instruction instruction{};

    void set_bytes(u64 low, u64 high, unsigned length) {
      mask = ~u64{0} >> (length > 8 ? 128 - 8 * length : 64 - 8 * length);
      bytes[0] = length > 8 ? low : low & mask;
      bytes[1] = length > 8 ? high & mask : 0;
    }
  };
  static_assert(sizeof(Entry) == 64);

  // The upper bits of a canonical address are copies of one another, so two may go: linear
  // addresses and modes map to keys one to one. All ones is no key: a mode is never 3.
  static constexpr u64 key(u64 rip, CodeMode mode) { return (rip << 2) | static_cast<u64>(mode); }
  static constexpr usize first_place(u64 rip) { return (rip ^ (rip >> 9)) % kEntries; }
  static constexpr usize second_place(u64 rip) {
    return (rip * 0x9e37'79b9'7f4a'7c15) >> (64 - std::bit_width(kEntries - 1));
  }
  static u64 load(const u8* bytes) {
    u64 word;
    __builtin_memcpy(&word, bytes, sizeof(word));
    return word;
  }

  // The entry's instruction if `code` still has its bytes.
  [[gnu::always_inline]] static const Instruction* compare(const Entry& entry, const u8* code,
                                                           usize readable) {
    if (readable < 16) [[unlikely]] {
      return find_short(entry, code, readable);
    }
    const u64 low = load(code);
    if (entry.instruction.length <= 8) [[likely]] {
      return (low & entry.mask) == entry.bytes[0] ? &entry.instruction : nullptr;
    }
    return low == entry.bytes[0] && (load(code + 8) & entry.mask) == entry.bytes[1]
               ? &entry.instruction
               : nullptr;
  }

  // Out of line and last, so that a hit saves no register for it.
  static const Instruction* find_short(const Entry& entry, const u8* code, usize readable);
  const Instruction* find_in_second_place(u64 rip, CodeMode mode, const u8* code,
                                          usize readable) const;

  // Where an instruction newly decoded goes; what is there goes.
  Entry& make_room(u64 rip, CodeMode mode);

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
  u64 random_ = 0;
};

}  // namespace aerie::cpu
