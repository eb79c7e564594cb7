// Processors: what each keeps for itself, and bringing the others up (INIT, SIPI). SDM vol. 3, 9.4.
#pragma once

#include <atomic>

#include "base/types.h"
#include "cpu/arch/registers.h"

namespace aerie::guest {

inline constexpr u64 kCpuStackSize = 1 << 14;  // STACK_SHIFT in boot.S

// The exception that ended a catch_fault() (exceptions.h).
struct Fault {
  bool raised = false;
  u8 vector = 0;
  u64 error = 0;
  u64 rip = 0;
  u64 rflags = 0;
  u64 cr2 = 0;
};

// Found through the GS base; an L2 has one of its own.
struct PerCpu {
  PerCpu* self;
  u64 catch_slot;  // see guest_catch in vectors.S
  Fault fault;
  unsigned index;
  u32 apic_id;
  // Interrupts (vectors 32-255) that no handler was set for, and NMIs, by vector.
  volatile u32 interrupts[256];
  volatile u32 last_vector;
  volatile u32 starts;  // how often this processor has come out of a SIPI
  std::atomic<void (*)(u64)> work;
  u64 work_argument;
  bool is_l2;
};

inline PerCpu& this_cpu() {
  PerCpu* self;
  asm volatile("mov %%gs:0, %0" : "=r"(self));
  return *self;
}

PerCpu& cpu(unsigned index);
// Processors that ACPI's MADT lists, at most kMaxCpus.
unsigned cpu_count();

// Starts all other processors, once; they then poll for work with interrupts off.
// False if one does not come up.
bool start_cpus();
// INIT, then `sipis` SIPIs, to one processor. Returns whether it came up again.
bool restart_cpu(unsigned index, unsigned sipis = 1);
// What the processor that started last found in its registers.
struct ApStartState {
  u32 cr0, edx, rflags;
  u16 cs;
};
const volatile ApStartState& ap_start_state();
// Has another processor call function(argument). run_on waits for its return.
void start_on(unsigned index, void (*function)(u64), u64 argument = 0);
bool wait_for(unsigned index);
void run_on(unsigned index, void (*function)(u64), u64 argument = 0);

// Used by start.cc: GS base, TSS, IDT, local APIC of the processor at hand.
void init_this_cpu(unsigned index);

// Selectors of boot.S's GDT.
inline constexpr u16 kCode64 = 0x08, kData = 0x10, kCode32 = 0x18, kCode16 = 0x20, kData16 = 0x28,
                     kUserData = 0x33, kUserCode = 0x3b, kTss0 = 0x40, kFreeDescriptor = 0xc0;

struct [[gnu::packed]] Tss {
  u32 reserved0;
  u64 rsp[3];
  u64 reserved1;
  u64 ist[7];
  u64 reserved2;
  u16 reserved3;
  u16 io_map_base;
};
static_assert(sizeof(Tss) == 104);
Tss& tss(unsigned index);

struct [[gnu::packed]] DescriptorTablePointer {
  u16 limit;
  u64 base;
};
DescriptorTablePointer read_gdtr();
DescriptorTablePointer read_idtr();
void load_idtr(const DescriptorTablePointer& pointer);
u64* gdt_entries();

}  // namespace aerie::guest
