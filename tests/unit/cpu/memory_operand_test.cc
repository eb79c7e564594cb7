// Effective addresses, limits, types and canonical addresses. SDM vol. 1, 3.7.5; vol. 3, 5.3
// and 5.5.
#include "cpu/decode/memory_operand.h"

#include <gtest/gtest.h>

#include "cpu/decode/decoder.h"
#include "tests/unit/cpu/code_bytes.h"

namespace aerie::cpu {
namespace {

constexpr AddressingMode kLong{};
constexpr AddressingMode kProtected{.code = CodeMode::bits32};
constexpr AddressingMode kReal{.code = CodeMode::bits16, .protected_mode = false};

// Attributes as the VMCB has them: type and S in bits 4:0, P bit 7, L bit 9, D/B bit 10, G bit 11.
constexpr u16 kData = 0xc93, kReadOnly = 0xc91, kExpandDown = 0xc97, kExpandDown16 = 0x897,
              kExecuteOnly = 0xc99, kCode = 0xc9b;

Segment flat(u16 attributes = kData) {
  return {.selector = 8, .attributes = attributes, .limit = ~0u, .base = 0};
}

GuestRegisters numbered() {
  GuestRegisters r{};
  for (unsigned i = 0; i < 16; ++i) {
    r.gpr[i] = 0x1'0000'0000 * (i + 1) + 0x1000 * i;
  }
  return r;
}

u64 offset_of(CodeMode mode, std::string_view text, u64 rip = 0x5000) {
  const auto code = bytes(text);
  Instruction i{};
  EXPECT_EQ(decode_instruction(mode, code, i), DecodeStatus::ok);
  return effective_offset(i, numbered(), next_rip(i, rip, mode));
}

TEST(EffectiveAddress, AddsItsParts) {
  EXPECT_EQ(offset_of(CodeMode::bits64, "8b 44 91 04"), 0x2'0000'1000 + 4 * 0x3'0000'2000 + 4);
  EXPECT_EQ(offset_of(CodeMode::bits64, "8b 47 ff"), 0x8'0000'7000 - 1);
  EXPECT_EQ(offset_of(CodeMode::bits64, "8b 04 25 b0 00 e0 fe"), 0xffff'ffff'fee0'00b0);
}
TEST(EffectiveAddress, IsRelativeToTheNextInstruction) {
  EXPECT_EQ(offset_of(CodeMode::bits64, "8b 05 10 00 00 00"), 0x5000u + 6 + 0x10);
  EXPECT_EQ(offset_of(CodeMode::bits64, "c7 05 f0 ff ff ff 01 00 00 00"), 0x5000u + 10 - 0x10);
  EXPECT_EQ(offset_of(CodeMode::bits64, "67 8b 05 10 00 00 00", 0x1'0000'0000), 0x17u);
}
TEST(EffectiveAddress, IsCutToTheAddressSize) {
  EXPECT_EQ(offset_of(CodeMode::bits64, "67 8b 47 ff"), 0x6fffu);
  EXPECT_EQ(offset_of(CodeMode::bits32, "8b 87 00 90 ff ff"), 0u);
  EXPECT_EQ(offset_of(CodeMode::bits16, "8b 80 00 80"),
            0x3000u + 0x6000 + 0x8000 - 0x10000);  // bx + si
}

TEST(Linearize, LongModeIgnoresBasesAndLimitsOfTheFlatSegments) {
  const Segment odd{.selector = 0, .attributes = 0, .limit = 0, .base = 0x1000};
  EXPECT_EQ(linearize(kLong, SegmentRegister::ds, odd, 0x2000, 8, MemoryAccess::write).value,
            0x2000u);
  EXPECT_EQ(linearize(kLong, SegmentRegister::gs, odd, 0x2000, 8, MemoryAccess::write).value,
            0x3000u);
}
TEST(Linearize, NonCanonicalIsGeneralProtectionOrStackFault) {
  const u64 top = 0x7fff'ffff'ffff;
  EXPECT_FALSE(linearize(kLong, SegmentRegister::ds, {}, top, 1, MemoryAccess::read).fault.valid);
  const auto straddles = linearize(kLong, SegmentRegister::ds, {}, top, 2, MemoryAccess::read);
  EXPECT_TRUE(straddles.fault.valid);
  EXPECT_EQ(straddles.fault.vector, 13);
  EXPECT_TRUE(straddles.fault.has_error);
  EXPECT_EQ(straddles.fault.error, 0u);
  EXPECT_EQ(linearize(kLong, SegmentRegister::ss, {}, top + 1, 8, MemoryAccess::read).fault.vector,
            12);
  const AddressingMode la57{.linear_bits = 57};
  EXPECT_FALSE(
      linearize(la57, SegmentRegister::ds, {}, top + 1, 8, MemoryAccess::read).fault.valid);
}
TEST(Linearize, ChecksLimits) {
  Segment s = flat();
  s.limit = 0xfff;
  s.base = 0xffff'f800;
  EXPECT_EQ(linearize(kProtected, SegmentRegister::ds, s, 0xffc, 4, MemoryAccess::read).value,
            0x7fcu);
  EXPECT_EQ(
      linearize(kProtected, SegmentRegister::ds, s, 0xffd, 4, MemoryAccess::read).fault.vector, 13);
  EXPECT_EQ(
      linearize(kProtected, SegmentRegister::ss, s, 0xffd, 4, MemoryAccess::read).fault.vector, 12);
  EXPECT_TRUE(linearize(kProtected, SegmentRegister::ds, flat(), 0xffff'fffd, 4, MemoryAccess::read)
                  .fault.valid);
  EXPECT_FALSE(
      linearize(kProtected, SegmentRegister::ds, flat(), 0xffff'fffc, 4, MemoryAccess::read)
          .fault.valid);
}
TEST(Linearize, ExpandDownAllowsWhatIsAboveTheLimit) {
  Segment s = flat(kExpandDown);
  s.limit = 0xfff;
  EXPECT_TRUE(
      linearize(kProtected, SegmentRegister::ds, s, 0xfff, 1, MemoryAccess::read).fault.valid);
  EXPECT_FALSE(
      linearize(kProtected, SegmentRegister::ds, s, 0x1000, 4, MemoryAccess::write).fault.valid);
  s.attributes = kExpandDown16;
  EXPECT_FALSE(
      linearize(kProtected, SegmentRegister::ds, s, 0xfffc, 4, MemoryAccess::write).fault.valid);
  EXPECT_TRUE(
      linearize(kProtected, SegmentRegister::ds, s, 0xfffd, 4, MemoryAccess::write).fault.valid);
}
TEST(Linearize, ChecksTypesInProtectedModeOnly) {
  const auto faults = [](const AddressingMode& mode, u16 attributes, MemoryAccess access) {
    Segment s = flat(attributes);
    return linearize(mode, SegmentRegister::cs, s, 0x100, 4, access).fault.valid;
  };
  EXPECT_TRUE(faults(kProtected, kReadOnly, MemoryAccess::write));
  EXPECT_FALSE(faults(kProtected, kReadOnly, MemoryAccess::read));
  EXPECT_TRUE(faults(kProtected, kCode, MemoryAccess::write));
  EXPECT_FALSE(faults(kProtected, kCode, MemoryAccess::read));
  EXPECT_TRUE(faults(kProtected, kExecuteOnly, MemoryAccess::read));
  EXPECT_TRUE(faults(kProtected, 0, MemoryAccess::read));  // null selector
  EXPECT_FALSE(faults(kReal, kCode, MemoryAccess::write));
}

TEST(MemoryOperand, PutsItTogether) {
  const auto code = bytes("65 8b 47 10");
  Instruction i{};
  ASSERT_EQ(decode_instruction(CodeMode::bits64, code, i), DecodeStatus::ok);
  GuestRegisters r{};
  r[Gpr::rdi] = 0x100;
  const auto address =
      memory_operand_address(i, kLong, r, 4, 4, MemoryAccess::read, [](SegmentRegister name) {
        EXPECT_EQ(name, SegmentRegister::gs);
        return Segment{.selector = 0, .attributes = 0, .limit = 0, .base = 0xffff'8880'0000'0000};
      });
  EXPECT_EQ(address.value, 0xffff'8880'0000'0110);
}

TEST(CodeModeOf, FollowsCsAndEfer) {
  EXPECT_EQ(code_mode(flat(0xa9b), efer::lma), CodeMode::bits64);
  EXPECT_EQ(code_mode(flat(0xa9b), 0), CodeMode::bits16);  // L counts in IA-32e mode only
  EXPECT_EQ(code_mode(flat(0xc9b), efer::lma), CodeMode::bits32);
  EXPECT_EQ(code_mode(flat(0x89b), efer::lma), CodeMode::bits16);
}

}  // namespace
}  // namespace aerie::cpu
