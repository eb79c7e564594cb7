// Where log lines and panics go, and the stamps they carry; one implementation for the bare machine
// (base/console_bare.cc), one for the host (base/console_hosted.cc).
#pragma once

#include <string_view>

#include "base/types.h"

namespace aerie {

void console_write(std::string_view text);
u64 console_time();
unsigned console_cpu();

// Bare machine: called once each processor can tell its own number.
void set_console_cpu_source(unsigned (*current_cpu)());

}  // namespace aerie
