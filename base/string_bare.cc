// String functions that compiler and standard headers call although the program is freestanding; L1
// guests of our own use them too.
//
// `rep movsb` counts one instruction an iteration under QEMU's icount (FACTS), hence the word
// loops.
#include "base/types.h"

using aerie::u64;
using aerie::u8;
using aerie::usize;

extern "C" {

void* memcpy(void* __restrict destination, const void* __restrict source, usize size) {
  auto* to = static_cast<u8*>(destination);
  const auto* from = static_cast<const u8*>(source);
  for (; size >= 8; size -= 8, to += 8, from += 8) {
    *reinterpret_cast<u64*>(to) = *reinterpret_cast<const u64*>(from);
  }
  for (; size > 0; --size) {
    *to++ = *from++;
  }
  return destination;
}

void* memmove(void* destination, const void* source, usize size) {
  auto* to = static_cast<u8*>(destination);
  const auto* from = static_cast<const u8*>(source);
  if (to <= from || to >= from + size) {
    return memcpy(destination, source, size);
  }
  while (size > 0) {
    --size;
    to[size] = from[size];
  }
  return destination;
}

void* memset(void* destination, int value, usize size) {
  auto* to = static_cast<u8*>(destination);
  const u64 pattern = static_cast<u8>(value) * u64{0x0101'0101'0101'0101};
  for (; size >= 8; size -= 8, to += 8) {
    *reinterpret_cast<u64*>(to) = pattern;
  }
  for (; size > 0; --size) {
    *to++ = static_cast<u8>(value);
  }
  return destination;
}

int memcmp(const void* left, const void* right, usize size) {
  const auto* a = static_cast<const u8*>(left);
  const auto* b = static_cast<const u8*>(right);
  for (usize i = 0; i < size; ++i) {
    if (a[i] != b[i]) {
      return a[i] < b[i] ? -1 : 1;
    }
  }
  return 0;
}

usize strlen(const char* text) {
  usize length = 0;
  while (text[length] != '\0') {
    ++length;
  }
  return length;
}

void* memchr(const void* memory, int value, usize size) {
  const auto* bytes = static_cast<const u8*>(memory);
  for (usize i = 0; i < size; ++i) {
    if (bytes[i] == static_cast<u8>(value)) {
      return const_cast<u8*>(bytes + i);
    }
  }
  return nullptr;
}

}  // extern "C"
