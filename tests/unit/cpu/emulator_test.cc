// What the processor the tests run on cannot show: faults, restarts, contention, other modes,
// devices.
#include "cpu/emulate/emulator.h"

#include <gtest/gtest.h>

#include "cpu/decode/decoder.h"
#include "cpu/emulate/simple_mmio.h"
#include "tests/unit/cpu/code_bytes.h"
#include "tests/unit/cpu/emulated_memory.h"

namespace aerie::cpu {
namespace {

constexpr u64 kBase = 0x7000;

class EmulatorTest : public ::testing::Test {
 protected:
  EmulatorTest() {
    memory.base = kBase;
    memory.bytes.resize(0x1000);
    for (usize at = 0; at < memory.bytes.size(); ++at) {
      memory.bytes[at] = static_cast<u8>(at * 7 + 1);
    }
    registers[Gpr::rdi] = kBase;
  }

  Instruction decode(std::string_view text) {
    Instruction i{};
    EXPECT_EQ(decode_instruction(state.mode.code, bytes(text), i), DecodeStatus::ok) << text;
    return i;
  }
  EmulationResult run(std::string_view text) {
    const Instruction i = decode(text);
    return emulate(memory, state, i);
  }
  template <class T>
  T at(u64 linear) {
    T value;
    std::memcpy(&value, &memory.bytes[linear - kBase], sizeof(T));
    return value;
  }
  template <class T>
  void put(u64 linear, T value) {
    std::memcpy(&memory.bytes[linear - kBase], &value, sizeof(T));
  }

