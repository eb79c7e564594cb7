// Which exit an instruction causes when it is intercepted, and so whether what was decoded at the
// guest's RIP can be what exited. It need not be: the guest may have rewritten its code in between,
// and the cache of a page's translation may lag behind. Then the instruction is run again (DESIGN
// §3).
#pragma once

#include <array>

#include "cpu/decode/instruction.h"
#include "cpu/exit.h"

namespace aerie::cpu {

namespace exit_match_detail {
struct Row {
  Op op;
  ExitReason reason;
};
inline constexpr Row kRows[] = {
    {Op::cpuid, ExitReason::cpuid},
    {Op::hlt, ExitReason::hlt},
    {Op::rdmsr, ExitReason::rdmsr},
    {Op::wrmsr, ExitReason::wrmsr},
    {Op::rdtsc, ExitReason::rdtsc},
    {Op::rdtscp, ExitReason::rdtscp},
    {Op::rdpmc, ExitReason::rdpmc},
    {Op::rdpru, ExitReason::rdpru},
    {Op::invd, ExitReason::invd},
    {Op::wbinvd, ExitReason::wbinvd},
    {Op::wbnoinvd, ExitReason::wbinvd},
    {Op::invlpg, ExitReason::invlpg},
    {Op::invlpga, ExitReason::invlpga},
    {Op::invpcid, ExitReason::invpcid},
    {Op::pause, ExitReason::pause},
    {Op::monitor, ExitReason::monitor},
    {Op::monitorx, ExitReason::monitor},
    {Op::mwait, ExitReason::mwait},
    {Op::mwaitx, ExitReason::mwait},
    {Op::xsetbv, ExitReason::xsetbv},
    {Op::rsm, ExitReason::rsm},
    {Op::in, ExitReason::io},
    {Op::out, ExitReason::io},
    {Op::ins, ExitReason::io},
    {Op::outs, ExitReason::io},
    {Op::mov_to_cr, ExitReason::cr_write},
    {Op::clts, ExitReason::cr_write},
    {Op::lmsw, ExitReason::cr_write},
    {Op::mov_from_cr, ExitReason::cr_read},
    {Op::smsw, ExitReason::cr_read},
    {Op::mov_to_dr, ExitReason::dr_write},
    {Op::mov_from_dr, ExitReason::dr_read},
    {Op::lgdt, ExitReason::descriptor_table},
    {Op::lidt, ExitReason::descriptor_table},
    {Op::sgdt, ExitReason::descriptor_table},
    {Op::sidt, ExitReason::descriptor_table},
    {Op::lldt, ExitReason::descriptor_table},
    {Op::ltr, ExitReason::descriptor_table},
    {Op::sldt, ExitReason::descriptor_table},
    {Op::str, ExitReason::descriptor_table},
    {Op::int3, ExitReason::software_interrupt},
    {Op::into, ExitReason::software_interrupt},
    {Op::int_n, ExitReason::software_interrupt},
    {Op::icebp, ExitReason::icebp},
    {Op::iret, ExitReason::iret},
    {Op::pushf, ExitReason::pushf},
    {Op::popf, ExitReason::popf},
    {Op::vmrun, ExitReason::vmrun},
    {Op::vmmcall, ExitReason::vmmcall},
    {Op::vmload, ExitReason::vmload},
    {Op::vmsave, ExitReason::vmsave},
    {Op::stgi, ExitReason::stgi},
    {Op::clgi, ExitReason::clgi},
    {Op::skinit, ExitReason::skinit},
};
inline constexpr auto kReasons = [] {
  std::array<ExitReason, static_cast<usize>(Op::count)> table{};
  table.fill(ExitReason::unknown);
  for (const Row& row : kRows) {
    table[static_cast<usize>(row.op)] = row.reason;
  }
  return table;
}();
}  // namespace exit_match_detail

// The exit an instruction causes by its name alone; `unknown` for one that has none (VMX
// instructions arrive as #UD).
constexpr ExitReason exit_reason_of(Op op) {
  return exit_match_detail::kReasons[static_cast<usize>(op)];
}

// Whether `op` can have caused an instruction exit that the processor reported as `reported`. INVD
// reported as WBINVD and RDTSCP as RDTSC are TCG's doing (FACTS): exit_reason_of(op) then says what
// it should be.
constexpr bool exit_fits(ExitReason reported, Op op) {
  const ExitReason own = exit_reason_of(op);
  if (own == reported) [[likely]] {
    return true;
  }
  switch (reported) {
    case ExitReason::cr0_selective:
      return own == ExitReason::cr_write;
    case ExitReason::wbinvd:
      return own == ExitReason::invd;
    case ExitReason::rdtsc:
      return own == ExitReason::rdtscp;
    default:
      return false;
  }
}

}  // namespace aerie::cpu
