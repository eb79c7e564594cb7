// What vmm and nested ask of a processor that can run guests; bound at compile time. cpu/svm and
// cpu/model satisfy it. A control block is what one guest (an L1, or an L2 of that L1) runs with:
// the vmcb01 or vmcb02 of an SVM host.
//
// Values are the ones the *processor* uses: a guest's view where L0 shadows bits (CR0, CR4, EFER)
// is kept by vmm and nested. Setters are plain stores and may be called in any order before run().
#pragma once

#include <concepts>

#include "base/address.h"
#include "cpu/arch/exception.h"
#include "cpu/arch/registers.h"
#include "cpu/arch/segment.h"
#include "cpu/exit.h"
#include "cpu/intercepts.h"

namespace aerie::cpu {

// How much of the translations tagged with a control block's tag the next run() must not use.
enum class TlbFlush : u8 { none, tag, everything };

template <class C>
concept ControlBlock = requires(C c, const C& k, u64 v, Segment s, SegmentRegister r, Event e,
                                const Intercepts& i, Hpa h, bool b, TlbFlush f, u32 tag) {
  // Program state
  { k.rip() } -> std::same_as<u64>;
  { k.rflags() } -> std::same_as<u64>;
  c.set_rip(v);
  c.set_rflags(v);
  // Interrupt shadow: the guest's last instruction was STI, MOV SS or POP SS.
  { k.interrupt_shadow() } -> std::same_as<bool>;
  c.set_interrupt_shadow(b);
  // Control registers and EFER, as the processor has them
  { k.cr0() } -> std::same_as<u64>;
  { k.cr2() } -> std::same_as<u64>;
  { k.cr3() } -> std::same_as<u64>;
  { k.cr4() } -> std::same_as<u64>;
  { k.efer() } -> std::same_as<u64>;
  { k.pat() } -> std::same_as<u64>;
  { k.dr6() } -> std::same_as<u64>;
  { k.dr7() } -> std::same_as<u64>;
  { k.debugctl() } -> std::same_as<u64>;
  c.set_cr0(v);
  c.set_cr2(v);
  c.set_cr3(v);
  c.set_cr4(v);
  c.set_efer(v);
  c.set_pat(v);
  c.set_dr6(v);
  c.set_dr7(v);
  c.set_debugctl(v);
  // Segments, GDTR and IDTR; CPL is SS.DPL.
  { k.segment(r) } -> std::convertible_to<Segment>;
  c.set_segment(r, s);
  { k.cpl() } -> std::same_as<u8>;
  // FS, GS, LDTR, TR, KernelGSbase, STAR, LSTAR, CSTAR, SFMASK and the SYSENTER MSRs: on an SVM
  // host they stay in the processor between exits. store_syscall_state() brings them into the block
  // where the accessors see them; load_syscall_state() makes the block's the processor's. To be
  // called around an L1/L2 switch and before an accessor of them is used.
  c.store_syscall_state();
  c.load_syscall_state();
  { k.sysenter_cs() } -> std::same_as<u64>;
  { k.sysenter_esp() } -> std::same_as<u64>;
  { k.sysenter_eip() } -> std::same_as<u64>;
  c.set_sysenter_cs(v);
  c.set_sysenter_esp(v);
  c.set_sysenter_eip(v);
  // Events: what to deliver at the next run(), and what was being delivered when the guest exited
  // (EXITINTINFO, IDT-vectoring information).
  c.inject(e);
  c.clear_injection();
  { k.interrupted_event() } -> std::same_as<Event>;
  // Exit with ExitReason::interrupt_window as soon as the guest can take an interrupt.
  c.request_interrupt_window(b);
  // What L0 sees
  c.set_intercepts(i);
  c.set_msr_bitmap(h);
  c.set_io_bitmap(h);
  c.set_tsc_offset(v);
  { k.tsc_offset() } -> std::same_as<u64>;
  // Translation
  c.set_tdp_root(h);
  c.set_tag(tag);
  c.flush(f);
};

// A block to work on in hot code: a local copy where the type is a handle, else the block itself.
// Bind it with decltype(auto).
template <ControlBlock B>
[[gnu::always_inline]] inline decltype(auto) handle(B& block) {
  if constexpr (requires { requires B::kIsHandle; }) {
    return B{block};
  } else {
    return (block);
  }
}

}  // namespace aerie::cpu
