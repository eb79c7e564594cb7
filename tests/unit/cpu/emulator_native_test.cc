// The emulator against the processor the test runs on: the same instruction on the same random
// registers, flags and memory must leave the same behind.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

#include "cpu/decode/decoder.h"
#include "cpu/emulate/emulator.h"
#include "tests/unit/cpu/code_bytes.h"
#include "tests/unit/cpu/emulated_memory.h"
#include "tests/unit/cpu/native.h"

namespace aerie::cpu {
namespace {

constexpr u64 kAll = rflags::arithmetic;
constexpr u64 kNoAf = rflags::arithmetic & ~rflags::af;  // AF undefined after AND, OR, XOR, TEST
constexpr u64 kZfCf = rflags::cf | rflags::zf;  // BT family: the others undefined, ZF unaffected

struct Case {
  std::string code;
  u64 defined_flags;
  bool is_string = false;
};

std::string hex(std::initializer_list<unsigned> values) {
  std::string text;
  for (const unsigned value : values) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x ", value);
    text += digits;
  }
  return text;
}

// Every opcode with a memory operand at [rdi + 0x10] or [rdi], in all widths, with several
// registers.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  // Prefixes for 16, 32 and 64 bits, without and with an extended register.
  const std::string widths[] = {"66 ", "", "48 ", "66 44 ", "44 ", "4c "};
  const std::string byte_widths[] = {"", "40 ", "44 "};
  // ModRM with [rdi + disp8]; `reg` avoids 4 (RSP) and 7 (RDI) where it names a register without
  // REX.R.
  const auto memory = [](unsigned reg) { return hex({0x40 | (reg << 3) | 7, 0x10}); };
  const auto with_registers = [&](const std::string& opcode, bool byte, u64 flags,
                                  std::string_view lock = "") {
    for (const std::string& prefix :
         byte ? std::vector<std::string>(std::begin(byte_widths), std::end(byte_widths))
              : std::vector<std::string>(std::begin(widths), std::end(widths))) {
      const bool extended =
          prefix.find('4') != std::string::npos && prefix != "40 " && prefix != "48 ";
      for (unsigned reg = 0; reg < 8; ++reg) {
        const bool high_byte = byte && prefix.empty() && reg >= 4;
        if (!extended && !high_byte && (reg == 4 || reg == 7)) {
          continue;
        }
        cases.push_back({std::string{lock} + prefix + opcode + memory(reg), flags});
      }
    }
  };
  const auto with_extension = [&](const std::string& opcode, unsigned extension, bool byte,
                                  const std::string& tail, u64 flags, std::string_view lock = "") {
    for (const std::string& prefix :
         byte ? std::vector<std::string>{""} : std::vector<std::string>{"66 ", "", "48 "}) {
      // A 16-bit operand has a 16-bit immediate.
      const bool cut = prefix == "66 " && tail.size() > 6;
      cases.push_back({std::string{lock} + prefix + opcode + memory(extension) +
                           (cut ? tail.substr(0, 6) : tail),
                       flags});
    }
  };

  for (unsigned op = 0; op < 8; ++op) {  // ADD OR ADC SBB AND SUB XOR CMP
    const u64 flags = op == 1 || op == 4 || op == 6 ? kNoAf : kAll;
    for (const std::string lock : {"", "f0 "}) {
      if (lock.empty() || op != 7) {
        with_registers(hex({op * 8}), true, flags, lock);
        with_registers(hex({op * 8 + 1}), false, flags, lock);
        with_extension("80 ", op, true, "9c", flags, lock);
        with_extension("81 ", op, false, "78 96 34 f2 ", flags, lock);
        with_extension("83 ", op, false, "fd", flags, lock);
      }
    }
    with_registers(hex({op * 8 + 2}), true, flags);
    with_registers(hex({op * 8 + 3}), false, flags);
  }
  with_registers("84 ", true, kNoAf);  // TEST
  with_registers("85 ", false, kNoAf);
  with_extension("f6 ", 0, true, "5a", kNoAf);
  with_extension("f7 ", 0, false, "5a 5a 5a 9a ", kNoAf);
  for (const std::string lock : {"", "f0 "}) {
    for (const unsigned extension : {2u, 3u}) {  // NOT, NEG
      with_extension("f6 ", extension, true, "", kAll, lock);
      with_extension("f7 ", extension, false, "", kAll, lock);
    }
    for (const unsigned extension : {0u, 1u}) {  // INC, DEC
      with_extension("fe ", extension, true, "", kAll, lock);
      with_extension("ff ", extension, false, "", kAll, lock);
    }
    for (const unsigned op : {0xabu, 0xb3u, 0xbbu}) {  // BTS, BTR, BTC
      with_registers(hex({0x0f, op}), false, kZfCf, lock);
    }
    for (const unsigned extension : {5u, 6u, 7u}) {
      with_extension("0f ba ", extension, false, "2d", kZfCf, lock);
    }
    with_registers("0f b0 ", true, kAll, lock);  // CMPXCHG
    with_registers("0f b1 ", false, kAll, lock);
    with_registers("0f c0 ", true, kAll, lock);  // XADD
    with_registers("0f c1 ", false, kAll, lock);
    with_registers("86 ", true, kAll, lock);  // XCHG
    with_registers("87 ", false, kAll, lock);
    cases.push_back({lock + "0f c7 4f 10", kAll});     // CMPXCHG8B
    cases.push_back({lock + "48 0f c7 4f 10", kAll});  // CMPXCHG16B
  }
  with_registers("0f a3 ", false, kZfCf);  // BT
  with_extension("0f ba ", 4, false, "35", kZfCf);
  with_registers("88 ", true, kAll);  // MOV
  with_registers("89 ", false, kAll);
  with_registers("8a ", true, kAll);
  with_registers("8b ", false, kAll);
  with_extension("c6 ", 0, true, "77", kAll);
  with_extension("c7 ", 0, false, "12 34 56 87 ", kAll);
  for (const unsigned op : {0xb6u, 0xb7u, 0xbeu, 0xbfu}) {  // MOVZX, MOVSX
    with_registers(hex({0x0f, op}), false, kAll);
  }
  with_registers("63 ", false, kAll);     // MOVSXD
  with_registers("0f c3 ", false, kAll);  // MOVNTI (66 makes it invalid: skipped by the decoder)
  for (const char* prefix : {"", "f3 ", "f2 "}) {
    for (const unsigned op : {0xa4u, 0xaau, 0xacu}) {  // MOVS, STOS, LODS
      for (const char* width : {"66 ", "", "48 "}) {
        cases.push_back({prefix + std::string{width} + hex({op + 1}), kAll, true});
      }
      cases.push_back({prefix + hex({op}), kAll, true});
    }
  }
  return cases;
}

