#include "tools/run/subprocess.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace aerie::tools {
namespace {

struct Pipe {
  Fd read;
  Fd write;
};

absl::StatusOr<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  return Pipe{Fd{ends[0]}, Fd{ends[1]}};
}

// In the child, between fork and exec: only async-signal-safe calls. Reports errno through
// `report`.
[[noreturn]] void run_child(const Subprocess::Spec& spec, char* const* argv, pid_t parent,
                            int input, int output, int error, int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);  // the tool died before prctl took effect
  }
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) {
    ::sigaction(number, &standard, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  bool ok = ::dup2(input, 0) >= 0 && ::dup2(output, 1) >= 0 && ::dup2(error, 2) >= 0;
  for (const int fd : spec.inherited) {
    ok = ok && ::fcntl(fd, F_SETFD, 0) == 0;
  }
  if (ok && !spec.directory.empty()) {
    ok = ::chdir(spec.directory.c_str()) == 0;
  }
  if (ok) {
    ::execvp(argv[0], argv);
  }
  const int why = errno;
  (void)!::write(report, &why, sizeof why);
  ::_exit(127);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void Fd::reset() {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

absl::StatusOr<Subprocess> Subprocess::start(const Spec& spec) {
  absl::StatusOr<Pipe> input = make_pipe();
  absl::StatusOr<Pipe> output = make_pipe();
  absl::StatusOr<Pipe> error = make_pipe();
  absl::StatusOr<Pipe> report = make_pipe();
  for (const auto* pipe : {&input, &output, &error, &report}) {
    if (!pipe->ok()) {
      return pipe->status();
    }
  }
  std::vector<char*> argv;
  for (const std::string& word : spec.command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  if (pid == 0) {
    run_child(spec, argv.data(), parent, input->read.get(), output->write.get(), error->write.get(),
              report->write.get());
  }
  ::setpgid(pid, pid);  // also here: whoever comes first
  Subprocess process;
  process.pid_ = pid;
  report->write.reset();
  int why = 0;
  ssize_t n;
  do {
    n = ::read(report->read.get(), &why, sizeof why);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof why) {
    process.reap(true);
    return absl::NotFoundError(absl::StrCat(spec.command[0], ": ", std::strerror(why)));
  }
  process.pidfd_ = Fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!process.pidfd_.valid()) {
    return absl::InternalError(absl::StrCat("pidfd_open: ", std::strerror(errno)));
  }
  process.input_ = std::move(input->write);
  process.output_ = std::move(output->read);
  process.error_ = std::move(error->read);
  return process;
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_{other.pid_},
      status_{other.status_},
      pidfd_{std::move(other.pidfd_)},
      input_{std::move(other.input_)},
      output_{std::move(other.output_)},
      error_{std::move(other.error_)} {
  other.pid_ = -1;
}

Subprocess::~Subprocess() {
  if (pid_ > 0) {
    signal(SIGKILL);
    reap(true);
  }
}

void Subprocess::signal(int number) const {
  if (pid_ > 0) {
    ::kill(-pid_, number);
  }
}

bool Subprocess::reap(bool wait) {
  if (pid_ <= 0) {
    return true;
  }
  pid_t result;
  do {
    result = ::waitpid(pid_, &status_, wait ? 0 : WNOHANG);
  } while (result < 0 && errno == EINTR);
  if (result == 0) {
    return false;
  }
  pid_ = -1;
  return true;
}

}  // namespace aerie::tools
