// A vCPU under `tdp=off`: L1's linear addresses go through shadow tables (mmu/linear_pager.h), and
// the processor's nested paging is not used.
//
// While L0 is at work a control block holds the guest's own CR0, CR3, CR4 and EFER, as everything
// else in vmm and nested expects. enter() puts the processor's values in their place right before
// the guest runs, leave() takes them out right after.
#pragma once

#include "cpu/exit.h"
#include "cpu/svm/control_block.h"
#include "mmu/linear_pager.h"
#include "vmm/policy/cr.h"

namespace aerie::vmm {

class Vcpu;

// The machine's; null with nested paging.
extern mmu::LinearPager* linear_pager;
// With `tdp=off`, once L1's map is built.
void set_up_linear_paging();

class LinearPaging {
 public:
  explicit LinearPaging(Vcpu& v) : v_{v} {}

  // Around each run of the guest.
  [[gnu::always_inline]] void enter();
  [[gnu::always_inline]] void leave();

  // The guest's CR0, CR4 or EFER may have changed.
  void mode_changed() { mode_known_ = false; }
  // PAE's four entries were loaded.
  void set_pdptes(const std::array<u64, 4>& pdptes) { pdptes_ = pdptes; }
  const u64* pdptes() const { return pdptes_.data(); }
  // What a write of a control register makes the guest forget (vmm/policy/cr.h); CR3 is the new
  // one.
  void forget(policy::Forget what);

  // A #PF of the processor's.
  void page_fault(const cpu::Exit& exit);
  void invlpg(u64 linear);
  // SDM vol. 2, INVPCID; the operands have been checked.
  void invpcid(unsigned type, u16 pcid, u64 linear);
  // The processor runs no guest until the next enter().
  void idle();
  // L0's map of L1 has changed.
  void host_map_changed();

 private:
  [[gnu::cold, gnu::noinline]] void find_mode();
  [[gnu::cold, gnu::noinline]] mmu::LinearRoot* wait_for_root(u32 kick);
  [[noreturn, gnu::cold, gnu::noinline]] void lost_root();
  void kick(u32 processors);

  Vcpu& v_;
  bool mode_known_ = false;
  mmu::LinearMode mode_{};
  mmu::LinearRoot* root_ = nullptr;
  u64 cr3_ = 0;
  // What differs between the guest's registers and the processor's.
  u64 cr0_difference_ = 0, cr4_difference_ = 0, efer_difference_ = 0;
  u32 tag_ = 0;
  std::array<u64, 4> pdptes_{};
};

}  // namespace aerie::vmm
