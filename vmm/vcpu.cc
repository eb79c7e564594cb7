#include "vmm/vcpu.h"

#include "base/panic.h"
#include "cpu/arch/instructions.h"
#include "cpu/host/host.h"
#include "cpu/svm/run.h"
#include "vmm/exit_table.h"
#include "vmm/linear_paging_run.h"
#include "vmm/virtualization.h"

namespace aerie::vmm {

using cpu::Event;
using cpu::EventType;
using cpu::Exception;
using cpu::Exit;
using cpu::ExitReason;
using cpu::SegmentRegister;

namespace rflags = cpu::rflags;

void Vcpu::run() {
  if (linear_pager == nullptr) {
    loop<true>();
  }
  loop<false>();
}

template <bool kNestedPaging>
void Vcpu::loop() {
  for (;;) {
    // What other processors ask for comes with a kick, which ends the run at once; what this one
    // asks of itself comes with work_.
    if (work_) [[unlikely]] {
      service();
    }
    ControlBlock& b = *active_;
    Exit exit;
    if constexpr (!kNestedPaging) {
      linear_paging.enter();
    }
    cpu::svm::run(b, registers_, exit);
    if constexpr (!kNestedPaging) {
      linear_paging.leave();
    }
    const auto& control = b.vmcb().control;
    if (((control.exit_int_info & cpu::svm::event::valid) | control.interrupt_state |
         static_cast<u64>(stepping_)) != 0) [[unlikely]] {
      note_interrupted(exit);
    }
    if (!in_l2()) [[likely]] {
      ++telemetry_->exits[1][static_cast<unsigned>(exit.reason)][0];
      kL1Exits[static_cast<unsigned>(exit.reason)](*this, exit);
    } else {
      cpu::svm::complete_exit(b.vmcb().control, exit);
      handle_l2_exit(*this, exit);
    }
  }
}

// What the entry before left unfinished: an event whose delivery an exit broke off is delivered
// again, an interrupt shadow wants a step, and TF of L0's own is taken out of the guest's flags.
void Vcpu::note_interrupted(Exit& exit) {
  work_ = true;
  if (in_l2()) {
    return;  // the engine sees to its L2's (nested/vmx/event_injection.h)
  }
  if (stepping_) {
    end_step(exit);
  }
  const Event e = block().interrupted_event();
  if (e.valid && !event_.valid) {
    event_ = e;
    // It was counted as delivered when it was injected.
    if (e.type == EventType::nmi) {
      nmi_blocked = false;
    }
  }
}

void Vcpu::service() {
  machine.telemetry->header.free_pages = machine.pages.free_pages();
  for (;;) {
    work_ = false;
    if (apic.mailbox().pending() != 0) {
      // An L2 takes INIT and start-up IPIs as exits.
      const bool init_blocked = init_is_blocked(*this);
      while (!in_l2()) {
        const Startup::Step s = startup.next(apic.mailbox(), init_blocked);
        if (s.action == Startup::Action::none) {
          break;
        }
        if (s.action == Startup::Action::init) {
          apic.init_reset();
          reset();
        } else {
          start_at(s.vector);
        }
      }
      nmis.add(apic.mailbox().take_nmis(), nmi_blocked);
      const u32 taken =
          apic.mailbox().take(request::interrupt | request::tlb_flush | request::quiesce);
      if ((taken & request::tlb_flush) != 0) {
        block_l1_.flush(cpu::TlbFlush::everything);
        block_l2_.flush(cpu::TlbFlush::everything);
      }
    }
    if (!startup.waiting()) {
      deliver_events();
      if (activity_ == Activity::running) {
        return;
      }
    }
    wait();
  }
}

// SDM vol. 3, table 6-2: what was being delivered, then NMI, then external interrupts. An exception
// of an instruction L0 performed is in event_ as well: it belongs to the instruction before.
void Vcpu::deliver_events() {
  if (in_l2()) {
    activity_ = deliver_events_to_l2(*this) ? Activity::running : Activity::halted;
    if (in_l2()) {
      return;
    }
  }
  ControlBlock& b = block_l1_;
  const bool shadow = b.interrupt_shadow();
  const bool nmi = nmis.pending() && !nmi_blocked;
  const bool can_interrupt = (b.rflags() & rflags::interrupt) != 0;
  if (can_interrupt && !shadow && !event_.valid) {
    apic.release_extint();
  }
  const bool interrupt = apic.wants_window();
  if (activity_ == Activity::halted && (event_.valid || nmi || (interrupt && can_interrupt))) {
    activity_ = Activity::running;
  }
  b.request_interrupt_window(false);
  if (event_.valid) {
    b.inject(event_);
    nmi_blocked |= event_.type == EventType::nmi;
    event_ = {};
    if (nmi && !nmi_blocked) {
      step_ = StepReason::interrupt_shadow;
    }
  } else if (step_ != StepReason::none) {
    // The step's end looks again.
  } else if (shadow && activity_ == Activity::running) {
    // The processor forgets the shadow at VMRUN (FACTS): without a step what comes before the next
    // instruction would be delivered in front of it.
    step_ = StepReason::interrupt_shadow;
  } else if (nmi) {
    nmis.taken();
    nmi_blocked = true;
    b.inject(Event::nmi());
  } else if (can_interrupt && activity_ == Activity::running) {
    if (const std::optional<u8> extint = apic.extint()) {
      apic.extint_taken();
      b.inject(Event::interrupt(*extint));
      telemetry_->count(telemetry::Event::interrupt_injected);
    } else if (const std::optional<u8> vector = apic.deliverable()) {
      apic.accept(*vector);
      b.inject(Event::interrupt(*vector));
      telemetry_->count(telemetry::Event::interrupt_injected);
    }
  }
  if (step_ == StepReason::none && apic.wants_window()) {
    b.request_interrupt_window(true);
  }
  if (activity_ != Activity::running) {
    return;
  }
  if (nmi_blocked) {
    update_intercepts();
  }
  if (step_ != StepReason::none) {
    begin_step();
  }
}

// Nothing to run: halts the processor until something arrives. Events are looked at by service().
void Vcpu::wait() {
  // An INIT that stays latched is nothing to wake up for.
  const u32 latched = init_is_blocked(*this) && !in_l2() ? request::init | request::sipi : 0;
  if (work_ || (apic.mailbox().pending() & ~latched) != 0) {
    return;
  }
  if (linear_pager != nullptr) {
    linear_paging.idle();
  }
  (void)apic.prepare_window(can_take_interrupt());
  cpu::host_halt_window();
  note_window();
}

bool Vcpu::can_take_interrupt() {
  if (in_l2()) {
    return l2_accepts_interrupt(*this);
  }
  return !startup.waiting() && !event_.valid && step_ == StepReason::none &&
         !active_->interrupt_shadow() && (active_->rflags() & rflags::interrupt) != 0;
}

void Vcpu::take_interrupt() {
  work_ = true;
  if (apic.prepare_window(can_take_interrupt())) {
    cpu::host_interrupt_window();
    note_window();
  }
}

void Vcpu::note_window() {
  auto& self = cpu::this_cpu();
  if (self.interrupt_taken != 0) {
    telemetry_->count(telemetry::Event::interrupt_taken);
    apic.physical_interrupt(static_cast<u8>(self.interrupt_taken - 1));
    self.interrupt_taken = 0;
    work_ = true;
  }
  take_nmis();
}

void Vcpu::take_nmis() {
  auto& self = cpu::this_cpu();
  for (; self.nmis_taken > 0; --self.nmis_taken) {
    if (!apic.mailbox().nmi_was_kick()) {
      nmis.add(1, nmi_blocked);
    }
    work_ = true;
  }
}

void Vcpu::begin_step() {
  ControlBlock& b = block();
  guest_tf_ = (b.rflags() & rflags::tf) != 0;
  stepping_ = true;
  b.set_rflags(b.rflags() | rflags::tf);
  // Whatever saves RFLAGS in memory or loads them must not see L0's TF.
  auto& control = b.vmcb().control;
  control.intercept_exceptions = ~0u;
  control.intercept_misc1 |= cpu::svm::intercept::pushf | cpu::svm::intercept::popf |
                             cpu::svm::intercept::software_interrupt;
}

// Called at the first exit of a step, whatever it is. The step is over when its instruction was
// executed: by the guest (the trap), or by L0 (skip()).
void Vcpu::end_step(Exit& exit) {
  ControlBlock& b = block();
  stepping_ = false;
  if (!guest_tf_) {
    b.set_rflags(b.rflags() & ~rflags::tf);
  }
  update_intercepts();
  const bool trap = exit.reason == ExitReason::exception &&
                    exit.vector == static_cast<u8>(Exception::db) && (b.dr6() & cpu::dr6::bs) != 0;
  if (trap) {
    if (step_ == StepReason::nmi_unblocking) {
      nmi_blocked = false;
    }
    step_ = StepReason::none;
    b.set_interrupt_shadow(false);
    if (!guest_tf_) {
      b.set_dr6(b.dr6() & ~cpu::dr6::bs);
      exit.reason =
          ExitReason::interrupt_window;  // nothing the guest sees: look at the events again
    }
  } else if (exit.reason == ExitReason::pushf || exit.reason == ExitReason::popf ||
             exit.reason == ExitReason::software_interrupt) {
    // Intercepted for the step alone. The shadow ends one instruction early, in front of an
    // instruction that no wake-up depends on.
    step_ = StepReason::none;
    b.set_interrupt_shadow(false);
    exit.reason = ExitReason::interrupt_window;
  }
}

void Vcpu::raise(Event event) {
  work_ = true;
  // Faults push RFLAGS with RF set (SDM vol. 3, 18.3.1.1); #DB here is always a trap's.
  if (event.type == EventType::hardware_exception &&
      event.vector != static_cast<u8>(Exception::db) &&
      event.vector != static_cast<u8>(Exception::df)) {
    block().set_rflags(block().rflags() | rflags::rf);
  }
  if (event_.valid && event_.type == EventType::hardware_exception &&
      event.type == EventType::hardware_exception) {
    const u8 first = event_.vector;
    const u8 second = event.vector;
    constexpr u8 kPf = static_cast<u8>(Exception::pf);
    constexpr u8 kDf = static_cast<u8>(Exception::df);
    if (first == kDf) {
      end_run(telemetry::EndState::l1_triple_fault,
              "L1 cpu{}: exception {} while delivering a double fault, rip {x}", index_, second,
              block_l1_.rip());
    }
    if ((cpu::is_contributory(first) && cpu::is_contributory(second)) ||
        (first == kPf && (second == kPf || cpu::is_contributory(second)))) {
      event = Event::exception(Exception::df, 0);
    }
  }
  event_ = event;
}

void Vcpu::finish_instruction() {
  ControlBlock& b = *active_;
  refetches_ = 0;
  if (step_ == StepReason::nmi_unblocking) {
    nmi_blocked = false;
  }
  step_ = StepReason::none;
  const u64 flags = b.rflags();
  b.set_rflags(flags & ~rflags::rf);
  work_ = true;
  if ((flags & rflags::tf) != 0) {
    b.set_dr6(b.dr6() | cpu::dr6::bs);
    raise(Event::exception(Exception::db));
  }
}

void Vcpu::refetch() {
  constexpr u8 kPatience = 32;
  if (++refetches_ < kPatience) {
    return;
  }
  refetches_ = 0;
  log_warning("L{} cpu{}: the instruction at rip {x} cannot be read or does not fit its exit; #UD",
              in_l2() ? 2 : 1, index_, block().rip());
  raise(Exception::ud);
}

void Vcpu::set_direct_msr_read(u32 index, bool on) {
  const std::optional<u32> at = policy::MsrPolicy::svm_map_bit(index);
  if (at) {
    u8& byte = physical_pointer<u8>(msr_bitmap_)[*at / 8];
    const u8 mask = static_cast<u8>(1u << (*at % 8));
    byte = static_cast<u8>(on ? byte & ~mask : byte | mask);
  }
}

// SDM vol. 3, 12.12.4.
constexpr u64 kPowerUpPat = 0x0007'0406'0007'0406;

void Vcpu::set_up(unsigned index) {
  index_ = index;
  telemetry_ = &machine.telemetry->cpu[index];
  block_l1_.attach(machine.pages.allocate());
  block_l2_.attach(machine.pages.allocate());
  block_l1_.set_tdp_root(machine.host_map.root());
  block_l1_.set_nested_paging(linear_pager == nullptr);
  msr_bitmap_ = machine.pages.allocate_contiguous(2);
  AERIE_CHECK(msr_bitmap_ != Hpa{});
  machine.msr_policy.fill_svm_map(std::span<u8, policy::MsrPolicy::kSvmMapSize>{
      physical_pointer<u8>(msr_bitmap_), policy::MsrPolicy::kSvmMapSize});
  block_l1_.set_msr_bitmap(msr_bitmap_);
  block_l1_.set_io_bitmap(machine.io_bitmap);
  block_l1_.set_tag(1);
  block_l2_.set_tag(2);
  cpuid.init(machine.cpuid_policy, index);
  block_l1_.set_pat(kPowerUpPat);
  reset();
  startup.set_waiting(true);
}

void Vcpu::power_up(unsigned apic_id, bool bootstrap) {
  const LocalApic::FirmwareState firmware = LocalApic::firmware_state(host_apic_);
  apic.power_up({.apic_id = apic_id,
                 .bootstrap = bootstrap,
                 .physical_address_bits = static_cast<u8>(machine.physical_bits),
                 .x2apic = machine.cpuid_policy.has(policy::feature("x2apic")),
                 .tsc_deadline = machine.cpuid_policy.has(policy::feature("tsc-deadline"))},
                TimerRatio::of(machine.apic_hz, machine.tsc_hz));
  if (bootstrap) {
    apic.adopt(firmware);
  }
  msrs.power_up(machine.msr_policy);
  update_cpuid();
}

// The state after INIT: SDM vol. 3, table 9-1.
void Vcpu::reset() {
  ControlBlock& b = block_l1_;
  active_ = &block_l1_;
  registers_ = {};
  registers_[cpu::Gpr::rdx] = machine.cpuid_policy.compute(1, 0, index_, {}).eax;
  b.set_rip(0xfff0);
  b.set_rflags(rflags::fixed);
  b.set_cr0(cpu::cr0::et | (b.cr0() & (cpu::cr0::cd | cpu::cr0::nw)));
  b.set_cr2(0);
  b.set_cr3(0);
  b.set_cr4(0);
  cr4_hidden = 0;
  vmx_operation_ = false;
  b.set_efer(0);
  b.set_dr6(cpu::dr6::initial);
  b.set_dr7(cpu::dr7::initial);
  b.set_debugctl(0);
  constexpr u16 kPresentData = 0x93, kPresentCode = 0x9b, kLdt = 0x82, kBusyTss = 0x8b;
  for (unsigned i = 0; i < 6; ++i) {
    b.set_segment(static_cast<SegmentRegister>(i), {0, kPresentData, 0xffff, 0});
  }
  b.set_segment(SegmentRegister::cs, {0xf000, kPresentCode, 0xffff, 0xffff0000});
  b.set_segment(SegmentRegister::gdtr, {0, 0, 0xffff, 0});
  b.set_segment(SegmentRegister::idtr, {0, 0, 0xffff, 0});
  b.set_segment(SegmentRegister::ldtr, {0, kLdt, 0xffff, 0});
  b.set_segment(SegmentRegister::tr, {0, kBusyTss, 0xffff, 0});
  b.set_interrupt_shadow(false);
  b.clear_injection();
  b.request_interrupt_window(false);
  b.flush(cpu::TlbFlush::everything);
  event_ = {};
  activity_ = Activity::running;
  step_ = StepReason::none;
  stepping_ = false;
  nmi_blocked = false;
  nmis.clear();
  update_paging_mode();
  forget(policy::Forget::everything);
  virtualization_reset(*this);
  update_intercepts();
  work_ = true;
}

void Vcpu::start_at(u8 sipi_vector) {
  block_l1_.set_segment(SegmentRegister::cs,
                        {static_cast<u16>(sipi_vector << 8), 0x9b, 0xffff, u64{sipi_vector} << 12});
  block_l1_.set_rip(0);
  // FS, GS, LDTR and TR are the processor's, which still holds what ran before.
  block_l1_.load_syscall_state();
  activity_ = Activity::running;
}

void Vcpu::update_intercepts() {
  using enum ExitReason;
  cpu::Intercepts i;
  i.on(external_interrupt).on(nmi).on(smi).on(init).on(shutdown);
  i.on(cpuid).on(hlt).on(rdmsr).on(wrmsr).on(wbinvd).on(invd).on(monitor).on(mwait).on(xsetbv);
  i.on(vmrun).on(vmload).on(vmsave).on(vmmcall).on(stgi).on(clgi).on(skinit).on(invlpga);
  i.on(rdpmc);
  if (nmi_blocked && step_ != StepReason::nmi_unblocking) {
    i.on(iret);
  }
  // #UD: VMX instructions, and what TCG does not know. #GP: TCG pushes RFLAGS without RF (FACTS).
  i.exceptions = cpu::exception_bit(Exception::ud) | cpu::exception_bit(Exception::gp);
  i.cr_writes = bit(0) | bit(4) | bit(8);
  i.cr_reads = static_cast<u16>((cr4_hidden != 0 ? bit(4) : 0) | bit(8));
  if (linear_pager != nullptr) {
    i.exceptions |= cpu::exception_bit(Exception::pf);
    i.cr_writes |= static_cast<u16>(bit(3));
    i.cr_reads |= static_cast<u16>(bit(0) | bit(3) | bit(4));
    i.on(invlpg).on(task_switch);
  }
  block_l1_.set_intercepts(i);
}

}  // namespace aerie::vmm
