// What stopped a guest, in words that hold for SVM and VMX hosts alike. A backend's run() returns
// one; vmm dispatches on `reason` through a table, nested/ maps it to the exit its L1 expects.
#pragma once

#include "base/types.h"

namespace aerie::cpu {

// An instruction exit names the instruction as the guest wrote it: what a processor reports as
// another (TCG: INVD as WBINVD, RDTSCP as RDTSC) the backend's quirks have already put right after
// decoding.
enum class ExitReason : u8 {
  invalid_state,       // the processor refused the control block
  exception,           // `vector`, `error_code`; #PF: info2 = faulting address
  external_interrupt,  // still pending; the backend's window takes it
  nmi,                 // still pending
  init,                // must not happen (PITFALLS); logged
  smi,
  interrupt_window,  // the guest can take an interrupt now
  cr_read,           // `vector` = control register number; operands come from decoding
  cr_write,
  cr0_selective,  // CR0 write changing bits other than TS and MP, LMSW and CLTS among them
  dr_read,
  dr_write,
  descriptor_table,  // SGDT, SIDT, SLDT, STR, LGDT, LIDT, LLDT, LTR
  rdtsc,
  rdtscp,
  rdpmc,
  pushf,
  popf,
  cpuid,
  rsm,
  iret,
  software_interrupt,
  invd,
  wbinvd,
  pause,
  hlt,
  invlpg,
  invlpga,
  io,  // info1: as IoInformation
  rdmsr,
  wrmsr,
  task_switch,
  ferr_freeze,
  shutdown,  // triple fault
  vmrun,
  vmmcall,
  vmload,
  vmsave,
  stgi,
  clgi,
  skinit,
  icebp,
  monitor,
  mwait,
  xsetbv,
  rdpru,
  invpcid,
  tdp_fault,  // NPF or EPT violation: error_code = TdpFault bits, info2 = guest-physical address
  unknown,    // raw code in info1
  count
};
inline constexpr unsigned kExitReasons = static_cast<unsigned>(ExitReason::count);

// Bits of a tdp_fault's error code: a page-fault error code in bits 4:0 (APM vol. 2, 15.25.6) and:
namespace tdp_fault {
inline constexpr u64 final_access = u64{1} << 32;  // on the translated address itself
inline constexpr u64 page_walk = u64{1} << 33;     // on an access to the guest's page tables
}  // namespace tdp_fault

// EXITINFO1 of an IOIO intercept (APM vol. 2, 15.10.2).
struct IoInformation {
  u32 word;
  constexpr u16 port() const { return static_cast<u16>(word >> 16); }
  constexpr bool in() const { return (word & 1) != 0; }
  constexpr bool string() const { return (word & 4) != 0; }
  constexpr bool rep() const { return (word & 8) != 0; }
  constexpr unsigned size() const { return (word >> 4) & 7; }                // bytes
  constexpr unsigned address_size() const { return ((word >> 7) & 7) * 2; }  // bytes
  constexpr unsigned segment() const { return (word >> 10) & 7; }
};

struct Exit {
  ExitReason reason;
  u8 vector;  // of an exception; of a control or debug register
  u32 raw_code;
  u64 error_code;
  u64 info1;
  u64 info2;
};

}  // namespace aerie::cpu
