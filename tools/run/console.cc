#include "tools/run/console.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace aerie::tools {

EscapeKey::Result EscapeKey::feed(absl::string_view typed) {
  constexpr char kEscape = 1;  // Ctrl-A, as QEMU has it
  Result result;
  for (const char c : typed) {
    if (escaped_) {
      escaped_ = false;
      if (c == 'x' || c == 'X') {
        result.quit = true;
        return result;
      }
      if (c == kEscape || c == 'a' || c == 'A') {
        result.bytes += kEscape;
      }
    } else if (c == kEscape) {
      escaped_ = true;
    } else {
      result.bytes += c;
    }
  }
  return result;
}

bool standard_input_readable() {
  return ::isatty(STDIN_FILENO) == 0 || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

RawTerminal::RawTerminal() {
  if (::isatty(STDIN_FILENO) == 0 || !standard_input_readable() ||
      ::tcgetattr(STDIN_FILENO, &saved_) != 0) {
    return;
  }
  termios raw = saved_;
  raw.c_iflag &=
      ~static_cast<tcflag_t>(IGNBRK | BRKINT | PARMRK | ISTRIP | INLCR | IGNCR | ICRNL | IXON);
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ECHONL | ICANON | IEXTEN | ISIG);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  active_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

RawTerminal::~RawTerminal() {
  if (active_) {
    ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_);
  }
}

bool write_all(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      pollfd wait = {fd, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (n < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace aerie::tools
