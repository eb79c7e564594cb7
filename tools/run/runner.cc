#include "tools/run/runner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tools/run/bochs.h"
#include "tools/run/console.h"
#include "tools/run/exit_status.h"
#include "tools/run/interrupts.h"
#include "tools/run/relay.h"
#include "tools/run/staging.h"
#include "tools/run/telemetry.h"

namespace aerie::tools {
namespace {

using telemetry::EndState;

std::string fd_path(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

// An anonymous file in memory, which QEMU opens through /proc: nothing is left behind however the
// run ends, and it neither needs space in the build folder nor is bound by the size of /dev/shm.
absl::StatusOr<Fd> memory_file(const char* name, std::uint64_t bytes) {
  Fd fd{::memfd_create(name, MFD_CLOEXEC)};
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory file of ", bytes >> 20, " MiB: ", std::strerror(errno)));
  }
  return fd;
}

std::string whole_file(int fd) {
  std::string contents;
  char buffer[16384];
  off_t at = 0;
  for (ssize_t n; (n = ::pread(fd, buffer, sizeof buffer, at)) > 0; at += n) {
    contents.append(buffer, static_cast<std::size_t>(n));
  }
  return contents;
}

std::string last_lines(absl::string_view text, int lines) {
  std::size_t at = text.size();
  while (at > 0) {
    if (text[at - 1] == '\n' && at != text.size() && --lines == 0) {
      break;
    }
    --at;
  }
  return std::string{text.substr(at)};
}

// What QEMU told over its control socket.
class QmpEvents {
 public:
  void feed(absl::string_view bytes) { absl::StrAppend(&text_, bytes); }
  bool started() const { return absl::StrContains(text_, "\"RESUME\""); }
  bool guest_reset() const { return absl::StrContains(text_, "\"guest-reset\""); }

