#include "tools/run/machine.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/report/text.h"
#include "vmm/policy/feature.h"

namespace aerie::tools {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// One entry of QEMU's -initrd list: commas separate entries, so a comma inside one is doubled.
std::string module_entry(const std::string& path, const std::string& arguments) {
  const std::string text = arguments.empty() ? path : absl::StrCat(path, " ", arguments);
  return absl::StrReplaceAll(text, {{",", ",,"}});
}

std::string cpu_model(const MachineSpec& spec) {
  std::string model = spec.accel == "kvm" ? "host" : "max";
  if (spec.host == Host::none) {
    if (spec.cpu.has_value()) {
      absl::StrAppend(&model,
                      ",vendor=", *spec.cpu == CpuVendor::intel ? "GenuineIntel" : "AuthenticAMD");
    }
    for (const std::string& feature : spec.hide) {
      absl::StrAppend(&model, ",-", feature);
    }
  }
  return model;
}

}  // namespace

bool AbslParseFlag(absl::string_view text, Host* host, std::string* error) {
  for (const Host candidate : {Host::aerie, Host::none, Host::bochs}) {
    if (text == AbslUnparseFlag(candidate)) {
      *host = candidate;
      return true;
    }
  }
  *error = "is not aerie, none or bochs";
  return false;
}

std::string AbslUnparseFlag(Host host) {
  switch (host) {
    case Host::aerie:
      return "aerie";
    case Host::none:
      return "none";
    case Host::bochs:
      return "bochs";
  }
  return "?";
}

bool AbslParseFlag(absl::string_view text, CpuVendor* vendor, std::string* error) {
  if (text != "intel" && text != "amd") {
    *error = "is neither intel nor amd";
    return false;
  }
  *vendor = text == "intel" ? CpuVendor::intel : CpuVendor::amd;
  return true;
}

std::string AbslUnparseFlag(CpuVendor vendor) {
  return vendor == CpuVendor::intel ? "intel" : "amd";
}

bool known_feature(absl::string_view name) {
  namespace table = vmm::policy::feature_table;
  const auto named = [name](const vmm::policy::FeatureRow& row) {
    return absl_view(row.name) == name;
  };
  const auto also_named = [name](const table::Alias& alias) {
    return absl_view(alias.alias) == name;
  };
  return std::any_of(std::begin(table::kRows), std::end(table::kRows), named) ||
         std::any_of(std::begin(table::kAliases), std::end(table::kAliases), also_named);
}

std::string aerie_command_line(const MachineSpec& spec) {
  std::string line = absl::StrCat("cpu=", AbslUnparseFlag(spec.cpu.value_or(CpuVendor::intel)),
                                  " tdp=", spec.tdp ? "on" : "off");
  if (!spec.hide.empty()) {
    absl::StrAppend(&line, " hide=", absl::StrJoin(spec.hide, ","));
  }
  absl::StrAppend(&line, " block=", spec.block / kMiB, "M log=", spec.log_level);
  if (!spec.aerie_options.empty()) {
    absl::StrAppend(&line, " ", spec.aerie_options);
  }
  return line;
}

