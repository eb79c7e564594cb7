#include "tools/run/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>

#include "tools/run/console.h"
#include "tools/run/interrupts.h"

namespace aerie::tools {
namespace {

using Clock = std::chrono::steady_clock;

// How long a child may take to end after SIGTERM before it gets SIGKILL.
constexpr auto kGrace = std::chrono::seconds{2};

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

enum class ReadEnd { empty, closed, stopped };

// Reads what is there and delivers it.
ReadEnd drain(const RelaySource& source) {
  char buffer[16384];
  while (true) {
    const ssize_t n = ::read(source.fd, buffer, sizeof buffer);
    if (n > 0) {
      if (!source.deliver({buffer, static_cast<std::size_t>(n)})) {
        return ReadEnd::stopped;
      }
    } else if (n == 0) {
      return ReadEnd::closed;
    } else if (errno == EAGAIN) {
      return ReadEnd::empty;
    } else if (errno != EINTR) {
      return ReadEnd::closed;
    }
  }
}

// The user's side: what was typed and has not reached the child yet.
class Input {
 public:
  Input(Fd& child, bool enabled) : child_{child} {
    if (!enabled) {
      child_.reset();
      return;
    }
    open_ = standard_input_readable();
    set_nonblocking(child_.get());
    if (open_ && ::isatty(STDIN_FILENO) != 0) {
      terminal_.emplace();
    }
  }

  // poll(2) entries: standard input while nothing is waiting, else the child's pipe.
  pollfd wanted() const {
    if (!pending_.empty()) {
      return {child_.get(), POLLOUT, 0};
    }
    return {open_ ? STDIN_FILENO : -1, POLLIN, 0};
  }

  // False: the user's escape key.
  bool ready() {
    if (pending_.empty()) {
      char buffer[4096];
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n <= 0) {
        if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
          open_ = false;
          child_.reset();
        }
        return true;
      }
      const absl::string_view typed{buffer, static_cast<std::size_t>(n)};
      if (terminal_.has_value() && terminal_->active()) {
        EscapeKey::Result result = escape_.feed(typed);
        pending_ = std::move(result.bytes);
        if (result.quit) {
          return false;
        }
      } else {
        pending_ = std::string{typed};
      }
    }
    const ssize_t n = ::write(child_.get(), pending_.data(), pending_.size());
    if (n > 0) {
      pending_.erase(0, static_cast<std::size_t>(n));
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      pending_.clear();
      open_ = false;
    }
    return true;
  }

 private:
  Fd& child_;
  bool open_ = false;
  std::string pending_;
  std::optional<RawTerminal> terminal_;
  EscapeKey escape_;
};

// Ends the group: politely, then for certain. What the child writes meanwhile is still delivered.
void end_process(Subprocess& process, const std::vector<RelaySource>& sources) {
  process.signal(SIGTERM);
  const auto deadline = Clock::now() + kGrace;
  pollfd ended = {process.pidfd(), POLLIN, 0};
  while (::poll(&ended, 1, 20) <= 0 && Clock::now() < deadline) {
    for (const RelaySource& source : sources) {
      drain(source);
    }
  }
  process.signal(SIGKILL);  // the child if it does not obey, and whatever else the group holds
  process.reap(true);
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<long long>(left.count() + 1, 0, 3'600'000));
}

}  // namespace

RelayEnd relay(Subprocess& process, const RelaySpec& spec) {
  std::vector<RelaySource> sources = spec.sources;
  for (const RelaySource& source : sources) {
    set_nonblocking(source.fd);
  }
  Input input{process.standard_input(), spec.standard_input};
  const bool limited = spec.timeout_seconds > 0;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>{spec.timeout_seconds});
  const auto finish = [&](RelayEnd end) {
    end_process(process, sources);
    for (const RelaySource& source : sources) {
      drain(source);
    }
    return end;
  };

  while (true) {
    std::vector<pollfd> fds = {
        {interrupt_fd(), POLLIN, 0}, {process.pidfd(), POLLIN, 0}, input.wanted()};
    for (const RelaySource& source : sources) {
      fds.push_back({source.fd, POLLIN, 0});
    }
    const int ready = ::poll(fds.data(), fds.size(), limited ? milliseconds_until(deadline) : -1);
    if (ready < 0 && errno != EINTR) {
      return finish(RelayEnd::stopped);
    }
    if (interrupt_signal() != 0) {
      return finish(RelayEnd::interrupted);
    }
    const bool ended = ready > 0 && fds[1].revents != 0;
    for (std::size_t i = 0; ready > 0 && i < sources.size(); ++i) {
      if (fds[i + 3].revents == 0 && !ended) {
        continue;
      }
      const ReadEnd result = drain(sources[i]);
      if (result == ReadEnd::stopped) {
        return finish(RelayEnd::stopped);
      }
      if (result == ReadEnd::closed) {
        sources[i].fd = -1;  // poll(2) and read(2) pass over it from now on
      }
    }
    if (ended) {
      process.signal(
          SIGKILL);  // whatever else the group holds; before its number can be used again
      process.reap(true);
      return RelayEnd::exited;
    }
    if (ready > 0 && fds[2].revents != 0 && !input.ready()) {
      return finish(RelayEnd::quit);
    }
    if (limited && Clock::now() >= deadline) {
      return finish(RelayEnd::timeout);
    }
  }
}

}  // namespace aerie::tools
