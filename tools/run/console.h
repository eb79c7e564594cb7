// L1's console on the tool's own standard input: a terminal in raw mode with an escape key, or any
// other file as it is.
#pragma once

#include <termios.h>

#include <string>
#include "absl/strings/string_view.h"

namespace aerie::tools {

// Turns what is typed into what L1 gets: Ctrl-A x quits, Ctrl-A Ctrl-A and Ctrl-A a are one Ctrl-A.
class EscapeKey {
 public:
  struct Result {
    std::string bytes;
    bool quit = false;
  };
  Result feed(absl::string_view typed);

 private:
  bool escaped_ = false;
};

// Puts the terminal on standard input into raw mode and back at the end of its life. Does nothing
// when standard input is no terminal, or is one that the tool is in the background of.
class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  bool active() const { return active_; }

 private:
  termios saved_ = {};
  bool active_ = false;
};

// Whether reading standard input is sensible: not from the background of a terminal.
bool standard_input_readable();

// Writes all of it, waiting as needed; false once nobody reads any more.
bool write_all(int fd, absl::string_view bytes);

}  // namespace aerie::tools
