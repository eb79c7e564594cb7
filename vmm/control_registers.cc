// Writes of L1's control registers and EFER: policy decides, this carries out.
#include "cpu/arch/instructions.h"
#include "vmm/vcpu.h"

namespace aerie::vmm {

policy::ControlState Vcpu::control_state() {
  const bool long_cs = block_l1_.segment(cpu::SegmentRegister::cs).long_mode();
  return {.cr0 = block_l1_.cr0(),
          .cr3 = block_l1_.cr3(),
          .cr4 = guest_cr4(),
          .efer = guest_efer(),
          .cs_long = long_cs,
          .vmx_operation = vmx_operation_};
}

// SDM vol. 3, 4.4.1: the PDPTEs are checked when they are loaded. The A bit, which Intel reserves,
// is set by TCG's own walk (FACTS), so it does not count.
bool Vcpu::load_pdptes(u64 cr3) {
  const u64 reserved =
      bit_mask(2, 1) | bit_mask(8, 6) | bit_mask(63, machine.cpuid_policy.physical_bits());
  std::array<u64, 4> entries{};
  if (!machine.l1_memory.read(Gpa{cr3 & bit_mask(31, 5)}, entries.data(), sizeof(entries))) {
    return false;
  }
  for (const u64 entry : entries) {
    if ((entry & 1) != 0 && (entry & reserved) != 0) {
      return false;
    }
  }
  linear_paging.set_pdptes(entries);
  return true;
}

void Vcpu::forget(policy::Forget what) {
  // Tags are one a level here, so what a PCID holds cannot be dropped apart: all of L1's goes.
  if (linear_pager != nullptr) {
    linear_paging.forget(what);
  } else if (what != policy::Forget::nothing) {
    block_l1_.flush(cpu::TlbFlush::tag);
  }
}

mmu::GuestPaging Vcpu::guest_paging() {
  const ControlBlock& b = block_l1_;
  auto paging =
      mmu::GuestPaging::make(b.cr0(), b.cr3(), b.cr4(), b.efer(),
                             {.maxphyaddr = static_cast<u8>(machine.cpuid_policy.physical_bits()),
                              .gib_pages = machine.cpuid_policy.has(policy::feature("pdpe1gb"))});
  if (linear_pager != nullptr) {
    paging.pdptes = linear_paging.pdptes();
  }
  if (paging.pke) {
    paging.pkru = cpu::rdpkru();
  }
  if (paging.pks) {
    paging.pkrs = static_cast<u32>(cpu::rdmsr(cpu::msr::pkrs));
  }
  return paging;
}

bool Vcpu::write_cr0(u64 value) {
  const policy::ControlWrite w = machine.cr_policy.write_cr0(control_state(), value);
  if (!w.legal || (w.load_pdptes && !load_pdptes(block_l1_.cr3()))) {
    return false;
  }
  block_l1_.set_cr0(w.value);
  block_l1_.set_efer(w.efer);
  update_paging_mode();
  forget(w.forget);
  return true;
}

bool Vcpu::write_cr3(u64 value) {
  const policy::ControlWrite w = machine.cr_policy.write_cr3(control_state(), value);
  if (!w.legal || (w.load_pdptes && !load_pdptes(w.value))) {
    return false;
  }
  block_l1_.set_cr3(w.value);
  forget(w.forget);
  return true;
}

bool Vcpu::write_cr4(u64 value) {
  const policy::ControlWrite w = machine.cr_policy.write_cr4(control_state(), value);
  if (!w.legal || (w.load_pdptes && !load_pdptes(block_l1_.cr3()))) {
    return false;
  }
  set_guest_cr4(w.value);
  forget(w.forget);
  return true;
}

void Vcpu::set_guest_cr4(u64 value) {
  const u64 processor = machine.cr_policy.hardware_cr4(value);
  const u64 hidden = value & ~processor;
  block_l1_.set_cr4(processor);
  update_paging_mode();
  if ((hidden != 0) != (cr4_hidden != 0)) {
    cr4_hidden = hidden;
    update_intercepts();
  }
  cr4_hidden = hidden;
  update_cpuid();
}

bool Vcpu::write_efer(u64 value) {
  const policy::ControlWrite w = machine.cr_policy.write_efer(control_state(), value);
  if (!w.legal) {
    return false;
  }
  block_l1_.set_efer(w.efer);
  update_paging_mode();
  forget(w.forget);
  return true;
}

void Vcpu::update_cpuid() {
  const u64 cr4 = guest_cr4();
  cpuid.set_state({.osxsave = (cr4 & cpu::cr4::osxsave) != 0,
                   .pke = (cr4 & cpu::cr4::pke) != 0,
                   .apic_enabled = apic.hardware_enabled(),
                   .xcr0 = machine.has_xsave ? cpu::xgetbv(0) : 1,
                   .xss = 0});
}

}  // namespace aerie::vmm
