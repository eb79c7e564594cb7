// The images' one program of our own, for what a shell cannot do: static, without a C library.
//
//   machine tsc       prints the time-stamp counter
//   machine exit N    writes N to QEMU's isa-debug-exit device (port 0xf4): its run ends with 2 N + 1
//   machine cpuid L   prints CPUID leaf L (hexadecimal), subleaf 0: EAX EBX ECX EDX
#include <cstdint>

namespace {

constexpr long kWrite = 1, kExit = 60, kIopl = 172;

long system_call(long number, long a, long b = 0, long c = 0) {
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c)
               : "rcx", "r11", "memory");
  return result;
}

void print(const char* text, long length) { system_call(kWrite, 1, reinterpret_cast<long>(text), length); }

void print_number(std::uint64_t value, unsigned base, char end) {
  char digits[24];
  char* at = digits + sizeof digits;
  *--at = end;
  do {
    *--at = "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0);
  print(at, digits + sizeof digits - at);
}

std::uint64_t parse(const char* text, unsigned base) {
  std::uint64_t value = 0;
  for (; *text != 0; ++text) {
    const char c = *text;
    value = value * base + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

bool equal(const char* a, const char* b) {
  for (; *a != 0 && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}

}  // namespace

extern "C" [[noreturn, gnu::used]] void run(long count, char** arguments) {
  int status = 2;
  if (count >= 2 && equal(arguments[1], "tsc")) {
    std::uint32_t low, high;
    asm volatile("rdtsc" : "=a"(low), "=d"(high));
    print_number((std::uint64_t{high} << 32) | low, 10, '\n');
    status = 0;
  } else if (count >= 3 && equal(arguments[1], "exit")) {
    status = 1;
    if (system_call(kIopl, 3) == 0) {
      asm volatile("outl %0, %1" ::"a"(static_cast<std::uint32_t>(parse(arguments[2], 10))),
                   "Nd"(std::uint16_t{0xf4}));
      status = 0;
    }
  } else if (count >= 3 && equal(arguments[1], "cpuid")) {
    std::uint32_t a, b, c, d;
    asm volatile("cpuid"
                 : "=a"(a), "=b"(b), "=c"(c), "=d"(d)
                 : "a"(static_cast<std::uint32_t>(parse(arguments[2], 16))), "c"(0));
    print_number(a, 16, ' ');
    print_number(b, 16, ' ');
    print_number(c, 16, ' ');
    print_number(d, 16, '\n');
    status = 0;
  }
  for (;;) {
    system_call(kExit, status);
  }
}

asm(R"(
  .globl _start
_start:
  xor %ebp, %ebp
  mov (%rsp), %rdi
  lea 8(%rsp), %rsi
  and $-16, %rsp
  call run
)");
