// One L1 vCPU, which is one processor of the machine, and the loop that runs it.
//
// Everything of it is touched by its own processor only, but for the mailbox and the local APIC's
// atomic parts.
#pragma once

#include "cpu/arch/exception.h"
#include "cpu/decode/decode_cache.h"
#include "cpu/emulate/emulator.h"
#include "cpu/exit.h"
#include "cpu/svm/control_block.h"
#include "cpu/svm/exit_code.h"
#include "mmu/walk_cache.h"
#include "mmu/walker.h"
#include "vmm/exit_sites.h"
#include "vmm/linear_paging.h"
#include "vmm/local_apic.h"
#include "vmm/machine.h"
#include "vmm/policy/cpuid.h"
#include "vmm/policy/cr.h"
#include "vmm/policy/msr.h"
#include "vmm/requests.h"

namespace aerie::vmm {

// SDM vol. 3, 25.4.2; waiting for a start-up IPI is Startup's (vmm/requests.h).
enum class Activity : u8 { running, halted };

// Why a guest runs one instruction with TF set by L0 (begin_step()).
enum class StepReason : u8 {
  none,
  interrupt_shadow,  // the processor forgets the shadow of a guest that exited inside one
  nmi_unblocking,    // an NMI waits for the IRET at RIP
};

struct VmxCpu;

class Vcpu {
 public:
  using ControlBlock = cpu::svm::ControlBlock;

  explicit Vcpu(ApicBus& bus) : linear_paging{*this}, apic{bus, host_apic_} {}

  // Boot processor, before the others start.
  void set_up(unsigned index);
  // On its own processor, before run().
  void power_up(unsigned apic_id, bool bootstrap);
  // Runs for good, on its own processor.
  [[noreturn]] void run();

  // --- the guest at hand: L1, or the L2 it entered
  ControlBlock& block() { return *active_; }
  bool in_l2() const { return active_ == &block_l2_; }
  ControlBlock& block_l1() { return block_l1_; }
  ControlBlock& block_l2() { return block_l2_; }
  cpu::GuestRegisters& registers() { return registers_; }
  // Which control block the next run() enters.
  void set_in_l2(bool in_l2) { active_ = in_l2 ? &block_l2_ : &block_l1_; }

  cpu::CodeMode code_mode() {
    return cpu::code_mode(block().segment(cpu::SegmentRegister::cs), block().efer());
  }
  // The exit's code does not fit the bytes at RIP, or they cannot be read: the guest changed its
  // code or tables in between. Runs it again, a bounded number of times, then gives it #UD.
  void refetch();
  // RIP to the next instruction; ends the interrupt shadow, and a step; delivers the single-step
  // trap where the guest has TF set (SDM vol. 3, 18.3.1.4).
  [[gnu::always_inline]] void skip(const cpu::Instruction& instruction) {
    cpu::svm::Vmcb& b = active_->vmcb();
    const u64 next = b.save.rip + instruction.length;
    // EIP wraps at 4 GiB.
    const bool wide = b.save.segments[static_cast<u8>(cpu::SegmentRegister::cs)].long_mode();
    b.save.rip = wide ? next : static_cast<u32>(next);
    b.control.interrupt_state = 0;
    const u64 flags = b.save.rflags & (cpu::rflags::tf | cpu::rflags::rf);
    if ((flags | static_cast<u8>(step_) | refetches_) != 0) [[unlikely]] {
      finish_instruction();
    }
  }

  // The same for an instruction of L1 in 64-bit mode, as those of the exit sites are.
  [[gnu::always_inline]] void skip_known(const cpu::Instruction& instruction) {
    cpu::svm::Vmcb& b = block_l1_.vmcb();
    b.save.rip += instruction.length;
    b.control.interrupt_state = 0;
    const u64 flags = b.save.rflags & (cpu::rflags::tf | cpu::rflags::rf);
    if ((flags | static_cast<u8>(step_) | refetches_) != 0) [[unlikely]] {
      finish_instruction();
    }
  }
  void finish_instruction();

  // --- events
  // To be delivered at the next entry, before anything else. Combines with an event that is already
  // waiting as SDM vol. 3, table 6-5 says.
  void raise(cpu::Event event);
  void raise(cpu::Exception exception) { raise(cpu::Event::exception(exception)); }
  void raise_gp() { raise(cpu::Event::exception(cpu::Exception::gp, 0)); }
  bool has_event() const { return event_.valid; }

