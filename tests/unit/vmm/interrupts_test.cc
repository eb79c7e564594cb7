#include "vmm/interrupts.h"

#include <gtest/gtest.h>

#include "tests/unit/vmm/apic_machine.h"

namespace aerie::vmm {
namespace {

using Ended = std::vector<u8>;
constexpr u32 kSelf = 1u << 18;
constexpr u32 kExtInt = 0x700, kNmi = 0x400, kMasked = 0x1'0000;

TEST(PhysicalInterrupts, AnEdgeInterruptIsEndedAtOnceAndServedOnce) {
  ApicMachine m;
  m.host(0).raise(0x41);
  m.take_physical();
  EXPECT_EQ(m.host(0).ended, Ended{0x41});
  EXPECT_EQ(m.read(apic::tmr + 0x20), 0u);
  EXPECT_EQ(m.serve(), 0x41);
  EXPECT_EQ(m.serve(), -1);
  EXPECT_EQ(m.host(0).ended, Ended{0x41});
}

TEST(PhysicalInterrupts, ALevelInterruptIsEndedWhenL1EndsIt) {
  ApicMachine m;
  m.host(0).raise(0x41, true);
  m.take_physical();
  EXPECT_TRUE(m.host(0).ended.empty());
  EXPECT_EQ(m.read(apic::tmr + 0x20), 2u);
  EXPECT_EQ(m.accept_all(), std::vector<int>{0x41});
  EXPECT_TRUE(m.host(0).ended.empty());
  m[0].eoi();
  EXPECT_EQ(m.host(0).ended, Ended{0x41});
}

TEST(PhysicalInterrupts, ALevelLineStillRaisedFiresAgain) {
  ApicMachine m;
  for (int i = 0; i < 3; ++i) {
    m.host(0).raise(0x41, true);
    m.take_physical();
    ASSERT_EQ(m.serve(), 0x41);
  }
  EXPECT_EQ(m.host(0).ended, (Ended{0x41, 0x41, 0x41}));
}

// L1 ends 0x64 while 0x84 has arrived: a physical EOI now would end 0x84.
TEST(PhysicalInterrupts, AnEoiIsOwedUntilAllHigherOnesHaveEnded) {
  ApicMachine m;
  m.host(0).raise(0x64, true);
  m.take_physical();
  EXPECT_EQ(m.accept_all(), std::vector<int>{0x64});
  m.host(0).raise(0x84, true);
  m.take_physical();
  m[0].eoi();  // 0x64
  EXPECT_TRUE(m.host(0).ended.empty());
  EXPECT_EQ(m.accept_all(), std::vector<int>{0x84});
  m[0].eoi();
  EXPECT_EQ(m.host(0).ended, (Ended{0x84, 0x64}));
  EXPECT_FALSE(m[0].physical().any_deferred());
}

TEST(PhysicalInterrupts, NestedLevelInterruptsEndInOrder) {
  ApicMachine m;
  m.host(0).raise(0x30, true);
  m.take_physical();
  m.accept_all();
  m.host(0).raise(0x50, true);
  m.take_physical();
  m.accept_all();
  m.host(0).raise(0x90);  // edge above them: ended at once, alone
  m.take_physical();
  EXPECT_EQ(m.host(0).ended, Ended{0x90});
  EXPECT_EQ(m.serve(), 0x90);
  m[0].eoi();
  m[0].eoi();
  EXPECT_EQ(m.host(0).ended, (Ended{0x90, 0x50, 0x30}));
}

TEST(PhysicalInterrupts, WhatADeferredEoiHoldsBackShowsInTheIrr) {
  ApicMachine m;
  m.host(0).raise(0x64, true);
  m.take_physical();
  m.host(0).raise(0x45);
  m.take_physical();  // below the one in service: not to be had
  EXPECT_EQ(m.read(apic::irr + 0x20), 1u << 5);
  EXPECT_EQ(m.serve(), 0x64);
  m.take_physical();
  EXPECT_EQ(m.serve(), 0x45);
}

TEST(PhysicalInterrupts, ASpuriousVectorIsDropped) {
  ApicMachine m;
  m.write(apic::lvt_lint0, kExtInt);
  m[0].physical_interrupt(PhysicalInterrupts::kSpuriousVector);
  EXPECT_EQ(m[0].extint(), std::nullopt);
  EXPECT_EQ(m.serve(), -1);
  EXPECT_TRUE(m.host(0).ended.empty());
  m.host(0).raise(0xff);  // the vector is a device's where the ISR says so
  m.take_physical();
  EXPECT_EQ(m.serve(), 0xff);
}

TEST(PhysicalInterrupts, ADevicesIllegalVectorIsAnErrorAndIsEnded) {
  ApicMachine m;
  m.host(0).irr.set(0x0e);
  m.host(0).isr.set(0x0e);
  m[0].physical_interrupt(0x0e);
  EXPECT_EQ(m.host(0).ended, Ended{0x0e});
  m.write(apic::esr, 0);
  EXPECT_EQ(m.read(apic::esr), 0x40u);
  EXPECT_EQ(m.serve(), -1);
}

// ---- INIT, disabling, enabling ----

TEST(PhysicalInterrupts, InitDrainsThePhysicalIsr) {
  ApicMachine m;
  for (const u8 v : Ended{0x30, 0x50, 0x70}) {
    m.host(0).raise(v, true);
    m.take_physical();
    m.accept_all();
  }
  m[0].init_reset();
  EXPECT_EQ(m.host(0).ended, (Ended{0x70, 0x50, 0x30}));
  EXPECT_TRUE(m.host(0).isr.empty());
  EXPECT_EQ(m.serve(), -1);
}

TEST(PhysicalInterrupts, TurningTheApicOffDrainsThePhysicalIsr) {
  ApicMachine m;
  m.host(0).raise(0x30, true);
  m.take_physical();
  ASSERT_TRUE(m[0].write_msr(cpu::msr::apic_base, 0xfee00000));
  EXPECT_EQ(m.host(0).ended, Ended{0x30});
}

TEST(PhysicalInterrupts, ALevelInterruptThatAnApicDoesNotAcceptIsHeldNotStormed) {
  ApicMachine m;
  m.write(apic::svr, 0xff);
  m.host(0).raise(0x30, true);
  m.host(0).raise(0x31);
  m.take_physical();
  EXPECT_TRUE(m.host(0).isr.test(0x30));  // so that the line asks no more
  EXPECT_EQ(m.host(0).ended, Ended{0x31});
  m.write(apic::svr, 0x1ff);
  EXPECT_EQ(m.host(0).ended, (Ended{0x31, 0x30}));
  EXPECT_EQ(m.serve(), -1);  // was not accepted; the line fires again if it is still raised
}

TEST(PhysicalInterrupts, WhatL1StillHoldsIsNotDrainedByReenabling) {
  ApicMachine m;
  m.host(0).raise(0x30, true);
  m.take_physical();
  m.write(apic::svr, 0xff);
  m.write(apic::svr, 0x1ff);
  EXPECT_TRUE(m.host(0).ended.empty());
  EXPECT_EQ(m.serve(), 0x30);
  EXPECT_EQ(m.host(0).ended, Ended{0x30});
}

// ---- ExtINT ----

TEST(PhysicalInterrupts, AnExtIntIsTakenWhenL1CanTakeIt) {
  ApicMachine m;
  m.write(apic::lvt_lint0, kExtInt);
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], kExtInt);
  EXPECT_TRUE(m[0].prepare_window(true));
  m[0].physical_interrupt(0x08);  // no ISR bit; vectors below 16 are the 8259's in real mode
  EXPECT_EQ(m[0].extint(), 0x08);
  EXPECT_TRUE(m[0].wants_window());
  EXPECT_TRUE(m.host(0).ended.empty());
  // Another one is not acknowledged before this one was injected.
  (void)m[0].prepare_window(true);
  EXPECT_TRUE(m[0].physical().extint_held());
  m[0].extint_taken();
  EXPECT_EQ(m[0].extint(), std::nullopt);
}

