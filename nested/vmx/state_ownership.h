// State that one architecture's guest switch moves and the other's does not. A VM entry and exit of
// VMX leave it in the processor, so that L1 and L2 see one register between them; an SVM host keeps
// parts of it in each control block. Whoever leaves a row out leaks one guest's value into
// another's, or loses it.
//
//   state                            VMX (SDM vol. 3)             SVM host (APM vol. 2, 15.5)   who
//   moves it
//   -------------------------------- ---------------------------- -----------------------------
//   ---------------- CR2                              not switched (27.5)          VMCB carry_*
//   DR0-DR3                          not switched                 not switched nobody: processor
//   DR6                              not switched (28.3.1)        VMCB carry_* DR7, DEBUGCTL
//   vmcs12, by entry control     VMCB                          merge, exit XCR0 not switched not
//   switched                  see xcr0.h STAR, LSTAR, CSTAR, SFMASK       not switched (MSR lists)
//   VMLOAD/VMSAVE                 carry_* KernelGSbase                     not switched (MSR lists)
//   VMLOAD/VMSAVE                 carry_* PAT                              vmcs12 where the
//   controls    VMCB g_pat                    carry_*, merge,
//                                    say so, else not switched exit
//   EFER                             the same                     VMCB merge, exit FS, GS, LDTR, TR
//   vmcs12                       VMLOAD/VMSAVE                 merge, exit SYSENTER MSRs vmcs12
//   VMLOAD/VMSAVE                 merge, exit general registers, FPU, SSE, AVX not switched RAX,
//   RSP in the VMCB          GuestRegisters TSC_AUX and other MSRs           not switched not
//   switched                  nobody
#pragma once

#include "cpu/backend.h"

namespace aerie::nested::vmx {

// The system-call MSRs: those of the group VMLOAD moves that VMX does not switch.
template <cpu::ControlBlock B>
inline void carry_syscall_msrs(B& to, const B& from) {
  to.set_kernel_gs_base(from.kernel_gs_base());
  to.set_star(from.star());
  to.set_lstar(from.lstar());
  to.set_cstar(from.cstar());
  to.set_sfmask(from.sfmask());
}

// From the control block that ran to the one that is to run. `from` must have been stored
// (store_syscall_state) before; `to` must be loaded after its own FS, GS, LDTR, TR and SYSENTER
// state has been written.
template <cpu::ControlBlock B>
inline void carry_unswitched_state(B& to, const B& from) {
  to.set_cr2(from.cr2());
  to.set_dr6(from.dr6());
  carry_syscall_msrs(to, from);
}

}  // namespace aerie::nested::vmx
