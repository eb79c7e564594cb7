// What else compiler and standard headers call although the program is freestanding.
#include "base/panic.h"
#include "base/types.h"

extern "C" int __popcountdi2(aerie::u64 value) {
  int count = 0;
  for (; value != 0; value &= value - 1) {
    ++count;
  }
  return count;
}

namespace std {

// What the checked members of string_view and others call: a fault of Aerie's own.
[[noreturn]] void __throw_out_of_range_fmt(const char* what, ...) {
  aerie::panic("out of range: {}", what);
}

}  // namespace std
