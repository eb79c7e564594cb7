// VMX for one vCPU of L1, on whatever processor is underneath. A nested exit's way through these
// files:
//
//   L2 exits   vmm's loop → handle_exit (exit_routing.h): who wants it? → exit_to_l1 (exit.h)
//   L1 resumes #UD or exit → execute (instructions.h) → enter (entry.h): checks → merge (merge.h) →
//   run before each run of L2: before_run (event_injection.h)
//
// The class is split by concept; this file has the state and what vmm calls. Everything is a
// template over the vCPU (context.h), so that it runs under GoogleTest and a fuzzer with no machine
// at all.
#pragma once

#include "base/log.h"
#include "cpu/vmx/controls.h"
#include "cpu/vmx/exit_reason.h"
#include "nested/vmx/capabilities.h"
#include "nested/vmx/context.h"
#include "nested/vmx/control_registers.h"
#include "nested/vmx/entry_checks.h"
#include "nested/vmx/eptp.h"
#include "nested/vmx/groups.h"
#include "nested/vmx/operand.h"
#include "nested/vmx/state_ownership.h"
#include "nested/vmx/vmcs12.h"
#include "nested/vmx/vmcs12_fields.h"

namespace aerie::nested::vmx {

// What before_run() asks of the vCPU's loop.
enum class Next : u8 {
  run_l2,
  run_l1,  // a VM exit has happened
  halt,    // L2 is in HLT, shutdown or wait-for-SIPI: idle until pending() changes, then ask again
};

template <L1Context Context>
class Vmx {
 public:
  using Block = typename Context::Block;

  explicit Vmx(Context& vcpu) : v_{vcpu} {}
  Vmx(const Vmx&) = delete;
  Vmx& operator=(const Vmx&) = delete;

  // After VMXON: CR0 and CR4 keep the bits that VMX operation fixes; in root operation INIT is held
  // back.
  bool in_operation() const { return mode_ != Mode::off; }
  bool in_l2() const { return mode_ == Mode::non_root; }
  // The processor was reset, or took INIT outside VMX operation: VMX is off and no VMCS is current.
  void reset();

  // The common VMREAD and VMWRITE: in 64-bit mode, between registers, of a field that is there and
  // up to date. A leaf, so that the hottest instructions of an L1 save no register. False: nothing
  // was done, execute() it.
  bool vmread_known(const cpu::Instruction& i);
  bool vmwrite_known(const cpu::Instruction& i);

  // L1 executed `instruction`, one of VMX's. False: it is an undefined opcode (#UD) in L1's state;
  // nothing has been changed. RIP has been dealt with otherwise.
  bool execute(const cpu::Instruction& instruction);

  // To be called before each run while in_l2().
  Next before_run() {
    if ((v_.pending() | attention_) == 0) [[likely]] {
      return Next::run_l2;
    }
    return before_run_slow();
  }
  // L2 exited. Physical interrupts, NMIs, INITs and SMIs have been taken by vmm before.
  void handle_exit(const cpu::Exit& exit);

  // Nonzero while before_run() is to be called whatever pending() says.
  u32 attention() const { return attention_; }
  // L2 would take an external interrupt now: by an exit to L1, or by its own IDT.
  bool accepts_interrupt();
  // L1's EPT refuses an access that L0 makes for L2: an EPT violation.
  void reflect_violation(Ngpa ngpa, u64 qualification, u64 linear);
  // L0 found that L2's instruction raises `event`: L1 gets an exit if it asked for that, else L2
  // the exception. `qualification`: DR6 bits of #DB, the address of #PF.
  void raise_l2(const cpu::Event& event, u64 qualification = 0);

  // The vmcs12 at hand, all of it up to date; for dumps and tests.
  const Vmcs12& current() {
    synchronise(stale_);
    return c_;
  }
  Gpa current_address() const { return current_; }

 private:
  enum class Mode : u8 { off, root, non_root };
  static constexpr Gpa kNoVmcs{~u64{0}};

