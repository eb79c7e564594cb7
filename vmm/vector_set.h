// Sets of the 256 interrupt vectors, as IRR, ISR and TMR are.
#pragma once

#include <array>
#include <atomic>
#include <bit>

#include "base/bits.h"
#include "base/types.h"

namespace aerie::vmm {

class VectorSet {
 public:
  bool test(u8 vector) const { return ((words_[vector >> 6] >> (vector & 63)) & 1) != 0; }
  void set(u8 vector) { words_[vector >> 6] |= bit(vector & 63); }
  void clear(u8 vector) { words_[vector >> 6] &= ~bit(vector & 63); }
  void clear_all() { words_ = {}; }

  bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  // The highest vector, or -1.
  int highest() const {
    for (int i = 3; i >= 0; --i) {
      if (words_[i] != 0) {
        return i * 64 + 63 - std::countl_zero(words_[i]);
      }
    }
    return -1;
  }
  // The APIC's 32-bit register `index` (0-7) of the set.
  u32 word32(unsigned index) const {
    return static_cast<u32>(words_[index >> 1] >> (32 * (index & 1)));
  }

 private:
  std::array<u64, 4> words_{};
};

// The same, written by any processor. Only single vectors are atomic, not the set.
class AtomicVectorSet {
 public:
  bool test(u8 vector) const { return ((load(vector >> 6) >> (vector & 63)) & 1) != 0; }
  // Whether it was there before.
  bool set(u8 vector) {
    return (words_[vector >> 6].fetch_or(bit(vector & 63)) & bit(vector & 63)) != 0;
  }
  bool clear(u8 vector) {
    return (words_[vector >> 6].fetch_and(~bit(vector & 63)) & bit(vector & 63)) != 0;
  }
  void clear_all() {
    for (auto& word : words_) {
      word.store(0, std::memory_order_relaxed);
    }
  }

  bool empty() const { return (load(0) | load(1) | load(2) | load(3)) == 0; }
  int highest() const {
    for (int i = 3; i >= 0; --i) {
      if (const u64 word = load(i); word != 0) {
        return i * 64 + 63 - std::countl_zero(word);
      }
    }
    return -1;
  }
  u32 word32(unsigned index) const {
    return static_cast<u32>(load(static_cast<int>(index >> 1)) >> (32 * (index & 1)));
  }

 private:
  u64 load(int i) const { return words_[i].load(std::memory_order_relaxed); }

  std::array<std::atomic<u64>, 4> words_{};
};

}  // namespace aerie::vmm
