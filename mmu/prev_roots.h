// The roots a virtual CPU ran on last, most recent first: switching back to one of them takes no
// lock and allocates nothing (DESIGN §4). What is kept is a pointer and the key it was found by;
// whether the root still has that key the caller checks, since roots are taken away by other
// processors.
#pragma once

#include <array>

#include "base/types.h"

namespace aerie::mmu {

struct Root;

// N: the current root and N-1 previous ones.
template <unsigned N, class R = Root>
class PrevRoots {
 public:
  // The root last used with `key`, moved to the front; nullptr where it is not among the last N.
  R* find(u64 key) {
    if (entries_[0].key == key) [[likely]] {
      return entries_[0].root;
    }
    for (unsigned i = 1; i < N; ++i) {
      if (entries_[i].key == key) {
        const Entry hit = entries_[i];
        for (; i > 0; --i) {
          entries_[i] = entries_[i - 1];
        }
        entries_[0] = hit;
        return hit.root;
      }
    }
    return nullptr;
  }
  // Puts a root in front; the least recent one is forgotten.
  void insert(u64 key, R* root) {
    for (unsigned i = N - 1; i > 0; --i) {
      entries_[i] = entries_[i - 1];
    }
    entries_[0] = {key, root};
  }
  // Forgets the front entry, which turned out stale.
  void drop_front() {
    for (unsigned i = 0; i + 1 < N; ++i) {
      entries_[i] = entries_[i + 1];
    }
    entries_[N - 1] = {};
  }

 private:
  struct Entry {
    u64 key = 0;  // no root has key 0
    R* root = nullptr;
  };
  std::array<Entry, N> entries_{};
};

}  // namespace aerie::mmu
