#include "tools/bench/bench_command.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/cli/options.h"
#include "tools/report/json.h"
#include "tools/run/exit_status.h"
#include "tools/run/images.h"
#include "tools/run/interrupts.h"
#include "tools/run/run_command.h"
#include "tools/run/runner.h"
#include "tools/run/staging.h"
#include "tools/run/subprocess.h"

namespace aerie::tools {
namespace {

// Where a figure comes from.
enum class Source {
  exits,     // bench_exits as L1
  vmx,       // bench_vmx as L1
  linux_l2,  // bench_exits as L2 of Linux's kvm_intel
};

// What is measured. 0: no such number. KVM's are those of Linux 6.1 as L0 on the same machine.
struct Row {
  Source source;
  absl::string_view name;
  absl::string_view what;
  double kvm;
  double goal;
  double gate;
};
constexpr std::array kRows = {
    Row{Source::exits, "cpuid", "L1 CPUID", 2854, 150, 180},
    Row{Source::exits, "rdmsr_tsc_adjust", "L1 RDMSR", 2839, 150, 0},
    Row{Source::exits, "wrmsr_tsc_adjust", "L1 WRMSR", 3357, 150, 0},
    Row{Source::exits, "eoi_write", "L1 EOI, xAPIC page", 3376, 250, 0},
    Row{Source::exits, "x2apic_eoi_write", "L1 EOI, x2APIC", 3376, 250, 0},
    Row{Source::exits, "self_ipi_write", "L1 self-IPI, xAPIC page (write only)", 3854, 400, 0},
    Row{Source::exits, "x2apic_self_ipi_write", "L1 self-IPI, x2APIC (write only)", 3854, 400, 0},
    Row{Source::exits, "self_ipi_sti_nop", "L1 self-IPI, taken", 9145, 0, 0},
    Row{Source::exits, "self_ipi_sti_hlt", "L1 self-IPI, HLT, taken", 12060, 0, 0},
    Row{Source::exits, "tsc_deadline_write", "L1 TSC deadline armed", 8136, 0, 0},
    Row{Source::exits, "toggle_cr4_pge", "L1 CR4.PGE off and on", 6759, 0, 0},
    Row{Source::exits, "toggle_cr0_wp", "L1 CR0.WP off and on", 8915, 0, 0},
    Row{Source::vmx, "vmread", "trapped VMREAD", 0, 160, 200},
    Row{Source::vmx, "vmwrite", "trapped VMWRITE", 0, 160, 200},
    Row{Source::vmx, "l2_cpuid", "L2 CPUID, L1 only resumes", 0, 800, 1000},
    Row{Source::vmx, "l2_vmcall", "L2 VMCALL, L1 only resumes", 0, 800, 0},
    Row{Source::vmx, "l2_rdmsr", "L2 RDMSR, L1 only resumes", 0, 800, 0},
    Row{Source::vmx, "l2_hlt", "L2 HLT, L1 only resumes", 0, 800, 0},
    Row{Source::vmx, "l2_ept_violation", "L2 EPT violation, L1 only resumes", 0, 0, 0},
    Row{Source::vmx, "vmptrld_switch_pair", "two VMPTRLDs of other VMCSs", 0, 0, 0},
    Row{Source::vmx, "invept_single", "INVEPT, nothing cached", 0, 0, 0},
    Row{Source::linux_l2, "cpuid", "L2 CPUID under Linux kvm_intel", 29827, 3500, 4500},
    Row{Source::linux_l2, "rdmsr_apic_base", "L2 RDMSR under Linux kvm_intel", 0, 0, 0},
};

constexpr double kTimeout = 600;

// Runs a machine under icount; its console, or an error that says how it ended.
absl::StatusOr<std::string> console_of(const MachineSpec& spec) {
  std::string console;
  RunIo io;
  io.timeout_seconds = kTimeout;
  io.show_qemu_messages = false;
  io.console = [&console](absl::string_view bytes) {
    absl::StrAppend(&console, bytes);
    return true;
  };
  const RunResult result = run_machine(spec, io);
  if (result.outcome == Outcome::interrupted) {
    return absl::CancelledError("interrupted");
  }
  if (result.outcome != Outcome::guest_exit || result.value != 0) {
    return absl::InternalError(
        absl::StrCat(outcome_name(result.outcome), " ", result.value, " ", result.detail));
  }
  return console;
}

// A cpio archive that brings /aerie/run and the guest into Linux's initrd; L1's init runs the
// former.
absl::Status write_l2_overlay(const std::string& folder, const std::string& guest) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(folder + "/tree/aerie", error);
  fs::copy_file(guest, folder + "/tree/aerie/guest.elf", error);
  if (error) {
    return absl::InternalError(absl::StrCat("staging the L2: ", error.message()));
  }
  std::ofstream{folder + "/tree/aerie/run"}
      << "qemu-system-x86_64 -accel kvm -cpu host -m 128 -nodefaults -display none -no-reboot "
         "-serial stdio -device isa-debug-exit,iobase=0xf4,iosize=0x4 -kernel /aerie/guest.elf "
         "-append 'cpuid rdmsr_apic_base rounds=50' </dev/null\n"
         "[ $? = 1 ]\n";
  absl::StatusOr<Subprocess> process = Subprocess::start(
      {.command = {"/bin/sh", "-c", "find . | cpio --quiet -o -H newc >../overlay.cpio"},
       .inherited = {},
       .directory = folder + "/tree"});
  if (!process.ok()) {
    return process.status();
  }
  process->reap(true);
  return process->status() == 0 ? absl::OkStatus() : absl::InternalError("cpio failed");
}

absl::StatusOr<std::string> measure(Source source, MachineSpec spec) {
  spec.icount = true;
  const std::string guests = build_folder() + "/tests/guests";
  if (source != Source::linux_l2) {
    spec.payload = guests + (source == Source::exits ? "/bench_exits.elf" : "/bench_vmx.elf");
    return console_of(spec);
  }
  TemporaryFolder folder;
  absl::Status ready = build_images();
  ready.Update(folder.make());
  if (ready.ok()) {
    ready.Update(write_l2_overlay(folder.path(), guests + "/bench_exits.elf"));
  }
  if (!ready.ok()) {
    return ready;
  }
  use_linux_l1(&spec, "quiet mitigations=off");
  spec.modules = {folder.path() + "/overlay.cpio"};
  return console_of(spec);
}

struct Figure {
  const Row* row;
  bool measured = false;
  double value = 0;
  bool failed() const { return row->gate > 0 && (!measured || value > row->gate); }
};

std::string number_or_dash(double number) {
  return number > 0 ? absl::StrFormat("%.0f", number) : "-";
}

std::string figures_table(const std::vector<Figure>& figures) {
  std::string out = absl::StrFormat("%-38s %12s %8s %8s %8s\n", "instructions, all levels together",
                                    "Aerie", "goal", "gate", "KVM 6.1");
  for (const Figure& figure : figures) {
    const Row& row = *figure.row;
    absl::StrAppendFormat(&out, "%-38s %12s %8s %8s %8s%s\n", row.what,
                          figure.measured ? absl::StrFormat("%.0f", figure.value) : "not measured",
                          number_or_dash(row.goal), number_or_dash(row.gate),
                          number_or_dash(row.kvm), figure.failed() ? "  above its gate" : "");
  }
  return out;
}

std::string figures_json(const std::vector<Figure>& figures) {
  std::vector<std::string> rows;
  for (const Figure& figure : figures) {
    const Row& row = *figure.row;
    const auto number = [](double n) { return n > 0 ? absl::StrFormat("%.0f", n) : "null"; };
    rows.push_back(absl::StrFormat(
        "  {\"name\": %s, \"what\": %s, \"level\": %s, \"instructions\": %s, \"goal\": %s, "
        "\"gate\": %s, \"kvm\": %s}",
        json_string(row.name), json_string(row.what),
        json_string(row.source == Source::exits ? "L1"
                    : row.source == Source::vmx ? "VMX"
                                                : "Linux"),
        figure.measured ? absl::StrFormat("%.0f", figure.value) : "null", number(row.goal),
        number(row.gate), number(row.kvm)));
  }
  return absl::StrCat("[\n", absl::StrJoin(rows, ",\n"), "\n]\n");
}

}  // namespace

