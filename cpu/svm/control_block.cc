#include "cpu/svm/control_block.h"

namespace aerie::cpu::svm {
namespace {

struct Row {
  ExitReason reason;
  u32 misc1;  // bits of intercept vector 3
  u32 misc2;  // and 4
};

// Which intercepts bring which exits. TCG reports INVD as WBINVD and RDTSCP as RDTSC (FACTS), so
// each of the pair asks for both; decoding tells them apart again.
constexpr Row kRows[] = {
    {ExitReason::external_interrupt, intercept::intr, 0},
    {ExitReason::nmi, intercept::nmi, 0},
    {ExitReason::smi, intercept::smi, 0},
    {ExitReason::init, intercept::init, 0},
    {ExitReason::cr0_selective, intercept::cr0_selective, 0},
    {ExitReason::descriptor_table,
     intercept::read_idtr | intercept::read_gdtr | intercept::read_ldtr | intercept::read_tr |
         intercept::write_idtr | intercept::write_gdtr | intercept::write_ldtr |
         intercept::write_tr,
     0},
    {ExitReason::rdtsc, intercept::rdtsc, 0},
    {ExitReason::rdtscp, intercept::rdtsc, intercept::rdtscp},
    {ExitReason::rdpmc, intercept::rdpmc, 0},
    {ExitReason::pushf, intercept::pushf, 0},
    {ExitReason::popf, intercept::popf, 0},
    {ExitReason::cpuid, intercept::cpuid, 0},
    {ExitReason::rsm, intercept::rsm, 0},
    {ExitReason::iret, intercept::iret, 0},
    {ExitReason::software_interrupt, intercept::software_interrupt, 0},
    {ExitReason::invd, intercept::invd, intercept::wbinvd},
    {ExitReason::wbinvd, 0, intercept::wbinvd},
    {ExitReason::pause, intercept::pause, 0},
    {ExitReason::hlt, intercept::hlt, 0},
    {ExitReason::invlpg, intercept::invlpg, 0},
    {ExitReason::invlpga, intercept::invlpga, 0},
    {ExitReason::io, intercept::ioio, 0},
    {ExitReason::rdmsr, intercept::msr, 0},
    {ExitReason::wrmsr, intercept::msr, 0},
    {ExitReason::task_switch, intercept::task_switch, 0},
    {ExitReason::ferr_freeze, intercept::ferr_freeze, 0},
    {ExitReason::shutdown, intercept::shutdown, 0},
    {ExitReason::vmrun, 0, intercept::vmrun},
    {ExitReason::vmmcall, 0, intercept::vmmcall},
    {ExitReason::vmload, 0, intercept::vmload},
    {ExitReason::vmsave, 0, intercept::vmsave},
    {ExitReason::stgi, 0, intercept::stgi},
    {ExitReason::clgi, 0, intercept::clgi},
    {ExitReason::skinit, 0, intercept::skinit},
    {ExitReason::icebp, 0, intercept::icebp},
    {ExitReason::monitor, 0, intercept::monitor},
    {ExitReason::mwait, 0, intercept::mwait | intercept::mwait_armed},
    {ExitReason::xsetbv, 0, intercept::xsetbv},
    {ExitReason::rdpru, 0, intercept::rdpru},
};

}  // namespace

void ControlBlock::set_intercepts(const Intercepts& wanted) {
  auto& c = vmcb_->control;
  c.intercept_cr_read = wanted.cr_reads;
  c.intercept_cr_write = wanted.cr_writes;
  c.intercept_dr_read = wanted.dr_reads;
  c.intercept_dr_write = wanted.dr_writes;
  c.intercept_exceptions = wanted.exceptions;
  u32 misc1 = c.intercept_misc1 & intercept::vintr;  // the interrupt window is asked for apart
  // VMRUN without its own intercept is refused by the processor (APM vol. 2, 15.5.1).
  u32 misc2 = intercept::vmrun;
  for (const Row& row : kRows) {
    if (wanted.has(row.reason)) {
      misc1 |= row.misc1;
      misc2 |= row.misc2;
    }
  }
  c.intercept_misc1 = misc1;
  c.intercept_misc2 = misc2;
}

}  // namespace aerie::cpu::svm