std::vector<std::string> qemu_command(const MachineSpec& spec, PayloadKind kind,
                                      const Plumbing& plumbing) {
  const std::string memory = absl::StrCat(spec.memory / kMiB, "M");
  std::vector<std::string> command = {
      "qemu-system-x86_64",
      // SMIs would reach a processor that runs Aerie; nothing here needs them.
      "-machine",
      absl::StrCat("pc,smm=off,accel=", spec.accel),
      "-cpu",
      cpu_model(spec),
      "-smp",
      absl::StrCat(spec.cpus),
      "-m",
      memory,
      "-nodefaults",
      "-display",
      "none",
      "-no-reboot",
      // The test devices of upstream's runner.
      "-device",
      "pc-testdev",
      "-device",
      "isa-debug-exit,iobase=0xf4,iosize=0x4",
      "-device",
      "pci-testdev",
      "-chardev",
      "stdio,id=console,signal=off",
      "-serial",
      "chardev:console",
  };
  const auto add = [&command](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  if (!plumbing.ram_path.empty()) {
    add({"-object",
         absl::StrCat("memory-backend-file,id=ram,share=on,mem-path=", plumbing.ram_path,
                      ",size=", memory),
         "-machine", "memory-backend=ram"});
  }
  if (!plumbing.qmp_fd.empty()) {
    // Stopped at first: the tool lets it run once it listens for events.
    add({"-chardev", absl::StrCat("socket,id=qmp,fd=", plumbing.qmp_fd), "-mon",
         "chardev=qmp,mode=control", "-S"});
  }
  if (!plumbing.log_path.empty()) {
    add({"-chardev",
         absl::StrCat("file,id=log,path=", absl::StrReplaceAll(plumbing.log_path, {{",", ",,"}})),
         "-device", "isa-debugcon,iobase=0xe9,chardev=log"});
  }
  if (!plumbing.reset_log_path.empty()) {
    add({"-d", "cpu_reset", "-D", plumbing.reset_log_path});
  }
  if (spec.icount) {
    add({"-icount", "shift=0,sleep=off"});
  }

  std::vector<std::string> modules;
  if (spec.host == Host::aerie) {
    modules.push_back(module_entry(plumbing.payload, spec.append));
    add({"-kernel", spec.image, "-append", aerie_command_line(spec)});
  } else {
    add({"-kernel", plumbing.payload});
    if (!spec.append.empty()) {
      add({"-append", spec.append});
    }
  }
  if (spec.host == Host::none && kind == PayloadKind::linux_kernel) {
    if (!plumbing.initrd.empty()) {
      add({"-initrd", plumbing.initrd});  // a Linux initrd's name is taken as it is
    }
  } else {
    if (!plumbing.initrd.empty()) {
      modules.push_back(module_entry(plumbing.initrd, ""));
    }
    for (const std::string& module : plumbing.modules) {
      modules.push_back(module_entry(module, ""));
    }
    if (!modules.empty()) {
      add({"-initrd", absl::StrJoin(modules, ",")});
    }
  }
  command.insert(command.end(), spec.qemu_options.begin(), spec.qemu_options.end());
  return command;
}

std::uint64_t low_memory_end(std::uint64_t memory) {
  // The pc machine gives RAM up to 3.5 GiB one piece; with more it splits at 3 GiB.
  return memory >= 0xe000'0000 ? std::min<std::uint64_t>(memory, 0xc000'0000) : memory;
}

absl::StatusOr<PayloadKind> check_machine(const MachineSpec& spec) {
  const absl::StatusOr<std::string> contents = read_file("payload", spec.payload);
  if (!contents.ok()) {
    return contents.status();
  }
  const absl::StatusOr<Payload> payload = inspect_payload(spec.payload, *contents);
  if (!payload.ok()) {
    return payload.status();
  }
  if (spec.host == Host::bochs && payload->kind != PayloadKind::multiboot) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload ", spec.payload, ": --host bochs runs multiboot programs only"));
  }
  std::uint64_t files = contents->size();
  if (!spec.initrd.empty()) {
    const absl::StatusOr<std::uint64_t> size = file_size("initrd", spec.initrd);
    if (!size.ok()) {
      return size.status();
    }
    files += *size;
  }
  for (const std::string& module : spec.modules) {
    const absl::StatusOr<std::uint64_t> size = file_size("module", module);
    if (!size.ok()) {
      return size.status();
    }
    files += *size;
  }
  // Aerie's block grows by the files, which it keeps until L1 has them, and L1 gets its least.
  const std::uint64_t low =
      low_memory_end(spec.memory) - (spec.host == Host::aerie ? spec.block : 0);
  const std::uint64_t wanted = files + (spec.host == Host::aerie ? kSmallestL1Memory : 4 * kMiB);
  if (wanted > low + kMiB) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "payload %s does not fit: it and its modules are %u MiB, memory below 4 GiB is %u MiB%s "
        "(see --memory)",
        spec.payload, files / kMiB, low_memory_end(spec.memory) / kMiB,
        spec.host == Host::aerie ? absl::StrFormat(", of which L1 gets at least %u and Aerie %u",
                                                   kSmallestL1Memory / kMiB, spec.block / kMiB)
                                 : ""));
  }
  if (payload->kind == PayloadKind::multiboot && payload->extent > low) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "payload %s does not fit: it reaches up to 0x%x, memory for it ends at 0x%x (see --memory)",
        spec.payload, payload->extent, low));
  }
  return payload->kind;
}

bool plain_path(absl::string_view path) { return path.find_first_of(" ,\t\n") == path.npos; }

std::string shell_quoted(const std::vector<std::string>& command) {
  return absl::StrJoin(command, " ", [](std::string* out, const std::string& word) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return absl::ascii_isalnum(c) ||
             absl::string_view{"-_./=:,+@%"}.find(static_cast<char>(c)) != absl::string_view::npos;
    });
    absl::StrAppend(
        out, plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'"));
  });
}

}  // namespace aerie::tools
