// What a multiboot 1 loader hands over. Multiboot specification 0.6.96, 3.3.
#pragma once

#include "base/types.h"

namespace aerie::vmm::multiboot {

inline constexpr u32 kLoaderMagic = 0x2badb002;

namespace flag {
inline constexpr u32 memory = 1u << 0, command_line = 1u << 2, modules = 1u << 3,
                     memory_map = 1u << 6;
}

struct Information {
  u32 flags;
  u32 mem_lower, mem_upper;
  u32 boot_device;
  u32 command_line;
  u32 module_count;
  u32 modules;
  u32 symbols[4];
  u32 memory_map_bytes;
  u32 memory_map;
};
static_assert(sizeof(Information) == 52);

struct Module {
  u32 begin, end;  // physical, end exclusive
  u32 text;
  u32 reserved;
};

struct [[gnu::packed]] MapEntry {
  u32 size;  // of the rest of the entry
  u64 base;
  u64 length;
  u32 type;
};
static_assert(sizeof(MapEntry) == 24);

}  // namespace aerie::vmm::multiboot
