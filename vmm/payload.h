// Loading of what L1 is to be: a multiboot 1 program or a Linux bzImage, as boot modules hold it.
//
//   PayloadResult r = load_payload({.payload = modules[0], .modules = modules.subspan(1),
//                                   .memory_map = machine_map, .aerie = block});
//   if (!r.ok) panic("{}", r.error());
//   start L1 in 32-bit protected mode, paging off, interrupts off, with r.entry
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "base/types.h"
#include "vmm/payload_memory.h"

namespace aerie::vmm {

// A boot module: its bytes, and its string, which is "file arguments" as QEMU and GRUB pass it.
struct PayloadModule {
  std::span<const u8> data;
  std::string_view text;

  // The first word, for messages; the rest, without the blanks between.
  std::string_view file() const;
  std::string_view arguments() const;
};

struct PayloadRequest {
  // A multiboot program is given the whole text as its command line, as QEMU's -kernel does; Linux
  // the arguments alone.
  PayloadModule payload;
  // Multiboot: passed on as modules. Linux: together they are the initrd, one after the other.
  std::span<const PayloadModule> modules;
  // The machine's memory, and Aerie's block in it, which L1 never sees as RAM.
  std::span<const MemoryRange> memory_map;
  MemoryRange aerie;
};

enum class PayloadKind : u8 { multiboot, bzimage };

// The processor's state at the payload's first instruction; what is not here is as the boot
// protocol leaves it undefined. Segments are flat, CS `code_selector`, the others `data_selector`;
// the GDT that holds them lies in L1's memory.
struct EntryState {
  u32 eip = 0;
  u32 eax = 0;
  u32 ebx = 0;
  u32 esi = 0;
  u32 gdt_base = 0;
  u16 gdt_limit = 0;
  u16 code_selector = 0;
  u16 data_selector = 0;
};

struct PayloadResult {
  bool ok = false;
  PayloadKind kind = PayloadKind::multiboot;
  EntryState entry{};

  // Where `ok` is false: one line that names the file and what is wrong with it.
  std::string_view error() const { return {text.data(), length}; }

  std::array<char, 200> text{};
  usize length = 0;
};

// Finds out which of the two it is, checks it, and writes it into L1's memory with everything its
// boot protocol asks for. Nothing is written unless the whole payload has been found good and to
// fit.
//
// The bytes and strings of the request must not lie where L1 will have memory that the load writes:
// copy them into Aerie's block (or above 4 GiB) first. A source in the way is refused, not
// overwritten. Needs 16 KiB of stack.
PayloadResult load_payload(const PayloadRequest& request);

}  // namespace aerie::vmm
