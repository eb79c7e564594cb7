// Who wants an exit of L2, by its neutral reason: L1 always, L1 where a control of vmcs12 says so,
// or a handler that has to look closer. SDM vol. 3, 26.1 and 26.2. This is the one place to change
// where an exit goes; make_intercepts() derives from it what the processor is asked to intercept.
#pragma once

#include <array>
#include <string_view>

#include "cpu/exit.h"
#include "cpu/intercepts.h"
#include "cpu/vmx/controls.h"
#include "cpu/vmx/exit_reason.h"

namespace aerie::nested::vmx {

// The control words that routing looks at; as an index into {pin, proc, proc2}.
enum class Word : u8 { pin, proc, proc2 };

enum class Wants : u8 {
  l1,       // always: reflect as `basic`
  control,  // L1 where `bit` of `word`, proc or proc2, is set; else L0 performs the instruction
  closer,   // handle_special() decides
};

struct Route {
  cpu::ExitReason reason;
  Wants wants;
  cpu::vmx::BasicExit basic = cpu::vmx::BasicExit::exception_or_nmi;
  Word word = Word::proc;
  u32 bit = 0;
  std::string_view why;
};

namespace detail {
using cpu::ExitReason;
using cpu::vmx::BasicExit;
namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;

inline constexpr Route kRouteRows[] = {
    {ExitReason::cpuid, Wants::l1, BasicExit::cpuid, {}, 0, "unconditional, 26.1.2"},
    {ExitReason::invd, Wants::l1, BasicExit::invd, {}, 0, "unconditional, 26.1.2"},
    {ExitReason::xsetbv, Wants::l1, BasicExit::xsetbv, {}, 0, "unconditional, 26.1.2"},
    {ExitReason::hlt, Wants::control, BasicExit::hlt, Word::proc, proc::hlt, "26.1.3"},
    {ExitReason::invlpg, Wants::control, BasicExit::invlpg, Word::proc, proc::invlpg, "26.1.3"},
    {ExitReason::mwait, Wants::control, BasicExit::mwait, Word::proc, proc::mwait, "26.1.3"},
    {ExitReason::monitor, Wants::control, BasicExit::monitor, Word::proc, proc::monitor, "26.1.3"},
    {ExitReason::rdpmc, Wants::control, BasicExit::rdpmc, Word::proc, proc::rdpmc, "26.1.3"},
    {ExitReason::pause, Wants::control, BasicExit::pause, Word::proc, proc::pause, "26.1.3"},
    {ExitReason::wbinvd, Wants::closer, BasicExit::wbinvd, Word::proc2, proc2::wbinvd,
     "26.1.3; a host may report INVD so"},
    {ExitReason::software_interrupt,
     Wants::closer,
     {},
     {},
     0,
     "INT3 and INTO by the exception bitmap, where the host's own does not catch them"},
    {ExitReason::rdtsc, Wants::closer, BasicExit::rdtsc, Word::proc, proc::rdtsc, "26.1.3"},
    {ExitReason::rdtscp, Wants::closer, BasicExit::rdtscp, Word::proc, proc::rdtsc,
     "#UD without enable RDTSCP, 26.3"},
    {ExitReason::invpcid, Wants::closer, BasicExit::invpcid, Word::proc, proc::invlpg,
     "#UD without enable INVPCID, 26.3"},
    {ExitReason::descriptor_table, Wants::closer, BasicExit::gdtr_idtr, Word::proc2,
     proc2::descriptor_table, "26.1.3"},
    {ExitReason::exception,
     Wants::closer,
     {},
     {},
     0,
     "exception bitmap; VMX instructions arrive as #UD"},
    {ExitReason::cr_read,
     Wants::closer,
     BasicExit::cr_access,
     {},
     0,
     "masks, shadows, CR3/CR8-store exiting"},
    {ExitReason::cr_write,
     Wants::closer,
     BasicExit::cr_access,
     {},
     0,
     "masks, shadows, CR3/CR8-load exiting"},
    {ExitReason::cr0_selective, Wants::closer, BasicExit::cr_access, {}, 0, "as cr_write"},
    {ExitReason::dr_read, Wants::closer, BasicExit::mov_dr, Word::proc, proc::mov_dr, "26.1.3"},
    {ExitReason::dr_write, Wants::closer, BasicExit::mov_dr, Word::proc, proc::mov_dr, "26.1.3"},
    {ExitReason::io,
     Wants::closer,
     BasicExit::io,
     {},
     0,
     "I/O bitmaps or unconditional I/O exiting"},
    {ExitReason::rdmsr, Wants::closer, BasicExit::rdmsr, {}, 0, "MSR bitmaps"},
    {ExitReason::wrmsr, Wants::closer, BasicExit::wrmsr, {}, 0, "MSR bitmaps"},
    {ExitReason::task_switch,
     Wants::closer,
     BasicExit::task_switch,
     {},
     0,
     "unconditional, 26.4.2"},
    {ExitReason::shutdown, Wants::closer, BasicExit::triple_fault, {}, 0, "unconditional, 26.2"},
    {ExitReason::tdp_fault,
     Wants::closer,
     BasicExit::ept_violation,
     {},
     0,
     "L1's EPT or L0's own map"},
    {ExitReason::interrupt_window, Wants::closer, {}, {}, 0, "before_run() decides"},
    {ExitReason::iret, Wants::closer, {}, {}, 0, "the end of (virtual-)NMI blocking"},
    {ExitReason::external_interrupt, Wants::closer, {}, {}, 0, "vmm took it; before_run() decides"},
    {ExitReason::nmi, Wants::closer, {}, {}, 0, "vmm took it; before_run() decides"},
    {ExitReason::init, Wants::closer, {}, {}, 0, "vmm took it; before_run() decides"},
    {ExitReason::smi, Wants::closer, {}, {}, 0, "L0's own"},
    {ExitReason::vmrun, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::vmmcall, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::vmload, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::vmsave, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::stgi, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::clgi, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::skinit, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::invlpga, Wants::closer, {}, {}, 0, "#UD: L2's processor has no SVM"},
    {ExitReason::rdpru, Wants::closer, {}, {}, 0, "#UD: not an Intel instruction"},
    {ExitReason::rsm, Wants::closer, {}, {}, 0, "#UD outside SMM"},
    {ExitReason::invalid_state, Wants::closer, {}, {}, 0, "L0's own"},
};

constexpr std::array<Route, cpu::kExitReasons> make_routes() {
  std::array<Route, cpu::kExitReasons> table{};
  for (unsigned i = 0; i < cpu::kExitReasons; ++i) {
    table[i] = {static_cast<ExitReason>(i),      Wants::closer, {}, {}, 0,
                "not asked for: ignored, logged"};
  }
  for (const Route& row : kRouteRows) {
    table[static_cast<unsigned>(row.reason)] = row;
  }
  return table;
}
}  // namespace detail

inline constexpr std::array<Route, cpu::kExitReasons> kRoutes = detail::make_routes();

// Intercepts that follow from one control bit.
struct ControlledExit {
  cpu::ExitReason reason;
  Word word;
  u32 bit;
  bool when_set = true;
};
inline constexpr ControlledExit kControlledExits[] = {
    {cpu::ExitReason::invlpg, Word::proc, cpu::vmx::proc::invlpg},
    {cpu::ExitReason::mwait, Word::proc, cpu::vmx::proc::mwait},
    {cpu::ExitReason::monitor, Word::proc, cpu::vmx::proc::monitor},
    {cpu::ExitReason::rdpmc, Word::proc, cpu::vmx::proc::rdpmc},
    {cpu::ExitReason::pause, Word::proc, cpu::vmx::proc::pause},
    {cpu::ExitReason::wbinvd, Word::proc2, cpu::vmx::proc2::wbinvd},
    {cpu::ExitReason::rdtsc, Word::proc, cpu::vmx::proc::rdtsc},
    {cpu::ExitReason::rdtscp, Word::proc, cpu::vmx::proc::rdtsc},
    // Without the "enable" control the instruction is #UD; a host that has it must not execute it.
    {cpu::ExitReason::rdtscp, Word::proc2, cpu::vmx::proc2::rdtscp, false},
    {cpu::ExitReason::invpcid, Word::proc2, cpu::vmx::proc2::invpcid, false},
    {cpu::ExitReason::invpcid, Word::proc, cpu::vmx::proc::invlpg},
    {cpu::ExitReason::descriptor_table, Word::proc2, cpu::vmx::proc2::descriptor_table},
};

// Always: what VMX makes unconditional, and what L0 decides instruction by instruction (MSRs,
// ports, CR0 and CR4 writes, TPR, HLT's activity state).
inline constexpr cpu::Intercepts kAlwaysIntercepted = [] {
  using enum cpu::ExitReason;
  cpu::Intercepts i;
  for (const cpu::ExitReason r :
       {cpuid, invd, xsetbv, hlt, io, rdmsr, wrmsr, task_switch, shutdown, vmrun, vmmcall, vmload,
        vmsave, stgi, clgi, skinit, invlpga, rdpru, rsm}) {
    i.on(r);
  }
  i.cr_reads = 1u << 8;
  i.cr_writes = (1u << 0) | (1u << 4) | (1u << 8);
  return i;
}();

}  // namespace aerie::nested::vmx
