#include "vmm/exits/exits.h"
#include "vmm/fetch.h"
#include "cpu/arch/msr.h"

namespace aerie::vmm::exits {
using cpu::Gpr;
using cpu::Op;

void rdmsr(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::rdmsr) [[unlikely]] {
    v.refetch();
    return;
  }
  auto& r = v.registers();
  auto& b = v.block_l1();
  u64 value = 0;
  const u32 index = static_cast<u32>(r[Gpr::rcx]);
  b.store_syscall_state();
  switch (index) {
    case cpu::msr::efer: value = b.efer(); break;
    case cpu::msr::fs_base: value = b.segment(cpu::SegmentRegister::fs).base; break;
    case cpu::msr::gs_base: value = b.segment(cpu::SegmentRegister::gs).base; break;
    case cpu::msr::kernel_gs_base: value = b.kernel_gs_base(); break;
    case cpu::msr::apic_base: case 0x6e0: value = *v.apic.read_msr(index); break;
    default:
      if (index >= 0x800 && index < 0x900) {
        auto x = v.apic.read_msr(index);
        if (!x) { v.raise_gp(); return; }
        value = *x;
      } else {
        value = cpu::rdmsr(index);
      }
  }
  r[Gpr::rax] = static_cast<u32>(value);
  r[Gpr::rdx] = value >> 32;
  v.skip(*i);
}

void wrmsr(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::wrmsr) [[unlikely]] {
    v.refetch();
    return;
  }
  auto& r = v.registers();
  auto& b = v.block_l1();
  const u32 index = static_cast<u32>(r[Gpr::rcx]);
  const u64 value = (r[Gpr::rdx] << 32) | static_cast<u32>(r[Gpr::rax]);
  b.store_syscall_state();
  auto set_base = [&](cpu::SegmentRegister s) { auto x = b.segment(s); x.base = value; b.set_segment(s, x); b.load_syscall_state(); };
  switch (index) {
    case cpu::msr::efer: b.set_efer(value); if ((value & cpu::efer::lme) && (b.cr0() & cpu::cr0::pg)) b.set_efer(value | cpu::efer::lma); break;
    case cpu::msr::fs_base: set_base(cpu::SegmentRegister::fs); break;
    case cpu::msr::gs_base: set_base(cpu::SegmentRegister::gs); break;
    case cpu::msr::kernel_gs_base: b.set_kernel_gs_base(value); b.load_syscall_state(); break;
    case cpu::msr::apic_base: case 0x6e0:
      if (!v.apic.write_msr(index, value)) { v.raise_gp(); return; }
      break;
    default:
      if (index >= 0x800 && index < 0x900) {
        if (!v.apic.write_msr(index, value)) { v.raise_gp(); return; }
      } else {
        cpu::wrmsr(index, value);
      }
  }
  v.reevaluate();
  v.skip(*i);
}
}  // namespace aerie::vmm::exits
