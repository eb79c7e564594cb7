// A child process with pipes on its standard files, in a process group of its own, that never
// outlives the tool: whoever ends the tool, by whatever signal, ends the child too.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace aerie::tools {

// A file descriptor with an owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_{fd} {}
  Fd(Fd&& other) noexcept : fd_{other.release()} {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

class Subprocess {
 public:
  struct Spec {
    std::vector<std::string> command;  // command[0] is looked up in PATH
    std::vector<int> inherited;        // kept open in the child under the same number
    std::string directory;             // empty: the tool's own
  };

  // Starts the child; an error says why the program could not be run.
  static absl::StatusOr<Subprocess> start(const Spec& spec);

  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  // Kills and reaps the whole group if it still runs.
  ~Subprocess();

  Fd& standard_input() { return input_; }
  Fd& standard_output() { return output_; }
  Fd& standard_error() { return error_; }
  int pidfd() const { return pidfd_.get(); }

  // Sends a signal to the group.
  void signal(int number) const;
  // Whether it has ended; the status of waitpid(2) then is in status().
  bool reap(bool wait);
  int status() const { return status_; }

 private:
  Subprocess() = default;

  pid_t pid_ = -1;  // -1 once reaped
  int status_ = 0;
  Fd pidfd_;
  Fd input_;
  Fd output_;
  Fd error_;
};

}  // namespace aerie::tools
