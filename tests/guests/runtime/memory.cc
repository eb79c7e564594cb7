#include "tests/guests/runtime/memory.h"

#include <cstring>

#include "cpu/arch/instructions.h"
#include "tests/guests/runtime/console.h"

namespace aerie::guest {
namespace {

u64 next = 0;
u64 end = 0;
// Page tables that map_page makes.
alignas(4096) u64 tables[64][512];
unsigned tables_used = 0;

u64* new_table() {
  if (tables_used == 64) {
    print("out of page tables\n");
    exit_guest(2);
  }
  return tables[tables_used++];
}

}  // namespace

void init_memory(u64 begin, u64 limit) {
  next = align_up(begin, kPageSize);
  end = limit;
}
u64 memory_mark() { return next; }
void memory_release(u64 mark) { next = mark; }
u64 memory_end() { return end; }

u64 alloc_pages(unsigned count, u64 alignment) {
  const u64 page = align_up(next, alignment);
  next = page + count * kPageSize;
  if (next > end) {
    print("out of memory\n");
    exit_guest(2);
  }
  std::memset(reinterpret_cast<void*>(page), 0, count * kPageSize);
  return page;
}
u64 alloc_page() { return alloc_pages(1); }

u64* leaf_entry(u64 linear) {
  u64* table = page_pointer(cpu::read_cr3() & pte::address);
  for (unsigned level = 4; level > 1; --level) {
    u64& entry = table[(linear >> (12 + 9 * (level - 1))) & 511];
    if ((entry & pte::present) == 0) {
      entry = reinterpret_cast<u64>(new_table()) | pte::present | pte::writable | pte::user;
    } else if ((entry & pte::large) != 0) {
      // Split: same addresses and rights, one level down.
      u64* split = new_table();
      const u64 step = u64{1} << (12 + 9 * (level - 2));
      const u64 flags = (entry & ~pte::address & ~pte::large) | (level == 2 ? 0 : pte::large);
      const u64 base = entry & bit_mask(51, 12 + 9 * (level - 1));
      for (u64 i = 0; i < 512; ++i) {
        split[i] = (base + i * step) | flags;
      }
      entry = reinterpret_cast<u64>(split) | pte::present | pte::writable | pte::user;
      cpu::write_cr3(cpu::read_cr3());
    }
    table = page_pointer(entry & pte::address);
  }
  return &table[(linear >> 12) & 511];
}

void map_page(u64 linear, u64 physical, u64 flags) {
  *leaf_entry(linear) = physical | flags;
  cpu::invlpg(linear);
}

}  // namespace aerie::guest
