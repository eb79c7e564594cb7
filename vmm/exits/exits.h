// Handlers of L1's exits, a file a theme. Each is called with the exit decoded and the guest's
// registers in the Vcpu; it leaves RIP where the guest goes on.
#pragma once

#include "cpu/exit.h"
#include "vmm/vcpu.h"

namespace aerie::vmm::exits {

// instructions.cc
void cpuid(Vcpu& v, const cpu::Exit& exit);
void hlt(Vcpu& v, const cpu::Exit& exit);
void cache(Vcpu& v, const cpu::Exit& exit);    // INVD, WBINVD
void monitor(Vcpu& v, const cpu::Exit& exit);  // MONITOR, MWAIT
void xsetbv(Vcpu& v, const cpu::Exit& exit);
void rdpmc(Vcpu& v, const cpu::Exit& exit);
void svm_instruction(Vcpu& v, const cpu::Exit& exit);

// msr.cc
void rdmsr(Vcpu& v, const cpu::Exit& exit);
void wrmsr(Vcpu& v, const cpu::Exit& exit);

// control_registers.cc
void cr_read(Vcpu& v, const cpu::Exit& exit);
void cr_write(Vcpu& v, const cpu::Exit& exit);

// exceptions.cc
void exception(Vcpu& v, const cpu::Exit& exit);
void shutdown(Vcpu& v, const cpu::Exit& exit);
void invalid_state(Vcpu& v, const cpu::Exit& exit);
void unexpected(Vcpu& v, const cpu::Exit& exit);

// interrupts.cc
void external_interrupt(Vcpu& v, const cpu::Exit& exit);
void nmi(Vcpu& v, const cpu::Exit& exit);
void interrupt_window(Vcpu& v, const cpu::Exit& exit);
void iret(Vcpu& v, const cpu::Exit& exit);

// tdp_fault.cc
void tdp_fault(Vcpu& v, const cpu::Exit& exit);
// An access of L1's to `gpa`, where its map leaves something out; `plain`: by an instruction's
// operand, not by the walk of its tables.
void access_device(Vcpu& v, Gpa gpa, bool plain);

// The instruction at RIP, done by the emulator; false where it does not know it.
bool emulate_access(Vcpu& v);

// invalidations.cc: tdp=off only
void invlpg(Vcpu& v, const cpu::Exit& exit);
void invpcid(Vcpu& v, const cpu::Instruction& i);
void task_switch(Vcpu& v, const cpu::Exit& exit);

}  // namespace aerie::vmm::exits