TEST(PhysicalInterrupts, WhileL1CannotTakeItThe8259IsNotAcknowledged) {
  ApicMachine m;
  m.write(apic::lvt_lint0, kExtInt);
  EXPECT_FALSE(m[0].prepare_window(false));  // nothing else to take
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], kExtInt | kMasked);
  EXPECT_TRUE(m[0].wants_window());
  m.host(0).raise(0x50);
  EXPECT_TRUE(m[0].prepare_window(false));  // the APIC has something
  m.take_physical();
  EXPECT_EQ(m.serve(), 0x50);
  m[0].release_extint();
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], kExtInt);
  EXPECT_TRUE(m[0].prepare_window(true));
  m[0].physical_interrupt(0x30);
  EXPECT_EQ(m[0].extint(), 0x30);
}

TEST(PhysicalInterrupts, AHeldExtIntIsForgottenWhenL1MasksLint0) {
  ApicMachine m;
  m.write(apic::lvt_lint0, kExtInt);
  (void)m[0].prepare_window(false);
  m.write(apic::lvt_lint0, kExtInt | kMasked);
  EXPECT_FALSE(m[0].wants_window());
  EXPECT_TRUE(m[0].prepare_window(false));
}

TEST(PhysicalInterrupts, AnExtIntOfTheVectorOfADeferredLevelInterruptIsAnExtInt) {
  ApicMachine m;
  m.write(apic::lvt_lint0, kExtInt);
  m.host(0).raise(0x30, true);
  m.take_physical();
  m[0].physical_interrupt(0x30);
  EXPECT_EQ(m[0].extint(), 0x30);
  EXPECT_TRUE(m.host(0).ended.empty());
}

TEST(PhysicalInterrupts, WithoutExtIntAVectorWithoutIsrBitIsSpurious) {
  ApicMachine m;
  m[0].physical_interrupt(0x30);
  EXPECT_EQ(m[0].extint(), std::nullopt);
  EXPECT_EQ(m.serve(), -1);
}

