// What <string_view> calls beyond the four functions of base/string_bare.cc.
#include "base/types.h"

extern "C" void* memchr(const void* from, int value, aerie::usize size) {
  const auto* bytes = static_cast<const aerie::u8*>(from);
  for (aerie::usize i = 0; i < size; ++i) {
    if (bytes[i] == static_cast<aerie::u8>(value)) {
      return const_cast<aerie::u8*>(bytes + i);
    }
  }
  return nullptr;
}