 private:
  std::string text_;
};

// The first complaint of QEMU's own, for one line to the user.
std::string qemu_complaint(absl::string_view messages) {
  std::string complaint;
  for (absl::string_view line : absl::StrSplit(messages, '\n', absl::SkipEmpty())) {
    if (!absl::StrContains(line, "warning:")) {
      complaint = std::string{line};
      break;
    }
  }
  return complaint;
}

// QEMU's messages for the user, but what the tool's own line says anyway and what it provoked
// itself.
void show_messages(absl::string_view messages, absl::string_view detail) {
  for (absl::string_view line : absl::StrSplit(messages, '\n', absl::SkipEmpty())) {
    if (line != detail && !absl::StrContains(line, "terminating on signal")) {
      write_all(STDERR_FILENO, absl::StrCat(line, "\n"));
    }
  }
}

Outcome outcome_of(EndState state) {
  switch (state) {
    case EndState::l1_triple_fault:
      return Outcome::triple_fault;
    case EndState::panic:
      return Outcome::panic;
    case EndState::payload_error:
      return Outcome::bad_payload;
    case EndState::unsupported_host:
      return Outcome::unsupported_host;
    case EndState::emulation_failed:
      return Outcome::emulation_failed;
    case EndState::l1_power_off:
      return Outcome::power_off;
    default:
      return Outcome::no_result;
  }
}

// What the end of QEMU means.
void judge_end(const MachineSpec& spec, int status, const QmpEvents& qmp,
               absl::string_view messages, absl::string_view reset_log, RunResult* result) {
  const bool has_state = result->telemetry != nullptr &&
                         result->telemetry->header.end_state > EndState::running &&
                         result->telemetry->header.end_state < EndState::count;
  if (has_state) {
    result->outcome = outcome_of(result->telemetry->header.end_state);
    result->detail = end_text(*result->telemetry);
    return;
  }
  if (!qmp.started() || !WIFEXITED(status)) {
    result->outcome = Outcome::qemu_failed;
    result->detail = qemu_complaint(messages);
    if (result->detail.empty()) {
      result->detail = WIFSIGNALED(status)
                           ? absl::StrCat("QEMU was ended by signal ", WTERMSIG(status))
                           : absl::StrCat("QEMU ended with status ", WEXITSTATUS(status));
    }
    return;
  }
  const int code = WEXITSTATUS(status);
  if ((code & 1) != 0) {
    result->outcome = Outcome::guest_exit;
    result->value = code >> 1;
    return;
  }
  if (code != 0) {
    result->outcome = Outcome::qemu_failed;
    result->detail = absl::StrCat("QEMU ended with status ", code);
    return;
  }
  if (absl::StrContains(reset_log, "Triple fault")) {
    if (spec.host == Host::aerie) {
      result->outcome = Outcome::panic;
      result->detail = "Aerie itself took a triple fault";
    } else {
      result->outcome = Outcome::triple_fault;
    }
    return;
  }
  result->outcome = qmp.guest_reset() ? Outcome::reset : Outcome::power_off;
}

// Aerie ended before its telemetry was there: its log's last line says why.
void judge_early_end(RunResult* result) {
  if (result->telemetry != nullptr || result->outcome != Outcome::guest_exit) {
    return;
  }
  result->outcome = Outcome::panic;
  const std::string last = last_lines(result->log_tail, 1);
  result->detail = last.empty() ? "Aerie ended before it started L1"
                                : std::string{absl::StripAsciiWhitespace(last)};
}

RunResult failed(Outcome outcome, const absl::Status& status) {
  RunResult result;
  result.outcome = outcome;
  result.detail = std::string{status.message()};
  return result;
}

RunResult run_qemu(const MachineSpec& spec, PayloadKind kind, const RunIo& io) {
  absl::StatusOr<Fd> ram = memory_file("aerie-ram", spec.memory);
  absl::StatusOr<Fd> log = memory_file("aerie-log", 0);
  absl::StatusOr<Fd> reset_log = memory_file("aerie-reset-log", 0);
  for (const auto* fd : {&ram, &log, &reset_log}) {
    if (!fd->ok()) {
      return failed(Outcome::qemu_failed, fd->status());
    }
  }
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return failed(Outcome::qemu_failed, absl::InternalError(std::strerror(errno)));
  }
  Fd qmp_ours{sockets[0]};
  Fd qmp_theirs{sockets[1]};

  StagedFiles staged;
  Plumbing plumbing = {
      .ram_path = fd_path(ram->get()),
      .qmp_fd = absl::StrCat(qmp_theirs.get()),
      .log_path = io.log_path.empty() ? fd_path(log->get()) : io.log_path,
      .reset_log_path = spec.accel == "tcg" ? fd_path(reset_log->get()) : "",
      .payload = staged.stage(spec.payload),
      .initrd = spec.initrd.empty() ? "" : staged.stage(spec.initrd),
      .modules = {},
  };
  for (const std::string& module : spec.modules) {
    plumbing.modules.push_back(staged.stage(module));
  }
  if (!staged.status().ok()) {
    return failed(Outcome::qemu_failed, staged.status());
  }
  const std::vector<std::string> command = qemu_command(spec, kind, plumbing);
  if (io.print_command) {
    std::fprintf(stderr, "aerie: %s\n", shell_quoted(command).c_str());
  }

  std::vector<int> inherited = {ram->get(), log->get(), reset_log->get(), qmp_theirs.get()};
  absl::StatusOr<Subprocess> process =
      Subprocess::start({.command = command, .inherited = inherited, .directory = {}});
  if (!process.ok()) {
    return failed(Outcome::qemu_failed, process.status());
  }
  qmp_theirs.reset();
  write_all(qmp_ours.get(), "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"cont\"}\n");