std::map<std::string, double> parse_bench_lines(absl::string_view console) {
  std::map<std::string, double> figures;
  for (const absl::string_view line : absl::StrSplit(console, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \r"), absl::SkipEmpty());
    double value = 0;
    if (words.size() >= 3 && words[0] == "BENCH" && absl::SimpleAtod(words[2], &value)) {
      figures[std::string{words[1]}] = value;
    }
  }
  return figures;
}

int bench_command(const std::vector<std::string>& arguments) {
  MachineSpec spec;
  bool json = false;
  bool gate = false;
  bool skip_linux = false;
  OptionTable options("aerie bench", "",
                      "Measures what operations of L1 and L2 cost under -icount: exact, the same "
                      "on every machine.");
  add_machine_options(options, &spec);
  options.add_switch("json", "print JSON instead of a table", &json);
  options.add_switch("gate", "exit with 1 if a figure is above its gate", &gate);
  options.add_switch("no-linux", "leave out what needs Linux as L1 (a few minutes)", &skip_linux);
  const absl::StatusOr<Arguments> parsed = options.parse(arguments);
  absl::Status status = parsed.ok() ? finish_machine_options(&spec) : parsed.status();
  if (status.ok() && parsed->help) {
    std::fputs(options.help().c_str(), stdout);
    return kExitOk;
  }
  if (status.ok() && (!parsed->positional.empty() || !parsed->after_dashes.empty())) {
    status = absl::InvalidArgumentError("takes options only");
  }
  if (status.ok() && spec.host == Host::bochs) {
    status = absl::InvalidArgumentError("option --host: Bochs counts differently");
  }
  if (!status.ok()) {
    std::fprintf(stderr, "aerie bench: %s\n", std::string{status.message()}.c_str());
    return kExitUsage;
  }

  std::vector<Figure> figures;
  for (const Source source : {Source::exits, Source::vmx, Source::linux_l2}) {
    if (source == Source::linux_l2 && (skip_linux || spec.host != Host::aerie)) {
      continue;
    }
    const absl::StatusOr<std::string> console = measure(source, spec);
    if (interrupt_signal() != 0) {
      return 128 + interrupt_signal();
    }
    if (!console.ok()) {
      std::fprintf(stderr, "aerie bench: %s: %s\n",
                   source == Source::exits ? "bench_exits"
                   : source == Source::vmx ? "bench_vmx"
                                           : "Linux as L1",
                   std::string{console.status().message()}.c_str());
    }
    const std::map<std::string, double> found = parse_bench_lines(console.value_or(""));
    for (const Row& row : kRows) {
      if (row.source == source) {
        const auto it = found.find(std::string{row.name});
        figures.push_back({&row, it != found.end(), it != found.end() ? it->second : 0});
      }
    }
  }
  std::fputs((json ? figures_json(figures) : figures_table(figures)).c_str(), stdout);
  int gates = 0;
  int failed = 0;
  for (const Figure& figure : figures) {
    gates += figure.row->gate > 0 ? 1 : 0;
    failed += figure.failed() ? 1 : 0;
  }
  if (!json) {
    std::printf("\n%d passed, %d failed\n", gates - failed, failed);
  }
  return gate && failed > 0 ? 1 : kExitOk;
}

}  // namespace aerie::tools
