// Aerie's own log: one line per event, with time (TSC) and processor, on the debug console (port
// 0xe9) of the bare machine, on stderr when hosted. Never called on an exit's common path.
//
//   log_info("ioapic: pin {} asks for SMI; left masked", pin);
//   {} prints integers in decimal, {x} in hexadecimal; pointers, Address and enums in hexadecimal.
#pragma once

#include <concepts>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/address.h"
#include "base/types.h"

namespace aerie {

enum class LogLevel : u8 { error, warning, info, debug };

struct LogArgument {
  enum class Kind : u8 { unsigned_number, signed_number, hexadecimal, text };
  Kind kind;
  u64 number = 0;
  std::string_view text = {};

  template <std::integral T>
  constexpr LogArgument(T value)
      : kind{std::is_signed_v<T> ? Kind::signed_number : Kind::unsigned_number},
        number{static_cast<u64>(value)} {}
  constexpr LogArgument(bool value)
      : kind{Kind::text}, text{value ? std::string_view{"true"} : std::string_view{"false"}} {}
  template <class E>
  requires std::is_enum_v<E>
  constexpr LogArgument(E value) : kind{Kind::hexadecimal}, number{static_cast<u64>(value)} {}
  template <class Space>
  constexpr LogArgument(Address<Space> address)
      : kind{Kind::hexadecimal}, number{address.value()} {}
  LogArgument(const void* pointer)
      : kind{Kind::hexadecimal}, number{reinterpret_cast<u64>(pointer)} {}
  constexpr LogArgument(std::string_view string) : kind{Kind::text}, text{string} {}
  constexpr LogArgument(const char* string) : kind{Kind::text}, text{string} {}
};

// Formats into `out` without a terminating NUL; what does not fit is cut. Returns the bytes
// written.
usize format(std::span<char> out, std::string_view pattern, std::span<const LogArgument> arguments);

void log_line(LogLevel level, std::string_view pattern, std::span<const LogArgument> arguments);

// The least severe level that is written; `debug` lines are dropped by default.
void set_log_level(LogLevel level);

template <class... Args>
void log(LogLevel level, std::string_view pattern, const Args&... args) {
  const LogArgument list[sizeof...(Args) + 1] = {LogArgument{args}..., LogArgument{0}};
  log_line(level, pattern, std::span{list, sizeof...(Args)});
}
template <class... Args>
[[gnu::cold]] void log_error(std::string_view pattern, const Args&... args) {
  log(LogLevel::error, pattern, args...);
}
template <class... Args>
[[gnu::cold]] void log_warning(std::string_view pattern, const Args&... args) {
  log(LogLevel::warning, pattern, args...);
}
template <class... Args>
[[gnu::cold]] void log_info(std::string_view pattern, const Args&... args) {
  log(LogLevel::info, pattern, args...);
}
template <class... Args>
[[gnu::cold]] void log_debug(std::string_view pattern, const Args&... args) {
  log(LogLevel::debug, pattern, args...);
}

}  // namespace aerie
