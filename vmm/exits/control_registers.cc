#include "vmm/exits/exits.h"
#include "vmm/fetch.h"

namespace aerie::vmm::exits {
using cpu::Op;

void cr_read(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::mov_from_cr) { v.refetch(); return; }
  u64 value = 0;
  switch (i->reg) { case 0: value = v.block().cr0(); break; case 4: value = v.guest_cr4(); break; case 8: value = v.apic.cr8(); break; }
  v.registers().gpr[i->rm] = value;
  v.skip(*i);
}
void cr_write(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::mov_to_cr) { v.refetch(); return; }
  const u64 value = v.registers().gpr[i->rm];
  auto& b = v.block();
  switch (i->reg) {
    case 0: {
      b.set_cr0(value | cpu::cr0::et);
      u64 e = b.efer();
      if ((value & cpu::cr0::pg) && (e & cpu::efer::lme)) e |= cpu::efer::lma;
      if (!(value & cpu::cr0::pg)) e &= ~cpu::efer::lma;
      b.set_efer(e);
      break;
    }
    case 4: b.set_cr4(value); break;
    case 8: v.apic.set_cr8(static_cast<u8>(value)); v.reevaluate(); break;
  }
  b.flush(cpu::TlbFlush::everything);
  v.skip(*i);
}
}  // namespace aerie::vmm::exits
