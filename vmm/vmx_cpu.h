// The VMX engine (nested/vmx) on a vCPU: what the engine asks for (nested/vmx/context.h), in terms
// of the vCPU, its APIC and the shadow pager.
#pragma once

#include <optional>

#include "cpu/arch/instructions.h"
#include "mmu/shadow_pager.h"
#include "nested/vmx/engine.h"
#include "vmm/fetch.h"
#include "vmm/msr_access.h"
#include "vmm/vcpu.h"

namespace aerie::vmm {

struct VmxCpu;

// Of the machine, made once at boot.
struct VmxMachine {
  nested::vmx::Capabilities capabilities{nested::vmx::CapabilityConfig{}};
  nested::vmx::FieldIndex fields;
  mmu::ShadowPager pager;
  mmu::EptFormat::Context ept;
  bool intercepts_xsetbv = false;
  bool enabled = false;
};
extern VmxMachine vmx_machine;

class VmxContext {
 public:
  using Block = cpu::svm::ControlBlock;

  VmxContext(Vcpu& v, VmxCpu& cpu) : v_{v}, cpu_{cpu} {}

  cpu::GuestRegisters& registers() { return v_.registers(); }
  Block& block_l1() { return v_.block_l1(); }
  Block& block_l2() { return v_.block_l2(); }
  const mmu::L1Memory& memory() const { return machine.l1_memory; }
  const nested::vmx::Capabilities& capabilities() const { return vmx_machine.capabilities; }
  const nested::vmx::FieldIndex& fields() const { return vmx_machine.fields; }

  // --- L1
  u64 l1_cr0() const { return v_.block_l1().cr0(); }
  u64 l1_cr3() const { return v_.block_l1().cr3(); }
  u64 l1_cr4() const { return v_.guest_cr4(); }
  u64 l1_efer() const { return v_.guest_efer(); }
  bool load_l1_paging(u64 cr0, u64 cr3, u64 cr4, u64 efer);
  void flush_l1_linear() { v_.forget(policy::Forget::everything); }
  void clear_l1_debugctl() {
    if (v_.block_l1().debugctl() != 0) [[unlikely]] {
      (void)MsrAccess{v_}.write(cpu::msr::debugctl, 0);
    }
  }
  void raise_l1(const cpu::Event& event) { v_.raise(event); }
  void advance_l1(const cpu::Instruction& i) { v_.skip(i); }
  bool read_l1_linear(Gva gva, void* to, u64 size);
  bool write_l1_linear(Gva gva, const void* from, u64 size);
  bool peek_l1_linear(Gva gva, void* to, u64 size);
  void shutdown_l1();

  u64 processor_cr0(u64 value) const { return value; }
  u64 processor_cr4(u64 value) const { return machine.cr_policy.hardware_cr4(value); }
  u64 efer_allowed() const { return machine.cr_policy.efer_allowed(); }
  cpu::Intercepts l0_intercepts() const {
    using enum cpu::ExitReason;
    return cpu::Intercepts{}
        .on(external_interrupt)
        .on(nmi)
        .on(smi)
        .on(init)
        .on(shutdown)
        .on(monitor)
        .on(mwait);
  }
  bool intercepts_xsetbv() const { return vmx_machine.intercepts_xsetbv; }
  u64 xcr0() const { return machine.has_xsave ? cpu::xgetbv(0) : 1; }
  void set_xcr0(u64 value) {
    if (machine.has_xsave) {
      cpu::xsetbv(0, value);
    }
  }
  bool read_msr(u32 index, u64& value);
  bool write_msr(u32 index, u64 value) { return MsrAccess{v_}.write(index, value); }
  u64 l1_tsc() const { return cpu::rdtsc() + v_.block_l1().tsc_offset(); }