  EmulatedMemory memory;
  GuestRegisters registers{};
  EmulatedState state{
      .registers = registers, .rip = 0x1000, .rflags = rflags::fixed | rflags::rf, .mode = {}};
};

TEST_F(EmulatorTest, CompletionMovesRipAndClearsRf) {
  EXPECT_EQ(run("c7 07 78 56 34 12").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase), 0x12345678u);
  EXPECT_EQ(state.rip, 0x1006u);
  EXPECT_EQ(state.rflags, rflags::fixed);
}

TEST_F(EmulatorTest, AFaultAtAnyAccessChangesNothing) {
  const char* codes[] = {"89 07",       "8b 07",       "88 27",    "48 c7 07 00 00 00 00",
                         "0f b6 07",    "48 0f be 07", "01 07",    "03 07",
                         "83 07 01",    "f0 83 0f 01", "f7 17",    "f0 ff 07",
                         "39 07",       "85 07",       "0f a3 07", "0f ab 07",
                         "f0 0f bb 07", "87 07",       "0f b1 0f", "f0 0f b1 0f",
                         "0f c7 0f",    "48 0f c7 0f", "0f c1 07", "f0 0f c1 07",
                         "aa",          "ac",          "a4",       "f3 48 ab"};
  for (const char* code : codes) {
    SCOPED_TRACE(code);
    const Instruction i = decode(code);
    bool completed = false;
    for (int fail_at = 0; !completed; ++fail_at) {
      for (u64 n = 0; n < 16; ++n) {
        registers.gpr[n] = 0x1111'1111'1111'1111 * n;
      }
      registers[Gpr::rdi] = kBase + 64;
      registers[Gpr::rsi] = kBase + 128;
      registers[Gpr::rax] = 40;
      registers[Gpr::rcx] = 1;
      state.rip = 0x1000;
      state.rflags = rflags::fixed | rflags::rf | rflags::cf;
      memory.accesses = 0;
      memory.fail_at = fail_at;
      const GuestRegisters before = registers;
      const std::vector<u8> memory_before = memory.bytes;
      const EmulationResult result = emulate(memory, state, i);
      completed = result.outcome == Emulated::done;
      if (!completed) {
        ASSERT_EQ(result.outcome, Emulated::fault);
        EXPECT_TRUE(result.fault.event.valid);
        EXPECT_EQ(result.fault.event.vector, 14);
        EXPECT_EQ(std::memcmp(&before, &registers, sizeof before), 0);
        EXPECT_EQ(memory_before, memory.bytes);
        EXPECT_EQ(state.rip, 0x1000u);
        EXPECT_EQ(state.rflags, rflags::fixed | rflags::rf | rflags::cf);
      }
      ASSERT_LT(fail_at, 8);
    }
  }
}

TEST_F(EmulatorTest, ReadModifyWriteFaultsAsAWrite) {
  // SDM vol. 3, 4.7: W/R of the error code is 1 for the access that such an instruction makes.
  registers[Gpr::rdi] = 0x100000;
  for (const char* code :
       {"01 07", "f0 01 07", "87 07", "0f b1 0f", "0f c7 0f", "0f ab 07", "89 07"}) {
    const EmulationResult result = run(code);
    ASSERT_EQ(result.outcome, Emulated::fault) << code;
    EXPECT_EQ(result.fault.event.error, pfec::write) << code;
    EXPECT_EQ(result.fault.cr2, 0x100000u) << code;
  }
  for (const char* code : {"8b 07", "39 07", "85 07", "0f a3 07", "03 07"}) {
    EXPECT_EQ(run(code).fault.event.error, 0u) << code;
  }
}

TEST_F(EmulatorTest, RepeatedStoreKeepsWhatWasDoneBeforeAFault) {
  registers[Gpr::rdi] = kBase + 0x1000 - 12;
  registers[Gpr::rcx] = 10;
  registers[Gpr::rax] = 0xaabbccdd;
  const EmulationResult result = run("f3 ab");
  EXPECT_EQ(result.outcome, Emulated::fault);
  EXPECT_EQ(result.fault.cr2, kBase + 0x1000);
  EXPECT_EQ(registers[Gpr::rcx], 7u);
  EXPECT_EQ(registers[Gpr::rdi], kBase + 0x1000);
  EXPECT_EQ(at<u32>(kBase + 0xffc), 0xaabbccddu);
  EXPECT_EQ(state.rip, 0x1000u);
}

TEST_F(EmulatorTest, LongStringsStopForInterruptsAndGoOn) {
  registers[Gpr::rcx] = 1000;
  registers[Gpr::rax] = 0x5a;
  int rounds = 0;
  EmulationResult result{};
  while ((result = run("f3 aa")).outcome == Emulated::again) {
    EXPECT_EQ(state.rip, 0x1000u);
    ASSERT_LT(++rounds, 100);
  }
  EXPECT_EQ(result.outcome, Emulated::done);
  EXPECT_EQ(rounds, 7);  // 1000 = 7 * 128 + 104
  EXPECT_EQ(registers[Gpr::rdi], kBase + 1000);
  EXPECT_EQ(at<u8>(kBase + 999), 0x5a);
  EXPECT_EQ(state.rip, 0x1002u);
}

TEST_F(EmulatorTest, RepeatedWithCountZeroTouchesNothing) {
  registers[Gpr::rdi] = 0x123456789;
  EXPECT_EQ(run("f3 ab").outcome, Emulated::done);
  EXPECT_EQ(memory.accesses, 0);
}

TEST_F(EmulatorTest, SingleStepTrapsAfterEachIteration) {
  state.rflags |= rflags::tf;
  registers[Gpr::rcx] = 2;
  EmulationResult result = run("f3 aa");
  EXPECT_EQ(result.outcome, Emulated::again);
  EXPECT_TRUE(result.single_step);
  EXPECT_EQ(registers[Gpr::rcx], 1u);
  result = run("f3 aa");
  EXPECT_EQ(result.outcome, Emulated::done);
  EXPECT_TRUE(result.single_step);
  EXPECT_TRUE(run("89 07").single_step);
  state.rflags &= ~rflags::tf;
  EXPECT_FALSE(run("89 07").single_step);
  state.rflags |= rflags::tf;
  registers[Gpr::rdi] = 0;
  EXPECT_FALSE(run("89 07").single_step);  // faulted: nothing retired
}

TEST_F(EmulatorTest, LockedOperationsSeeOtherProcessors) {
  put<u32>(kBase, 100);
  int others = 3;
  memory.interfere = [&] {
    if (others-- > 0) {
      put<u32>(kBase, at<u32>(kBase) + 1000);
    }
  };
  EXPECT_EQ(run("f0 83 07 05").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase), 3105u);
  EXPECT_EQ(memory.exchanges, 4);
  EXPECT_EQ(memory.writes, 0);
  others = 1;
  registers[Gpr::rax] = 7;
  EXPECT_EQ(run("87 07").outcome, Emulated::done);  // XCHG needs no LOCK to be locked
  EXPECT_EQ(registers[Gpr::rax], 4105u);
  EXPECT_EQ(at<u32>(kBase), 7u);
}

