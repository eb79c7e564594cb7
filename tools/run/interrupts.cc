#include "tools/run/interrupts.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>

namespace aerie::tools {
namespace {

std::atomic<int> first_signal{0};
int event_fd = -1;

extern "C" void note_signal(int number) {
  int none = 0;
  first_signal.compare_exchange_strong(none, number);
  const std::uint64_t one = 1;
  (void)!::write(event_fd, &one, sizeof one);
}

}  // namespace

void catch_interrupts() {
  event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action = {};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaction(number, &action, nullptr);
  }
  ::signal(SIGPIPE, SIG_IGN);
}

int interrupt_fd() { return event_fd; }
int interrupt_signal() { return first_signal.load(); }

}  // namespace aerie::tools