  QmpEvents qmp;
  std::string messages;
  RelaySpec relay_spec = {
      .sources =
          {
              {process->standard_output().get(),
               [&io](absl::string_view bytes) { return io.console(bytes); }},
              {process->standard_error().get(),
               [&](absl::string_view bytes) {
                 absl::StrAppend(&messages, bytes);
                 return true;
               }},
              {qmp_ours.get(),
               [&qmp](absl::string_view bytes) {
                 qmp.feed(bytes);
                 return true;
               }},
          },
      .standard_input = io.standard_input,
      .timeout_seconds = io.timeout_seconds,
  };
  const RelayEnd end = relay(*process, relay_spec);

  RunResult result;
  if (spec.host == Host::aerie) {
    result.telemetry = read_telemetry(ram->get(), low_memory_end(spec.memory));
    const absl::StatusOr<std::string> kept =
        io.log_path.empty() ? whole_file(log->get()) : read_file("log", io.log_path);
    result.log_tail = last_lines(kept.value_or(""), 20);
  }
  switch (end) {
    case RelayEnd::exited:
      judge_end(spec, process->status(), qmp, messages, whole_file(reset_log->get()), &result);
      if (spec.host == Host::aerie) {
        judge_early_end(&result);
      }
      break;
    case RelayEnd::timeout:
      result.outcome = Outcome::timeout;
      result.detail = absl::StrFormat("after %g s", io.timeout_seconds);
      break;
    case RelayEnd::interrupted:
    case RelayEnd::stopped:
      result.outcome = Outcome::interrupted;
      break;
    case RelayEnd::quit:
      result.outcome = Outcome::quit;
      break;
  }
  if (io.show_qemu_messages) {
    show_messages(messages, result.detail);
  }
  return result;
}

}  // namespace

absl::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::guest_exit:
      return "exit";
    case Outcome::power_off:
      return "power-off";
    case Outcome::reset:
      return "reset";
    case Outcome::timeout:
      return "time-out";
    case Outcome::interrupted:
      return "interrupted";
    case Outcome::quit:
      return "quit";
    case Outcome::qemu_failed:
      return "QEMU failed";
    case Outcome::bad_payload:
      return "bad payload";
    case Outcome::panic:
      return "Aerie panic";
    case Outcome::triple_fault:
      return "triple fault";
    case Outcome::unsupported_host:
      return "unsupported host";
    case Outcome::emulation_failed:
      return "emulation failed";
    case Outcome::no_result:
      return "no result";
  }
  return "?";
}

int RunResult::exit_status() const {
  switch (outcome) {
    case Outcome::guest_exit:
      return value;
    case Outcome::power_off:
    case Outcome::reset:
    case Outcome::quit:
      return kExitOk;
    case Outcome::timeout:
      return kExitTimeout;
    case Outcome::interrupted:
      return 128 + (interrupt_signal() != 0 ? interrupt_signal() : 13);
    case Outcome::qemu_failed:
      return kExitQemu;
    case Outcome::bad_payload:
      return kExitPayload;
    case Outcome::panic:
      return kExitPanic;
    case Outcome::triple_fault:
      return kExitTripleFault;
    case Outcome::unsupported_host:
      return kExitUnsupportedHost;
    case Outcome::emulation_failed:
      return kExitEmulation;
    case Outcome::no_result:
      return kExitNoResult;
  }
  return kExitNoResult;
}

RunResult run_machine(const MachineSpec& spec, const RunIo& io) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<PayloadKind> kind = check_machine(spec);
  if (!kind.ok()) {
    return failed(Outcome::bad_payload, kind.status());
  }
  RunResult result;
  if (spec.host == Host::bochs) {
    result = run_bochs(spec, io);
  } else {
    if (spec.host == Host::aerie && ::access(spec.image.c_str(), R_OK) != 0) {
      return failed(Outcome::qemu_failed, absl::NotFoundError(absl::StrCat(
                                              "Aerie's image ", spec.image,
                                              " is not there; build it first (./aerie does)")));
    }
    result = run_qemu(spec, *kind, io);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace aerie::tools
