// #VMEXIT codes and their neutral reasons. APM vol. 2, appendix C.
#pragma once

#include <array>

#include "cpu/exit.h"
#include "cpu/svm/vmcb.h"

namespace aerie::cpu::svm {

inline constexpr u32 kExitNpf = 0x400;
inline constexpr u32 kExitCodes = 0x90;

struct ExitMapping {
  ExitReason reason = ExitReason::unknown;
  u8 number = 0;  // of the exception, control or debug register
};

consteval std::array<ExitMapping, kExitCodes> make_exit_map() {
  std::array<ExitMapping, kExitCodes> map{};
  for (u8 i = 0; i < 16; ++i) {
    map[i] = {ExitReason::cr_read, i};
    map[0x10 + i] = {ExitReason::cr_write, i};
    map[0x20 + i] = {ExitReason::dr_read, i};
    map[0x30 + i] = {ExitReason::dr_write, i};
  }
  for (u8 i = 0; i < 32; ++i) {
    map[0x40 + i] = {ExitReason::exception, i};
  }
  using enum ExitReason;
  constexpr ExitReason tail[] = {
      external_interrupt,
      nmi,
      smi,
      init,
      interrupt_window,
      cr0_selective,  // 0x60
      descriptor_table,
      descriptor_table,
      descriptor_table,
      descriptor_table,  // 0x66 reads
      descriptor_table,
      descriptor_table,
      descriptor_table,
      descriptor_table,  // 0x6a writes
      rdtsc,
      rdpmc,
      pushf,
      popf,
      cpuid,
      rsm,
      iret,
      software_interrupt,
      invd,  // 0x6e
      ExitReason::pause,
      hlt,
      invlpg,
      invlpga,
      io,
      rdmsr,
      task_switch,
      ferr_freeze,
      shutdown,  // 0x77
      vmrun,
      vmmcall,
      vmload,
      vmsave,
      stgi,
      clgi,
      skinit,
      rdtscp,
      icebp,
      wbinvd,  // 0x80
      monitor,
      mwait,
      mwait,
      xsetbv,
      rdpru,  // 0x8a
  };
  for (unsigned i = 0; i < std::size(tail); ++i) {
    map[0x60 + i] = {tail[i], static_cast<u8>(i)};
  }
  return map;
}
inline constexpr auto kExitMap = make_exit_map();
static_assert(kExitMap[0x72].reason == ExitReason::cpuid);
static_assert(kExitMap[0x7c].reason == ExitReason::rdmsr);
static_assert(kExitMap[0x7f].reason == ExitReason::shutdown);
static_assert(kExitMap[0x89].reason == ExitReason::wbinvd);
static_assert(kExitMap[0x8d].reason == ExitReason::xsetbv);

// The neutral reason of the exit in a VMCB after #VMEXIT; the rest of `exit` is complete_exit()'s,
// for the handlers that want it.
[[gnu::always_inline]] inline void decode_exit(const ControlArea& c, Exit& exit) {
  const u64 code = c.exit_code;
  if (code < kExitCodes) [[likely]] {
    const ExitMapping m = kExitMap[code];
    exit.reason = m.reason;
    exit.vector = m.number;
    if (m.reason == ExitReason::rdmsr && (c.exit_info1 & 1) != 0) {
      exit.reason = ExitReason::wrmsr;
    }
  } else if (code == kExitNpf) {
    exit.reason = ExitReason::tdp_fault;
  } else if (static_cast<u32>(code) == 0xffffffff) {
    exit.reason = ExitReason::invalid_state;
  } else {
    exit.reason = ExitReason::unknown;
  }
}

inline void complete_exit(const ControlArea& c, Exit& exit) {
  exit.raw_code = static_cast<u32>(c.exit_code);
  exit.info1 = exit.error_code = c.exit_info1;
  exit.info2 = c.exit_info2;
}

}  // namespace aerie::cpu::svm
