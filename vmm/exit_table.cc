#include "vmm/exit_table.h"

#include "vmm/exits/exits.h"

namespace aerie::vmm {
namespace {

struct Row {
  cpu::ExitReason reason;
  ExitHandler handler;
};

// L1's exits. Reasons that L0 does not intercept for L1 have no row and end in `unexpected`.
constexpr Row kRows[] = {
    {cpu::ExitReason::invalid_state, exits::invalid_state},
    {cpu::ExitReason::exception, exits::exception},
    {cpu::ExitReason::external_interrupt, exits::external_interrupt},
    {cpu::ExitReason::nmi, exits::nmi},
    {cpu::ExitReason::interrupt_window, exits::interrupt_window},
    {cpu::ExitReason::cr_read, exits::cr_read},
    {cpu::ExitReason::cr_write, exits::cr_write},
    {cpu::ExitReason::rdpmc, exits::rdpmc},
    {cpu::ExitReason::cpuid, exits::cpuid},
    {cpu::ExitReason::iret, exits::iret},
    {cpu::ExitReason::invd, exits::cache},
    {cpu::ExitReason::wbinvd, exits::cache},
    {cpu::ExitReason::hlt, exits::hlt},
    {cpu::ExitReason::invlpga, exits::svm_instruction},
    {cpu::ExitReason::rdmsr, exits::rdmsr},
    {cpu::ExitReason::wrmsr, exits::wrmsr},
    {cpu::ExitReason::shutdown, exits::shutdown},
    {cpu::ExitReason::vmrun, exits::svm_instruction},
    {cpu::ExitReason::vmmcall, exits::svm_instruction},
    {cpu::ExitReason::vmload, exits::svm_instruction},
    {cpu::ExitReason::vmsave, exits::svm_instruction},
    {cpu::ExitReason::stgi, exits::svm_instruction},
    {cpu::ExitReason::clgi, exits::svm_instruction},
    {cpu::ExitReason::skinit, exits::svm_instruction},
    {cpu::ExitReason::monitor, exits::monitor},
    {cpu::ExitReason::mwait, exits::monitor},
    {cpu::ExitReason::xsetbv, exits::xsetbv},
    {cpu::ExitReason::tdp_fault, exits::tdp_fault},
    {cpu::ExitReason::invlpg, exits::invlpg},
    {cpu::ExitReason::task_switch, exits::task_switch},
};

consteval std::array<ExitHandler, cpu::kExitReasons> make_table() {
  std::array<ExitHandler, cpu::kExitReasons> table{};
  table.fill(exits::unexpected);
  for (const Row& row : kRows) {
    table[static_cast<unsigned>(row.reason)] = row.handler;
  }
  return table;
}

}  // namespace

constinit const std::array<ExitHandler, cpu::kExitReasons> kL1Exits = make_table();

}  // namespace aerie::vmm
