#include "base/console.h"

#include "cpu/arch/instructions.h"

namespace aerie {
namespace {

constexpr u16 kDebugConsolePort = 0xe9;
unsigned (*cpu_source)() = nullptr;

}  // namespace

void console_write(std::string_view text) {
  for (const char c : text) {
    cpu::outb(kDebugConsolePort, static_cast<u8>(c));
  }
}

u64 console_time() { return cpu::rdtsc(); }

unsigned console_cpu() { return cpu_source == nullptr ? 0 : cpu_source(); }

void set_console_cpu_source(unsigned (*current_cpu)()) { cpu_source = current_cpu; }

}  // namespace aerie
