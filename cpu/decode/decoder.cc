// Zydis finds the instruction, its length and its parts; what they mean is said here, by opcode as
// the manuals' opcode maps do (SDM vol. 2, appendix A; APM vol. 3, appendix A). Zydis' own operand
// decoding is not used: it would double the cost.
#include "cpu/decode/decoder.h"

#include <Zydis/Decoder.h>

#include <algorithm>
#include <array>

namespace aerie::cpu {
namespace {

struct Name {
  ZydisMnemonic mnemonic;
  Op op;
};

// What is missing here is Op::other. Mnemonics that stand for several Ops (MOV, POP) are told apart
// by opcode in op_of().
constexpr Name kNames[] = {
    {ZYDIS_MNEMONIC_CPUID, Op::cpuid},
    {ZYDIS_MNEMONIC_HLT, Op::hlt},
    {ZYDIS_MNEMONIC_RDMSR, Op::rdmsr},
    {ZYDIS_MNEMONIC_WRMSR, Op::wrmsr},
    {ZYDIS_MNEMONIC_RDTSC, Op::rdtsc},
    {ZYDIS_MNEMONIC_RDTSCP, Op::rdtscp},
    {ZYDIS_MNEMONIC_RDPMC, Op::rdpmc},
    {ZYDIS_MNEMONIC_RDPRU, Op::rdpru},
    {ZYDIS_MNEMONIC_RDPID, Op::rdpid},
    {ZYDIS_MNEMONIC_RDRAND, Op::rdrand},
    {ZYDIS_MNEMONIC_RDSEED, Op::rdseed},
    {ZYDIS_MNEMONIC_INVD, Op::invd},
    {ZYDIS_MNEMONIC_WBINVD, Op::wbinvd},
    {ZYDIS_MNEMONIC_INVLPG, Op::invlpg},
    {ZYDIS_MNEMONIC_INVLPGA, Op::invlpga},
    {ZYDIS_MNEMONIC_INVPCID, Op::invpcid},
    {ZYDIS_MNEMONIC_PAUSE, Op::pause},
    {ZYDIS_MNEMONIC_MONITOR, Op::monitor},
    {ZYDIS_MNEMONIC_MWAIT, Op::mwait},
    {ZYDIS_MNEMONIC_MONITORX, Op::monitorx},
    {ZYDIS_MNEMONIC_MWAITX, Op::mwaitx},
    {ZYDIS_MNEMONIC_UMONITOR, Op::umonitor},
    {ZYDIS_MNEMONIC_UMWAIT, Op::umwait},
    {ZYDIS_MNEMONIC_TPAUSE, Op::tpause},
    {ZYDIS_MNEMONIC_XSETBV, Op::xsetbv},
    {ZYDIS_MNEMONIC_XGETBV, Op::xgetbv},
    {ZYDIS_MNEMONIC_XSAVES, Op::xsaves},
    {ZYDIS_MNEMONIC_XSAVES64, Op::xsaves},
    {ZYDIS_MNEMONIC_XRSTORS, Op::xrstors},
    {ZYDIS_MNEMONIC_XRSTORS64, Op::xrstors},
    {ZYDIS_MNEMONIC_SWAPGS, Op::swapgs},
    {ZYDIS_MNEMONIC_ENCLS, Op::encls},
    {ZYDIS_MNEMONIC_PCONFIG, Op::pconfig},
    {ZYDIS_MNEMONIC_RSM, Op::rsm},
    {ZYDIS_MNEMONIC_IN, Op::in},
    {ZYDIS_MNEMONIC_OUT, Op::out},
    {ZYDIS_MNEMONIC_INSB, Op::ins},
    {ZYDIS_MNEMONIC_INSW, Op::ins},
    {ZYDIS_MNEMONIC_INSD, Op::ins},
    {ZYDIS_MNEMONIC_OUTSB, Op::outs},
    {ZYDIS_MNEMONIC_OUTSW, Op::outs},
    {ZYDIS_MNEMONIC_OUTSD, Op::outs},
    {ZYDIS_MNEMONIC_CLTS, Op::clts},
    {ZYDIS_MNEMONIC_LMSW, Op::lmsw},
    {ZYDIS_MNEMONIC_SMSW, Op::smsw},
    {ZYDIS_MNEMONIC_LGDT, Op::lgdt},
    {ZYDIS_MNEMONIC_LIDT, Op::lidt},
    {ZYDIS_MNEMONIC_SGDT, Op::sgdt},
    {ZYDIS_MNEMONIC_SIDT, Op::sidt},
    {ZYDIS_MNEMONIC_LLDT, Op::lldt},
    {ZYDIS_MNEMONIC_LTR, Op::ltr},
    {ZYDIS_MNEMONIC_SLDT, Op::sldt},
    {ZYDIS_MNEMONIC_STR, Op::str},
    {ZYDIS_MNEMONIC_INT3, Op::int3},
    {ZYDIS_MNEMONIC_INTO, Op::into},
    {ZYDIS_MNEMONIC_INT, Op::int_n},
    {ZYDIS_MNEMONIC_INT1, Op::icebp},
    {ZYDIS_MNEMONIC_IRET, Op::iret},
    {ZYDIS_MNEMONIC_IRETD, Op::iret},
    {ZYDIS_MNEMONIC_IRETQ, Op::iret},
    {ZYDIS_MNEMONIC_PUSHF, Op::pushf},
    {ZYDIS_MNEMONIC_PUSHFD, Op::pushf},
    {ZYDIS_MNEMONIC_PUSHFQ, Op::pushf},
    {ZYDIS_MNEMONIC_POPF, Op::popf},
    {ZYDIS_MNEMONIC_POPFD, Op::popf},
    {ZYDIS_MNEMONIC_POPFQ, Op::popf},
    {ZYDIS_MNEMONIC_STI, Op::sti},
    {ZYDIS_MNEMONIC_CLI, Op::cli},
    {ZYDIS_MNEMONIC_UD0, Op::ud0},
    {ZYDIS_MNEMONIC_UD1, Op::ud1},
    {ZYDIS_MNEMONIC_UD2, Op::ud2},
    {ZYDIS_MNEMONIC_VMCALL, Op::vmcall},
    {ZYDIS_MNEMONIC_VMLAUNCH, Op::vmlaunch},
    {ZYDIS_MNEMONIC_VMRESUME, Op::vmresume},
    {ZYDIS_MNEMONIC_VMXOFF, Op::vmxoff},
    {ZYDIS_MNEMONIC_VMXON, Op::vmxon},
    {ZYDIS_MNEMONIC_VMCLEAR, Op::vmclear},
    {ZYDIS_MNEMONIC_VMPTRLD, Op::vmptrld},
    {ZYDIS_MNEMONIC_VMPTRST, Op::vmptrst},
    {ZYDIS_MNEMONIC_VMREAD, Op::vmread},
    {ZYDIS_MNEMONIC_VMWRITE, Op::vmwrite},
    {ZYDIS_MNEMONIC_INVEPT, Op::invept},
    {ZYDIS_MNEMONIC_INVVPID, Op::invvpid},
    {ZYDIS_MNEMONIC_VMFUNC, Op::vmfunc},
    {ZYDIS_MNEMONIC_GETSEC, Op::getsec},
    {ZYDIS_MNEMONIC_VMRUN, Op::vmrun},
    {ZYDIS_MNEMONIC_VMLOAD, Op::vmload},
    {ZYDIS_MNEMONIC_VMSAVE, Op::vmsave},
    {ZYDIS_MNEMONIC_STGI, Op::stgi},
    {ZYDIS_MNEMONIC_CLGI, Op::clgi},
    {ZYDIS_MNEMONIC_SKINIT, Op::skinit},
    {ZYDIS_MNEMONIC_VMMCALL, Op::vmmcall},
    {ZYDIS_MNEMONIC_MOV, Op::mov},
    {ZYDIS_MNEMONIC_MOVNTI, Op::mov},
    {ZYDIS_MNEMONIC_MOVZX, Op::movzx},
    {ZYDIS_MNEMONIC_MOVSX, Op::movsx},
    {ZYDIS_MNEMONIC_MOVSXD, Op::movsx},
    {ZYDIS_MNEMONIC_STOSB, Op::stos},
    {ZYDIS_MNEMONIC_STOSW, Op::stos},
    {ZYDIS_MNEMONIC_STOSD, Op::stos},
    {ZYDIS_MNEMONIC_STOSQ, Op::stos},
    {ZYDIS_MNEMONIC_LODSB, Op::lods},
    {ZYDIS_MNEMONIC_LODSW, Op::lods},
    {ZYDIS_MNEMONIC_LODSD, Op::lods},
    {ZYDIS_MNEMONIC_LODSQ, Op::lods},
    {ZYDIS_MNEMONIC_MOVSB, Op::movs},
    {ZYDIS_MNEMONIC_MOVSW, Op::movs},
    {ZYDIS_MNEMONIC_MOVSD, Op::movs},
    {ZYDIS_MNEMONIC_MOVSQ, Op::movs},
    {ZYDIS_MNEMONIC_ADD, Op::add},
    {ZYDIS_MNEMONIC_OR, Op::bit_or},
    {ZYDIS_MNEMONIC_ADC, Op::adc},
    {ZYDIS_MNEMONIC_SBB, Op::sbb},
    {ZYDIS_MNEMONIC_AND, Op::bit_and},
    {ZYDIS_MNEMONIC_SUB, Op::sub},
    {ZYDIS_MNEMONIC_XOR, Op::bit_xor},
    {ZYDIS_MNEMONIC_CMP, Op::cmp},
    {ZYDIS_MNEMONIC_TEST, Op::test},
    {ZYDIS_MNEMONIC_NOT, Op::bit_not},
    {ZYDIS_MNEMONIC_NEG, Op::neg},
    {ZYDIS_MNEMONIC_INC, Op::inc},
    {ZYDIS_MNEMONIC_DEC, Op::dec},
    {ZYDIS_MNEMONIC_BT, Op::bt},
    {ZYDIS_MNEMONIC_BTS, Op::bts},
    {ZYDIS_MNEMONIC_BTR, Op::btr},
    {ZYDIS_MNEMONIC_BTC, Op::btc},
    {ZYDIS_MNEMONIC_XCHG, Op::xchg},
    {ZYDIS_MNEMONIC_CMPXCHG, Op::cmpxchg},
    {ZYDIS_MNEMONIC_CMPXCHG8B, Op::cmpxchg8b},
    {ZYDIS_MNEMONIC_CMPXCHG16B, Op::cmpxchg16b},
    {ZYDIS_MNEMONIC_XADD, Op::xadd},
};

constexpr auto kOps = [] {
  std::array<Op, ZYDIS_MNEMONIC_MAX_VALUE + 1> table{};
  for (const Name& name : kNames) {
    table[name.mnemonic] = name.op;
  }
  return table;
}();

// The prefixes, as the bytes before the opcode say. Of those that exclude each other the last
// counts; in 64-bit mode the segment overrides but FS and GS are ignored (SDM vol. 2, 2.1.1; vol.
// 1, 3.3.7.1).
void read_prefixes(const ZydisDecodedInstruction& z, CodeMode mode, Instruction& result) {
  const auto segment_is = [&](SegmentRegister segment) {
    if (mode != CodeMode::bits64 || segment == SegmentRegister::fs ||
        segment == SegmentRegister::gs) {
      result.segment = segment;
      result.flags |= Instruction::kSegmentOverride;
    }
  };
  for (unsigned i = 0; i < z.raw.prefix_count; ++i) {
    switch (z.raw.prefixes[i].value) {
      case 0x26:
        segment_is(SegmentRegister::es);
        break;
      case 0x2e:
        segment_is(SegmentRegister::cs);
        break;
      case 0x36:
        segment_is(SegmentRegister::ss);
        break;
      case 0x3e:
        segment_is(SegmentRegister::ds);
        break;
      case 0x64:
        segment_is(SegmentRegister::fs);
        break;
      case 0x65:
        segment_is(SegmentRegister::gs);
        break;
      case 0x66:
        result.flags |= Instruction::kOperandSizePrefix;
        break;
      case 0xf0:
        result.flags |= Instruction::kLock;
        break;
      case 0xf2:
        result.flags = static_cast<u8>((result.flags & ~Instruction::kRep) | Instruction::kRepne);
        break;
      case 0xf3:
        result.flags = static_cast<u8>((result.flags & ~Instruction::kRepne) | Instruction::kRep);
        break;
      default:
        break;
    }
  }
}

struct Rex {
  u8 r = 0, x = 0, b = 0;
  bool present = false;
};

Rex rex_of(const ZydisDecodedInstruction& z) {
  if (z.encoding != ZYDIS_INSTRUCTION_ENCODING_LEGACY ||
      (z.attributes & ZYDIS_ATTRIB_HAS_REX) == 0) {
    return {};
  }
  return {static_cast<u8>(z.raw.rex.R << 3), static_cast<u8>(z.raw.rex.X << 3),
          static_cast<u8>(z.raw.rex.B << 3), true};
}

// SDM vol. 2, tables 2-1 to 2-3.
void read_memory_operand(const ZydisDecodedInstruction& z, const Rex& rex, CodeMode mode,
                         Instruction& result) {
  constexpr auto rbx = static_cast<u8>(Gpr::rbx), rsp = static_cast<u8>(Gpr::rsp),
                 rbp = static_cast<u8>(Gpr::rbp), rsi = static_cast<u8>(Gpr::rsi),
                 rdi = static_cast<u8>(Gpr::rdi);
  const auto& modrm = z.raw.modrm;
  result.flags |= Instruction::kMemory;
  result.displacement = z.raw.disp.value;
  if (result.address_size == 2) {
    constexpr u8 bases[8] = {rbx, rbx, rbp, rbp, rsi, rdi, rbp, rbx};
    constexpr u8 indices[4] = {rsi, rdi, rsi, rdi};
    if (modrm.mod != 0 || modrm.rm != 6) {
      result.base = bases[modrm.rm];
      result.index = modrm.rm < 4 ? indices[modrm.rm] : kNoRegister;
    }
  } else if (modrm.rm == 4) {
    const auto& sib = z.raw.sib;
    if (modrm.mod != 0 || sib.base != 5) {
      result.base = static_cast<u8>(sib.base | rex.b);
    }
    const u8 index = static_cast<u8>(sib.index | rex.x);
    if (index != rsp) {
      result.index = index;
      result.scale = sib.scale;
    }
  } else if (modrm.mod == 0 && modrm.rm == 5) {
    result.base = mode == CodeMode::bits64 ? kRipRegister : kNoRegister;
  } else {
    result.base = static_cast<u8>(modrm.rm | rex.b);
  }
  if (!result.segment_override() && (result.base == rbp || result.base == rsp)) {
    result.segment = SegmentRegister::ss;
  }
}

constexpr bool is_control_or_debug_move(const ZydisDecodedInstruction& z) {
  return z.opcode_map == ZYDIS_OPCODE_MAP_0F && z.opcode >= 0x20 && z.opcode <= 0x23;
}

Op op_of(const ZydisDecodedInstruction& z) {
  const Op op = kOps[z.mnemonic];
  if (z.encoding != ZYDIS_INSTRUCTION_ENCODING_LEGACY) {
    return Op::other;
  }
  if (op == Op::mov) {
    if (is_control_or_debug_move(z)) {
      constexpr Op moves[4] = {Op::mov_from_cr, Op::mov_from_dr, Op::mov_to_cr, Op::mov_to_dr};
      return moves[z.opcode & 3];
    }
    if (z.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && (z.opcode == 0x8c || z.opcode == 0x8e)) {
      return z.opcode == 0x8c ? Op::mov_from_segment : Op::mov_to_segment;
    }
  }
  if (op == Op::movs && z.opcode_map != ZYDIS_OPCODE_MAP_DEFAULT) {
    return Op::other;  // SSE2's MOVSD
  }
  if (z.mnemonic == ZYDIS_MNEMONIC_POP && z.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT &&
      z.opcode == 0x17) {
    return Op::pop_ss;
  }
  return op;
}

// How the opcode names its operands, for opcodes whose Op is not `other`.
struct Shape {
  Form form;
  bool moffs = false;        // memory at an address in the instruction, with the accumulator
  bool accumulator = false;  // `rm` is AL, AX, EAX or RAX
  bool in_opcode = false;    // `rm` is in the opcode's low bits
};

Shape shape_of_primary(u8 opcode, u8 extension) {
  if (opcode < 0x40) {
    switch (opcode & 7) {
      case 0:
      case 1:
        return {Form::rm_reg};
      case 2:
      case 3:
        return {Form::reg_rm};
      case 4:
      case 5:
        return {.form = Form::rm_imm, .accumulator = true};
      default:
        return {Form::none};
    }
  }
  if (opcode < 0x50) {
    return {.form = Form::reg, .in_opcode = true};
  }
  if (opcode >= 0xb0 && opcode <= 0xbf) {
    return {.form = Form::rm_imm, .in_opcode = true};
  }
  if (opcode >= 0x90 && opcode <= 0x97) {
    return {.form = Form::rm_reg, .in_opcode = true};
  }
  switch (opcode) {
    case 0x63:
    case 0x8a:
    case 0x8b:
    case 0x8e:
      return {Form::reg_rm};
    case 0x80:
    case 0x81:
    case 0x82:
    case 0x83:
    case 0xc6:
    case 0xc7:
      return {Form::rm_imm};
    case 0x84:
    case 0x85:
    case 0x86:
    case 0x87:
    case 0x88:
    case 0x89:
    case 0x8c:
      return {Form::rm_reg};
    case 0xa0:
    case 0xa1:
      return {.form = Form::reg_rm, .moffs = true};
    case 0xa2:
    case 0xa3:
      return {.form = Form::rm_reg, .moffs = true};
    case 0xa8:
    case 0xa9:
      return {.form = Form::rm_imm, .accumulator = true};
    case 0xcd:
    case 0xe4:
    case 0xe5:
    case 0xe6:
    case 0xe7:
      return {Form::imm};
    case 0xf6:
    case 0xf7:
      return {extension < 2 ? Form::rm_imm : Form::rm};
    case 0xfe:
    case 0xff:
      return {Form::rm};
    default:
      return {Form::none};
  }
}

Shape shape_of_0f(u8 opcode) {
  switch (opcode) {
    case 0x00:
    case 0x01:
    case 0xae:
    case 0xc7:
      return {Form::rm};
    case 0x20:
    case 0x21:
    case 0x78:
    case 0xa3:
    case 0xab:
    case 0xb0:
    case 0xb1:
    case 0xb3:
    case 0xbb:
    case 0xc0:
    case 0xc1:
    case 0xc3:
      return {Form::rm_reg};
    case 0x22:
    case 0x23:
    case 0x79:
    case 0xb6:
    case 0xb7:
    case 0xbe:
    case 0xbf:
    case 0xb9:
    case 0xff:
      return {Form::reg_rm};
    case 0xba:
      return {Form::rm_imm};
    default:
      return {Form::none};
  }
}

Shape shape_of(const ZydisDecodedInstruction& z) {
  switch (z.opcode_map) {
    case ZYDIS_OPCODE_MAP_DEFAULT:
      return shape_of_primary(z.opcode, z.raw.modrm.reg);
    case ZYDIS_OPCODE_MAP_0F:
      return shape_of_0f(z.opcode);
    case ZYDIS_OPCODE_MAP_0F38:
      return {Form::reg_rm};  // INVEPT, INVVPID, INVPCID
    default:
      return {Form::none};
  }
}

// Opcodes whose low bit chooses between a byte and the operand size (SDM vol. 2, B.1.4.2 "w bit").
bool is_byte_operation(const ZydisDecodedInstruction& z) {
  if (z.opcode_map == ZYDIS_OPCODE_MAP_0F) {
    return z.opcode == 0xb0 || z.opcode == 0xc0;
  }
  if (z.opcode_map != ZYDIS_OPCODE_MAP_DEFAULT) {
    return false;
  }
  const u8 opcode = z.opcode;
  if (opcode < 0x40) {
    return (opcode & 5) == 0 || (opcode & 7) == 4;
  }
  if (opcode >= 0xb0 && opcode <= 0xbf) {
    return opcode < 0xb8;
  }
  switch (opcode) {
    case 0x6c:
    case 0x6e:
    case 0x80:
    case 0x82:
    case 0x84:
    case 0x86:
    case 0x88:
    case 0x8a:
    case 0xa0:
    case 0xa2:
    case 0xa4:
    case 0xa8:
    case 0xaa:
    case 0xac:
    case 0xc6:
    case 0xe4:
    case 0xe6:
    case 0xec:
    case 0xee:
    case 0xf6:
    case 0xfe:
      return true;
    default:
      return false;
  }
}

u8 operand_size_of(const ZydisDecodedInstruction& z, Op op, CodeMode mode) {
  const u8 native = mode == CodeMode::bits64 ? 8 : 4;
  const u8 size = static_cast<u8>(z.operand_width / 8);
  if (z.mnemonic == ZYDIS_MNEMONIC_MOVNTI) {
    return size == 8 ? u8{8} : u8{4};  // there is no 16-bit form, not even in 16-bit code
  }
  switch (op) {
    // These don't look at the operand-size prefix.
    case Op::mov_to_cr:
    case Op::mov_from_cr:
    case Op::mov_to_dr:
    case Op::mov_from_dr:
    case Op::vmread:
    case Op::vmwrite:
    case Op::invept:
    case Op::invvpid:
    case Op::invpcid:
      return native;
    case Op::vmxon:
    case Op::vmclear:
    case Op::vmptrld:
    case Op::vmptrst:
    case Op::cmpxchg8b:
      return 8;
    case Op::cmpxchg16b:
      return 16;
    case Op::lmsw:
    case Op::lldt:
    case Op::ltr:
    case Op::mov_to_segment:
      return 2;
    // To memory, these write a selector or the low half of CR0: two bytes.
    case Op::smsw:
    case Op::sldt:
    case Op::str:
    case Op::mov_from_segment:
      return z.raw.modrm.mod == 3 ? size : u8{2};
    case Op::lgdt:
    case Op::lidt:
    case Op::sgdt:
    case Op::sidt:
      return mode == CodeMode::bits64 ? u8{8} : size;
    case Op::in:
    case Op::out:
    case Op::ins:
    case Op::outs:
      return is_byte_operation(z) ? u8{1} : size > 4 ? u8{4} : size;
    default:
      return is_byte_operation(z) ? u8{1} : size;
  }
}

// Without a REX prefix, byte registers 4-7 are AH, CH, DH, BH.
u8 register_number(unsigned number, unsigned size, bool rex) {
  const bool high = size == 1 && !rex && number >= 4 && number < 8;
  return static_cast<u8>(high ? kHighByteRegister + number - 4 : number);
}

SimpleAccess simple_access_of(const Instruction& i) {
  if (!i.has_memory()) {
    return SimpleAccess::none;
  }
  // A load that replaces the whole register (bits 63:32 of it are cleared).
  if ((i.op == Op::mov || i.op == Op::movzx) && i.form == Form::reg_rm && i.operand_size >= 4) {
    return SimpleAccess::load;
  }
  if (i.op == Op::mov && i.form == Form::rm_reg && i.reg < kHighByteRegister) {
    return SimpleAccess::store_register;
  }
  if (i.op == Op::mov && i.form == Form::rm_imm) {
    return SimpleAccess::store_immediate;
  }
  return SimpleAccess::none;
}

void translate(const ZydisDecodedInstruction& z, CodeMode mode, Instruction& result) {
  const Rex rex = rex_of(z);
  result = {};
  result.op = op_of(z);
  result.length = z.length;
  result.address_size = static_cast<u8>(z.address_width / 8);
  result.operand_size = operand_size_of(z, result.op, mode);
  result.source_size = result.operand_size;
  result.segment = SegmentRegister::ds;
  result.reg = result.rm = result.base = result.index = kNoRegister;
  read_prefixes(z, mode, result);
  if (z.raw.imm[0].size != 0) {
    const auto& value = z.raw.imm[0].value;
    result.immediate = z.raw.imm[0].is_signed ? value.s : static_cast<i64>(value.u);
  }

  const bool legacy = z.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY;
  const bool has_modrm = legacy && (z.attributes & ZYDIS_ATTRIB_HAS_MODRM) != 0;
  // MOV to and from control and debug registers takes every `mod` for 3.
  const bool memory = has_modrm && z.raw.modrm.mod != 3 && !is_control_or_debug_move(z);
  if (memory) {
    read_memory_operand(z, rex, mode, result);
  }
  if (result.op == Op::other) {
    return;
  }

  const Shape shape = shape_of(z);
  result.form = shape.form;
  if (result.op == Op::wbinvd && result.rep()) {
    result.op = Op::wbnoinvd;  // Zydis 4.0 knows only the form without F3
  }
  // 0F 01 with a register operand is mostly a further opcode (VMCALL, STGI, …).
  if (z.opcode_map == ZYDIS_OPCODE_MAP_0F && z.opcode == 0x01 && !memory && result.op != Op::smsw &&
      result.op != Op::lmsw) {
    result.form = Form::none;
    return;
  }
  if (result.op == Op::movzx || result.op == Op::movsx) {
    const bool movsxd = z.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT;
    const u8 of_movsxd = result.operand_size == 2 ? 2 : 4;
    result.source_size = movsxd ? of_movsxd : (z.opcode & 1) != 0 ? u8{2} : u8{1};
  }
  if (shape.moffs) {
    result.flags |= Instruction::kMemory;
    result.displacement = z.raw.disp.value;
    result.reg = static_cast<u8>(Gpr::rax);
  } else if (shape.in_opcode) {
    result.rm = register_number((z.opcode & 7) | rex.b, result.operand_size, rex.present);
    if (shape.form == Form::rm_reg) {
      result.reg = static_cast<u8>(Gpr::rax);  // XCHG
    }
  } else if (shape.accumulator) {
    result.rm = static_cast<u8>(Gpr::rax);
  } else if (has_modrm) {
    // Segment, control and debug registers are never the byte registers 4-7: their operand is
    // wider.
    result.reg = register_number(z.raw.modrm.reg | rex.r, result.operand_size, rex.present);
    if (result.op == Op::mov_to_segment || result.op == Op::mov_from_segment) {
      result.reg = z.raw.modrm.reg;  // REX.R is ignored for segment registers
    }
    if (!memory) {
      result.rm = register_number(z.raw.modrm.rm | rex.b, result.source_size, rex.present);
    }
  }
  result.simple = simple_access_of(result);
}

}  // namespace

DecodeStatus decode_instruction(CodeMode mode, std::span<const u8> bytes, Instruction& result) {
  if (bytes.empty()) {
    return DecodeStatus::incomplete;
  }
  ZydisDecoder decoder;
  switch (mode) {
    case CodeMode::bits64:
      ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
      break;
    case CodeMode::bits32:
      ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LEGACY_32, ZYDIS_STACK_WIDTH_32);
      break;
    case CodeMode::bits16:
      ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LEGACY_16, ZYDIS_STACK_WIDTH_16);
      break;
  }
  ZydisDecoderEnableMode(&decoder, ZYDIS_DECODER_MODE_MINIMAL, ZYAN_TRUE);

  ZydisDecodedInstruction z;
  const usize available = std::min(bytes.size(), usize{kMaxInstructionLength});
  const ZyanStatus status =
      ZydisDecoderDecodeInstruction(&decoder, nullptr, bytes.data(), available, &z);
  if (ZYAN_SUCCESS(status)) {
    translate(z, mode, result);
    return DecodeStatus::ok;
  }
  if (status == ZYDIS_STATUS_NO_MORE_DATA) {
    return bytes.size() < kMaxInstructionLength ? DecodeStatus::incomplete : DecodeStatus::too_long;
  }
  return status == ZYDIS_STATUS_INSTRUCTION_TOO_LONG ? DecodeStatus::too_long
                                                     : DecodeStatus::invalid;
}

}  // namespace aerie::cpu
