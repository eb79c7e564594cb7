// Memory operands of decoded instructions: the effective and the linear address, and the words by
// which a VM exit describes an operand to L1. SDM vol. 3, 28.2.5 and tables 28-8 to 28-14.
#pragma once

#include "base/address.h"
#include "cpu/arch/exception.h"
#include "cpu/backend.h"
#include "cpu/decode/instruction.h"
#include "cpu/decode/memory_operand.h"
#include "cpu/vmx/exit_reason.h"

namespace aerie::nested::vmx {

// The displacement as the exit qualification of an instruction exit holds it: that of the
// instruction, RIP-relative ones with the next instruction's address added (SDM vol. 3, 28.2.1).
inline u64 displacement_qualification(const cpu::Instruction& i, u64 rip) {
  const u64 d = static_cast<u64>(i.displacement);
  if (i.base == cpu::kRipRegister) {
    return d + rip + i.length;
  }
  return i.address_size == 8 ? d : i.address_size == 4 ? static_cast<u32>(d) : static_cast<u16>(d);
}

// Addressing as a control block's guest has it.
template <cpu::ControlBlock B>
cpu::AddressingMode addressing_mode(const B& block, bool la57) {
  return {.code = cpu::code_mode(block.segment(cpu::SegmentRegister::cs), block.efer()),
          .protected_mode =
              (block.cr0() & cpu::cr0::pe) != 0 && (block.rflags() & cpu::rflags::vm) == 0,
          .linear_bits = static_cast<u8>(la57 ? 57 : 48)};
}

// The linear address of the instruction's memory operand of `size` bytes. FS and GS are stored
// first.
template <cpu::ControlBlock B>
cpu::LinearAddress operand_linear_address(B& block, const cpu::Instruction& i,
                                          const cpu::GuestRegisters& registers, unsigned size,
                                          bool write, bool la57) {
  if (i.segment >= cpu::SegmentRegister::fs) {
    block.store_syscall_state();
  }
  const cpu::AddressingMode mode = addressing_mode(block, la57);
  return cpu::memory_operand_address(
      i, mode, registers, cpu::next_rip(i, block.rip(), mode.code), size,
      write ? cpu::MemoryAccess::write : cpu::MemoryAccess::read,
      [&](cpu::SegmentRegister r) { return cpu::Segment{block.segment(r)}; });
}

// The instruction information of an exit on this instruction, as tables 28-8 to 28-14 want it;
// which of the tables applies is told by the operation.
inline u32 instruction_information(const cpu::Instruction& i) {
  using cpu::Op;
  cpu::vmx::InstructionInfo info;
  info.address_size = i.address_size == 8 ? 2 : i.address_size == 4 ? 1 : 0;
  info.register_operand = !i.has_memory();
  info.segment = static_cast<u8>(i.segment);
  if (i.has_memory()) {
    info.scaling = i.index == cpu::kNoRegister ? 0 : i.scale;
    info.index_invalid = i.index == cpu::kNoRegister;
    info.index = info.index_invalid ? 0 : i.index;
    info.base_invalid = i.base == cpu::kNoRegister || i.base == cpu::kRipRegister;
    info.base = info.base_invalid ? 0 : i.base;
  } else if (i.rm < 16) {
    info.register1 = static_cast<cpu::Gpr>(i.rm);
  }
  switch (i.op) {
    case Op::vmread:
    case Op::vmwrite:
    case Op::invept:
    case Op::invvpid:
    case Op::invpcid:
      info.register2 = i.reg & 15;
      break;
    // Table 28-10: operand size in bit 11, the instruction's identity in bits 29:28.
    case Op::sgdt:
      info.register2 = 0;
      info.operand_size = i.operand_size == 2 ? 0 : 1;
      break;
    case Op::sidt:
      info.register2 = 1;
      info.operand_size = i.operand_size == 2 ? 0 : 1;
      break;
    case Op::lgdt:
      info.register2 = 2;
      info.operand_size = i.operand_size == 2 ? 0 : 1;
      break;
    case Op::lidt:
      info.register2 = 3;
      info.operand_size = i.operand_size == 2 ? 0 : 1;
      break;
    // Table 28-11.
    case Op::sldt:
      info.register2 = 0;
      break;
    case Op::str:
      info.register2 = 1;
      break;
    case Op::lldt:
      info.register2 = 2;
      break;
    case Op::ltr:
      info.register2 = 3;
      break;
    // Table 28-12: the destination in bits 6:3, operand size in bits 12:11.
    case Op::rdrand:
    case Op::rdseed:
      info = {};
      info.register_operand = false;
      info.register1 = static_cast<cpu::Gpr>(i.rm & 15);
      info.operand_size = i.operand_size == 8 ? 2 : i.operand_size == 4 ? 1 : 0;
      return (static_cast<u32>(info.register1) << 3) | (u32{info.operand_size} << 11);
    default:
      break;
  }
  return info.encode();
}

// Instruction information of INS and OUTS: table 28-8.
inline u32 string_io_information(const cpu::Instruction& i) {
  const u32 address_size = i.address_size == 8 ? 2 : i.address_size == 4 ? 1 : 0;
  const u32 segment = i.op == cpu::Op::outs ? static_cast<u32>(i.segment) : 0;
  return (address_size << 7) | (segment << 15);
}

}  // namespace aerie::nested::vmx
