#include "tools/run/bochs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/run/relay.h"
#include "tools/run/staging.h"

namespace aerie::tools {
namespace {

namespace fs = std::filesystem;

// Where the ISO keeps the program and its modules.
constexpr absl::string_view kBootFolder = "/boot";

absl::Status write_file(const std::string& path, absl::string_view text) {
  std::ofstream file{path, std::ios::binary};
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::InternalError(absl::StrCat("cannot write ", path));
}

// Runs a command to its end; its last line of output is the error's text.
absl::Status run_to_end(const std::vector<std::string>& command, double timeout_seconds) {
  absl::StatusOr<Subprocess> process =
      Subprocess::start({.command = command, .inherited = {}, .directory = {}});
  if (!process.ok()) {
    return process.status();
  }
  std::string output;
  const auto collect = [&output](absl::string_view bytes) {
    absl::StrAppend(&output, bytes);
    return true;
  };
  const RelayEnd end = relay(*process, {.sources = {{process->standard_output().get(), collect},
                                                    {process->standard_error().get(), collect}},
                                        .standard_input = false,
                                        .timeout_seconds = timeout_seconds});
  if (end == RelayEnd::exited && process->status() == 0) {
    return absl::OkStatus();
  }
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  return absl::InternalError(
      absl::StrCat(command[0], " failed: ", lines.empty() ? "no output" : lines.back()));
}

// A word for GRUB's shell-like language.
std::string grub_quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string module_name(std::size_t i) { return absl::StrCat(kBootFolder, "/module", i); }

// Finds the result line in console output that comes in pieces.
class ExitLine {
 public:
  // True once the line is complete.
  bool feed(absl::string_view bytes) {
    for (const char c : bytes) {
      if (c != '\n' && c != '\r') {
        line_ += c;
        continue;
      }
      if (absl::StartsWith(line_, kGuestExitLine) &&
          absl::SimpleAtoi(line_.substr(kGuestExitLine.size()), &value_)) {
        return true;
      }
      line_.clear();
    }
    return false;
  }
  int value() const { return value_; }

