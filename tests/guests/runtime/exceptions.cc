#include "tests/guests/runtime/exceptions.h"

#include "cpu/arch/instructions.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/console.h"

extern "C" {
extern aerie::u8 vector_stubs[];
extern aerie::u8 guest_catch_resume[];
void guest_vector(aerie::guest::Frame* frame);
}

namespace aerie::guest {
namespace {

struct Gate {
  u16 offset_low;
  u16 selector;
  u8 ist;
  u8 type;  // P, DPL, type
  u16 offset_middle;
  u32 offset_high;
  u32 reserved;
};
static_assert(sizeof(Gate) == 16);

alignas(16) Gate table[256];
Handler handlers[256];
constexpr usize kStubSize = 16;

void fill_table() {
  for (unsigned vector = 0; vector < 256; ++vector) {
    const u64 target = reinterpret_cast<u64>(vector_stubs) + kStubSize * vector;
    table[vector] = {.offset_low = static_cast<u16>(target),
                     .selector = kCode64,
                     .ist = static_cast<u8>(vector == 2   ? 1
                                            : vector == 8 ? 2
                                                          : 0),
                     .type = 0x8e,
                     .offset_middle = static_cast<u16>(target >> 16),
                     .offset_high = static_cast<u32>(target >> 32),
                     .reserved = 0};
  }
}

}  // namespace

void set_handler(u8 vector, Handler handler) { handlers[vector] = handler; }

void reset_handlers() {
  for (Handler& handler : handlers) {
    handler = nullptr;
  }
  fill_table();
}

void set_gate_present(u8 vector, bool present) {
  table[vector].type = static_cast<u8>((table[vector].type & 0x7f) | (present ? 0x80 : 0));
}
void set_gate(u8 vector, u8 dpl, u8 ist) {
  table[vector].type = static_cast<u8>(0x8e | (dpl << 5));
  table[vector].ist = ist;
}

void unblock_nmis() {
  asm volatile(
      "mov %%rsp, %%rcx; mov %%ss, %%eax; push %%rax; push %%rcx; pushfq; mov %%cs, %%eax; push "
      "%%rax;"
      "lea 1f(%%rip), %%rax; push %%rax; iretq; 1:" ::
          : "rax", "rcx", "memory");
}

void load_interrupt_table() {
  if (table[0].type == 0) {
    fill_table();
  }
  load_idtr({sizeof(table) - 1, reinterpret_cast<u64>(table)});
}

}  // namespace aerie::guest

extern "C" void guest_vector(aerie::guest::Frame* frame) {
  using namespace aerie::guest;
  const auto vector = static_cast<aerie::u8>(frame->vector);
  if (const Handler handler = handlers[vector]; handler != nullptr) {
    handler(*frame);
    return;
  }
  PerCpu& self = this_cpu();
  if (vector >= 32 || vector == 2) {
    self.interrupts[vector] = self.interrupts[vector] + 1;
    self.last_vector = vector;
    if (vector != 2) {
      end_of_interrupt();
    }
    return;
  }
  if (self.catch_slot != 0) {
    self.fault = {.raised = true,
                  .vector = vector,
                  .error = frame->error,
                  .rip = frame->rip,
                  .rflags = frame->rflags,
                  .cr2 = aerie::cpu::read_cr2()};
    frame->rip = reinterpret_cast<aerie::u64>(guest_catch_resume);
    frame->cs = kCode64;
    frame->ss = kData;
    frame->rflags = aerie::cpu::rflags::fixed;
    frame->rsp = self.catch_slot;
    frame->rax = 1;
    return;
  }
  print("unexpected exception {} error {x} rip {x} rsp {x} rflags {x} cr2 {x} cpu {}\n", vector,
        frame->error, frame->rip, frame->rsp, frame->rflags, aerie::cpu::read_cr2(), self.index);
  // In an L2: L1 finds the case failed and an L2 that only ever calls it.
  while (self.is_l2) {
    fail("an exception in L2");
    asm volatile("vmcall" ::"a"(0xdead) : "memory");
  }
  exit_guest(2);
}