TEST(PhysicalInterrupts, APicMaskedApicStillTakesApicInterruptsBelowTheOneInService) {
  ApicMachine m;
  m.write(apic::lvt_lint0, kExtInt);
  m.host(0).raise(0x64, true);
  m.take_physical();
  m.host(0).raise(0x45);
  EXPECT_FALSE(m[0].prepare_window(false));  // 0x45 is below what is in service
}

// ---- Mirrors ----

TEST(PhysicalInterrupts, LogicalIdsAreMirrored) {
  ApicMachine m{8};
  m.write(apic::ldr, 0x2000'0000, 3);
  m.write(apic::dfr, 0x0fff'ffff, 3);
  EXPECT_EQ(m.host(3).registers[apic::ldr], 0x2000'0000u);
  EXPECT_EQ(m.host(3).registers[apic::dfr], 0x0fff'ffffu);
  m.enter_x2apic(3);
  EXPECT_EQ(m.host(3).registers[apic::ldr], 0x0800'0000u);
  EXPECT_EQ(m.host(3).registers[apic::dfr], 0xffff'ffffu);
}

TEST(PhysicalInterrupts, LintEntriesAreMirroredButForWhatL0CannotHave) {
  struct Case {
    u32 written, lint0, lint1;
  };
  ApicMachine m;
  for (const Case& c : {Case{0x00040, 0x00040, 0x00040}, Case{0x0a040, 0x0a040, 0x0a040},
                        Case{0x00008, kMasked, kMasked},     // illegal vector
                        Case{0x10040, kMasked, kMasked},     // masked
                        Case{0x00200, kMasked, kMasked},     // SMI
                        Case{0x00400, 0x00400, 0x00400},     // NMI
                        Case{0x00500, kMasked, kMasked},     // INIT
                        Case{0x00700, 0x00700, kMasked}}) {  // ExtINT, one pin only
    m.write(apic::lvt_lint0, c.written);
    m.write(apic::lvt_lint1, c.written);
    EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], c.lint0) << std::hex << c.written;
    EXPECT_EQ(m.host(0).registers[apic::lvt_lint1], c.lint1) << std::hex << c.written;
  }
}

TEST(PhysicalInterrupts, WithTheApicOffThePinsAreIntrAndNmi) {  // SDM vol. 3, 11.4.3
  ApicMachine m;
  ASSERT_TRUE(m[0].write_msr(cpu::msr::apic_base, 0xfee00000));
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], kExtInt);
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint1], kNmi);
  m[0].physical_interrupt(0x08);
  EXPECT_EQ(m[0].extint(), 0x08);
  ASSERT_TRUE(m[0].write_msr(cpu::msr::apic_base, 0xfee00800));
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], kMasked);
}

TEST(PhysicalInterrupts, ThePhysicalApicStaysEnabledWithL0sSpuriousVectorAndTpr0) {
  ApicMachine m;
  m.write(apic::svr, 0x05);
  m.write(apic::tpr, 0xf0);
  m.write(apic::id, 0x4400'0000);
  EXPECT_EQ(m.host(0).registers[apic::svr], 0x1ffu);
  EXPECT_EQ(m.host(0).registers[apic::tpr], 0u);
  EXPECT_EQ(m.host(0).registers.count(apic::id), 0u);
}

TEST(PhysicalInterrupts, ALevelLintEntryShowsRemoteIrrWhileInService) {
  ApicMachine m;
  m.write(apic::lvt_lint0, 0x8040);
  m.host(0).raise(0x40, true);
  m.take_physical();
  EXPECT_EQ(m.read(apic::lvt_lint0), 0xc040u);
  EXPECT_EQ(m.serve(), 0x40);
  EXPECT_EQ(m.read(apic::lvt_lint0), 0x8040u);
}

TEST(PhysicalInterrupts, WhatFirmwareLeftBecomesL1s) {
  ApicMachine m{1, false};
  m[0].adopt({.svr = 0x1ff, .lint0 = 0x8700, .lint1 = 0x8400, .ldr = 0x0100'0000, .dfr = ~0u});
  EXPECT_EQ(m.read(apic::svr), 0x1ffu);
  EXPECT_EQ(m.read(apic::lvt_lint0), 0x8700u);
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint0], 0x8700u);
  EXPECT_EQ(m.host(0).registers[apic::lvt_lint1], 0x8400u);
  EXPECT_EQ(m.host(0).registers[apic::ldr], 0x0100'0000u);
}

// An IPI of the vector of a level line that is in service: the physical EOI comes with the first,
// the line then fires again; nothing is lost and nothing hangs.
TEST(PhysicalInterrupts, AnIpiOfALevelInterruptsVectorDoesNotLoseTheLine) {
  ApicMachine m;
  m.write(apic::icr_low, kSelf | 0x40);
  m.accept_all();
  m.host(0).raise(0x40, true);
  m.take_physical();
  m[0].eoi();
  EXPECT_EQ(m.host(0).ended, Ended{0x40});
  EXPECT_EQ(m.serve(), 0x40);
  EXPECT_FALSE(m[0].physical().any_deferred());
}

}  // namespace
}  // namespace aerie::vmm
