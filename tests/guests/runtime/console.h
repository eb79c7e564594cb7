// What a guest says: COM1 always (under Aerie, L1's console; on Bochs a file). Port 0xe9 is left
// alone, being Aerie's own log there.
#pragma once

#include <span>
#include <string_view>

#include "base/log.h"

namespace aerie::guest {

void init_console();
void write(std::string_view text);
void print_arguments(std::string_view pattern, std::span<const LogArgument> arguments);

// As base/log.h's patterns: {} decimal, {x} hexadecimal. No newline is added.
template <class... Args>
void print(std::string_view pattern, const Args&... args) {
  const LogArgument list[sizeof...(Args) + 1] = {LogArgument{args}..., LogArgument{0}};
  print_arguments(pattern, std::span{list, sizeof...(Args)});
}

// Ends the guest: prints "AERIE-GUEST-EXIT n", writes n to isa-debug-exit (port 0xf4), halts.
[[noreturn]] void exit_guest(u8 status);

}  // namespace aerie::guest