 private:
  std::string line_;
  int value_ = 0;
};

// The line of Bochs' log that says why it gave up.
std::string last_panic(const std::string& log_path) {
  std::ifstream log{log_path};
  std::string found;
  for (std::string line; std::getline(log, line);) {
    // Lines look like `00389496962p[CPU0  ] >>PANIC<< text`.
    if (line.find(">>PANIC<<") != std::string::npos) {
      found = line;
    }
  }
  return found;
}

absl::Status build_iso(const MachineSpec& spec, const std::string& folder, const std::string& iso) {
  const std::string boot = absl::StrCat(folder, "/iso", kBootFolder);
  std::error_code error;
  fs::create_directories(boot + "/grub", error);
  if (!error) {
    fs::copy_file(spec.payload, boot + "/payload", error);
  }
  for (std::size_t i = 0; i < spec.modules.size() && !error; ++i) {
    fs::copy_file(spec.modules[i], absl::StrCat(folder, "/iso", module_name(i)), error);
  }
  if (error) {
    return absl::InternalError(absl::StrCat("staging for Bochs: ", error.message()));
  }
  if (const absl::Status written = write_file(boot + "/grub/grub.cfg", grub_configuration(spec));
      !written.ok()) {
    return written;
  }
  return run_to_end({"grub-mkrescue", "-o", iso, folder + "/iso",
                     "--install-modules=multiboot normal iso9660 biosdisk",
                     "--locales=", "--fonts=", "--themes="},
                    60);
}

}  // namespace

std::string grub_configuration(const MachineSpec& spec) {
  std::string text =
      absl::StrCat("set timeout=0\nterminal_output console\nmultiboot ", kBootFolder, "/payload");
  for (absl::string_view word : absl::StrSplit(spec.append, ' ', absl::SkipEmpty())) {
    absl::StrAppend(&text, " ", grub_quoted(word));
  }
  absl::StrAppend(&text, "\n");
  for (std::size_t i = 0; i < spec.modules.size(); ++i) {
    absl::StrAppend(&text, "module ", module_name(i), " ", module_name(i), "\n");
  }
  return absl::StrCat(text, "boot\n");
}

std::string bochs_configuration(const MachineSpec& spec, const std::string& iso,
                                const std::string& console_path, const std::string& log_path) {
  std::string model = spec.bochs_cpu;
  if (model.empty()) {
    model = spec.cpu == CpuVendor::amd ? "ryzen" : "corei7_icelake_u";
  }
  return absl::StrFormat(
      "display_library: rfb, options=\"timeout=0\"\n"
      "megs: %u\n"
      "cpu: model=%s, count=%u, ips=100000000\n"
      "romimage: file=/usr/share/bochs/BIOS-bochs-latest\n"
      "vgaromimage: file=/usr/share/vgabios/vgabios.bin\n"
      "ata0-master: type=cdrom, path=%s, status=inserted\n"
      "boot: cdrom\n"
      "com1: enabled=1, mode=file, dev=%s\n"
      "clock: sync=none\n"
      // Without these Bochs looks for a sound card, and dies where there is none.
      "speaker: enabled=0\n"
      "sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy\n"
      "panic: action=fatal\n"
      "error: action=report\n"
      "info: action=ignore\n"
      "debug: action=ignore\n"
      "log: %s\n",
      spec.memory >> 20, model, spec.cpus, iso, console_path, log_path);
}

RunResult run_bochs(const MachineSpec& spec, const RunIo& io) {
  RunResult result;
  result.outcome = Outcome::qemu_failed;
  TemporaryFolder folder;
  if (const absl::Status made = folder.make(); !made.ok()) {
    result.detail = std::string{made.message()};
    return result;
  }
  const std::string iso = folder.path() + "/boot.iso";
  const std::string configuration = folder.path() + "/bochsrc";
  const std::string debugger_script = folder.path() + "/rc";
  const std::string log_path = folder.path() + "/bochs.log";
  MachineSpec with_initrd = spec;  // a multiboot program's initrd is its first module
  if (!spec.initrd.empty()) {
    with_initrd.modules.insert(with_initrd.modules.begin(), spec.initrd);
  }
  absl::Status ready = build_iso(with_initrd, folder.path(), iso);
  int console[2] = {-1, -1};
  if (ready.ok() && ::pipe2(console, O_CLOEXEC) != 0) {
    ready = absl::InternalError("no pipe for Bochs' serial port");
  }
  Fd console_read{console[0]};
  Fd console_write{console[1]};
  ready.Update(write_file(
      configuration,
      bochs_configuration(with_initrd, iso, absl::StrCat("/proc/self/fd/", console[1]), log_path)));
  // Debian's Bochs has its debugger compiled in, which waits at a prompt unless told to go on.
  ready.Update(write_file(debugger_script, "c\n"));
  if (!ready.ok()) {
    result.detail = std::string{ready.message()};
    return result;
  }
  const std::vector<std::string> command = {"bochs",       "-q",  "-f",
                                            configuration, "-rc", debugger_script};
  if (io.print_command) {
    std::fprintf(stderr, "aerie: %s\n", shell_quoted(command).c_str());
  }
  absl::StatusOr<Subprocess> process = Subprocess::start(
      {.command = command, .inherited = {console_write.get()}, .directory = folder.path()});
  if (!process.ok()) {
    result.detail = std::string{process.status().message()};
    return result;
  }
  console_write.reset();
  ExitLine exit_line;
  bool told = false;
  const auto ignore = [](absl::string_view) { return true; };
  const RelayEnd end = relay(*process, {.sources = {{console_read.get(),
                                                     [&](absl::string_view bytes) {
                                                       const bool wanted =
                                                           told || io.console(bytes);
                                                       told = told || exit_line.feed(bytes);
                                                       return wanted && !told;
                                                     }},
                                                    {process->standard_output().get(), ignore},
                                                    {process->standard_error().get(), ignore}},
                                        .standard_input = false,
                                        .timeout_seconds = io.timeout_seconds});
  if (told) {
    result.outcome = Outcome::guest_exit;
    result.value = exit_line.value();
    return result;
  }
  switch (end) {
    case RelayEnd::timeout:
      result.outcome = Outcome::timeout;
      result.detail = absl::StrFormat("after %g s", io.timeout_seconds);
      break;
    case RelayEnd::exited:
      result.outcome = Outcome::no_result;
      result.detail = last_panic(log_path);
      if (result.detail.empty()) {
        result.detail = "Bochs ended and the program had told no result";
      }
      break;
    default:
      result.outcome = Outcome::interrupted;
      break;
  }
  return result;
}

}  // namespace aerie::tools
