// MOV to and from control registers, CLTS and LMSW of L1. What is legal: vmm/policy/cr.h.
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"

namespace aerie::vmm::exits {

using cpu::Op;

void cr_read(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || (i->op != Op::mov_from_cr && i->op != Op::smsw)) [[unlikely]] {
    v.refetch();
    return;
  }
  u64 value = 0;
  switch (i->op == Op::smsw ? 0 : i->reg) {
    case 0:
      value = v.block_l1().cr0();
      break;
    case 2:
      value = v.block_l1().cr2();
      break;
    case 3:
      value = v.block_l1().cr3();
      break;
    case 4:
      value = v.guest_cr4();
      break;
    case 8:
      value = v.apic.cr8();
      break;
    default:
      v.raise(cpu::Exception::ud);
      return;
  }
  const unsigned size = i->op == Op::smsw                        ? i->operand_size
                        : v.code_mode() == cpu::CodeMode::bits64 ? 8
                                                                 : 4;
  cpu::write_register(v.registers(), i->rm, size, value);
  v.skip(*i);
}

namespace {

// The value an instruction writes to its control register. False: not one that does.
bool written_value(Vcpu& v, const cpu::Instruction& i, unsigned& number, u64& value) {
  const u64 cr0 = v.block_l1().cr0();
  number = 0;
  switch (i.op) {
    case Op::mov_to_cr:
      number = i.reg;
      value = v.registers().gpr[i.rm];
      if (v.code_mode() != cpu::CodeMode::bits64) {
        value = static_cast<u32>(value);
      }
      return true;
    case Op::clts:
      value = cr0 & ~cpu::cr0::ts;
      return true;
    case Op::lmsw: {
      // Sets PE, MP, EM and TS, and cannot clear PE. SDM vol. 2, LMSW.
      constexpr u64 kMask = 0xf;
      u64 word = 0;
      if (!v.read_operand(i, 2, word)) {
        return false;
      }
      value = (cr0 & ~kMask) | (word & kMask) | (cr0 & cpu::cr0::pe);
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

void cr_write(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  unsigned number = 0;
  u64 value = 0;
  if (i == nullptr || !written_value(v, *i, number, value)) [[unlikely]] {
    if (!v.has_event()) {
      v.refetch();
    }
    return;
  }
  bool legal = false;
  switch (number) {
    case 0:
      legal = v.write_cr0(value);
      break;
    case 3:
      legal = v.write_cr3(value);
      break;
    case 4:
      legal = v.write_cr4(value);
      break;
    case 8:
      legal = value < 16;
      if (legal) {
        v.apic.set_cr8(static_cast<u8>(value));
        v.reevaluate();
      }
      break;
    default:
      v.raise(cpu::Exception::ud);
      return;
  }
  if (!legal) {
    v.raise_gp();
    return;
  }
  v.skip(*i);
}

}  // namespace aerie::vmm::exits
