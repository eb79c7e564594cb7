// Memory operands of decoded instructions: the effective and the linear address, and the words by which a
// VM exit describes an operand to L1. SDM vol. 3, 28.2.5 and tables 28-8 to 28-14.
#pragma once

#include <optional>

#include "base/address.h"
#include "cpu/arch/exception.h"
#include "cpu/backend.h"
#include "cpu/decode/instruction.h"
#include "cpu/vmx/exit_reason.h"

namespace aerie::nested::vmx {

// Offset within the segment: base + index * scale + displacement, cut to the address size.
inline u64 effective_address(const cpu::Instruction& i, const cpu::GuestRegisters& registers, u64 rip) {
  u64 address = static_cast<u64>(i.displacement);
  if (i.base == cpu::kRipRegister) {
    address += rip + i.length;
  } else if (i.base != cpu::kNoRegister) {
    address += registers.gpr[i.base & 15];
  }
  if (i.index != cpu::kNoRegister) {
    address += registers.gpr[i.index & 15] << (i.scale & 3);
  }
  return i.address_size == 8 ? address : i.address_size == 4 ? static_cast<u32>(address)
                                                             : static_cast<u16>(address);
}

// The displacement as the exit qualification of an instruction exit holds it: that of the instruction,
// RIP-relative ones with the next instruction's address added (SDM vol. 3, 28.2.1).
inline u64 displacement_qualification(const cpu::Instruction& i, u64 rip) {
  const u64 d = static_cast<u64>(i.displacement);
  if (i.base == cpu::kRipRegister) {
    return d + rip + i.length;
  }
  return i.address_size == 8 ? d : i.address_size == 4 ? static_cast<u32>(d) : static_cast<u16>(d);
}

// A linear address, or the exception that forming it raises.
struct LinearAddress {
  Gva address;
  cpu::Event fault;  // valid: no address
};

// The linear address of `size` bytes at `offset` in segment `s`, checked as the access demands (SDM
// vol. 3, 5.3, 5.8.3; vol. 1, 3.3.7.1). The block's FS and GS bases must be stored (syscall state).
template <cpu::ControlBlock B>
LinearAddress linear_address(const B& block, cpu::SegmentRegister s, u64 offset, unsigned size, bool write,
                             unsigned linear_bits) {
  using cpu::Exception;
  using cpu::SegmentRegister;
  const cpu::Event fault =
      cpu::Event::exception(s == SegmentRegister::ss ? Exception::ss : Exception::gp, 0);
  const cpu::Segment segment = block.segment(s);
  if ((block.efer() & cpu::efer::lma) != 0 && block.segment(SegmentRegister::cs).long_mode()) [[likely]] {
    const u64 base = s >= SegmentRegister::fs ? segment.base : 0;
    const u64 linear = base + offset;
    if (!is_canonical(linear, linear_bits) || !is_canonical(linear + size - 1, linear_bits)) {
      return {{}, fault};
    }
    return {Gva{linear}, {}};
  }
  const u64 last = offset + size - 1;
  if ((block.cr0() & cpu::cr0::pe) != 0 && (block.rflags() & cpu::rflags::vm) == 0) {
    // Code segments: never writable, readable with type bit 1. Data segments: writable with type bit 1,
    // expand-down with type bit 2.
    const bool code = (segment.type() & 8) != 0;
    if (!segment.present() || (write && (code || (segment.type() & 2) == 0)) ||
        (!write && code && (segment.type() & 2) == 0)) {
      return {{}, fault};
    }
    const bool expand_down = !code && (segment.type() & 4) != 0;
    const u64 top = expand_down ? (segment.default_big() ? 0xffff'ffff : 0xffff) : segment.limit;
    if (last > top || (expand_down && offset <= segment.limit)) {
      return {{}, fault};
    }
  } else if (last > segment.limit) {
    return {{}, fault};
  }
  return {Gva{static_cast<u32>(segment.base + offset)}, {}};
}

// The instruction information of an exit on this instruction, as tables 28-8 to 28-14 want it; which of
// the tables applies is told by the operation.
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
    case Op::vmread: case Op::vmwrite: case Op::invept: case Op::invvpid: case Op::invpcid:
      info.register2 = i.reg & 15;
      break;
    // Table 28-10: operand size in bit 11, the instruction's identity in bits 29:28.
    case Op::sgdt: info.register2 = 0; info.operand_size = i.operand_size == 2 ? 0 : 1; break;
    case Op::sidt: info.register2 = 1; info.operand_size = i.operand_size == 2 ? 0 : 1; break;
    case Op::lgdt: info.register2 = 2; info.operand_size = i.operand_size == 2 ? 0 : 1; break;
    case Op::lidt: info.register2 = 3; info.operand_size = i.operand_size == 2 ? 0 : 1; break;
    // Table 28-11.
    case Op::sldt: info.register2 = 0; break;
    case Op::str: info.register2 = 1; break;
    case Op::lldt: info.register2 = 2; break;
    case Op::ltr: info.register2 = 3; break;
    // Table 28-12: the destination in bits 6:3, operand size in bits 12:11.
    case Op::rdrand: case Op::rdseed:
      info = {};
      info.register_operand = false;
      info.register1 = static_cast<cpu::Gpr>(i.rm & 15);
      info.operand_size = i.operand_size == 8 ? 2 : i.operand_size == 4 ? 1 : 0;
      return (static_cast<u32>(info.register1) << 3) | (u32{info.operand_size} << 11);
    default: break;
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
