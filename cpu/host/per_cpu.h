// Per-CPU data of L0 hangs off the stack: each processor's stack is aligned to its size, and its
// lowest bytes are this header. No GS, no TSS, nothing to save on an exit (DESIGN §3).
#pragma once

#include "base/types.h"

namespace aerie::cpu {

inline constexpr u64 kStackSize = 32768;

// Offsets are known to cpu/host/interrupts.S.
struct PerCpu {
  void* owner;  // the vCPU that runs here (vmm's)
  u32 index;    // dense processor number, 0 = boot processor
  u32 apic_id;
  u32 interrupt_taken;  // vector + 1 of the interrupt the last window took; 0 = none
  u32 nmis_taken;       // NMIs the last windows took
};
static_assert(sizeof(PerCpu) <= 64);

inline PerCpu& this_cpu() {
  u64 stack_pointer;
  asm("mov %%rsp, %0" : "=r"(stack_pointer));
  return *reinterpret_cast<PerCpu*>(stack_pointer & ~(kStackSize - 1));
}

}  // namespace aerie::cpu