  // --- events
  u32 pending() const;
  u8 acknowledge_interrupt();
  void take_nmi() { v_.nmis.taken(); }
  void take_init() { v_.apic.mailbox().take(request::init); }
  u8 take_sipi() { return v_.apic.mailbox().take_sipi().value_or(0); }
  bool nmi_blocked() const { return v_.nmi_blocked; }
  void set_nmi_blocked(bool on) { v_.nmi_blocked = on; }
  u64 tpr() const { return v_.apic.cr8(); }
  void set_tpr(u64 value) {
    v_.apic.set_cr8(static_cast<u8>(value));
    v_.reevaluate();
  }

  // --- L2
  void set_running_l2(bool on) { v_.set_in_l2(on); }
  const cpu::Instruction* decode_l2(const cpu::Exit& exit);
  [[gnu::always_inline]] void switch_l2_translation(const nested::vmx::L2Translation& t);
  nested::vmx::TdpOutcome handle_l2_tdp_fault(const cpu::Exit& exit);
  void invept(nested::vmx::InveptType type, u64 eptp);
  void invvpid(nested::vmx::InvvpidType, u16, Gva) { v_.block_l2().flush(cpu::TlbFlush::tag); }
  bool read_l2_physical(Ngpa ngpa, void* to, u64 size);
  bool perform_l2_io(const cpu::Exit& exit, const cpu::Instruction& i);
  unsigned emulate_l2_access(const cpu::Exit& exit);
  bool read_l2_linear(Gva gva, void* to, u64 size);
  bool write_l2_linear(Gva gva, const void* from, u64 size);
  void request_immediate_exit();

  void note_failed_entry(const nested::vmx::EntryRule& rule);
  void count_reflected(cpu::vmx::BasicExit) {}
  void count_handled(cpu::ExitReason) {}

  // Before L2 runs again without an entry by L1: what the pager wants flushed.
  void before_reentry() {
    if (vmx_machine.pager.enter_guest(v_.index())) [[unlikely]] {
      v_.block_l2().flush(cpu::TlbFlush::everything);
    }
  }

 private:
  const mmu::Root* root() const { return root_; }
  mmu::Root* find_root(u64 eptp);
  void change_translation(const nested::vmx::L2Translation& t);
  const cpu::Instruction* decode_l2_slowly(mmu::ModeBits bits, u64 generation);
  const cpu::Instruction* refetch();
  nested::vmx::TdpOutcome violation_for_l1(const cpu::Exit& exit, u64 qualification,
                                           std::optional<Gpa> entry);
  std::optional<u64> violating_linear_address(const cpu::Exit& exit, std::optional<Gpa> entry);
  bool faults_at(u64 linear, u32 bits, Ngpa ngpa, bool page_walk, std::optional<Gpa> entry);
  // Copies by L2's linear address; page faults and violations go where they belong.
  bool access_l2_linear(u64 linear, void* data, u64 size, bool write);

  Vcpu& v_;
  VmxCpu& cpu_;
  mmu::Root* root_ = nullptr;  // L2's; null: L0's map
  u64 eptp_ = 0;
  u64 root_generation_ = 0;
  u16 vpid_ = 0;
  u8 refetches_ = 0;
  Gpa emulate_at_{};  // of the access that handle_l2_tdp_fault() said to emulate
};
static_assert(nested::vmx::L1Context<VmxContext>);

// The entry that changes nothing: the root is still the one L2 ran on last.
inline void VmxContext::switch_l2_translation(const nested::vmx::L2Translation& t) {
  if (t.ept && root_ != nullptr && t.eptp == eptp_ && t.vpid == vpid_) [[likely]] {
    u32 kick = 0;
    const mmu::Root* root = vmx_machine.pager.switch_root(v_.index(), mmu::Eptp{t.eptp}, kick);
    if (root == root_) [[likely]] {
      root_generation_ = root->generation.load(std::memory_order_relaxed);
      if (t.vpid == 0) {
        v_.block_l2().flush(cpu::TlbFlush::tag);
      }
      before_reentry();
      return;
    }
  }
  change_translation(t);
}

struct VmxCpu {
  explicit VmxCpu(Vcpu& v) : context{v, *this}, engine{context} {}
  VmxContext context;
  nested::vmx::Vmx<VmxContext> engine;
};

}  // namespace aerie::vmm
