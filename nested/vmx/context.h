// What the VMX engine asks of the vCPU whose L1 it serves. vmm supplies one, tests supply a fake.
// Nothing here is virtual: the engine is a template over it and every hot accessor inlines.
//
// Conventions: "L1's" values are architectural, as L1 would read them; where L0 shadows bits, the
// vCPU keeps both. Setters get values that the engine has checked. Nothing may fail but what says
// so.
#pragma once

#include <concepts>

#include "base/address.h"
#include "cpu/arch/exception.h"
#include "cpu/arch/registers.h"
#include "cpu/arch/segment.h"
#include "cpu/backend.h"
#include "cpu/decode/instruction.h"
#include "cpu/exit.h"
#include "cpu/intercepts.h"
#include "cpu/vmx/exit_reason.h"
#include "mmu/l1_memory.h"
#include "nested/vmx/capabilities.h"
#include "nested/vmx/entry_checks.h"
#include "nested/vmx/vmcs12_fields.h"

namespace aerie::nested::vmx {

// What waits for L1, as bits of L1Context::pending(): one word so that the common case is one test.
namespace pending {
inline constexpr u32 interrupt =
                         1u << 0,  // the virtual APIC has a vector above the processor priority
    nmi = 1u << 1,                 // an NMI was taken for L1 (whether or not L1 blocks NMIs)
    init = 1u << 2,                // an INIT arrived
    sipi = 1u << 3;                // a SIPI arrived while in wait-for-SIPI
}

// The answer to a fault of L2 on its second dimension of translation.
struct TdpOutcome {
  enum class Kind : u8 {
    retry,             // fixed: run L2 again
    violation,         // EPT violation for L1: `qualification` is complete but for NMI unblocking
    misconfiguration,  // EPT misconfiguration for L1
    emulate,  // L1 maps the page, L0 does not (virtual APIC, IOAPIC, hole): L0 performs the access
  };
  Kind kind = Kind::retry;
  u64 qualification = 0;
  u64 linear_address = 0;  // where bit 7 of the qualification is set
};

// The translation an L2 is to run on.
struct L2Translation {
  bool ept = false;  // false: L2-physical is L1-physical
  u64 eptp = 0;
  u16 vpid = 0;  // 0: L1 does not use VPID
};

enum class InveptType : u8 { single_context = 1, all_contexts = 2 };
enum class InvvpidType : u8 {
  individual_address = 0,
  single_context = 1,
  all_contexts = 2,
  single_context_retaining_globals = 3,
};

template <class V>
concept L1Context = requires(V v, const V& k, u64 value, u64& result, u32 index, cpu::Event event,
                             unsigned length, Gva gva, void* to, const void* from, Ngpa ngpa,
                             const cpu::Exit& exit, u8 byte, bool flag, InveptType invept,
                             InvvpidType invvpid, u16 vpid, const L2Translation& translation,
                             const cpu::Instruction& instruction, cpu::vmx::BasicExit basic,
                             const EntryRule& rule) {
  typename V::Block;
  requires cpu::ControlBlock<typename V::Block>;

  // --- the processor's view of both guests
  { v.registers() } -> std::same_as<cpu::GuestRegisters&>;  // of whichever guest ran last
  { v.block_l1() } -> std::same_as<typename V::Block&>;
  { v.block_l2() } -> std::same_as<typename V::Block&>;
  { k.memory() } -> std::same_as<const mmu::L1Memory&>;
  { k.capabilities() } -> std::same_as<const Capabilities&>;
  {
    k.fields()
    } -> std::same_as<const FieldIndex&>;  // built from the capabilities, shared by all vCPUs

  // --- L1's architectural state. block_l1() holds what the processor has.
  { k.l1_cr0() } -> std::same_as<u64>;
  { k.l1_cr3() } -> std::same_as<u64>;
  { k.l1_cr4() } -> std::same_as<u64>;
  { k.l1_efer() } -> std::same_as<u64>;
  // CR0, CR3, CR4 and EFER of L1 at once, at a VM exit, with every side effect (shadow root,
  // PDPTEs). False where the PDPTEs that CR3 selects are invalid (VMX abort).
  { v.load_l1_paging(value, value, value, value) } -> std::same_as<bool>;
  // IA32_DEBUGCTL of L1 becomes 0.
  v.clear_l1_debugctl();
  // Drops the translations of L1's linear addresses (VPID 0).
  v.flush_l1_linear();
  // Delivers an exception to L1 at its next run; RIP stays.
  v.raise_l1(event);
  // L1's instruction is done: RIP, RF, interrupt shadow, single-step trap.
  v.advance_l1(instruction);
  // Copies between L0 and L1's linear memory with L1's rights. False: the fault has been raised in
  // L1.
  { v.read_l1_linear(gva, to, value) } -> std::same_as<bool>;
  { v.write_l1_linear(gva, from, value) } -> std::same_as<bool>;

  // The same without raising anything; false: not readable.
  { v.peek_l1_linear(gva, to, value) } -> std::same_as<bool>;
  // A VMX abort or the like: L1's processor shuts down.
  v.shutdown_l1();

  // --- control register values that the processor may be given for an architectural value
  { k.processor_cr0(value) } -> std::same_as<u64>;
  { k.processor_cr4(value) } -> std::same_as<u64>;
  // EFER bits that L1's CPUID allows.
  { k.efer_allowed() } -> std::same_as<u64>;
  // What L0 wants to see of any L2, whatever L1's controls say.
  { k.l0_intercepts() } -> std::convertible_to<cpu::Intercepts>;

  // Whether the host exits on XSETBV; where it does not the engine keeps L2's OSXSAVE clear at
  // first.
  { k.intercepts_xsetbv() } -> std::same_as<bool>;
  { k.xcr0() } -> std::same_as<u64>;  // the processor's
  v.set_xcr0(value);

  // --- MSRs as L1 would reach them by RDMSR and WRMSR at CPL 0. False: #GP.
  { v.read_msr(index, result) } -> std::same_as<bool>;
  { v.write_msr(index, value) } -> std::same_as<bool>;
  { k.l1_tsc() } -> std::same_as<u64>;

  // --- events for L1
  { k.pending() } -> std::same_as<u32>;               // pending::*
  { v.acknowledge_interrupt() } -> std::same_as<u8>;  // INTA of the virtual APIC
  v.take_nmi();
  v.take_init();
  { v.take_sipi() } -> std::same_as<u8>;  // its vector
  {
    k.nmi_blocked()
    } -> std::same_as<bool>;  // L1's (or, without virtual NMIs, L2's) blocking by NMI
  v.set_nmi_blocked(flag);
  { v.tpr() } -> std::same_as<u64>;  // CR8 of L1's virtual APIC
  v.set_tpr(value);

  // --- L2
  // Makes the vCPU run block_l2 (true) or block_l1 (false) from now on.
  v.set_running_l2(flag);
  // The instruction at which L2 exited. nullptr: it cannot be fetched or is not what the exit says
  // (L2 rewrote it): run L2 again.
  { v.decode_l2(exit) } -> std::same_as<const cpu::Instruction*>;
  // Gives block_l2 its root and tag for this translation; flushes what a VM entry must (all of VPID
  // 0's).
  v.switch_l2_translation(translation);
  { v.handle_l2_tdp_fault(exit) } -> std::same_as<TdpOutcome>;
  // INVEPT and INVVPID: the engine has checked type, EPTP, VPID and address.
  v.invept(invept, value);
  v.invvpid(invvpid, vpid, gva);
  // Copies from L2-physical memory, through L1's EPT where there is one. False: not mapped or no
  // memory.
  { v.read_l2_physical(ngpa, to, value) } -> std::same_as<bool>;
  // Performs on L1's machine what L2 did and L1 lets pass: IN, OUT, INS, OUTS. True when done (the
  // engine advances RIP); false: run L2 again, or a fault has been raised in L2 by raise_l2().
  { v.perform_l2_io(exit, instruction) } -> std::same_as<bool>;
  // Executes the instruction of L2 whose memory operand lies on a page that L1 maps and L0 traps.
  // The instruction's length when done (the engine advances RIP), 0: run L2 again, or a fault was
  // raised.
  { v.emulate_l2_access(exit) } -> std::same_as<unsigned>;
  // L2's linear memory, with the rights of its CPL. False: the fault has been raised by raise_l2(),
  // or an exit to L1 has happened.
  { v.read_l2_linear(gva, to, value) } -> std::same_as<bool>;
  { v.write_l2_linear(gva, from, value) } -> std::same_as<bool>;
  // The processor is to come back to L0 right after the next entry of L2, once the injected event
  // is delivered, whatever L2's RFLAGS.IF.
  v.request_immediate_exit();
  // For the log: why an entry of L1's failed.
  v.note_failed_entry(rule);
  // Telemetry: L2's exit went to L1, or L0 dealt with it.
  v.count_reflected(basic);
  v.count_handled(exit.reason);
};

}  // namespace aerie::nested::vmx
