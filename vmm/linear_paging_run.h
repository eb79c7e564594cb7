// The parts of LinearPaging on the way of every exit, inlined into the vCPU loop.
#pragma once

#include "vmm/linear_paging.h"
#include "vmm/vcpu.h"

namespace aerie::vmm {

inline void LinearPaging::enter() {
  if (!mode_known_) [[unlikely]] {
    find_mode();
  }
  auto b = v_.block();
  cpu::svm::Vmcb& vmcb = b.vmcb();
  const unsigned cpu = v_.index();
  u32 kick = 0;
  cr3_ = vmcb.save.cr3;
  mmu::LinearRoot* root = linear_pager->switch_root(cpu, mode_, cr3_, pdptes_.data(), kick);
  if (root == nullptr) [[unlikely]] {
    root = wait_for_root(kick);
  }
  root_ = root;
  vmcb.save.cr3 = root->table.value();
  vmcb.save.cr0 ^= cr0_difference_;
  vmcb.save.cr4 ^= cr4_difference_;
  vmcb.save.efer ^= efer_difference_;
  const mmu::LinearPager::Tag tag = linear_pager->tag_for(cpu, *root);
  tag_ = tag.tag;
  b.set_tag(tag.tag);
  if (tag.flush) {
    b.flush(cpu::TlbFlush::tag);
  }
  if (linear_pager->enter_guest(cpu)) [[unlikely]] {
    b.flush(cpu::TlbFlush::everything);
  }
}

inline void LinearPaging::leave() {
  cpu::svm::Vmcb& vmcb = v_.block().vmcb();
  if (vmcb.save.cr3 != root_->table.value()) [[unlikely]] {
    lost_root();
  }
  vmcb.save.cr3 = cr3_;
  vmcb.save.cr0 ^= cr0_difference_;
  vmcb.save.cr4 ^= cr4_difference_;
  vmcb.save.efer ^= efer_difference_;
}

}  // namespace aerie::vmm