  // Something of this vCPU changed that the next entry must look at: an event, an interrupt, a
  // mask.
  void reevaluate() { work_ = true; }
  void halt() {
    activity_ = Activity::halted;
    work_ = true;
  }

  // One instruction, then a look at the events again.
  void step(StepReason reason) {
    step_ = reason;
    work_ = true;
  }
  // An external-interrupt exit: takes what is pending, unless it is the 8259's and L1 cannot.
  void take_interrupt();
  // NMIs that a window took: each is the kick or L1's (vmm/requests.h).
  void take_nmis();

  unsigned index() const { return index_; }
  telemetry::PerCpu& telemetry() { return *telemetry_; }

  // The engine of an L1 that is shown VMX (vmm/vmx_cpu.h).
  VmxCpu* vmx = nullptr;

  LinearPaging linear_paging;  // tdp=off only

  LocalApic apic;
  Startup startup;
  NmiLatch nmis;
  bool nmi_blocked = false;  // between delivery of an NMI and its IRET

  policy::VcpuCpuid cpuid;
  policy::VcpuMsrs msrs;
  ExitSites exit_sites;
  cpu::DecodeCache decode_cache;
  mmu::WalkCache walk_cache;
  // How L1 translates linear addresses, as the caches' key. Every change of CR0, CR4 and EFER comes
  // to L0.
  mmu::ModeBits paging_mode() const { return paging_mode_; }
  // The rest of what there is to know of an exit of L1.
  cpu::Exit complete(cpu::Exit exit) const {
    cpu::svm::complete_exit(block_l1_.vmcb().control, exit);
    return exit;
  }
  void update_paging_mode() {
    paging_mode_ = mmu::ModeBits{block_l1_.cr0(), block_l1_.cr4(), block_l1_.efer()};
    linear_paging.mode_changed();
  }
  // How L1 translates linear addresses, for a walk of its tables.
  mmu::GuestPaging guest_paging();
  // L1's linear translations that an instruction or a VM exit ends.
  void forget(policy::Forget what);

  // CR4 bits that L1 sees set and its processor does not have (VMXE).
  u64 cr4_hidden = 0;
  u64 guest_cr4() const { return block_l1_.cr4() | cr4_hidden; }
  u64 guest_efer() const { return block_l1_.efer(); }
  void set_guest_cr4(u64 value);

  // Writes of L1's control registers, as instructions do them (control_registers.cc). False:
  // #GP(0).
  [[nodiscard]] bool write_cr0(u64 value);
  [[nodiscard]] bool write_cr3(u64 value);
  [[nodiscard]] bool write_cr4(u64 value);
  [[nodiscard]] bool write_efer(u64 value);
  // Of PAE paging: loads the four entries that `cr3` selects; false where they must not be.
  bool load_pdptes(u64 cr3);
  void set_vmx_operation(bool on) { vmx_operation_ = on; }

  // What CPUID shows of L1's state has changed.
  void update_cpuid();
  void set_direct_msr_read(u32 index, bool on);

  // The r/m operand of an instruction of L1. False: the fault has been raised.
  bool read_operand(const cpu::Instruction& i, unsigned size, u64& value);
  void raise_fault(const cpu::EmulationFault& fault);

  // The intercepts L0 wants while L1 runs, but for what events add.
  void update_intercepts();

 private:
  policy::ControlState control_state();
  template <bool kNestedPaging>
  [[noreturn]] void loop();
  void service();
  void reset();
  void start_at(u8 sipi_vector);
  void deliver_events();
  void wait();
  void note_interrupted(cpu::Exit& exit);
  void note_window();
  bool can_take_interrupt();
  void begin_step();
  void end_step(cpu::Exit& exit);

  HostApic host_apic_;
  cpu::GuestRegisters registers_{};
  ControlBlock* active_ = &block_l1_;
  telemetry::PerCpu* telemetry_ = nullptr;
  cpu::Event event_{};
  Activity activity_ = Activity::running;
  StepReason step_ = StepReason::none;
  bool stepping_ = false;       // TF in the control block is L0's
  bool vmx_operation_ = false;  // after VMXON
  bool guest_tf_ = false;       // what the guest had there
  mmu::ModeBits paging_mode_{};
  bool work_ = true;  // service() has something to do
  u8 refetches_ = 0;
  unsigned index_ = 0;
  Hpa msr_bitmap_{};
  ControlBlock block_l1_;
  ControlBlock block_l2_;
};

}  // namespace aerie::vmm
