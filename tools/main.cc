// aerie: the host tool. Each subcommand is one row of the table.
#include <array>
#include <cstdio>
#include <string>
#include <vector>
#include "absl/strings/string_view.h"

#include "absl/strings/str_format.h"
#include "tools/bench/bench_command.h"
#include "tools/demo/demo_command.h"
#include "tools/guests/guests_command.h"
#include "tools/kut/kut_command.h"
#include "tools/run/exit_status.h"
#include "tools/run/interrupts.h"
#include "tools/run/run_command.h"

namespace aerie::tools {
namespace {

struct Command {
  absl::string_view name;
  absl::string_view summary;
  int (*run)(const std::vector<std::string>& arguments);
};

constexpr std::array kCommands = {
    Command{"run", "run a payload as L1", run_command},
    Command{"demo", "Aerie, Linux with KVM as L1, Linux as L2", demo_command},
    Command{"bench", "what exits cost, in instructions", bench_command},
    Command{"guests", "run the L1 guests of tests/guests", guests_command},
    Command{"kut", "run a built kvm-unit-tests suite", kut_command},
};

std::string usage() {
  std::string text = "usage: aerie COMMAND [options]\n\ncommands:\n";
  for (const Command& command : kCommands) {
    text += absl::StrFormat("  %-8s %s\n", command.name, command.summary);
  }
  return text + "\n`aerie COMMAND --help` tells a command's options.\n";
}

int main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(usage().c_str(), stderr);
    return kExitUsage;
  }
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    std::fputs(usage().c_str(), stdout);
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (command.name == arguments[0]) {
      catch_interrupts();
      return command.run({arguments.begin() + 1, arguments.end()});
    }
  }
  std::fprintf(stderr, "aerie: unknown command \"%s\"\n\n%s", arguments[0].c_str(),
               usage().c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace aerie::tools

int main(int argc, char** argv) {
  return aerie::tools::main(std::vector<std::string>(argv + 1, argv + argc));
}