TEST_F(EmulatorTest, LockedCompareExchangeComparesWithWhatIsThereAtLast) {
  put<u64>(kBase, 5);
  registers[Gpr::rax] = 5;
  registers[Gpr::rcx] = 9;
  bool once = true;
  memory.interfere = [&] {
    if (std::exchange(once, false)) {
      put<u64>(kBase, 6);
    }
  };
  EXPECT_EQ(run("f0 48 0f b1 0f").outcome, Emulated::done);
  EXPECT_EQ(state.rflags & rflags::zf, 0u);
  EXPECT_EQ(registers[Gpr::rax], 6u);
  EXPECT_EQ(at<u64>(kBase), 6u);
}

TEST_F(EmulatorTest, ContentionWithoutEndGoesBackToTheGuest) {
  memory.interfere = [&] { put<u32>(kBase, at<u32>(kBase) + 1); };
  const GuestRegisters before = registers;
  EXPECT_EQ(run("f0 ff 07").outcome, Emulated::again);
  EXPECT_EQ(run("f0 0f c7 0f").outcome, Emulated::again);
  EXPECT_EQ(std::memcmp(&before, &registers, sizeof before), 0);
  EXPECT_EQ(state.rip, 0x1000u);
}

TEST_F(EmulatorTest, Cmpxchg16bWantsAlignment) {
  registers[Gpr::rdi] = kBase + 8;
  const EmulationResult result = run("48 0f c7 0f");
  EXPECT_EQ(result.outcome, Emulated::fault);
  EXPECT_EQ(result.fault.event.vector, 13);
  EXPECT_EQ(memory.accesses, 0);
}

TEST_F(EmulatorTest, NonCanonicalAddressesFault) {
  registers[Gpr::rdi] = 0x8000'0000'0000;
  EXPECT_EQ(run("89 07").fault.event.vector, 13);
  registers[Gpr::rbp] = 0x8000'0000'0000;
  EXPECT_EQ(run("89 45 00").fault.event.vector, 12);
  EXPECT_EQ(run("aa").fault.event.vector, 13);
}

TEST_F(EmulatorTest, ProtectedModeUsesSegments) {
  state.mode.code = CodeMode::bits32;
  memory.segments[SegmentRegister::ds] = {
      .selector = 8, .attributes = 0xc93, .limit = ~0u, .base = kBase};
  memory.segments[SegmentRegister::es] = {
      .selector = 8, .attributes = 0xc93, .limit = 0xff, .base = kBase + 0x100};
  memory.segments[SegmentRegister::cs] = {
      .selector = 8, .attributes = 0xc9b, .limit = ~0u, .base = kBase};
  registers[Gpr::rdi] = 0xdead'0000'0010;  // EDI counts
  registers[Gpr::rax] = 0x55;
  EXPECT_EQ(run("89 07").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase + 0x10), 0x55u);
  EXPECT_EQ(run("26 89 07").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase + 0x110), 0x55u);
  EXPECT_EQ(run("2e 89 07").fault.event.vector, 13);  // code is not writable
  EXPECT_EQ(run("2e 8b 07").outcome, Emulated::done);
  registers[Gpr::rdi] = 0xfe;
  EXPECT_EQ(run("26 89 07").fault.event.vector, 13);  // limit
  // STOS writes to ES whatever the prefix says.
  registers[Gpr::rdi] = 0x20;
  EXPECT_EQ(run("3e ab").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase + 0x120), 0x55u);
  EXPECT_EQ(registers[Gpr::rdi], 0x24u);
}

