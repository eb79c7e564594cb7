// The machine that a payload runs on, as the user asks for it, and the command line that starts it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/run/payload.h"

namespace aerie::tools {

// What the payload runs under.
enum class Host {
  aerie,  // Aerie in QEMU
  none,   // QEMU alone: the payload is L0 itself, for comparison
  bochs,  // Bochs alone: another implementation of VMX and SVM
};
bool AbslParseFlag(absl::string_view text, Host* host, std::string* error);
std::string AbslUnparseFlag(Host host);

enum class CpuVendor { intel, amd };
bool AbslParseFlag(absl::string_view text, CpuVendor* vendor, std::string* error);
std::string AbslUnparseFlag(CpuVendor vendor);

struct MachineSpec {
  Host host = Host::aerie;
  std::optional<CpuVendor>
      cpu;  // what L1 sees; none: Intel under Aerie, QEMU's own with Host::none
  unsigned cpus = 1;
  std::uint64_t memory = std::uint64_t{1} << 30;  // of the machine, Aerie's block included
  bool tdp = true;
  std::vector<std::string> hide;
  std::string accel = "tcg";
  bool icount = false;

  std::string payload;
  std::string append;
  std::string initrd;
  std::vector<std::string> modules;
  std::vector<std::string> qemu_options;

  std::string image;          // Aerie's own, aerie.elf
  std::string aerie_options;  // more words for Aerie's command line
  std::string log_level = "info";
  std::uint64_t block = std::uint64_t{64} << 20;  // Aerie's memory
  std::string bochs_cpu;                          // a Bochs CPU model; empty: by vendor
};

inline constexpr std::uint64_t kSmallestL1Memory = std::uint64_t{512} << 20;

// Paths that only this run knows. An empty one leaves the option away.
struct Plumbing {
  std::string ram_path{};
  std::string qmp_fd{};
  std::string log_path{};        // Aerie's log, port 0xe9
  std::string reset_log_path{};  // QEMU's log of resets and triple faults
  // The spec's files under names without spaces and commas, as QEMU's -initrd needs them.
  std::string payload{};
  std::string initrd{};
  std::vector<std::string> modules{};
};

// Whether Aerie knows a feature of that name (vmm/policy/feature.h has them).
bool known_feature(absl::string_view name);

// Aerie's own command line: space-separated key=value words.
std::string aerie_command_line(const MachineSpec& spec);

// argv of QEMU for Host::aerie and Host::none.
std::vector<std::string> qemu_command(const MachineSpec& spec, PayloadKind kind,
                                      const Plumbing& plumbing);

// Whether all files are there, are what they should be, and fit; the payload's kind if so.
absl::StatusOr<PayloadKind> check_machine(const MachineSpec& spec);

// Where RAM below 4 GiB ends on QEMU's pc machine with `memory` bytes.
std::uint64_t low_memory_end(std::uint64_t memory);

// A path that QEMU's -initrd can take: no space, no comma.
bool plain_path(absl::string_view path);

// A command as a person would type it into a shell.
std::string shell_quoted(const std::vector<std::string>& command);

}  // namespace aerie::tools
