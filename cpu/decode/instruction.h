// A decoded instruction: 32 bytes that say what exit handlers and the emulator need to know of it.
// Made by decode_instruction() (decoder.h), kept by DecodeCache (decode_cache.h).
#pragma once

#include "base/types.h"
#include "cpu/arch/registers.h"
#include "cpu/arch/segment.h"

namespace aerie::cpu {

// How CS makes the processor read its bytes: CS.L (in IA-32e mode) and CS.D. SDM vol. 3, 3.4.5.
enum class CodeMode : u8 { bits16, bits32, bits64 };

constexpr CodeMode code_mode(const Segment& cs, u64 efer) {
  if ((efer & efer::lma) != 0 && cs.long_mode()) {
    return CodeMode::bits64;
  }
  return cs.default_big() ? CodeMode::bits32 : CodeMode::bits16;
}

enum class Op : u8 {
  other,  // decoded, of no interest by name: its length and its memory operand are still right
  // Exits
  cpuid,
  hlt,
  rdmsr,
  wrmsr,
  rdtsc,
  rdtscp,
  rdpmc,
  rdpru,
  rdpid,
  rdrand,
  rdseed,
  invd,
  wbinvd,
  wbnoinvd,
  invlpg,
  invlpga,
  invpcid,
  pause,
  monitor,
  mwait,
  monitorx,
  mwaitx,
  umonitor,
  umwait,
  tpause,
  xsetbv,
  xgetbv,
  xsaves,
  xrstors,
  swapgs,
  encls,
  pconfig,
  rsm,
  in,
  out,
  ins,
  outs,
  mov_to_cr,
  mov_from_cr,
  mov_to_dr,
  mov_from_dr,
  clts,
  lmsw,
  smsw,
  lgdt,
  lidt,
  sgdt,
  sidt,
  lldt,
  ltr,
  sldt,
  str,
  int3,
  into,
  int_n,
  icebp,
  iret,
  pushf,
  popf,
  sti,
  cli,
  ud0,
  ud1,
  ud2,
  // VMX and SMX
  vmcall,
  vmlaunch,
  vmresume,
  vmxoff,
  vmxon,
  vmclear,
  vmptrld,
  vmptrst,
  vmread,
  vmwrite,
  invept,
  invvpid,
  vmfunc,
  getsec,
  // SVM
  vmrun,
  vmload,
  vmsave,
  stgi,
  clgi,
  skinit,
  vmmcall,
  // Data movement and arithmetic, what cpu/emulate executes
  mov,
  movzx,
  movsx,  // movsx: MOVSXD too
  mov_to_segment,
  mov_from_segment,
  pop_ss,
  stos,
  lods,
  movs,
  add,
  bit_or,
  adc,
  sbb,
  bit_and,
  sub,
  bit_xor,
  cmp,
  test,
  bit_not,
  neg,
  inc,
  dec,
  bt,
  bts,
  btr,
  btc,
  xchg,
  cmpxchg,
  cmpxchg8b,
  cmpxchg16b,
  xadd,
  count
};

// Where the operands are. "rm" is the ModRM r/m operand: memory if has_memory(), else register
// `rm`. The destination comes first.
enum class Form : u8 {
  none,    // no operand, or implied ones only (string instructions too)
  rm,      // one operand: NOT, INVLPG, VMPTRLD, …
  reg,     // register `rm` named by the opcode: INC of 32-bit modes
  rm_reg,  // MOV r/m, r; VMREAD; MOV from CR (`reg` = control register number)
  reg_rm,  // MOV r, r/m; VMWRITE; INVEPT; MOV to CR
  rm_imm,
  imm,  // INT n, IN and OUT with a port number
};

// What a MOV does that touches one location of memory and no flag: the whole of an access to an
// APIC register, in the form that emulate_simple_mmio() takes.
enum class SimpleAccess : u8 { none, load, store_register, store_immediate };

// Registers in `reg`, `rm`, `base` and `index`: 0-15 as Gpr; 16-19 are AH, CH, DH, BH.
inline constexpr u8 kHighByteRegister = 16;
inline constexpr u8 kNoRegister = 0xff;
inline constexpr u8 kRipRegister = 0xfe;  // as `base`

struct Instruction {
  Op op;
  u8 length;
  u8 operand_size;  // bytes: 1, 2, 4, 8, 16
  u8 source_size;   // bytes of the source of MOVZX and MOVSX; else operand_size
  u8 address_size;  // bytes: 2, 4, 8
  Form form;
  u8 reg;    // ModRM.reg with REX.R: a general, control, debug or segment register's number
  u8 rm;     // register operand of ModRM.rm or of the opcode; kNoRegister with memory
  u8 base;   // of the memory operand: register, kRipRegister or kNoRegister
  u8 index;  // register or kNoRegister
  u8 scale;  // shift count, 0-3
  SegmentRegister segment;  // of the memory operand, or a string's source; override applied
  u8 flags;                 // see below
  SimpleAccess simple;
  u8 bits_reserved[2];
  i64 immediate;     // sign-extended as the instruction has it
  i64 displacement;  // sign-extended; the whole address for the moffs forms of MOV

  enum Flag : u8 {
    kLock = 1 << 0,
    kRep = 1 << 1,              // F3
    kRepne = 1 << 2,            // F2
    kMemory = 1 << 3,           // the r/m operand (or moffs) is in memory
    kSegmentOverride = 1 << 4,  // `segment` comes from a prefix
    kOperandSizePrefix = 1 << 5,
  };
  constexpr bool lock() const { return (flags & kLock) != 0; }
  constexpr bool rep() const { return (flags & kRep) != 0; }
  constexpr bool repne() const { return (flags & kRepne) != 0; }
  constexpr bool repeated() const { return (flags & (kRep | kRepne)) != 0; }
  constexpr bool has_memory() const { return (flags & kMemory) != 0; }
  constexpr bool segment_override() const { return (flags & kSegmentOverride) != 0; }
};
static_assert(sizeof(Instruction) == 32);

// RIP after the instruction. EIP wraps at 4 GiB outside 64-bit mode.
constexpr u64 next_rip(const Instruction& instruction, u64 rip, CodeMode mode) {
  const u64 next = rip + instruction.length;
  return mode == CodeMode::bits64 ? next : static_cast<u32>(next);
}

// A register's value, cut to `size` bytes; high-byte registers as kHighByteRegister says.
constexpr u64 read_register(const GuestRegisters& registers, u8 number, unsigned size) {
  if (number >= kHighByteRegister) {
    return (registers.gpr[number - kHighByteRegister] >> 8) & 0xff;
  }
  return registers.gpr[number] & (~u64{0} >> (64 - 8 * size));
}

// Writes a register as an instruction of that operand size does: 32-bit results clear bits 63:32,
// smaller ones keep the rest (SDM vol. 1, 3.4.1.1).
constexpr void write_register(GuestRegisters& registers, u8 number, unsigned size, u64 value) {
  if (number >= kHighByteRegister) {
    u64& r = registers.gpr[number - kHighByteRegister];
    r = (r & ~u64{0xff00}) | ((value & 0xff) << 8);
    return;
  }
  u64& r = registers.gpr[number];
  switch (size) {
    case 1:
      r = (r & ~u64{0xff}) | (value & 0xff);
      break;
    case 2:
      r = (r & ~u64{0xffff}) | (value & 0xffff);
      break;
    case 4:
      r = static_cast<u32>(value);
      break;
    default:
      r = value;
      break;
  }
}

}  // namespace aerie::cpu
