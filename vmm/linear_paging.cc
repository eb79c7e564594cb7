#include "vmm/linear_paging.h"

#include <new>

#include "base/panic.h"
#include "cpu/arch/instructions.h"
#include "vmm/exits/exits.h"
#include "vmm/vcpu.h"

namespace aerie::vmm {

mmu::LinearPager* linear_pager = nullptr;

void set_up_linear_paging() {
  const Hpa memory =
      machine.pages.allocate_contiguous(align_up(sizeof(mmu::LinearPager), kPageSize) / kPageSize);
  AERIE_CHECK(memory != Hpa{});
  auto* pager = new (physical_pointer<void>(memory)) mmu::LinearPager;
  // APM vol. 3, CPUID 8000_000A EBX: the number of tags. 0 is L0's, 1 and 2 are without use here.
  const u32 tags = cpu::cpuid(0x8000000a).ebx;
  constexpr u32 kFirst = 3;
  const mmu::PagingFeatures features{
      .maxphyaddr = static_cast<u8>(machine.cpuid_policy.physical_bits()),
      .gib_pages = machine.cpuid_policy.has(policy::feature("pdpe1gb"))};
  if (!pager->init(
          machine.pages, machine.l1_memory, machine.host_map, features,
          {.tags = tags > kFirst ? tags - kFirst : 0, .first_tag = tags > kFirst ? kFirst : 1})) {
    panic("no memory for shadow paging in a block of {} MiB", machine.block.size() / kMiB);
  }
  linear_pager = pager;
}

void LinearPaging::find_mode() {
  auto& b = v_.block_l1();
  mode_ = mmu::LinearMode{b.cr0(), v_.guest_cr4(), b.efer(), 0};
  cr0_difference_ = b.cr0() ^ mmu::LinearMode::processor_cr0(b.cr0());
  cr4_difference_ = b.cr4() ^ mmu::LinearMode::processor_cr4(b.cr0(), b.cr4());
  efer_difference_ = b.efer() ^ mmu::LinearMode::processor_efer(b.efer());
  mode_known_ = true;
}

void LinearPaging::kick(u32 processors) {
  for (unsigned i = 0; i < kMaxCpus; ++i) {
    if ((processors & (1u << i)) != 0) {
      machine.vcpus[i]->apic.post_request(request::quiesce, v_.apic);
    }
  }
}

mmu::LinearRoot* LinearPaging::wait_for_root(u32 processors) {
  for (;;) {
    kick(processors);
    cpu::pause();
    mmu::LinearRoot* root =
        linear_pager->switch_root(v_.index(), mode_, cr3_, pdptes_.data(), processors);
    if (root != nullptr) {
      return root;
    }
  }
}

// A hardware task switch loads CR3 without an exit on TCG, which never raises the task-switch
// intercept (FACTS): the guest has run on tables that L0 did not make.
void LinearPaging::lost_root() {
  end_run(telemetry::EndState::panic,
          "L1 cpu{}: CR3 changed without an exit (a hardware task switch?), which tdp=off cannot "
          "bear; rip {x}",
          v_.index(), v_.block_l1().rip());
}

void LinearPaging::forget(policy::Forget what) {
  switch (what) {
    case policy::Forget::nothing:
      return;
    case policy::Forget::current: {
      const bool pcid = (v_.guest_cr4() & cpu::cr4::pcide) != 0;
      linear_pager->flush_context(
          v_.index(), pcid ? static_cast<u16>(v_.block_l1().cr3() & kPageMask) : u16{0}, 0);
      return;
    }
    case policy::Forget::current_global:
    case policy::Forget::everything:
      linear_pager->flush_all(v_.index());
      return;
  }
}

void LinearPaging::page_fault(const cpu::Exit& bare) {
  const cpu::Exit exit = v_.complete(bare);
  const u64 linear = exit.info2;
  auto& b = v_.block_l1();
  u32 access = static_cast<u32>(exit.error_code) & mmu::access::in_error_code;
  if ((access & mmu::access::user) == 0 && b.cpl() != 3 && (b.rflags() & cpu::rflags::ac) != 0) {
    access |= mmu::access::smap_exempt;
  }
  const mmu::LinearFault r =
      linear_pager->handle_fault(v_.index(), *root_, v_.guest_paging(), linear, access);
  switch (r.kind) {
    case mmu::LinearFault::Kind::mapped:
      v_.telemetry().count(telemetry::Event::shadow_fault);
      return;
    case mmu::LinearFault::Kind::page_fault:
      b.set_cr2(linear);
      v_.raise(cpu::Event::exception(cpu::Exception::pf, r.error));
      return;
    case mmu::LinearFault::Kind::nested:
      return;  // L1 has no second dimension
    case mmu::LinearFault::Kind::device:
      exits::access_device(v_, r.gpa, true);
      return;
    case mmu::LinearFault::Kind::emulate:
      if (!exits::emulate_access(v_)) {
        (void)linear_pager->handle_fault(v_.index(), *root_, v_.guest_paging(), linear, access,
                                         true);
      }
      return;
    case mmu::LinearFault::Kind::busy:
      kick(r.kick);
      return;
  }
}

void LinearPaging::invlpg(u64 linear) {
  if (linear_pager->flush_address(v_.index(), *root_, linear,
                                  (v_.guest_cr4() & cpu::cr4::pge) != 0)) {
    cpu::invlpga(linear, tag_);
  }
}

void LinearPaging::invpcid(unsigned type, u16 pcid, u64 linear) {
  switch (type) {
    case 0:
      linear_pager->flush_address_of(v_.index(), pcid, linear, 0);
      break;
    case 1:
      linear_pager->flush_context(v_.index(), pcid, 0);
      break;
    default:
      // Type 3 may keep global translations; the comparison drops nothing that is still right.
      linear_pager->flush_all(v_.index());
      break;
  }
}

void LinearPaging::idle() { linear_pager->leave_guest(v_.index()); }

void LinearPaging::host_map_changed() { linear_pager->drop_everything(); }

}  // namespace aerie::vmm
