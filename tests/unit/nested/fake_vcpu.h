// A vCPU for the VMX engine's tests: a model control block for L1 and one for L2, a small memory,
// and everything the engine asks for as plain members that a test sets or looks at.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <vector>

#include "base/physical.h"
#include "cpu/arch/msr.h"
#include "cpu/model/control_block.h"
#include "nested/vmx/engine.h"

namespace aerie::nested::vmx::test {

struct FakeVcpu {
  using Block = cpu::model::ControlBlock;
  static constexpr u64 kMemory = 4 * kMiB;

  explicit FakeVcpu(const CapabilityConfig& config = default_config())
      : capabilities_{config}, block_l1_{&syscall_state}, block_l2_{&syscall_state} {
    ram = static_cast<u8*>(::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    physical_window = ram;
    const mmu::L1Memory::Range ranges[] = {{Gpa{0}, Gpa{kMemory}}};
    memory_.set_ranges(ranges);
    fields_.build(capabilities_);
    // A 64-bit L1 at CPL 0, VMX allowed.
    cr0 = cpu::cr0::pe | cpu::cr0::ne | cpu::cr0::et | cpu::cr0::pg | cpu::cr0::wp;
    cr4 = cpu::cr4::pae | cpu::cr4::vmxe;
    cr3 = 0x1000;
    efer = cpu::efer::lme | cpu::efer::lma | cpu::efer::sce | cpu::efer::nxe;
    block_l1_.set_cr0(cr0);
    block_l1_.set_cr4(cr4 & ~cpu::cr4::vmxe);
    block_l1_.set_cr3(cr3);
    block_l1_.set_efer(efer);
    block_l1_.set_segment(cpu::SegmentRegister::cs, {0x10, 0xa9b, 0xffff'ffff, 0});
    block_l1_.set_segment(cpu::SegmentRegister::ss, {0x18, 0xc93, 0xffff'ffff, 0});
    block_l1_.set_rip(0x10'0000);
    msrs[cpu::msr::feature_control] =
        cpu::msr::feature_control_bits::locked | cpu::msr::feature_control_bits::vmx_outside_smx;
  }
  ~FakeVcpu() {
    ::munmap(ram, kMemory);
    physical_window = nullptr;
  }
  FakeVcpu(const FakeVcpu&) = delete;
  FakeVcpu& operator=(const FakeVcpu&) = delete;

  static CapabilityConfig default_config() {
    CapabilityConfig c;
    c.cr4_allowed = 0x7'0fff | cpu::cr4::smep | cpu::cr4::smap | cpu::cr4::pcide;
    c.physical_bits = 40;
    c.linear_bits = 48;
    return c;
  }

  // --- L1Context
  cpu::GuestRegisters& registers() { return registers_; }
  Block& block_l1() { return block_l1_; }
  Block& block_l2() { return block_l2_; }
  const mmu::L1Memory& memory() const { return memory_; }
  const Capabilities& capabilities() const { return capabilities_; }
  const FieldIndex& fields() const { return fields_; }

  u64 l1_cr0() const { return cr0; }
  u64 l1_cr3() const { return cr3; }
  u64 l1_cr4() const { return cr4; }
  u64 l1_efer() const { return efer; }
  bool load_l1_paging(u64 new_cr0, u64 new_cr3, u64 new_cr4, u64 new_efer) {
    ++paging_loads;
    cr0 = new_cr0, cr3 = new_cr3, cr4 = new_cr4, efer = new_efer;
    block_l1_.set_cr0(cr0);
    block_l1_.set_cr3(cr3);
    block_l1_.set_cr4(cr4 & ~cpu::cr4::vmxe);
    block_l1_.set_efer(efer);
    return !bad_pdptes;
  }
  void clear_l1_debugctl() { block_l1_.set_debugctl(0); }
  void flush_l1_linear() { ++l1_flushes; }
  void raise_l1(const cpu::Event& event) { raised.push_back(event); }
  void advance_l1(const cpu::Instruction& i) { block_l1_.set_rip(block_l1_.rip() + i.length); }
  // Linear is physical.
  bool read_l1_linear(Gva gva, void* to, u64 size) {
    if (memory_.read(Gpa{gva.value()}, to, size)) {
      return true;
    }
    raise_l1(cpu::Event::exception(cpu::Exception::pf, 0));
    return false;
  }
  bool write_l1_linear(Gva gva, const void* from, u64 size) {
    if (memory_.write(Gpa{gva.value()}, from, size)) {
      return true;
    }
    raise_l1(cpu::Event::exception(cpu::Exception::pf, cpu::pfec::write));
    return false;
  }
  bool peek_l1_linear(Gva gva, void* to, u64 size) {
    return memory_.read(Gpa{gva.value()}, to, size);
  }
  void shutdown_l1() { shut_down = true; }

  u64 processor_cr0(u64 value) const { return value; }
  u64 processor_cr4(u64 value) const { return value & ~(cpu::cr4::vmxe | cpu::cr4::pcide); }
  u64 efer_allowed() const { return cpu::efer::sce | cpu::efer::lme | cpu::efer::nxe; }
  cpu::Intercepts l0_intercepts() const { return l0; }
  bool intercepts_xsetbv() const { return xsetbv_intercept; }
  u64 xcr0() const { return processor_xcr0; }
  void set_xcr0(u64 value) { processor_xcr0 = value; }

  bool read_msr(u32 index, u64& value) {
    const auto it = msrs.find(index);
    if (it == msrs.end()) {
      return false;
    }
    value = it->second;
    return true;
  }
  bool write_msr(u32 index, u64 value) {
    if (!msrs.contains(index)) {
      return false;
    }
    msrs[index] = value;
    return true;
  }
  u64 l1_tsc() const { return tsc; }

  u32 pending() const { return waiting; }
  u8 acknowledge_interrupt() {
    waiting &= ~pending::interrupt;
    return interrupt_vector;
  }
  void take_nmi() { waiting &= ~pending::nmi; }
  void take_init() { waiting &= ~pending::init; }
  u8 take_sipi() {
    waiting &= ~pending::sipi;
    return 0x9a;
  }
  bool nmi_blocked() const { return nmis_blocked; }
  void set_nmi_blocked(bool on) { nmis_blocked = on; }
  u64 tpr() { return tpr_; }
  void set_tpr(u64 value) { tpr_ = value; }

  void set_running_l2(bool on) { running_l2 = on; }
  const cpu::Instruction* decode_l2(const cpu::Exit&) { return l2_instruction; }
  void switch_l2_translation(const L2Translation& t) { translation = t; }
  TdpOutcome handle_l2_tdp_fault(const cpu::Exit&) { return tdp_outcome; }
  void invept(InveptType type, u64 eptp) { invepts.push_back({type, eptp}); }
  void invvpid(InvvpidType type, u16 vpid, Gva address) {
    invvpids.push_back({type, vpid, address});
  }
  bool read_l2_physical(Ngpa ngpa, void* to, u64 size) {
    return memory_.read(Gpa{ngpa.value()}, to, size);
  }
  bool perform_l2_io(const cpu::Exit&, const cpu::Instruction&) {
    ++ios;
    return true;
  }
  unsigned emulate_l2_access(const cpu::Exit&) { return 3; }
  bool read_l2_linear(Gva gva, void* to, u64 size) {
    return memory_.read(Gpa{gva.value()}, to, size);
  }
  bool write_l2_linear(Gva gva, const void* from, u64 size) {
    return memory_.write(Gpa{gva.value()}, from, size);
  }
  void request_immediate_exit() { ++immediate_exits; }
  void note_failed_entry(const EntryRule& rule) { failed_rule = &rule; }
  void count_reflected(cpu::vmx::BasicExit) { ++reflected; }
  void count_handled(cpu::ExitReason) { ++handled; }

  // --- what tests set and look at
  cpu::model::SyscallState syscall_state{};
  cpu::GuestRegisters registers_{};
  mmu::L1Memory memory_;
  Capabilities capabilities_;
  FieldIndex fields_;
  Block block_l1_, block_l2_;
  u8* ram = nullptr;
  u64 cr0 = 0, cr3 = 0, cr4 = 0, efer = 0, tsc = 1000, processor_xcr0 = 1, tpr_ = 0;
  cpu::Intercepts l0{};
  std::map<u32, u64> msrs;
  std::vector<cpu::Event> raised;
  u32 waiting = 0;
  u8 interrupt_vector = 0x31;
  bool nmis_blocked = false, running_l2 = false, shut_down = false, bad_pdptes = false;
  bool xsetbv_intercept = true;
  const cpu::Instruction* l2_instruction = nullptr;
  L2Translation translation{};
  TdpOutcome tdp_outcome{};
  struct Invept {
    InveptType type;
    u64 eptp;
  };
  struct Invvpid {
    InvvpidType type;
    u16 vpid;
    Gva address;
  };
  std::vector<Invept> invepts;
  std::vector<Invvpid> invvpids;
  const EntryRule* failed_rule = nullptr;
  unsigned paging_loads = 0, l1_flushes = 0, ios = 0, immediate_exits = 0, reflected = 0,
           handled = 0;
};
static_assert(L1Context<FakeVcpu>);

}  // namespace aerie::nested::vmx::test
