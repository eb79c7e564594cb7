#include "cpu/vmx/exit_reason.h"

#include <gtest/gtest.h>

namespace aerie::cpu::vmx {
namespace {

// Words as SDM vol. 3 lays them out, written down by hand from its tables.
TEST(Qualification, ControlRegisterAccessIsThatOfTable28_3) {
  // MOV to CR3 from RSI; MOV from CR8 to R9; CLTS; LMSW of 0xabcd, from memory.
  EXPECT_EQ((CrAccess{.cr = 3, .gpr = Gpr::rsi}.encode()), 0x603u);
  EXPECT_EQ((CrAccess{.cr = 8, .kind = CrAccess::Kind::mov_from, .gpr = Gpr::r9}.encode()), 0x918u);
  EXPECT_EQ((CrAccess{.kind = CrAccess::Kind::clts}.encode()), 0x20u);
  EXPECT_EQ(
      (CrAccess{.kind = CrAccess::Kind::lmsw, .lmsw_memory = true, .lmsw_source = 0xabcd}.encode()),
      0xabcd'0070u);
}

TEST(Qualification, IoAccessIsThatOfTable28_5) {
  EXPECT_EQ((IoAccess{.size = 4, .in = true, .immediate = true, .port = 0x80}.encode()),
            0x80'004bu);
  EXPECT_EQ((IoAccess{.size = 2, .string = true, .rep = true, .port = 0x1f0}.encode()),
            0x1f0'0031u);
}

TEST(Qualification, DebugRegisterAccessIsThatOfTable28_4) {
  EXPECT_EQ((DrAccess{.dr = 7, .read = true, .gpr = Gpr::rbx}.encode()), 0x317u);
}

TEST(Qualification, EptViolationIsThatOfTable28_7) {
  EXPECT_EQ((EptViolation{.write = true, .readable = true, .linear_valid = true, .translated = true}
                 .encode()),
            0x18au);
  // Bit 8 means nothing without bit 7.
  EXPECT_EQ((EptViolation{.read = true, .translated = true}.encode()), 1u);
}

TEST(Qualification, DecodesWhatItEncodes) {
  for (const u64 word : {0x603u, 0x918u, 0x20u, 0xabcd'0070u}) {
    EXPECT_EQ(CrAccess::decode(word).encode(), word);
  }
  for (const u64 word : {0x80'004bu, 0x1f0'0031u, 0u}) {
    EXPECT_EQ(IoAccess::decode(word).encode(), word);
  }
  EXPECT_EQ(DrAccess::decode(0x317).encode(), 0x317u);
  for (const u64 word : {0x18au, 0x1u, 0x10bfu}) {
    EXPECT_EQ(EptViolation::decode(word).encode(), word);
  }
  const u64 task = TaskSwitch{.selector = 0x28, .source = TaskSwitch::Source::gate}.encode();
  EXPECT_EQ(task, 0xc000'0028u);
  EXPECT_EQ(TaskSwitch::decode(task).encode(), task);
}

TEST(InterruptionInfo, RoundTripsEvents) {
  const Event gp = Event::exception(Exception::gp, 0x18);
  EXPECT_EQ(interruption_info::encode(gp), 0x8000'0b0du);
  EXPECT_EQ(interruption_info::encode(Event::interrupt(0x20)), 0x8000'0020u);
  EXPECT_EQ(interruption_info::encode(Event::nmi()), 0x8000'0202u);
  EXPECT_EQ(interruption_info::encode(Event{}), 0u);
  const Event back = interruption_info::decode(0x8000'0b0d, 0x18, 3);
  EXPECT_TRUE(back.valid);
  EXPECT_TRUE(back.has_error);
  EXPECT_EQ(back.error, 0x18u);
  EXPECT_EQ(back.type, EventType::hardware_exception);
  EXPECT_FALSE(interruption_info::decode(0x0000'0b0d, 0, 0).valid);
}

TEST(InstructionInfo, IsThatOfTable28_14) {
  // VMREAD RDX, RAX: register operand RDX in 6:3, encoding register RAX in 31:28.
  EXPECT_EQ(
      (InstructionInfo{.register1 = Gpr::rdx, .register_operand = true, .register2 = 0}.encode()),
      0x410u);
  // VMPTRLD [RBX + 4*RSI], DS, 64-bit addresses.
  const InstructionInfo memory{
      .scaling = 2, .index = 6, .index_invalid = false, .base = 3, .base_invalid = false};
  EXPECT_EQ(memory.encode(), 2u | 2u << 7 | 3u << 15 | 6u << 18 | 3u << 23);
  EXPECT_EQ(InstructionInfo::decode(memory.encode()).encode(), memory.encode());
  // Neither base nor index: both invalid bits.
  EXPECT_EQ(InstructionInfo{}.encode(), 2u << 7 | 3u << 15 | 1u << 22 | 1u << 27);
}

}  // namespace
}  // namespace aerie::cpu::vmx
