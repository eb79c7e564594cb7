// Starts a machine, carries its console, and tells how it ended.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include "absl/strings/string_view.h"

#include "tools/run/machine.h"
#include "vmm/telemetry_layout.h"

namespace aerie::tools {

struct RunIo {
  bool standard_input = false;  // L1's console reads the tool's standard input
  // Gets L1's console output as it comes; false ends the run.
  std::function<bool(absl::string_view)> console;
  std::string log_path;            // Aerie's log; empty: kept only for messages of failed runs
  double timeout_seconds = 0;      // 0: none
  bool show_qemu_messages = true;  // QEMU's own on standard error
  bool print_command = false;
};

enum class Outcome {
  guest_exit,  // L1 wrote `value` to isa-debug-exit
  power_off,
  reset,
  timeout,
  interrupted,  // the user ended the tool
  quit,         // the user's escape key
  qemu_failed,
  bad_payload,
  panic,
  triple_fault,
  unsupported_host,
  emulation_failed,
  no_result,
};
absl::string_view outcome_name(Outcome outcome);

struct RunResult {
  Outcome outcome = Outcome::no_result;
  int value = 0;
  std::string detail;    // one line for the user; empty where there is nothing to say
  std::string log_tail;  // the end of Aerie's log
  std::unique_ptr<telemetry::Block> telemetry;
  double seconds = 0;

  int exit_status() const;
};

RunResult run_machine(const MachineSpec& spec, const RunIo& io);

}  // namespace aerie::tools
