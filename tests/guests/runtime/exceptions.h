// Interrupts and exceptions of a guest: one table, handlers by vector, and catch_fault(), which
// turns an exception into a value. SDM vol. 3, chapter 6.
#pragma once

#include <type_traits>

#include "cpu/arch/exception.h"
#include "tests/guests/runtime/cpus.h"

extern "C" aerie::u64 guest_catch(void (*body)(void*), void* argument, aerie::u64* slot);

namespace aerie::guest {

// What an interrupt handler sees, and what it returns to; as vectors.S pushes it.
struct Frame {
  u64 r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax;
  u64 vector, error;
  u64 rip, cs, rflags, rsp, ss;
};

using Handler = void (*)(Frame&);

// A null handler means: vectors below 32 end a catch_fault() or fail the case, NMIs and the others
// are counted in PerCpu::interrupts; vectors from 32 on are also given an EOI.
void set_handler(u8 vector, Handler handler);
void reset_handlers();
void load_interrupt_table();
// Takes a vector's gate away (not present), or brings it back: a delivery then is #NP or #GP.
void set_gate_present(u8 vector, bool present);
// The table's DPL for a vector, and whether it uses the NMI's stack.
void set_gate(u8 vector, u8 dpl, u8 ist);

// An IRET to the next instruction: ends the blocking of NMIs (SDM vol. 3, 6.7.1).
void unblock_nmis();

// Calls body() and returns what it raised, if anything. RSP and the callee-saved registers are put
// back, destructors in body are not run. May be nested; each processor has its own.
template <class Body>
Fault catch_fault(Body&& body) {
  PerCpu& self = this_cpu();
  self.fault = {};
  using Plain = std::remove_reference_t<Body>;
  const u64 raised =
      guest_catch([](void* b) { (*static_cast<Plain*>(b))(); },
                  const_cast<void*>(static_cast<const void*>(&body)), &self.catch_slot);
  return raised != 0 ? self.fault : Fault{};
}

}  // namespace aerie::guest