  // Where L2's RIP and the rest of kLazyGroups are after an exit, but CR0, CR4 and EFER, whose
  // writes L0 always sees and which vmcs12 therefore always has.
  static constexpr GroupMask kLeftInBlock =
      mask(Group::guest_cr3, Group::guest_pdptes, Group::guest_debug, Group::guest_msrs,
           Group::guest_sysenter, Group::guest_cs_ss, Group::guest_segments, Group::guest_tables);

  // What host state an exit loads, made once for each change of it.
  struct HostImage {
    cpu::Segment es, cs, ss, ds, fs, gs, gdtr, ldtr, idtr, tr;
    u64 cr4 = 0;
    u64 sysenter_cs = 0;
  };

  // --- instructions.h
  bool legal_mode(const Block& b) const;
  bool long_mode(const Block& b) const;
  void succeed(const cpu::Instruction& i);
  void fail_invalid(const cpu::Instruction& i);
  void fail_valid(cpu::vmx::InstructionError error, const cpu::Instruction& i);
  void fail(cpu::vmx::InstructionError error, const cpu::Instruction& i);
  // An operand in L1's memory. False: the fault has been raised.
  bool operand_address(const cpu::Instruction& i, unsigned size, bool write, Gva& address);
  bool read_operand(const cpu::Instruction& i, void* to, unsigned size);
  bool write_operand(const cpu::Instruction& i, const void* from, unsigned size);
  bool region_address_valid(u64 address) const;
  bool vmxon(const cpu::Instruction& i);
  void vmxoff(const cpu::Instruction& i);
  void vmclear(const cpu::Instruction& i);
  void vmptrld(const cpu::Instruction& i);
  void vmptrst(const cpu::Instruction& i);
  void vmread(const cpu::Instruction& i);
  void vmwrite(const cpu::Instruction& i);
  void invept(const cpu::Instruction& i);
  void invvpid(const cpu::Instruction& i);
  void write_back();

  // --- entry.h
  void enter(const cpu::Instruction& i, bool launch);
  bool blocked_by_mov_ss();
  void fail_entry(cpu::vmx::BasicExit reason, u64 qualification, bool switched);

  // --- merge.h
  void synchronise(GroupMask groups);
  void synchronise_slow(GroupMask groups);
  bool merge(GroupMask dirty);
  void make_host_image();
  void inherit_l1_state();
  void apply_control_registers();
  void make_intercepts();
  void update_intercepts();
  u64 l2_cr4_for_processor();

  // --- exit.h
  void exit_to_l1(cpu::vmx::BasicExit reason, u64 qualification = 0, u32 interruption_info = 0,
                  u32 interruption_error = 0, u32 length = 0, u32 information = 0);
  void exit_on_instruction(cpu::vmx::BasicExit reason, const cpu::Instruction& i,
                           u64 qualification = 0, u32 information = 0);
  void load_host_state(bool switched);
  void abort(cpu::vmx::VmxAbort why);

  // --- exit_routing.h
  void reflect(const cpu::Exit& e, cpu::vmx::BasicExit basic);
  u64 invlpg_address(const cpu::Instruction& i);
  void handle_special(const cpu::Exit& e);
  void on_exception(const cpu::Exit& e);
  void on_undefined_opcode(const cpu::Exit& e);
  void on_page_fault(const cpu::Exit& e);
  void on_debug(const cpu::Exit& e);
  void on_cr_read(const cpu::Exit& e);
  void on_cr_write(const cpu::Exit& e);
  void on_dr(const cpu::Exit& e);
  void on_io(const cpu::Exit& e);
  void on_msr(const cpu::Exit& e);
  void on_tdp_fault(const cpu::Exit& e);
  void on_rdtsc(const cpu::Exit& e);
  void on_iret();
  void on_software_interrupt(const cpu::Exit& e);
  void undefined_in_l2() { raise_l2(cpu::Event::exception(cpu::Exception::ud)); }
  void general_protection() { raise_l2(cpu::Event::exception(cpu::Exception::gp, 0)); }
  void advance_l2(unsigned length);
  bool page_fault_wanted(u32 error_code) const;

