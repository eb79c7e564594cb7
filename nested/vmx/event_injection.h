// Which event L2 meets next. Before each run of L2, in the order of SDM vol. 3, 7.9 (table 7-2) and
// the remarks on priority in 26.2, 26.7.2, 27.6 and 27.7:
//
//    1  the event that the VM entry injects, or one whose delivery an exit to L0 cut short (27.6)
//    2  INIT                                              exit 3, but in wait-for-SIPI
//    3  SIPI, in wait-for-SIPI only                       exit 4
//    4  monitor-trap flag                                 exit 37
//    5  pending debug exceptions (27.7.3)                 #DB, by the exception bitmap
//    6  NMI-window exiting                                exit 8
//    7  NMI                                               exit 0, or L2's vector 2
//    8  interrupt-window exiting                          exit 7
//    9  external interrupt                                exit 1, or L2's vector
//   10  the instruction at RIP (or HLT, shutdown: wait)
//
// MOV-SS blocking holds back 5 to 9, STI blocking 8 and 9 (and here 6 and 7, as 25.4.2's table
// allows); the exits of 7 do not care. Where something waits for the end of such blocking L0 runs
// one instruction with TF set.
#pragma once

#include "nested/vmx/engine.h"

namespace aerie::nested::vmx {

template <L1Context C>
bool Vmx<C>::l2_nmi_blocked() const {
  return has(pin(), cpu::vmx::pin::virtual_nmis)
             ? (c_.guest_interruptibility & cpu::vmx::interruptibility::nmi) != 0
             : !has(pin(), cpu::vmx::pin::nmi) && v_.nmi_blocked();
}

template <L1Context C>
void Vmx<C>::set_l2_nmi_blocked(bool blocked) {
  if (has(pin(), cpu::vmx::pin::virtual_nmis)) {
    constexpr u32 kBit = cpu::vmx::interruptibility::nmi;
    c_.guest_interruptibility = (c_.guest_interruptibility & ~kBit) | (blocked ? kBit : 0);
  } else {
    v_.set_nmi_blocked(blocked);
  }
  update_intercepts();
}

template <L1Context C>
bool Vmx<C>::accepts_interrupt() {
  if (inject_.valid || activity_ > cpu::vmx::Activity::hlt) {
    return false;
  }
  const Block& b = v_.block_l2();
  return has(pin(), cpu::vmx::pin::external_interrupt) ||
         ((b.rflags() & cpu::rflags::interrupt) != 0 && !b.interrupt_shadow());
}

// A VM entry with events or blocking: 27.6, 27.7.1.
template <L1Context C>
[[gnu::noinline]] void Vmx<C>::begin_events() {
  namespace info = cpu::vmx::interruption_info;
  const bool nmi_bit = has(c_.guest_interruptibility, cpu::vmx::interruptibility::nmi);
  if (!has(pin(), cpu::vmx::pin::virtual_nmis)) {
    // Bit 3 is the processor's own blocking then.
    v_.set_nmi_blocked(nmi_bit);
  }
  if (nmi_bit) {
    update_intercepts();  // its end, IRET, is to be seen
  }
  if ((c_.entry_interruption_info & info::valid) != 0) {
    inject_ = info::decode(c_.entry_interruption_info, c_.entry_exception_error,
                           c_.entry_instruction_length);
    if (inject_.type == cpu::EventType::other) {
      // The pending MTF exit (27.6.2): no vectoring.
      inject_ = {};
      monitor_trap_pending_ = true;
    } else {
      if (inject_.type == cpu::EventType::nmi) {
        set_l2_nmi_blocked(true);
      }
      // 27.7.3: which events leave pending debug exceptions standing.
      const bool instruction = inject_.type == cpu::EventType::software_interrupt ||
                               inject_.type == cpu::EventType::software_exception;
      if (!instruction || !has(c_.guest_interruptibility, cpu::vmx::interruptibility::mov_ss)) {
        pending_debug_ = 0;
      }
    }
  } else if (activity_ == cpu::vmx::Activity::shutdown ||
             activity_ == cpu::vmx::Activity::wait_for_sipi) {
    pending_debug_ = 0;
  }
  recompute_attention();
}

template <L1Context C>
void Vmx<C>::recompute_attention() {
  constexpr u32 kControls =
      cpu::vmx::proc::interrupt_window | cpu::vmx::proc::nmi_window | cpu::vmx::proc::monitor_trap;
  attention_ = (proc() & kControls) | (inject_.valid ? 1 : 0) | static_cast<u32>(activity_) |
               (pending_debug_ != 0 ? 1 : 0) | (monitor_trap_pending_ ? 1 : 0) |
               (window_requested_ ? 1 : 0) | (injected_.valid ? 1 : 0);
}

// What the exit cut short, as VMX would say it. The host's view of software events is a poor one:
// what was injected is remembered.
template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::note_interrupted_event() {
  if (const cpu::Event e = v_.block_l2().interrupted_event(); e.valid) [[unlikely]] {
    interrupted_ = e;
    refine_interrupted_event();
  }
}

template <L1Context C>
[[gnu::cold]] void Vmx<C>::refine_interrupted_event() {
  Block& b = v_.block_l2();
  if (injected_.valid && injected_.vector == interrupted_.vector) {
    // The block's inject() has moved RIP past the instruction; the exit must show it before.
    b.set_rip(b.rip() - injected_.instruction_length);
    interrupted_ = injected_;
    return;
  }
  // L2 executed the instruction itself: INT n, INT3 or INTO. SVM hosts tell the latter two as
  // exceptions, TCG as software interrupts: the vector decides. (INT 3 and INT 4 in two bytes would
  // be told as INT3 and INTO; no compiler makes them.)
  if (interrupted_.vector == static_cast<u8>(cpu::Exception::bp) ||
      interrupted_.vector == static_cast<u8>(cpu::Exception::of)) {
    interrupted_.type = cpu::EventType::software_exception;
    interrupted_.instruction_length = 1;
  } else if (interrupted_.type == cpu::EventType::software_interrupt) {
    interrupted_.instruction_length = 2;
  }
}

template <L1Context C>
[[gnu::noinline]] Next Vmx<C>::inject(const cpu::Event& event, u32 waiting) {
  Block& b = v_.block_l2();
  b.inject(event);
  b.set_interrupt_shadow(false);
  injected_ = cpu::vmx::is_software_event(event.type) ? event : cpu::Event{};
  inject_ = {};
  activity_ = cpu::vmx::Activity::active;
  // What waits is looked at as soon as the event has been delivered.
  constexpr u32 kControls =
      cpu::vmx::proc::interrupt_window | cpu::vmx::proc::nmi_window | cpu::vmx::proc::monitor_trap;
  if (waiting != 0 || (proc() & kControls) != 0 || pending_debug_ != 0 || monitor_trap_pending_) {
    v_.request_immediate_exit();
  }
  recompute_attention();
  return Next::run_l2;
}

template <L1Context C>
[[gnu::noinline]] Next Vmx<C>::before_run_slow() {
  using cpu::vmx::Activity;
  using cpu::vmx::BasicExit;
  namespace info = cpu::vmx::interruption_info;
  Block& b = v_.block_l2();
  const u32 waiting = v_.pending();
  injected_ = {};

  // 1
  if (inject_.valid) {
    return inject(inject_, waiting);
  }
  // 2, 3
  if (activity_ == Activity::wait_for_sipi) {
    if ((waiting & pending::sipi) != 0) {
      const u8 vector = v_.take_sipi();
      exit_to_l1(BasicExit::sipi, vector);
      return Next::run_l1;
    }
    return Next::halt;
  }
  if ((waiting & pending::init) != 0) {
    v_.take_init();
    exit_to_l1(BasicExit::init);
    return Next::run_l1;
  }
  // 4
  if (monitor_trap_pending_) {
    monitor_trap_pending_ = false;
    exit_to_l1(BasicExit::monitor_trap);
    return Next::run_l1;
  }
  const bool shadow = b.interrupt_shadow();
  // 5
  if (pending_debug_ != 0 && !shadow) {
    const u64 causes = pending_debug_;
    pending_debug_ = 0;
    if ((causes & (cpu::vmx::pending_debug::bs | cpu::vmx::pending_debug::enabled_breakpoint)) !=
        0) {
      raise_l2(cpu::Event::exception(cpu::Exception::db),
               causes & (cpu::vmx::pending_debug::b0_b3 | cpu::vmx::pending_debug::bs));
      return mode_ == Mode::non_root ? inject(inject_, waiting) : Next::run_l1;
    }
  }
  bool step = false;    // something waits for the end of the shadow
  bool window = false;  // … for RFLAGS.IF
  // 6
  if (has(proc(), cpu::vmx::proc::nmi_window) && !l2_nmi_blocked()) {
    if (!shadow) {
      exit_to_l1(BasicExit::nmi_window);
      return Next::run_l1;
    }
    step = true;
  }
  // 7
  if ((waiting & pending::nmi) != 0) {
    if (has(pin(), cpu::vmx::pin::nmi)) {
      if (!v_.nmi_blocked()) {
        v_.take_nmi();
        exit_to_l1(BasicExit::exception_or_nmi, 0, info::encode(cpu::Event::nmi()));
        v_.set_nmi_blocked(true);
        return Next::run_l1;
      }
    } else if (!v_.nmi_blocked()) {
      if (!shadow) {
        v_.take_nmi();
        set_l2_nmi_blocked(true);
        return inject(cpu::Event::nmi(), waiting & ~pending::nmi);
      }
      step = true;
    }
  }
  // 8
  const bool enabled = (b.rflags() & cpu::rflags::interrupt) != 0;
  if (has(proc(), cpu::vmx::proc::interrupt_window) && activity_ != Activity::shutdown) {
    if (enabled && !shadow) {
      exit_to_l1(BasicExit::interrupt_window);
      return Next::run_l1;
    }
    step = step || enabled;
    window = true;
  }
  // 9
  if ((waiting & pending::interrupt) != 0 && activity_ != Activity::shutdown) {
    if (has(pin(), cpu::vmx::pin::external_interrupt) && shadow && activity_ == Activity::active) {
      step = true;  // the shadow blocks maskable interrupts, exits or not (table 25-3)
    } else if (has(pin(), cpu::vmx::pin::external_interrupt)) {
      u32 word = 0;
      if (has(c_.exit_controls, cpu::vmx::exit::acknowledge_interrupt)) {
        word = info::encode(cpu::Event::interrupt(v_.acknowledge_interrupt()));
      }
      exit_to_l1(BasicExit::external_interrupt, 0, word);
      return Next::run_l1;
    } else if (enabled && !shadow) {
      return inject(cpu::Event::interrupt(v_.acknowledge_interrupt()),
                    waiting & ~pending::interrupt);
    } else {
      step = step || enabled;
      window = true;
    }
  }
  // 10
  if (activity_ != Activity::active) {
    recompute_attention();
    return Next::halt;
  }
  if (step) {
    start_step();
    window =
        false;  // the step's end looks again; the host may forget the shadow for a window's sake
  }
  if (window != window_requested_) {
    b.request_interrupt_window(window);
    window_requested_ = window;
  }
  if (has(proc(), cpu::vmx::proc::monitor_trap)) {
    monitor_trap_pending_ = true;
    start_step();
  }
  recompute_attention();
  return Next::run_l2;
}

// One instruction of L2 with TF, for L0's sake.
template <L1Context C>
[[gnu::cold]] void Vmx<C>::start_step() {
  if (stepping_) {
    return;
  }
  Block& b = v_.block_l2();
  stepping_ = true;
  step_rip_ = b.rip();
  step_shadow_ = b.interrupt_shadow();
  step_dr6_ = b.dr6();
  step_guest_tf_ = (b.rflags() & cpu::rflags::tf) != 0;
  b.set_rflags(b.rflags() | cpu::rflags::tf);
  b.set_dr6(cpu::dr6::initial);
  update_intercepts();
}

// True: the exit was the step's own and nothing else.
template <L1Context C>
[[gnu::cold]] bool Vmx<C>::end_step(const cpu::Exit& e) {
  Block& b = v_.block_l2();
  stepping_ = false;
  if (!step_guest_tf_) {
    b.set_rflags(b.rflags() & ~cpu::rflags::tf);
  }
  update_intercepts();
  const u64 causes = b.dr6();
  b.set_dr6(step_dr6_);
  if (e.reason != cpu::ExitReason::exception || e.vector != static_cast<u8>(cpu::Exception::db)) {
    if ((e.reason == cpu::ExitReason::external_interrupt || e.reason == cpu::ExitReason::nmi) &&
        b.rip() == step_rip_) {
      // Interrupted before the instruction: the shadow still stands, though the host has forgotten
      // it.
      b.set_interrupt_shadow(step_shadow_);
      monitor_trap_pending_ = false;
    }
    recompute_attention();
    return false;
  }
  // Breakpoints met by the way, and L2's own single-step, are L2's.
  u64 own = causes & (0xf | cpu::dr6::bd);
  if (step_guest_tf_) {
    own |= cpu::dr6::bs;
  }
  if (own == 0) {
    recompute_attention();
    return true;
  }
  pending_debug_ |= (own & (0xf | cpu::dr6::bs)) | cpu::vmx::pending_debug::enabled_breakpoint;
  recompute_attention();
  return true;
}

// L2 is about to execute IRET while NMIs are blocked (26.3).
template <L1Context C>
void Vmx<C>::on_iret() {
  set_l2_nmi_blocked(false);
  // The IRET itself comes first.
  const bool waits = has(proc(), cpu::vmx::proc::nmi_window) || (v_.pending() & pending::nmi) != 0;
  if (waits) {
    v_.block_l2().set_interrupt_shadow(true);
    recompute_attention();
  }
}

}  // namespace aerie::nested::vmx