TEST_F(EmulatorTest, RealModeWritesThroughCsAndWrapsItsIndexRegisters) {
  state.mode = {.code = CodeMode::bits16, .protected_mode = false};
  memory.segments[SegmentRegister::cs] = {
      .selector = 0x700, .attributes = 0x9b, .limit = 0xffff, .base = kBase};
  memory.segments[SegmentRegister::es] = {
      .selector = 0x700, .attributes = 0x93, .limit = 0xffff, .base = kBase};
  memory.segments[SegmentRegister::ds] = memory.segments[SegmentRegister::es];
  registers[Gpr::rax] = 0x1234;
  registers[Gpr::rbx] = 0x40;
  EXPECT_EQ(run("2e 89 07").outcome, Emulated::done);
  EXPECT_EQ(at<u16>(kBase + 0x40), 0x1234u);
  registers[Gpr::rdi] = 0xabcd'fff0;
  registers[Gpr::rcx] = 0xffff'0000;
  EXPECT_EQ(run("f3 ab").outcome, Emulated::done);  // CX is zero
  registers[Gpr::rdi] = 0xabcd'0000;
  state.rflags |= rflags::df;
  EXPECT_EQ(run("ab").outcome, Emulated::done);
  EXPECT_EQ(registers[Gpr::rdi], 0xabcd'fffeu);
  EXPECT_EQ(run("89 07").outcome, Emulated::done);
  registers[Gpr::rbx] = 0xffff;
  EXPECT_EQ(run("89 07").fault.event.vector, 13);  // a word at FFFFH reaches past the limit
}

TEST_F(EmulatorTest, RipWrapsAt4GibOutside64BitMode) {
  state.mode.code = CodeMode::bits32;
  memory.segments[SegmentRegister::ds] = {
      .selector = 8, .attributes = 0xc93, .limit = ~0u, .base = 0};
  state.rip = 0xffff'fffe;
  EXPECT_EQ(run("89 07").outcome, Emulated::done);
  EXPECT_EQ(state.rip, 0u);
}

TEST_F(EmulatorTest, MoffsAndRipRelative) {
  registers[Gpr::rax] = 0x99;
  EXPECT_EQ(run("a3 20 70 00 00 00 00 00 00").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase + 0x20), 0x99u);
  state.rip = kBase;
  EXPECT_EQ(run("c7 05 26 00 00 00 77 00 00 00").outcome, Emulated::done);
  EXPECT_EQ(at<u32>(kBase + 0x30), 0x77u);
}

TEST_F(EmulatorTest, RefusesWhatItDoesNotKnow) {
  const GuestRegisters before = registers;
  for (const char* code : {"0f 11 07", "0f a2", "ff 37", "8f 07", "c5 fe 7f 07", "8c 07", "f6 27",
                           "c1 27 03", "0f c7 37"}) {
    EXPECT_EQ(run(code).outcome, Emulated::unsupported) << code;
  }
  EXPECT_EQ(memory.accesses, 0);
  EXPECT_EQ(state.rip, 0x1000u);
  EXPECT_EQ(std::memcmp(&before, &registers, sizeof before), 0);
}

struct RecordingDevice {
  u64 value = 0xaabb'ccdd;
  unsigned size = 0;
  int reads = 0, writes = 0;
  u64 read(unsigned s) {
    ++reads;
    size = s;
    return value;
  }
  void write(unsigned s, u64 v) {
    ++writes;
    size = s;
    value = v;
  }
};

TEST_F(EmulatorTest, SimpleMmioDoesPlainMoves) {
  RecordingDevice device;
  registers[Gpr::rcx] = ~u64{0};
  EXPECT_TRUE(emulate_simple_mmio(decode("8b 8f 80 00 00 00"), registers, device));
  EXPECT_EQ(registers[Gpr::rcx], 0xaabb'ccddu);  // bits 63:32 cleared
  EXPECT_EQ(device.size, 4u);
  registers[Gpr::rdx] = 0x1111'2222'3333'4444;
  EXPECT_TRUE(emulate_simple_mmio(decode("89 97 b0 00 00 00"), registers, device));
  EXPECT_EQ(device.value, 0x3333'4444u);
  EXPECT_TRUE(emulate_simple_mmio(decode("66 89 17"), registers, device));
  EXPECT_EQ(device.value, 0x4444u);
  EXPECT_EQ(device.size, 2u);
  EXPECT_TRUE(emulate_simple_mmio(decode("c7 87 b0 00 00 00 00 00 00 80"), registers, device));
  EXPECT_EQ(device.value, 0x8000'0000u);
  EXPECT_TRUE(emulate_simple_mmio(decode("48 c7 07 ff ff ff ff"), registers, device));
  EXPECT_EQ(device.value, ~u64{0});
  device.value = 0x7f;
  EXPECT_TRUE(emulate_simple_mmio(decode("0f b6 07"), registers, device));
  EXPECT_EQ(device.size, 1u);
  EXPECT_EQ(registers[Gpr::rax], 0x7fu);
  EXPECT_EQ(device.writes, 4);
  EXPECT_EQ(device.reads, 2);
}

TEST_F(EmulatorTest, SimpleMmioLeavesTheRestToTheEmulator) {
  RecordingDevice device;
  for (const char* code :
       {"88 27", "66 8b 07", "8a 07", "09 07", "0f be 07", "89 c8", "aa", "87 07"}) {
    EXPECT_FALSE(emulate_simple_mmio(decode(code), registers, device)) << code;
  }
  EXPECT_EQ(device.reads + device.writes, 0);
}

}  // namespace
}  // namespace aerie::cpu