  // --- guest_registers.h: what L2's own instructions do to its state, where L0 performs them
  void mov_to_cr0(u64 value, const cpu::Instruction& i);
  void mov_to_cr3(u64 value, const cpu::Instruction& i);
  void mov_to_cr4(u64 value, const cpu::Instruction& i);
  void commit_cr0(u64 value, const cpu::Instruction& i);
  bool pdptes_loadable(u64 cr3);
  bool read_l2_msr(u32 index, u64& value);
  bool write_l2_msr(u32 index, u64 value);
  bool msr_wanted(u32 index, bool write) const;
  bool io_wanted(u16 port, unsigned size) const;

  // --- msr_lists.h
  // Index of the entry that failed, counted from 1, or 0.
  u64 load_entry_msrs();
  bool store_exit_msrs();
  bool load_exit_msrs();

  // --- event_injection.h
  void begin_events();
  void refine_interrupted_event();
  Next before_run_slow();
  Next inject(const cpu::Event& event, u32 waiting);
  void note_interrupted_event();
  void recompute_attention();
  void start_step();
  bool end_step(const cpu::Exit& e);
  bool l2_nmi_blocked() const;
  void set_l2_nmi_blocked(bool blocked);

  // Control words of the current vmcs12, with secondary ones that count only when they are
  // activated.
  u32 pin() const { return c_.pin_controls; }
  u32 proc() const { return c_.proc_controls; }
  u32 proc2() const {
    return (c_.proc_controls & cpu::vmx::proc::secondary) != 0 ? c_.proc2_controls : 0;
  }
  bool l2_code64() const {
    return (l2_efer_ & cpu::efer::lma) != 0 &&
           v_.block_l2().segment(cpu::SegmentRegister::cs).long_mode();
  }
  static bool has(u32 word, u32 control) { return (word & control) != 0; }

  Context& v_;
  Mode mode_ = Mode::off;
  cpu::vmx::Activity activity_ = cpu::vmx::Activity::active;
  bool window_requested_ = false;  // in block_l2
  bool stepping_ = false;          // block_l2 runs one instruction with TF for L0's sake
  bool step_guest_tf_ = false;     // L2's own TF meanwhile
  bool step_shadow_ = false;
  bool monitor_trap_pending_ = false;
  bool inherits_ = true;  // some of DR7, DEBUGCTL, PAT, EFER are L1's at each entry
  bool hides_dr6_ =
      false;  // L1 intercepts #DB: block_l2's DR6 collects the causes of one exception
  bool xsetbv_seen_ = false;    // see l2_cr4_for_processor
  bool osxsave_live_ = false;   // L2 executes XSETBV unseen
  bool switched_xcr0_ = false;  // L2 changed XCR0 behind L1's back: l2_xcr0_ is its own
  // Nonzero: before_run has something to look at, whatever pending() says.
  u32 attention_ = 0;
  GroupMask dirty_ = 0;  // changed by L1 since they were merged
  GroupMask stale_ = 0;  // live in block_l2, not in c_
  Gpa current_ = kNoVmcs;
  Gpa vmxon_region_{};
  u64 l2_efer_ = 0;  // as L2 has it
  u64 l2_dr6_ = 0;   // as L2 has it, while hides_dr6_
  u64 step_rip_ = 0, step_dr6_ = 0;
  u64 tsc_offset_ = 0;  // L2's, on top of L1's
  u64 l1_xcr0_ = 0, l2_xcr0_ = 0;
  u64 pending_debug_ = 0;
  cpu::Event inject_{};       // to be delivered to L2 at its next run
  cpu::Event injected_{};     // what was at the last one, if it was a software event
  cpu::Event interrupted_{};  // delivery cut short by the exit at hand
  cpu::Intercepts wanted_{};  // what L0 and L1 want of L2, without temporary needs
  L2Translation translation_{};
  EntryChecks checks_{};
  HostImage host_{};
  alignas(64) Vmcs12 c_{};  // the current VMCS
};

}  // namespace aerie::nested::vmx

// The parts, in the order of a nested round trip.
#include "nested/vmx/entry.h"
#include "nested/vmx/event_injection.h"
#include "nested/vmx/exit.h"
#include "nested/vmx/exit_routing.h"
#include "nested/vmx/guest_registers.h"
#include "nested/vmx/instructions.h"
#include "nested/vmx/merge.h"
#include "nested/vmx/msr_lists.h"
