// Bytes and what they mean, from the opcode maps of SDM vol. 2 and APM vol. 3.
#include "cpu/decode/decoder.h"

#include <gtest/gtest.h>

#include "tests/unit/cpu/code_bytes.h"

namespace aerie::cpu {
namespace {

constexpr auto M16 = CodeMode::bits16, M32 = CodeMode::bits32, M64 = CodeMode::bits64;

Instruction decode(CodeMode mode, std::string_view text) {
  const std::vector<u8> code = bytes(text);
  Instruction result{};
  EXPECT_EQ(decode_instruction(mode, code, result), DecodeStatus::ok) << text;
  return result;
}
DecodeStatus status(CodeMode mode, std::string_view text) {
  Instruction result{};
  return decode_instruction(mode, bytes(text), result);
}

// Operations: what an exit handler asks first.
struct Named {
  CodeMode mode;
  const char* code;  // all of it belongs to the instruction
  Op op;
};

constexpr Named kNamed[] = {
    {M64, "0f a2", Op::cpuid},
    {M16, "0f a2", Op::cpuid},
    {M32, "66 0f a2", Op::cpuid},
    {M64, "f4", Op::hlt},
    {M16, "f4", Op::hlt},
    {M64, "f3 f4", Op::hlt},
    {M64, "0f 32", Op::rdmsr},
    {M32, "0f 32", Op::rdmsr},
    {M64, "0f 30", Op::wrmsr},
    {M64, "48 0f 30", Op::wrmsr},
    {M64, "0f 31", Op::rdtsc},
    {M64, "0f 01 f9", Op::rdtscp},
    {M16, "0f 01 f9", Op::rdtscp},
    {M64, "0f 33", Op::rdpmc},
    {M64, "0f 01 fd", Op::rdpru},
    {M64, "f3 0f c7 f8", Op::rdpid},
    {M64, "0f 08", Op::invd},
    {M64, "0f 09", Op::wbinvd},
    {M64, "f3 0f 09", Op::wbnoinvd},
    {M64, "0f 01 3f", Op::invlpg},
    {M16, "0f 01 3f", Op::invlpg},
    {M64, "0f 01 df", Op::invlpga},
    {M64, "66 0f 38 82 07", Op::invpcid},
    {M32, "66 0f 38 82 07", Op::invpcid},
    {M64, "f3 90", Op::pause},
    {M64, "90", Op::other},
    {M64, "0f 01 c8", Op::monitor},
    {M64, "0f 01 c9", Op::mwait},
    {M64, "0f 01 fa", Op::monitorx},
    {M64, "0f 01 fb", Op::mwaitx},
    {M64, "f3 0f ae f0", Op::umonitor},
    {M64, "f2 0f ae f0", Op::umwait},
    {M64, "66 0f ae f0", Op::tpause},
    {M64, "0f 01 d1", Op::xsetbv},
    {M64, "0f 01 d0", Op::xgetbv},
    {M64, "0f c7 2f", Op::xsaves},
    {M64, "48 0f c7 2f", Op::xsaves},
    {M64, "0f c7 1f", Op::xrstors},
    {M64, "0f 01 f8", Op::swapgs},
    {M64, "0f 01 cf", Op::encls},
    {M64, "0f 01 c5", Op::pconfig},
    {M64, "0f aa", Op::rsm},
    {M64, "e4 71", Op::in},
    {M64, "ec", Op::in},
    {M64, "e6 71", Op::out},
    {M64, "ef", Op::out},
    {M64, "6c", Op::ins},
    {M64, "f3 6d", Op::ins},
    {M64, "6e", Op::outs},
    {M64, "f3 6f", Op::outs},
    {M64, "0f 06", Op::clts},
    {M64, "0f 01 f0", Op::lmsw},
    {M64, "0f 01 37", Op::lmsw},
    {M64, "0f 01 e0", Op::smsw},
    {M64, "0f 01 27", Op::smsw},
    {M64, "0f 01 17", Op::lgdt},
    {M64, "0f 01 1f", Op::lidt},
    {M64, "0f 01 07", Op::sgdt},
    {M64, "0f 01 0f", Op::sidt},
    {M64, "0f 00 d0", Op::lldt},
    {M64, "0f 00 d8", Op::ltr},
    {M64, "0f 00 c0", Op::sldt},
    {M64, "0f 00 c8", Op::str},
    {M32, "0f 00 17", Op::lldt},
    {M64, "cc", Op::int3},
    {M32, "ce", Op::into},
    {M16, "ce", Op::into},
    {M64, "cd 80", Op::int_n},
    {M64, "cd 03", Op::int_n},
    {M64, "f1", Op::icebp},
    {M64, "cf", Op::iret},
    {M64, "48 cf", Op::iret},
    {M16, "cf", Op::iret},
    {M16, "66 cf", Op::iret},
    {M64, "9c", Op::pushf},
    {M64, "9d", Op::popf},
    {M16, "9c", Op::pushf},
    {M32, "66 9d", Op::popf},
    {M64, "fb", Op::sti},
    {M64, "fa", Op::cli},
    {M64, "0f 0b", Op::ud2},
    {M64, "0f b9 c0", Op::ud1},
    {M64, "0f ff c0", Op::ud0},
    // VMX. Prefixes tell VMCLEAR, VMXON and VMPTRLD apart (SDM vol. 3, 31.3).
    {M64, "0f 01 c1", Op::vmcall},
    {M64, "0f 01 c2", Op::vmlaunch},
    {M64, "0f 01 c3", Op::vmresume},
    {M64, "0f 01 c4", Op::vmxoff},
    {M64, "0f 01 d4", Op::vmfunc},
    {M64, "f3 0f c7 37", Op::vmxon},
    {M64, "66 0f c7 37", Op::vmclear},
    {M64, "0f c7 37", Op::vmptrld},
    {M64, "0f c7 3f", Op::vmptrst},
    {M32, "f3 0f c7 37", Op::vmxon},
    {M32, "66 0f c7 37", Op::vmclear},
    {M32, "0f c7 37", Op::vmptrld},
    {M64, "66 f3 0f c7 37", Op::vmxon},
    {M64, "f3 66 0f c7 37", Op::vmxon},
    {M16, "0f c7 3f", Op::vmptrst},
    {M64, "0f 78 c0", Op::vmread},
    {M64, "0f 79 c0", Op::vmwrite},
    {M32, "0f 78 07", Op::vmread},
    {M32, "0f 79 07", Op::vmwrite},
    {M64, "66 0f 38 80 07", Op::invept},
    {M64, "66 0f 38 81 07", Op::invvpid},
    {M32, "66 0f 38 80 07", Op::invept},
    {M64, "0f 37", Op::getsec},
    // The same opcodes with register operands or other prefixes are other instructions.
    {M64, "0f c7 f0", Op::rdrand},
    {M64, "48 0f c7 f0", Op::rdrand},
    {M64, "0f c7 f8", Op::rdseed},
    {M64, "66 0f c7 f0", Op::rdrand},
    {M64, "66 0f 78 c0 01 02", Op::other},
    {M64, "f2 0f 78 c1 01 02", Op::other},
    {M64, "66 0f 79 c1", Op::other},
    {M64, "f2 0f 79 c1", Op::other},
    // SVM
    {M64, "0f 01 d8", Op::vmrun},
    {M64, "0f 01 da", Op::vmload},
    {M64, "0f 01 db", Op::vmsave},
    {M64, "0f 01 dc", Op::stgi},
    {M64, "0f 01 dd", Op::clgi},
    {M64, "0f 01 de", Op::skinit},
    {M64, "0f 01 d9", Op::vmmcall},
    {M32, "0f 01 d8", Op::vmrun},
    {M32, "0f 01 d9", Op::vmmcall},
    // Moves to and from control and debug registers take any `mod` as 3.
    {M64, "0f 20 c0", Op::mov_from_cr},
    {M64, "0f 22 c0", Op::mov_to_cr},
    {M64, "0f 20 18", Op::mov_from_cr},
    {M64, "0f 21 c7", Op::mov_from_dr},
    {M64, "0f 23 ff", Op::mov_to_dr},
    {M16, "0f 22 d8", Op::mov_to_cr},
    // Data
    {M64, "89 07", Op::mov},
    {M64, "c7 07 01 00 00 00", Op::mov},
    {M64, "0f c3 07", Op::mov},
    {M64, "a1 00 00 e0 fe 00 00 00 00", Op::mov},
    {M32, "a3 b0 00 e0 fe", Op::mov},
    {M16, "a2 10 20", Op::mov},
    {M64, "0f b6 07", Op::movzx},
    {M64, "0f be 07", Op::movsx},
    {M64, "48 63 07", Op::movsx},
    {M64, "8c 07", Op::mov_from_segment},
    {M64, "8e d0", Op::mov_to_segment},
    {M32, "17", Op::pop_ss},
    {M64, "aa", Op::stos},
    {M64, "f3 48 ab", Op::stos},
    {M64, "ac", Op::lods},
    {M64, "f3 a4", Op::movs},
    {M64, "a5", Op::movs},
    {M64, "f2 0f 10 07", Op::other},
    {M64, "01 07", Op::add},
    {M64, "09 07", Op::bit_or},
    {M64, "11 07", Op::adc},
    {M64, "19 07", Op::sbb},
    {M64, "21 07", Op::bit_and},
    {M64, "29 07", Op::sub},
    {M64, "31 07", Op::bit_xor},
    {M64, "39 07", Op::cmp},
    {M64, "85 07", Op::test},
    {M64, "f7 07 01 00 00 00", Op::test},
    {M64, "f6 0f 01", Op::test},
    {M64, "f7 17", Op::bit_not},
    {M64, "f7 1f", Op::neg},
    {M64, "ff 07", Op::inc},
    {M64, "fe 0f", Op::dec},
    {M32, "40", Op::inc},
    {M64, "0f a3 07", Op::bt},
    {M64, "0f ab 07", Op::bts},
    {M64, "0f b3 07", Op::btr},
    {M64, "0f bb 07", Op::btc},
    {M64, "0f ba 27 05", Op::bt},
    {M64, "0f ba 3f 05", Op::btc},
    {M64, "87 07", Op::xchg},
    {M64, "93", Op::xchg},
    {M64, "41 90", Op::xchg},
    {M64, "f0 0f b1 0f", Op::cmpxchg},
    {M64, "0f c7 0f", Op::cmpxchg8b},
    {M64, "48 0f c7 0f", Op::cmpxchg16b},
    {M64, "f0 0f c1 07", Op::xadd},
    {M64, "0f 11 07", Op::other},
    {M64, "c5 fe 7f 07", Op::other},
    {M64, "ff d0", Op::other},
};

TEST(Decoder, NamesEveryOperation) {
  for (const Named& row : kNamed) {
    const std::vector<u8> code = bytes(row.code);
    Instruction result{};
    ASSERT_EQ(decode_instruction(row.mode, code, result), DecodeStatus::ok) << row.code;
    EXPECT_EQ(result.op, row.op) << row.code;
    EXPECT_EQ(result.length, code.size()) << row.code;
    // Never a byte more than there is, and nothing is made of less.
    for (usize size = 1; size < code.size(); ++size) {
      EXPECT_EQ(decode_instruction(row.mode, std::span{code}.first(size), result),
                DecodeStatus::incomplete)
          << row.code << " cut to " << size;
    }
  }
}

TEST(Decoder, RefusesWhatIsNoInstruction) {
  EXPECT_EQ(status(M64, "0f 04"), DecodeStatus::invalid);
  EXPECT_EQ(status(M64, "ce"), DecodeStatus::invalid);        // INTO in 64-bit mode
  EXPECT_EQ(status(M64, "f0 89 07"), DecodeStatus::invalid);  // LOCK MOV
  // LOCK with a register destination
  EXPECT_EQ(status(M64, "f0 01 c0"), DecodeStatus::invalid);
  EXPECT_EQ(status(M64, "f0 0f b6 07"), DecodeStatus::invalid);  // LOCK MOVZX
  EXPECT_EQ(status(M64, "f0 39 07"), DecodeStatus::invalid);     // LOCK CMP
  EXPECT_EQ(status(M64, "f2 0f c7 37"), DecodeStatus::invalid);  // VMPTRLD takes no F2
  EXPECT_EQ(status(M64, ""), DecodeStatus::incomplete);
}

TEST(Decoder, RefusesMoreThanFifteenBytes) {
  EXPECT_EQ(status(M64, "66 66 66 66 66 66 66 66 66 66 66 66 66 0f a2"), DecodeStatus::ok);
  EXPECT_EQ(status(M64, "66 66 66 66 66 66 66 66 66 66 66 66 66 66 0f a2"), DecodeStatus::too_long);
  EXPECT_EQ(status(M64, "66 66 66 66 66 66 66 66 66 66 66 66 66 66 66"), DecodeStatus::too_long);
  EXPECT_EQ(status(M64, "66 66 66 66 66 66 66 66 66 66 66 66 66 66"), DecodeStatus::incomplete);
}

// Operands.
constexpr u8 kNone = kNoRegister;
enum : u8 {
  rax,
  rcx,
  rdx,
  rbx,
  rsp,
  rbp,
  rsi,
  rdi,
  r8,
  r9,
  r10,
  r11,
  r12,
  r13,
  r14,
  r15,
  ah,
  ch,
  dh,
  bh,
};
using enum SegmentRegister;

struct Operands {
  CodeMode mode;
  const char* code;
  Form form;
  u8 operand_size, source_size, address_size;
  u8 reg, rm;
  u8 base = kNone, index = kNone, scale = 0;
  SegmentRegister segment = ds;
  i64 displacement = 0, immediate = 0;
};

constexpr Operands kOperands[] = {
    // MOV in all widths
    {M64, "89 07", Form::rm_reg, 4, 4, 8, rax, kNone, rdi},
    {M64, "48 89 07", Form::rm_reg, 8, 8, 8, rax, kNone, rdi},
    {M64, "66 89 07", Form::rm_reg, 2, 2, 8, rax, kNone, rdi},
    {M64, "88 27", Form::rm_reg, 1, 1, 8, ah, kNone, rdi},
    {M64, "40 88 27", Form::rm_reg, 1, 1, 8, rsp, kNone, rdi},  // with REX: SPL
    {M64, "44 88 07", Form::rm_reg, 1, 1, 8, r8, kNone, rdi},
    {M64, "88 fc", Form::rm_reg, 1, 1, 8, bh, ah},
    {M64, "8b 4f 20", Form::reg_rm, 4, 4, 8, rcx, kNone, rdi, kNone, 0, ds, 0x20},
    {M64, "45 8b 67 80", Form::reg_rm, 4, 4, 8, r12, kNone, r15, kNone, 0, ds, -128},
    {M64, "c7 87 b0 00 00 00 00 00 00 00", Form::rm_imm, 4, 4, 8, rax, kNone, rdi, kNone, 0, ds,
     0xb0},
    {M64, "48 c7 07 ff ff ff ff", Form::rm_imm, 8, 8, 8, rax, kNone, rdi, kNone, 0, ds, 0, -1},
    {M64, "c6 07 80", Form::rm_imm, 1, 1, 8, rax, kNone, rdi, kNone, 0, ds, 0, -128},
    {M64, "48 b8 88 77 66 55 44 33 22 11", Form::rm_imm, 8, 8, 8, kNone, rax, kNone, kNone, 0, ds,
     0, 0x1122334455667788},
    {M64, "b4 05", Form::rm_imm, 1, 1, 8, kNone, ah, kNone, kNone, 0, ds, 0, 5},
    {M64, "41 b4 05", Form::rm_imm, 1, 1, 8, kNone, r12, kNone, kNone, 0, ds, 0, 5},
    // moffs
    {M64, "a1 b0 00 e0 fe 00 00 00 80", Form::reg_rm, 4, 4, 8, rax, kNone, kNone, kNone, 0, ds,
     static_cast<i64>(0x80000000fee000b0)},
    {M64, "67 a0 b0 00 e0 fe", Form::reg_rm, 1, 1, 4, rax, kNone, kNone, kNone, 0, ds, 0xfee000b0},
    {M32, "a3 b0 00 e0 fe", Form::rm_reg, 4, 4, 4, rax, kNone, kNone, kNone, 0, ds, 0xfee000b0},
    {M16, "26 a3 34 12", Form::rm_reg, 2, 2, 2, rax, kNone, kNone, kNone, 0, es, 0x1234},
    // SIB, RIP-relative, REX extensions
    {M64, "8b 84 91 78 56 34 12", Form::reg_rm, 4, 4, 8, rax, kNone, rcx, rdx, 2, ds, 0x12345678},
    {M64, "8b 04 25 b0 00 e0 fe", Form::reg_rm, 4, 4, 8, rax, kNone, kNone, kNone, 0, ds,
     static_cast<i32>(0xfee000b0)},
    {M64, "8b 05 10 00 00 00", Form::reg_rm, 4, 4, 8, rax, kNone, kRipRegister, kNone, 0, ds, 0x10},
    {M32, "8b 05 b0 00 e0 fe", Form::reg_rm, 4, 4, 4, rax, kNone, kNone, kNone, 0, ds,
     static_cast<i32>(0xfee000b0)},
    {M64, "43 8b 44 a5 00", Form::reg_rm, 4, 4, 8, rax, kNone, r13, r12, 2, ds, 0},
    // REX.X: index r12, not "none"
    {M64, "4a 8b 04 20", Form::reg_rm, 8, 8, 8, rax, kNone, rax, r12, 0},
    {M64, "8b 04 24", Form::reg_rm, 4, 4, 8, rax, kNone, rsp, kNone, 0, ss},
    {M64, "8b 45 08", Form::reg_rm, 4, 4, 8, rax, kNone, rbp, kNone, 0, ss, 8},
    {M64, "41 8b 45 08", Form::reg_rm, 4, 4, 8, rax, kNone, r13, kNone, 0, ds, 8},
    {M64, "41 8b 04 24", Form::reg_rm, 4, 4, 8, rax, kNone, r12, kNone, 0, ds},
    {M64, "8b 04 2d 00 10 00 00", Form::reg_rm, 4, 4, 8, rax, kNone, kNone, rbp, 0, ds, 0x1000},
    {M64, "67 8b 07", Form::reg_rm, 4, 4, 4, rax, kNone, rdi},
    // Segment overrides: all in 32-bit mode, FS and GS in 64-bit mode; the last counts
    {M32, "2e 8b 07", Form::reg_rm, 4, 4, 4, rax, kNone, rdi, kNone, 0, cs},
    {M32, "3e 8b 45 00", Form::reg_rm, 4, 4, 4, rax, kNone, rbp, kNone, 0, ds},
    {M32, "36 26 8b 07", Form::reg_rm, 4, 4, 4, rax, kNone, rdi, kNone, 0, es},
    {M64, "3e 8b 45 00", Form::reg_rm, 4, 4, 8, rax, kNone, rbp, kNone, 0, ss},
    {M64, "65 8b 04 25 10 00 00 00", Form::reg_rm, 4, 4, 8, rax, kNone, kNone, kNone, 0, gs, 0x10},
    {M64, "64 2e 8b 07", Form::reg_rm, 4, 4, 8, rax, kNone, rdi, kNone, 0, fs},
    // 16-bit addressing (SDM vol. 2, table 2-1)
    {M16, "8b 00", Form::reg_rm, 2, 2, 2, rax, kNone, rbx, rsi},
    {M16, "8b 42 fe", Form::reg_rm, 2, 2, 2, rax, kNone, rbp, rsi, 0, ss, -2},
    {M16, "8b 43 10", Form::reg_rm, 2, 2, 2, rax, kNone, rbp, rdi, 0, ss, 16},
    {M16, "8b 1e 34 92", Form::reg_rm, 2, 2, 2, rbx, kNone, kNone, kNone, 0, ds,
     static_cast<i16>(0x9234)},
    {M16, "8b 46 00", Form::reg_rm, 2, 2, 2, rax, kNone, rbp, kNone, 0, ss, 0},
    {M16, "8b 07", Form::reg_rm, 2, 2, 2, rax, kNone, rbx},
    {M16, "66 67 8b 07", Form::reg_rm, 4, 4, 4, rax, kNone, rdi},
    // MOVNTI is never of 16 bits
    {M16, "0f c3 07", Form::rm_reg, 4, 4, 2, rax, kNone, rbx},
    {M64, "48 0f c3 07", Form::rm_reg, 8, 8, 8, rax, kNone, rdi},
    // Extension
    {M64, "0f b6 07", Form::reg_rm, 4, 1, 8, rax, kNone, rdi},
    {M64, "48 0f b7 07", Form::reg_rm, 8, 2, 8, rax, kNone, rdi},
    {M64, "66 0f be 07", Form::reg_rm, 2, 1, 8, rax, kNone, rdi},
    {M64, "0f b6 c4", Form::reg_rm, 4, 1, 8, rax, ah},
    {M64, "40 0f b6 c4", Form::reg_rm, 4, 1, 8, rax, rsp},
    {M64, "0f b7 c4", Form::reg_rm, 4, 2, 8, rax, rsp},
    {M64, "0f b6 e0", Form::reg_rm, 4, 1, 8, rsp, rax},
    {M64, "48 63 07", Form::reg_rm, 8, 4, 8, rax, kNone, rdi},
    {M64, "63 07", Form::reg_rm, 4, 4, 8, rax, kNone, rdi},
    // Arithmetic
    {M64, "83 07 ff", Form::rm_imm, 4, 4, 8, rax, kNone, rdi, kNone, 0, ds, 0, -1},
    {M64, "48 81 0f 00 00 00 80", Form::rm_imm, 8, 8, 8, rcx, kNone, rdi, kNone, 0, ds, 0,
     -0x80000000ll},
    {M64, "80 27 0f", Form::rm_imm, 1, 1, 8, rsp, kNone, rdi, kNone, 0, ds, 0, 15},
    {M64, "66 05 34 12", Form::rm_imm, 2, 2, 8, kNone, rax, kNone, kNone, 0, ds, 0, 0x1234},
    {M64, "03 07", Form::reg_rm, 4, 4, 8, rax, kNone, rdi},
    {M64, "02 27", Form::reg_rm, 1, 1, 8, ah, kNone, rdi},
    {M64, "f6 17", Form::rm, 1, 1, 8, rdx, kNone, rdi},
    {M32, "41", Form::reg, 4, 4, 4, kNone, rcx},
    {M64, "48 0f ba 2f 21", Form::rm_imm, 8, 8, 8, rbp, kNone, rdi, kNone, 0, ds, 0, 0x21},
    {M64, "48 0f a3 0f", Form::rm_reg, 8, 8, 8, rcx, kNone, rdi},
    {M64, "48 93", Form::rm_reg, 8, 8, 8, rax, rbx},
    {M64, "0f c7 0f", Form::rm, 8, 8, 8, rcx, kNone, rdi},
    {M64, "48 0f c7 0f", Form::rm, 16, 16, 8, rcx, kNone, rdi},
    // VMX
    {M64, "0f 78 c8", Form::rm_reg, 8, 8, 8, rcx, rax},
    {M64, "41 0f 78 17", Form::rm_reg, 8, 8, 8, rdx, kNone, r15},
    {M64, "44 0f 79 45 f8", Form::reg_rm, 8, 8, 8, r8, kNone, rbp, kNone, 0, ss, -8},
    {M32, "0f 78 d1", Form::rm_reg, 4, 4, 4, rdx, rcx},
    {M64, "66 0f 38 80 45 f0", Form::reg_rm, 8, 8, 8, rax, kNone, rbp, kNone, 0, ss, -16},
    {M64, "66 44 0f 38 81 07", Form::reg_rm, 8, 8, 8, r8, kNone, rdi},
    {M32, "66 0f c7 30", Form::rm, 8, 8, 4, rsi, kNone, rax},
    {M64, "f3 0f c7 34 24", Form::rm, 8, 8, 8, rsi, kNone, rsp, kNone, 0, ss},
    // Control registers; a 16-bit operand size does not exist for them
    {M64, "44 0f 20 c0", Form::rm_reg, 8, 8, 8, r8, rax},
    {M64, "41 0f 22 df", Form::reg_rm, 8, 8, 8, rbx, r15},
    {M64, "66 0f 22 e0", Form::reg_rm, 8, 8, 8, rsp, rax},
    {M16, "0f 20 c0", Form::rm_reg, 4, 4, 2, rax, rax},
    {M64, "0f 23 f9", Form::reg_rm, 8, 8, 8, rdi, rcx},
    {M64, "0f 01 f1", Form::rm, 2, 2, 8, rsi, rcx},
    {M64, "0f 01 e1", Form::rm, 4, 4, 8, rsp, rcx},
    {M64, "48 0f 01 e1", Form::rm, 8, 8, 8, rsp, rcx},
    {M64, "0f 01 21", Form::rm, 2, 2, 8, rsp, kNone, rcx},
    {M64, "8e d1", Form::reg_rm, 2, 2, 8, 2, rcx},
    // Ports and interrupts
    {M64, "e4 71", Form::imm, 1, 1, 8, kNone, kNone, kNone, kNone, 0, ds, 0, 0x71},
    {M64, "e7 80", Form::imm, 4, 4, 8, kNone, kNone, kNone, kNone, 0, ds, 0, 0x80},
    {M64, "66 ed", Form::none, 2, 2, 8, kNone, kNone},
    {M64, "48 ed", Form::none, 4, 4, 8, kNone, kNone},
    {M64, "cd fe", Form::imm, 4, 4, 8, kNone, kNone, kNone, kNone, 0, ds, 0, 0xfe},
    // String instructions
    {M64, "f3 48 ab", Form::none, 8, 8, 8, kNone, kNone},
    {M64, "65 a4", Form::none, 1, 1, 8, kNone, kNone, kNone, kNone, 0, gs},
    {M64, "67 a5", Form::none, 4, 4, 4, kNone, kNone},
    {M16, "66 a5", Form::none, 4, 4, 2, kNone, kNone},
};

TEST(Decoder, SaysWhereTheOperandsAre) {
  for (const Operands& row : kOperands) {
    SCOPED_TRACE(row.code);
    const Instruction i = decode(row.mode, row.code);
    EXPECT_EQ(i.length, bytes(row.code).size());
    EXPECT_EQ(i.form, row.form);
    EXPECT_EQ(i.operand_size, row.operand_size);
    EXPECT_EQ(i.source_size, row.source_size);
    EXPECT_EQ(i.address_size, row.address_size);
    if (row.form == Form::rm_reg || row.form == Form::reg_rm) {
      EXPECT_EQ(i.reg, row.reg);
    }
    EXPECT_EQ(i.rm, row.rm);
    EXPECT_EQ(i.base, row.base);
    EXPECT_EQ(i.index, row.index);
    EXPECT_EQ(i.scale, row.scale);
    EXPECT_EQ(i.segment, row.segment);
    EXPECT_EQ(static_cast<u64>(i.displacement) & (~u64{0} >> (64 - 8 * i.address_size)),
              static_cast<u64>(row.displacement) & (~u64{0} >> (64 - 8 * i.address_size)));
    // An immediate counts modulo the operand size.
    const unsigned bits = i.operand_size > 8 ? 64 : 8 * i.operand_size;
    EXPECT_EQ(static_cast<u64>(i.immediate) & (~u64{0} >> (64 - bits)),
              static_cast<u64>(row.immediate) & (~u64{0} >> (64 - bits)));
    const bool has_rm = row.form == Form::rm || row.form == Form::rm_reg ||
                        row.form == Form::reg_rm || row.form == Form::rm_imm;
    EXPECT_EQ(i.has_memory(), row.rm == kNone && has_rm);
  }
}

TEST(Decoder, SaysThePrefixes) {
  EXPECT_TRUE(decode(M64, "f3 ab").rep());
  EXPECT_TRUE(decode(M64, "f2 ab").repne());
  EXPECT_FALSE(decode(M64, "f3 f2 ab").rep());
  EXPECT_TRUE(decode(M64, "f0 01 07").lock());
  EXPECT_TRUE(decode(M64, "f0 87 07").lock());
  EXPECT_FALSE(decode(M64, "87 07").lock());
  EXPECT_TRUE(decode(M64, "65 8b 07").segment_override());
  EXPECT_FALSE(decode(M64, "3e 8b 07").segment_override());
}

TEST(Decoder, MarksSimpleAccesses) {
  using enum SimpleAccess;
  const struct {
    const char* code;
    SimpleAccess simple;
  } rows[] = {
      {"89 07", store_register},
      {"66 89 07", store_register},
      {"88 07", store_register},
      {"88 27", none},  // AH
      {"40 88 27", store_register},
      {"c7 07 00 00 00 00", store_immediate},
      {"c6 07 01", store_immediate},
      {"8b 07", load},
      {"48 8b 07", load},
      {"66 8b 07", none},
      {"8a 07", none},
      {"0f b6 07", load},
      {"66 0f b6 07", none},
      {"a1 00 00 00 00 00 00 00 00", load},
      {"a3 00 00 00 00 00 00 00 00", store_register},
      {"0f be 07", none},
      {"8b c7", none},
      {"89 c7", none},
      {"b8 00 00 00 00", none},
      {"8c 07", none},
      {"09 07", none},
      {"0f c3 07", store_register},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(decode(M64, row.code).simple, row.simple) << row.code;
  }
}

TEST(Decoder, KnowsTheOneByteIncrementsOf32BitModesFromRex) {
  EXPECT_EQ(decode(M32, "48").op, Op::dec);
  EXPECT_EQ(decode(M16, "48").operand_size, 2);
  EXPECT_EQ(status(M64, "48"), DecodeStatus::incomplete);
}

}  // namespace
}  // namespace aerie::cpu
