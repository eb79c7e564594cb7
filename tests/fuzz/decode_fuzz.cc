// Any bytes in any mode: the decoder agrees with Zydis' own operand decoding, the cache agrees with
// the decoder, and the emulator changes nothing when it does not complete.
//
// Input: a byte of mode and choices, a byte that biases the opcode towards what Aerie names, code.
#include <Zydis/Decoder.h>
#include <Zydis/Register.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/decode/decode_cache.h"
#include "cpu/emulate/emulator.h"
#include "cpu/emulate/simple_mmio.h"
#include "tests/unit/cpu/emulated_memory.h"

namespace aerie::cpu {
namespace {

#define FUZZ_CHECK(condition)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      for (const u8 b : current) std::fprintf(stderr, "%02x ", b);         \
      std::fprintf(stderr, "(mode %d)\n", static_cast<int>(current_mode)); \
      std::abort();                                                        \
    }                                                                      \
  } while (false)

std::span<const u8> current;
CodeMode current_mode;

ZydisDecoder zydis_for(CodeMode mode) {
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
  return decoder;
}

u8 register_of(ZydisRegister name) {
  if (name == ZYDIS_REGISTER_NONE) {
    return kNoRegister;
  }
  if (name == ZYDIS_REGISTER_RIP || name == ZYDIS_REGISTER_EIP) {
    return kRipRegister;
  }
  if (name >= ZYDIS_REGISTER_AH && name <= ZYDIS_REGISTER_BH) {
    return static_cast<u8>(kHighByteRegister + (name - ZYDIS_REGISTER_AH));
  }
  // Zydis numbers the byte registers with AH..BH in between; its id of SPL is then 8.
  const ZyanI8 id = ZydisRegisterGetId(name);
  return static_cast<u8>(ZydisRegisterGetClass(name) == ZYDIS_REGCLASS_GPR8 && id >= 4 ? id - 4
                                                                                       : id);
}

SegmentRegister segment_of(ZydisRegister name) {
  switch (name) {
    case ZYDIS_REGISTER_ES:
      return SegmentRegister::es;
    case ZYDIS_REGISTER_CS:
      return SegmentRegister::cs;
    case ZYDIS_REGISTER_SS:
      return SegmentRegister::ss;
    case ZYDIS_REGISTER_FS:
      return SegmentRegister::fs;
    case ZYDIS_REGISTER_GS:
      return SegmentRegister::gs;
    default:
      return SegmentRegister::ds;
  }
}

void compare_operands(const Instruction& i, std::span<const u8> code, CodeMode mode) {
  const ZydisDecoder decoder = zydis_for(mode);
  ZydisDecodedInstruction z;
  ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
  FUZZ_CHECK(
      ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, code.data(), code.size(), &z, operands)));
  FUZZ_CHECK(z.length == i.length);
  if (i.op == Op::other) {
    return;
  }
  const u64 address_mask = ~u64{0} >> (64 - 8 * i.address_size);
  bool memory_seen = false;
  for (unsigned n = 0; n < z.operand_count_visible; ++n) {
    const ZydisDecodedOperand& o = operands[n];
    if (o.type == ZYDIS_OPERAND_TYPE_MEMORY && o.visibility == ZYDIS_OPERAND_VISIBILITY_EXPLICIT &&
        i.form != Form::none) {
      memory_seen = true;
      FUZZ_CHECK(register_of(o.mem.base) == i.base);
      FUZZ_CHECK(register_of(o.mem.index) == i.index);
      FUZZ_CHECK(o.mem.index == ZYDIS_REGISTER_NONE || o.mem.scale == 1u << i.scale);
      FUZZ_CHECK((static_cast<u64>(o.mem.disp.value) & address_mask) ==
                 (static_cast<u64>(i.displacement) & address_mask));
      FUZZ_CHECK(segment_of(o.mem.segment) == i.segment);
      // Descriptors have sizes of their own; of MOVSXD with a 16-bit operand Zydis reads four
      // bytes, SDM vol. 2 (MOVSX/MOVSXD) two.
      FUZZ_CHECK(i.op == Op::invlpg || i.op == Op::lgdt || i.op == Op::lidt || i.op == Op::sgdt ||
                 i.op == Op::sidt || i.op == Op::invept || i.op == Op::invvpid ||
                 i.op == Op::invpcid || i.op == Op::xsaves || i.op == Op::xrstors ||
                 i.op == Op::ud0 || i.op == Op::ud1 || (i.op == Op::movsx && i.operand_size == 2) ||
                 o.size == 8u * i.source_size || o.size == 8u * i.operand_size);
    } else if (o.type == ZYDIS_OPERAND_TYPE_IMMEDIATE && i.form != Form::none) {
      const unsigned size = std::min<unsigned>(i.operand_size, 8);
      FUZZ_CHECK(((o.imm.value.u ^ static_cast<u64>(i.immediate)) & size_mask(size)) == 0);
    } else if (o.type == ZYDIS_OPERAND_TYPE_REGISTER &&
               ZydisRegisterGetClass(o.reg.value) >= ZYDIS_REGCLASS_GPR8 &&
               ZydisRegisterGetClass(o.reg.value) <= ZYDIS_REGCLASS_GPR64) {
      const u8 number = register_of(o.reg.value);
      switch (i.form) {
        case Form::rm_reg:
          FUZZ_CHECK(number == (n == 0 ? i.rm : i.reg) || i.op == Op::xchg);
          break;
        case Form::reg_rm:
          FUZZ_CHECK(number == (n == 0 ? i.reg : i.rm));
          break;
        case Form::rm:
        case Form::reg:
        case Form::rm_imm:
          FUZZ_CHECK(n != 0 || number == i.rm);
          break;
        default:
          break;
      }
    }
  }
  FUZZ_CHECK(memory_seen == i.has_memory() || i.form == Form::none);
}

