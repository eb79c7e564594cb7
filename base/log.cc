#include "base/log.h"

#include <algorithm>

#include "base/console.h"
#include "base/spinlock.h"

namespace aerie {
namespace {

LogLevel threshold = LogLevel::info;
SpinLock line_lock;

class Writer {
 public:
  explicit Writer(std::span<char> out) : out_{out} {}

  void put(char c) {
    if (used_ < out_.size()) {
      out_[used_++] = c;
    }
  }
  void put(std::string_view text) {
    for (const char c : text) {
      put(c);
    }
  }
  void put_number(u64 value, unsigned base) {
    char digits[20];
    usize count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0) {
      put(digits[--count]);
    }
  }
  void put(const LogArgument& argument, bool hexadecimal) {
    using Kind = LogArgument::Kind;
    if (argument.kind == Kind::text) {
      put(argument.text);
    } else if (hexadecimal || argument.kind == Kind::hexadecimal) {
      put("0x");
      put_number(argument.number, 16);
    } else if (argument.kind == Kind::signed_number && static_cast<i64>(argument.number) < 0) {
      put('-');
      put_number(-argument.number, 10);
    } else {
      put_number(argument.number, 10);
    }
  }
  usize used() const { return used_; }

 private:
  std::span<char> out_;
  usize used_ = 0;
};

constexpr std::string_view kLevelNames[] = {"error", "warning", "info", "debug"};

}  // namespace

usize format(std::span<char> out, std::string_view pattern,
             std::span<const LogArgument> arguments) {
  Writer writer{out};
  usize next = 0;
  for (usize i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    const bool plain = rest.starts_with("{}");
    const bool hexadecimal = rest.starts_with("{x}");
    if ((plain || hexadecimal) && next < arguments.size()) {
      writer.put(arguments[next++], hexadecimal);
      i += plain ? 1 : 2;
    } else {
      writer.put(pattern[i]);
    }
  }
  return writer.used();
}

void log_line(LogLevel level, std::string_view pattern, std::span<const LogArgument> arguments) {
  if (level > threshold) {
    return;
  }
  char line[512];
  const LogArgument head[] = {console_time(), console_cpu(),
                              kLevelNames[static_cast<usize>(level)]};
  usize used = format(line, "[{} cpu{}] {}: ", head);
  used += format(std::span{line}.subspan(used, sizeof(line) - used - 1), pattern, arguments);
  line[used++] = '\n';
  const SpinLock::Guard guard{line_lock};
  console_write({line, used});
}

void set_log_level(LogLevel level) { threshold = level; }

}  // namespace aerie