constexpr usize kMemory = 512;

class Comparison {
 public:
  explicit Comparison(u64 seed) : random_{seed} {}

  u64 value() {
    constexpr u64 corners[] = {
        0,
        1,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x7fffffff,
        0x80000000,
        0xffffffff,
        0x7fffffffffffffff,
        0x8000000000000000,
        ~u64{0},
    };
    return random_() % 3 == 0 ? corners[random_() % std::size(corners)] : random_();
  }

  // Registers, flags and memory at random, then both ways.
  void run(const Case& test, const std::vector<u8>& code, const Instruction& i, int round) {
    alignas(16) u8 native_memory[kMemory];
    EmulatedMemory memory;
    memory.base = reinterpret_cast<u64>(native_memory);
    memory.bytes.resize(kMemory);
    for (usize at = 0; at < kMemory; at += 8) {
      const u64 word = value();
      std::memcpy(&memory.bytes[at], &word, 8);
    }

    NativeState native{};
    for (u64& r : native.registers.gpr) {
      r = value();
    }
    native.registers[Gpr::rdi] = memory.base + 128;
    native.rflags = random_() & (rflags::arithmetic | (test.is_string ? rflags::df : 0));
    if (test.is_string) {
      native.registers[Gpr::rsi] = memory.base + 200 + random_() % 64;
      native.registers[Gpr::rdi] = memory.base + 200 + random_() % 64;
      native.registers[Gpr::rcx] = i.repeated() ? random_() % 12 : value();
    }
    if (i.form == Form::rm_reg &&
        (i.op == Op::bt || i.op == Op::bts || i.op == Op::btr || i.op == Op::btc)) {
      // Bit offsets that stay within the memory there is. 16 bits wide, those are all of +-32768
      // bits.
      native.registers.gpr[i.reg] = static_cast<u64>(static_cast<i64>(random_() % 2000) - 1000);
      if (i.operand_size == 4) {
        native.registers.gpr[i.reg] ^= value() << 32;
      } else if (i.operand_size == 2) {
        native.registers.gpr[i.reg] ^= value() << 16;
      }
    }
    if (i.op == Op::cmpxchg && round % 2 == 0) {
      std::memcpy(&native.registers[Gpr::rax], &memory.bytes[144], 8);
    }
    if ((i.op == Op::cmpxchg8b || i.op == Op::cmpxchg16b) && round % 2 == 0) {
      const usize half = i.op == Op::cmpxchg8b ? 4 : 8;
      std::memcpy(&native.registers[Gpr::rax], &memory.bytes[144], half);
      std::memcpy(&native.registers[Gpr::rdx], &memory.bytes[144 + half], half);
    }
    std::memcpy(native_memory, memory.bytes.data(), kMemory);

    GuestRegisters registers = native.registers;
    EmulatedState state{
        .registers = registers, .rip = 0x1000, .rflags = native.rflags | rflags::fixed, .mode = {}};
    const u64 flags_before = state.rflags;
    const EmulationResult result = emulate(memory, state, i);
    ASSERT_EQ(result.outcome, Emulated::done);
    EXPECT_EQ(state.rip, 0x1000 + code.size());

    ASSERT_TRUE(run_natively(code, native));
    EXPECT_EQ(std::memcmp(memory.bytes.data(), native_memory, kMemory), 0);
    for (unsigned r = 0; r < 16; ++r) {
      EXPECT_EQ(registers.gpr[r], r == 4 ? registers.gpr[r] : native.registers.gpr[r])
          << "register " << r;
    }
    EXPECT_EQ(state.rflags & test.defined_flags, native.rflags & test.defined_flags);
    EXPECT_EQ(state.rflags & ~rflags::arithmetic, flags_before & ~rflags::arithmetic);
  }

 private:
  std::mt19937_64 random_;
};

TEST(EmulatorAgainstTheProcessor, LeavesTheSameBehind) {
  Comparison comparison{20};
  int compared = 0;
  for (const Case& test : all_cases()) {
    const std::vector<u8> code = bytes(test.code);
    Instruction i{};
    if (decode_instruction(CodeMode::bits64, code, i) != DecodeStatus::ok) {
      EXPECT_NE(test.code.find("0f c3"), std::string::npos) << test.code;
      continue;
    }
    ASSERT_EQ(i.length, code.size()) << test.code;
    SCOPED_TRACE(test.code);
    for (int round = 0; round < 24 && !HasFailure(); ++round) {
      comparison.run(test, code, i, round);
    }
    if (HasFailure()) {
      return;
    }
    ++compared;
  }
  EXPECT_GT(compared, 900);
}

}  // namespace
}  // namespace aerie::cpu
