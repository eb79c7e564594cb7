// What each exit reason is called, in logs and in the host tool's tables.
#pragma once

#include <array>
#include <string_view>

#include "cpu/exit.h"

namespace aerie::cpu {

struct ExitName {
  ExitReason reason;
  std::string_view name;
};

// In the order of ExitReason: kExitNames[i].reason == i, checked below.
inline constexpr auto kExitNames = std::to_array<ExitName>({
    {ExitReason::invalid_state, "invalid state"},
    {ExitReason::exception, "exception"},
    {ExitReason::external_interrupt, "external interrupt"},
    {ExitReason::nmi, "NMI"},
    {ExitReason::init, "INIT"},
    {ExitReason::smi, "SMI"},
    {ExitReason::interrupt_window, "interrupt window"},
    {ExitReason::cr_read, "CR read"},
    {ExitReason::cr_write, "CR write"},
    {ExitReason::cr0_selective, "CR0 selective write"},
    {ExitReason::dr_read, "DR read"},
    {ExitReason::dr_write, "DR write"},
    {ExitReason::descriptor_table, "descriptor table"},
    {ExitReason::rdtsc, "RDTSC"},
    {ExitReason::rdtscp, "RDTSCP"},
    {ExitReason::rdpmc, "RDPMC"},
    {ExitReason::pushf, "PUSHF"},
    {ExitReason::popf, "POPF"},
    {ExitReason::cpuid, "CPUID"},
    {ExitReason::rsm, "RSM"},
    {ExitReason::iret, "IRET"},
    {ExitReason::software_interrupt, "software interrupt"},
    {ExitReason::invd, "INVD"},
    {ExitReason::wbinvd, "WBINVD"},
    {ExitReason::pause, "PAUSE"},
    {ExitReason::hlt, "HLT"},
    {ExitReason::invlpg, "INVLPG"},
    {ExitReason::invlpga, "INVLPGA"},
    {ExitReason::io, "I/O"},
    {ExitReason::rdmsr, "RDMSR"},
    {ExitReason::wrmsr, "WRMSR"},
    {ExitReason::task_switch, "task switch"},
    {ExitReason::ferr_freeze, "FERR freeze"},
    {ExitReason::shutdown, "shutdown"},
    {ExitReason::vmrun, "VMRUN"},
    {ExitReason::vmmcall, "VMMCALL"},
    {ExitReason::vmload, "VMLOAD"},
    {ExitReason::vmsave, "VMSAVE"},
    {ExitReason::stgi, "STGI"},
    {ExitReason::clgi, "CLGI"},
    {ExitReason::skinit, "SKINIT"},
    {ExitReason::icebp, "ICEBP"},
    {ExitReason::monitor, "MONITOR"},
    {ExitReason::mwait, "MWAIT"},
    {ExitReason::xsetbv, "XSETBV"},
    {ExitReason::rdpru, "RDPRU"},
    {ExitReason::invpcid, "INVPCID"},
    {ExitReason::tdp_fault, "TDP fault"},
    {ExitReason::unknown, "unknown"},
});

static_assert(kExitNames.size() == kExitReasons, "an exit reason has no name");
static_assert(
    [] {
      for (unsigned i = 0; i < kExitReasons; ++i) {
        if (kExitNames[i].reason != static_cast<ExitReason>(i)) {
          return false;
        }
      }
      return true;
    }(),
    "kExitNames is not in the order of ExitReason");

constexpr std::string_view exit_name(ExitReason reason) {
  const auto index = static_cast<unsigned>(reason);
  return index < kExitReasons ? kExitNames[index].name : std::string_view{"?"};
}

}  // namespace aerie::cpu
