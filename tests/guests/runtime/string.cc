// What <string_view> calls beyond the four functions of base/string_bare.cc.
#include "base/types.h"
#include "tests/guests/runtime/console.h"

extern "C" void* memchr(const void* from, int value, aerie::usize size) {
  const auto* bytes = static_cast<const aerie::u8*>(from);
  for (aerie::usize i = 0; i < size; ++i) {
    if (bytes[i] == static_cast<aerie::u8>(value)) {
      return const_cast<aerie::u8*>(bytes + i);
    }
  }
  return nullptr;
}

// string_view::substr() past the end.
namespace std {
[[noreturn]] void __throw_out_of_range_fmt(const char*, ...);
void __throw_out_of_range_fmt(const char*, ...) {
  aerie::guest::write("string_view out of range\n");
  aerie::guest::exit_guest(2);
}
}  // namespace std