void try_emulation(const Instruction& i, CodeMode mode, std::span<const u8> seed) {
  EmulatedMemory memory;
  memory.base = 0x1000;
  memory.bytes.assign(0x1000, 0);
  for (usize at = 0; at < memory.bytes.size() && !seed.empty(); ++at) {
    memory.bytes[at] = seed[at % seed.size()];
  }
  for (unsigned s = 0; s < 6; ++s) {
    memory.segments[static_cast<SegmentRegister>(s)] = {
        .selector = 8, .attributes = 0xc93, .limit = ~0u, .base = 0};
  }
  GuestRegisters registers{};
  for (unsigned r = 0; r < 16; ++r) {
    registers.gpr[r] = 0x1000 + (seed.empty() ? 0 : u64{seed[r % seed.size()]} * 13 % 0xf00);
  }
  memory.fail_at = seed.empty() ? 0 : seed.back() % 16 - 8;
  const GuestRegisters registers_before = registers;
  const std::vector<u8> memory_before = memory.bytes;
  EmulatedState state{
      .registers = registers, .rip = 0x2000, .rflags = rflags::fixed, .mode = {.code = mode}};
  const EmulationResult result = emulate(memory, state, i);
  if (result.outcome == Emulated::done) {
    FUZZ_CHECK(state.rip == 0x2000u + i.length);
    return;
  }
  FUZZ_CHECK(state.rip == 0x2000 && state.rflags == rflags::fixed);
  FUZZ_CHECK(result.outcome != Emulated::fault || result.fault.event.valid);
  if (!i.repeated()) {
    FUZZ_CHECK(std::memcmp(&registers_before, &registers, sizeof registers) == 0);
    FUZZ_CHECK(memory_before == memory.bytes);
  }
}

// Opcodes that random bytes seldom hit.
constexpr u8 kStarts[][4] = {{0x0f, 0x01}, {0x0f, 0xc7},       {0x66, 0x0f, 0x38, 0x80},
                             {0x0f, 0x00}, {0x0f, 0x22},       {0x0f, 0xba},
                             {0x0f, 0xb6}, {0x66, 0x0f, 0xc7}, {0xf3, 0x0f, 0xc7},
                             {0x0f, 0xb1}, {0x0f, 0x78},       {0x48, 0x89},
                             {0x67, 0x8b}, {0x65, 0x48, 0x8b}, {0xf0, 0x0f, 0xc1}};

void run(std::span<const u8> input) {
  if (input.size() < 3) {
    return;
  }
  const auto mode = static_cast<CodeMode>(input[0] % 3);
  std::vector<u8> code;
  if (input[1] < 2 * std::size(kStarts)) {
    for (const u8 b : kStarts[input[1] / 2]) {
      if (b != 0 || code.size() == 1) {
        code.push_back(b);
      }
    }
  }
  code.insert(code.end(), input.begin() + 2, input.end());
  current = code;
  current_mode = mode;

  Instruction i{};
  const DecodeStatus status = decode_instruction(mode, code, i);
  static DecodeCache cache;
  const u64 rip = 0x1000 + input[1];
  const auto cached = cache.lookup(rip, mode, [&](u64 linear) {
    const usize offset = linear - rip;
    return std::span<const u8>{code}.subspan(std::min(offset, code.size()));
  });
  FUZZ_CHECK(cached.status == status);
  if (status != DecodeStatus::ok) {
    return;
  }
  FUZZ_CHECK(std::memcmp(cached.instruction, &i, sizeof i) == 0);
  FUZZ_CHECK(i.length >= 1 && i.length <= kMaxInstructionLength && i.length <= code.size());
  // The bytes after an instruction have no say.
  Instruction alone{};
  FUZZ_CHECK(decode_instruction(mode, std::span{code}.first(i.length), alone) == DecodeStatus::ok);
  FUZZ_CHECK(std::memcmp(&alone, &i, sizeof i) == 0);
  FUZZ_CHECK(i.reg < 20 || i.reg == kNoRegister);
  FUZZ_CHECK(i.rm < 20 || i.rm == kNoRegister);
  FUZZ_CHECK(i.base < 16 || i.base == kNoRegister || i.base == kRipRegister);
  FUZZ_CHECK(i.index < 16 || i.index == kNoRegister);
  compare_operands(i, code, mode);
  try_emulation(i, mode, input);
}

}  // namespace
}  // namespace aerie::cpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  aerie::cpu::run({data, size});
  return 0;
}
