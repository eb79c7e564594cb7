// Host physical memory as L0 sees it: one window over all of it at a fixed linear address (bare),
// or over an arena that stands for the machine's memory (hosted).
#pragma once

#include "base/address.h"

namespace aerie {

#if AERIE_HOSTED
// Hosted: where host physical address 0 lies. Tests point it at their arena.
extern u8* physical_window;
#else
inline u8* const physical_window = reinterpret_cast<u8*>(0xffff'8000'0000'0000);
#endif

// A pointer to host physical memory. The caller vouches that the range is RAM (or a device page
// that L0 owns) and may be touched; addresses that come from a guest pass through mmu/l1_memory.h
// first.
template <class T>
T* physical_pointer(Hpa address) {
  return reinterpret_cast<T*>(physical_window + address.value());
}

// The inverse, for memory that was reached through the window.
inline Hpa physical_address(const void* pointer) {
  return Hpa{static_cast<u64>(static_cast<const u8*>(pointer) - physical_window)};
}

}  // namespace aerie
