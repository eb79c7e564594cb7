// Bringing a processor up for L0: descriptor tables, SVM, the windows in which interrupts are
// taken.
#pragma once

#include "base/address.h"
#include "cpu/host/per_cpu.h"

namespace aerie::cpu {

extern "C" {
// GIF on for a moment; at most one maskable interrupt is taken (PerCpu::interrupt_taken).
void host_interrupt_window();
// GIF on for a moment; takes pending NMIs (PerCpu::nmis_taken).
void host_nmi_window();
// Halts until an interrupt or an NMI has been taken.
void host_halt_window();
}

// Fills the one IDT that all processors share.
void build_idt();
// Loads GDT and IDT, and clears GIF. Every processor.
void load_descriptor_tables();

// Why this processor cannot be Aerie's host (no SVM, no NPT, SVM locked off), or nullptr.
const char* svm_unusable();
// EFER.SVME, VM_HSAVE_PA; GIF off, IF on from here. `host_save_area`: a zeroed page.
void enable_svm(Hpa host_save_area);

}  // namespace aerie::cpu
