#include "tests/guests/runtime/console.h"

#include "base/console.h"
#include "cpu/arch/instructions.h"

namespace aerie {

// base/log.cc is linked for its format(); its log goes where a guest's words go.
void console_write(std::string_view text) { guest::write(text); }
u64 console_time() { return cpu::rdtsc(); }
unsigned console_cpu() { return 0; }

}  // namespace aerie

namespace aerie::guest {
namespace {

constexpr u16 kCom1 = 0x3f8;
constexpr u16 kDebugExit = 0xf4;

void put(char c) {
  // A bounded wait for "transmitter holding register empty": a machine without COM1 reads 0xff.
  for (unsigned spins = 0; (cpu::inb(kCom1 + 5) & 0x20) == 0 && spins < 1'000'000; ++spins) {
    cpu::pause();
  }
  cpu::outb(kCom1, static_cast<u8>(c));
}

}  // namespace

void init_console() {
  cpu::outb(kCom1 + 1, 0);     // no interrupts
  cpu::outb(kCom1 + 3, 0x80);  // divisor latch
  cpu::outb(kCom1 + 0, 1);     // 115200
  cpu::outb(kCom1 + 1, 0);
  cpu::outb(kCom1 + 3, 3);  // 8n1
  cpu::outb(kCom1 + 2, 7);  // FIFOs
  cpu::outb(kCom1 + 4, 3);  // DTR, RTS
}

void write(std::string_view text) {
  for (const char c : text) {
    put(c);
  }
}

void print_arguments(std::string_view pattern, std::span<const LogArgument> arguments) {
  char buffer[400];
  write({buffer, format(buffer, pattern, arguments)});
}

[[noreturn]] void exit_guest(u8 status) {
  print("AERIE-GUEST-EXIT {}\n", status);
  cpu::outl(kDebugExit, status);
  for (;;) {
    cpu::cli();
    cpu::hlt();
  }
}

}  // namespace aerie::guest
