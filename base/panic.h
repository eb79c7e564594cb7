// The end of L0: only for faults of Aerie itself, never for anything a guest can cause.
#pragma once

#include "base/log.h"

namespace aerie {

// Logs the line, tells telemetry, and stops the machine (bare) or aborts (hosted).
[[noreturn]] void panic_stop();

template <class... Args>
[[noreturn, gnu::cold]] void panic(std::string_view pattern, const Args&... args) {
  log(LogLevel::error, "PANIC");
  log(LogLevel::error, pattern, args...);
  panic_stop();
}

// An invariant of L0's own. The message names the invariant.
#define AERIE_CHECK(condition)                                                     \
  do {                                                                             \
    if (!(condition)) [[unlikely]]                                                 \
      ::aerie::panic("check failed: {} at {}:{}", #condition, __FILE__, __LINE__); \
  } while (false)

}  // namespace aerie
