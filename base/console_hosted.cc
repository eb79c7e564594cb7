#include "base/console.h"

#include <chrono>
#include <cstdio>

namespace aerie {

void console_write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

u64 console_time() {
  return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch().count());
}

unsigned console_cpu() { return 0; }

void set_console_cpu_source(unsigned (*)()) {}

}  // namespace aerie
