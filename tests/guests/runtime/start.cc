#include "tests/guests/runtime/start.h"

#include <algorithm>

#include "cpu/arch/instructions.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/console.h"
#include "tests/guests/runtime/cpus.h"
#include "tests/guests/runtime/memory.h"

extern "C" {
extern aerie::u8 image_end[];
extern void (*init_array_begin[])();
extern void (*init_array_end[])();
[[noreturn]] void guest_start(aerie::u32 magic, aerie::u32 information);
}

namespace aerie::guest {
namespace {

constexpr u32 kMultibootMagic = 0x2bad'b002;

struct MultibootInformation {
  u32 flags, mem_lower, mem_upper, boot_device, command_line, module_count, modules;
};
struct MultibootModule {
  u32 begin, end, string, reserved;
};

char command_line[1024];
std::string_view words[64];
usize word_count = 0;

void split_words(const char* from) {
  usize length = 0;
  while (length + 1 < sizeof command_line && from[length] != '\0') {
    command_line[length] = from[length];
    ++length;
  }
  std::string_view rest{command_line, length};
  for (bool first = true; word_count < 64;) {
    const usize begin = std::min(rest.find_first_not_of(' '), rest.size());
    rest.remove_prefix(begin);
    if (rest.empty()) {
      return;
    }
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(word.size());
    // Some loaders pass the program's name as the first word, some do not.
    const bool own_name = first && (word.find('/') != word.npos || word.find(".elf") != word.npos);
    first = false;
    if (!own_name) {
      words[word_count++] = word;
    }
  }
}

}  // namespace

std::span<const std::string_view> command_line_words() { return {words, word_count}; }

[[noreturn]] static void start(u32 magic, u32 information) {
  init_console();
  // All of the loader's words are read before anything is written below 1 MiB.
  u64 memory_begin = reinterpret_cast<u64>(image_end);
  u64 memory_limit = 64 * kMiB;
  if (magic == kMultibootMagic) {
    const auto& mbi = *reinterpret_cast<const MultibootInformation*>(u64{information});
    if ((mbi.flags & 4) != 0) {
      split_words(reinterpret_cast<const char*>(u64{mbi.command_line}));
    }
    if ((mbi.flags & 1) != 0) {
      memory_limit = kMiB + u64{mbi.mem_upper} * kKiB;
    }
    const auto* modules = reinterpret_cast<const MultibootModule*>(u64{mbi.modules});
    for (u32 i = 0; (mbi.flags & 8) != 0 && i < mbi.module_count; ++i) {
      memory_begin = std::max<u64>(memory_begin, modules[i].end);
    }
  }
  init_memory(memory_begin, memory_limit);
  for (void (**function)() = init_array_begin; function != init_array_end; ++function) {
    (*function)();
  }
  init_this_cpu(0);
  this_cpu().apic_id = apic_id();
  mask_ioapic();
  init_pics(0x20);
  init_apic();
  exit_guest(guest_main());
}

}  // namespace aerie::guest

extern "C" void guest_start(aerie::u32 magic, aerie::u32 information) {
  aerie::guest::start(magic, information);
}
