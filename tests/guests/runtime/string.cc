// string_view::substr() past the end.
#include "tests/guests/runtime/console.h"

namespace std {
[[noreturn]] void __throw_out_of_range_fmt(const char*, ...);
void __throw_out_of_range_fmt(const char*, ...) {
  aerie::guest::write("string_view out of range\n");
  aerie::guest::exit_guest(2);
}
}  // namespace std
