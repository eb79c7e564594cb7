#include "vmm/local_apic.h"

#include <gtest/gtest.h>

#include "tests/unit/vmm/apic_machine.h"

namespace aerie::vmm {
namespace {

namespace base_bits = cpu::msr::apic_base_bits;
using Mode = LocalApic::Mode;

constexpr u32 msr_of(u32 offset) { return 0x800 + (offset >> 4); }
constexpr u32 kSelf = 1u << 18;

// ---- Reset values and the xAPIC page ----

TEST(LocalApic, PowersUpAsTheManualSays) {  // SDM vol. 3, 11.4.7.1
  ApicMachine m{2, false};
  EXPECT_EQ(m[0].apic_base(), 0xfee00900u);
  EXPECT_EQ(m[1].apic_base(), 0xfee00800u);
  EXPECT_EQ(m.read(apic::id, 1), 0x0100'0000u);
  EXPECT_EQ(m.read(apic::version), 0x0005'0014u);
  EXPECT_EQ(m.read(apic::svr), 0xffu);
  EXPECT_EQ(m.read(apic::dfr), 0xffff'ffffu);
  EXPECT_EQ(m.read(apic::ldr), 0u);
  EXPECT_EQ(m.read(apic::tpr), 0u);
  for (u32 lvt = apic::lvt_timer; lvt <= apic::lvt_error; lvt += 16) {
    EXPECT_EQ(m.read(lvt), 0x1'0000u) << lvt;
  }
  EXPECT_EQ(m.read(apic::initial_count), 0u);
  EXPECT_EQ(m.read(apic::divide), 0u);
}

TEST(LocalApic, KeepsOnlyTheWritableBits) {
  struct Case {
    u32 offset, expected;
  };
  ApicMachine m;
  for (const Case& c :
       {Case{apic::id, 0xff00'0000}, Case{apic::version, 0x0005'0014}, Case{apic::tpr, 0xff},
        Case{apic::ppr, 0xff}, Case{apic::ldr, 0xff00'0000}, Case{apic::dfr, 0xffff'ffff},
        Case{apic::svr, 0x3ff}, Case{apic::icr_high, 0xff00'0000},
        Case{apic::lvt_thermal, 0x1'07ff}, Case{apic::lvt_performance, 0x1'07ff},
        Case{apic::lvt_lint0, 0x1'a7ff}, Case{apic::lvt_lint1, 0x1'a7ff},
        Case{apic::lvt_error, 0x1'00ff}, Case{apic::divide, 0xb}, Case{apic::current_count, 0},
        Case{apic::isr, 0}, Case{apic::tmr, 0}, Case{apic::irr, 0}}) {
    m.write(c.offset, 0xffff'ffff);
    EXPECT_EQ(m.read(c.offset), c.expected) << std::hex << c.offset;
  }
  m.write(apic::lvt_timer, 0xffff'ffff & ~0x6'0000);
  EXPECT_EQ(m.read(apic::lvt_timer), 0x1'00ffu);
  m.write(apic::dfr, 0);
  EXPECT_EQ(m.read(apic::dfr), 0x0fff'ffffu);
}

TEST(LocalApic, ReadsOfOtherSizesGiveTheRegistersBytesAndOtherWritesDoNothing) {
  ApicMachine m;
  EXPECT_EQ(m[0].mmio_read(apic::version, 1), 0x14u);
  EXPECT_EQ(m[0].mmio_read(apic::version + 2, 1), 0x05u);
  EXPECT_EQ(m[0].mmio_read(apic::version, 2), 0x14u);
  EXPECT_EQ(m[0].mmio_read(apic::version + 3, 2), 0u);
  EXPECT_EQ(m[0].mmio_read(apic::version + 4, 4), 0u);
  EXPECT_EQ(m[0].mmio_read(apic::version, 8), 0u);
  for (unsigned size : {1u, 2u, 8u}) {
    m[0].mmio_write(apic::tpr, size, 0x40);
  }
  m[0].mmio_write(apic::tpr + 4, 4, 0x40);
  EXPECT_EQ(m.read(apic::tpr), 0u);
}

TEST(LocalApic, AReservedRegisterReadsZeroAndIsAnIllegalAddress) {  // SDM vol. 3, 11.5.3
  ApicMachine m;
  EXPECT_EQ(m.read(0x000), 0u);
  m.write(0x040, 1);
  EXPECT_EQ(m.read(apic::esr), 0u);  // not before ESR is written
  m.write(apic::esr, 0);
  EXPECT_EQ(m.read(apic::esr), 0x80u);
  m.write(apic::esr, 0);
  EXPECT_EQ(m.read(apic::esr), 0u);
}

TEST(LocalApic, AnErrorRaisesTheErrorInterruptOncePerWriteOfEsr) {
  ApicMachine m;
  m.write(apic::lvt_error, 0x51);
  m.write(0x040, 1);
  EXPECT_EQ(m.serve(), 0x51);
  m.write(0x040, 1);
  EXPECT_EQ(m.serve(), -1);
  m.write(apic::esr, 0);
  m.write(0x040, 1);
  EXPECT_EQ(m.serve(), 0x51);
}

TEST(LocalApic, IllegalVectorsAreErrorsAndNeverInTheIrr) {
  ApicMachine m{2};
  m.write(apic::icr_high, 1u << 24);
  m.write(apic::icr_low, 0x0f);
  m.write(apic::esr, 0);
  EXPECT_EQ(m.read(apic::esr), 0x20u);
  m.write(apic::icr_low, kSelf | 5);
  m.write(apic::esr, 0);
  EXPECT_EQ(m.read(apic::esr), 0x60u);
  m[1].post(3, m[0]);
  m.write(apic::esr, 0, 1);
  EXPECT_EQ(m.read(apic::esr, 1), 0x40u);
  EXPECT_EQ(m.read(apic::irr), 0u);
  EXPECT_EQ(m.read(apic::irr, 1), 0u);
}

TEST(LocalApic, SoftwareDisabledMasksLvtsAndAcceptsNoFixedInterrupt) {  // SDM vol. 3, 11.4.7.2
  ApicMachine m{2};
  m.write(apic::icr_low, kSelf | 0x40);
  m.write(apic::lvt_lint0, 0x700);
  m.write(apic::svr, 0xff);
  EXPECT_EQ(m.read(apic::lvt_lint0), 0x1'0700u);
  m.write(apic::lvt_lint0, 0x700);
  EXPECT_EQ(m.read(apic::lvt_lint0), 0x1'0700u);
  m.write(apic::icr_low, kSelf | 0x41);
  EXPECT_EQ(m.serve(), -1);  // 0x40 is held
  m.write(apic::svr, 0x1ff);
  EXPECT_EQ(m.read(apic::lvt_lint0), 0x1'0700u);
  EXPECT_EQ(m.serve(), 0x40);
  EXPECT_EQ(m.serve(), -1);
  // It still sends, and still takes NMI, INIT and SIPI.
  m.write(apic::svr, 0xff);
  m.write(apic::icr_high, 1u << 24);
  m.write(apic::icr_low, 0x42);
  EXPECT_EQ(m.serve(1), 0x42);
  m[0].post_nmi(m[1]);
  m[0].post_init(m[1]);
  m[0].post_startup(7, m[1]);
  EXPECT_EQ(m[0].mailbox().pending(), request::nmi | request::init | request::sipi);
}

// ---- Priorities ----

TEST(LocalApic, DeliversTheHighestVectorAboveThePriorityClass) {  // SDM vol. 3, 11.8.3.1
  ApicMachine m;
  for (u32 v : {0x31u, 0x92u, 0x9fu, 0x20u}) {
    m.write(apic::icr_low, kSelf | v);
  }
  EXPECT_EQ(m.accept_all(), (std::vector<int>{0x9f}));  // 0x92 is of the class in service
  EXPECT_EQ(m.read(apic::ppr), 0x90u);
  m[0].eoi();
  EXPECT_EQ(m.accept_all(), (std::vector<int>{0x92}));
  m.write(apic::icr_low, kSelf | 0xa0);
  EXPECT_EQ(m.accept_all(), (std::vector<int>{0xa0}));
  m[0].eoi();
  EXPECT_EQ(m.accept_all(), (std::vector<int>{}));
  m[0].eoi();
  EXPECT_EQ(m.serve(), 0x31);
  EXPECT_EQ(m.serve(), 0x20);
}

TEST(LocalApic, PriorityIsTheHigherOfTprAndIsrForEveryPair) {  // SDM vol. 3, figure 11-19
  for (unsigned tpr = 0; tpr < 256; tpr += 3) {
    for (unsigned in_service = 16; in_service < 256; in_service += 5) {
      ApicMachine m;
      m.write(apic::icr_low, kSelf | in_service);
      m[0].accept(static_cast<u8>(in_service));
      m.write(apic::tpr, tpr);
      const unsigned expected = (tpr >> 4) >= (in_service >> 4) ? tpr : in_service & 0xf0;
      ASSERT_EQ(m.read(apic::ppr), expected) << tpr << ' ' << in_service;
    }
  }
}

TEST(LocalApic, TprHoldsBackItsClassAndBelow) {
  ApicMachine m;
  m.write(apic::icr_low, kSelf | 0x45);
  m[0].set_cr8(4);
  EXPECT_EQ(m.read(apic::tpr), 0x40u);
  EXPECT_EQ(m[0].deliverable(), std::nullopt);
  EXPECT_TRUE(m[0].blocked_by_tpr());
  m[0].set_cr8(3);
  EXPECT_FALSE(m[0].blocked_by_tpr());
  EXPECT_EQ(m.accept_all(), (std::vector<int>{0x45}));
  m.write(apic::icr_low, kSelf | 0x46);
  EXPECT_FALSE(m[0].blocked_by_tpr());  // the ISR does
  m[0].set_cr8(4);
  EXPECT_FALSE(m[0].blocked_by_tpr());  // both do: lowering TPR would not help
}

TEST(LocalApic, WritingTheSameClassToCr8KeepsTprsLowBits) {
  ApicMachine m;
  m.write(apic::tpr, 0x35);
  m[0].set_cr8(3);
  EXPECT_EQ(m.read(apic::tpr), 0x35u);
  m[0].set_cr8(2);
  EXPECT_EQ(m.read(apic::tpr), 0x20u);
}

TEST(LocalApic, EveryVectorIsAcceptedAndEnded) {
  ApicMachine m;
  for (u32 v = 16; v < 256; ++v) {
    m.write(apic::icr_low, kSelf | v);
    EXPECT_EQ(m.read(apic::irr + 16 * (v / 32)), 1u << (v % 32));
    ASSERT_EQ(m.accept_all(), std::vector<int>{static_cast<int>(v)});
    EXPECT_EQ(m.read(apic::irr + 16 * (v / 32)), 0u);
    EXPECT_EQ(m.read(apic::isr + 16 * (v / 32)), 1u << (v % 32));
    m.write(apic::eoi, 0);
    EXPECT_EQ(m.read(apic::isr + 16 * (v / 32)), 0u);
  }
  m.write(apic::eoi, 0);  // with nothing in service
}

// ---- Modes ----

TEST(LocalApic, ModeTransitionsObeyTheStateDiagram) {  // SDM vol. 3, figure 11-27
  constexpr u64 kBase = 0xfee00000 | base_bits::bsp;
  constexpr u64 kStates[] = {kBase, kBase | base_bits::enable,
                             kBase | base_bits::enable | base_bits::x2apic,
                             kBase | base_bits::x2apic};
  const Mode modes[] = {Mode::disabled, Mode::xapic, Mode::x2apic};
  const bool allowed[3][4] = {
      {true, true, false, false}, {true, true, true, false}, {true, false, true, false}};
  for (unsigned from = 0; from < 3; ++from) {
    for (unsigned to = 0; to < 4; ++to) {
      ApicMachine m;
      if (from != 1) {
        ASSERT_TRUE(m[0].write_msr(cpu::msr::apic_base, kStates[from]));
      }
      ASSERT_EQ(m[0].mode(), modes[from]);
      EXPECT_EQ(m[0].write_msr(cpu::msr::apic_base, kStates[to]), allowed[from][to])
          << from << " to " << to;
      const bool moved = allowed[from][to];
      EXPECT_EQ(m[0].mode(), modes[moved ? to : from]);
      EXPECT_EQ(m[0].read_msr(cpu::msr::apic_base), kStates[moved ? to : from]);
    }
  }
}

TEST(LocalApic, ReservedBitsOfApicBaseFault) {
  ApicMachine m;
  const u64 base = m[0].apic_base();
  for (unsigned b = 0; b < 64; ++b) {
    const bool reserved = (b < 8) || b == 9 || b >= 40;
    if (b == 8 || b == 10 || b == 11) continue;
    EXPECT_EQ(m[0].write_msr(cpu::msr::apic_base, base | bit(b)), !reserved) << b;
  }
  ApicMachine without{1, true, false};
  EXPECT_FALSE(without[0].write_msr(cpu::msr::apic_base, base | base_bits::x2apic));
}

TEST(LocalApic, TheBootstrapFlagIsNotSoftwares) {
  ApicMachine m{2};
  EXPECT_TRUE(m[0].write_msr(cpu::msr::apic_base, 0xfee00800));
  EXPECT_EQ(m[0].apic_base(), 0xfee00900u);
  EXPECT_TRUE(m[1].write_msr(cpu::msr::apic_base, 0xfee00900));
  EXPECT_EQ(m[1].apic_base(), 0xfee00800u);
}

TEST(LocalApic, ThePageMovesWithApicBaseAndIsGoneInOtherModes) {
  ApicMachine m;
  EXPECT_TRUE(m[0].owns_page(Gpa{0xfee00030}));
  EXPECT_TRUE(m[0].write_msr(cpu::msr::apic_base, 0xfed40000 | base_bits::enable));
  EXPECT_FALSE(m[0].owns_page(Gpa{0xfee00030}));
  EXPECT_TRUE(m[0].owns_page(Gpa{0xfed40fff}));
  EXPECT_TRUE(
      m[0].write_msr(cpu::msr::apic_base, 0xfed40000 | base_bits::enable | base_bits::x2apic));
  EXPECT_FALSE(m[0].owns_page(Gpa{0xfed40030}));
}

TEST(LocalApic, DisablingResetsAllButTpr) {
  ApicMachine m{2};
  m.write(apic::id, 0x5500'0000, 1);
  m.write(apic::ldr, 0x0100'0000, 1);
  m.write(apic::tpr, 0x70, 1);
  m.write(apic::icr_low, kSelf | 0x80, 1);
  m.write(apic::lvt_lint1, 0x400, 1);
  EXPECT_EQ(m.read(apic::id, 1), 0x5500'0000u);
  ASSERT_TRUE(m[1].write_msr(cpu::msr::apic_base, 0xfee00000));
  EXPECT_EQ(m[1].cr8(), 7);
  EXPECT_EQ(m[1].deliverable(), std::nullopt);
  ASSERT_TRUE(m[1].write_msr(cpu::msr::apic_base, 0xfee00800));
  EXPECT_EQ(m.read(apic::id, 1), 0x0100'0000u);
  EXPECT_EQ(m.read(apic::ldr, 1), 0u);
  EXPECT_EQ(m.read(apic::svr, 1), 0xffu);
  EXPECT_EQ(m.read(apic::tpr, 1), 0x70u);
  EXPECT_EQ(m.read(apic::lvt_lint1, 1), 0x1'0000u);
}

TEST(LocalApic, EnteringX2ApicKeepsInterruptsAndTakesTheInitialId) {  // SDM vol. 3, 11.12.5.1
  ApicMachine m{4};
  m.write(apic::id, 0x5500'0000, 3);
  m.write(apic::tpr, 0x20, 3);
  m.write(apic::icr_low, kSelf | 0x80, 3);
  m.write(apic::icr_high, 0x1200'0000, 3);
  m.enter_x2apic(3);
  EXPECT_EQ(m[3].read_msr(msr_of(apic::id)), 3u);
  EXPECT_EQ(m[3].read_msr(msr_of(apic::ldr)), 8u);
  EXPECT_EQ(m[3].read_msr(msr_of(apic::icr_low)), kSelf | 0x80u);
  EXPECT_EQ(m[3].read_msr(msr_of(apic::tpr)), 0x20u);
  EXPECT_EQ(m[3].deliverable(), 0x80);
}

TEST(LocalApic, InitKeepsModeAndId) {  // SDM vol. 3, 11.4.7.3
  ApicMachine m{2};
  m.write(apic::id, 0x5500'0000, 1);
  m.write(apic::tpr, 0x20, 1);
  m[1].init_reset();
  EXPECT_EQ(m.read(apic::id, 1), 0x5500'0000u);
  EXPECT_EQ(m.read(apic::tpr, 1), 0u);
  EXPECT_EQ(m.read(apic::svr, 1), 0xffu);
  m.enter_x2apic(1);
  m[1].init_reset();
  EXPECT_EQ(m[1].mode(), Mode::x2apic);
  EXPECT_EQ(m[1].read_msr(msr_of(apic::ldr)), 2u);
}

// ---- x2APIC MSRs: SDM vol. 3, table 11-6 ----

struct MsrRule {
  u32 msr;
  bool read, write;
  u64 allowed;  // bits a write may set
};
std::vector<MsrRule> x2apic_rules() {
  std::vector<MsrRule> rules = {{0x802, true, false, 0},
                                {0x803, true, false, 0},
                                {0x808, true, true, 0xff},
                                {0x80a, true, false, 0},
                                {0x80b, false, true, 0},
                                {0x80d, true, false, 0},
                                {0x80f, true, true, 0x3ff},
                                {0x828, true, true, 0},
                                {0x830, true, true, 0xffff'ffff'000c'dfff},
                                {0x832, true, true, 0x7'50ff},
                                {0x833, true, true, 0x1'57ff},
                                {0x834, true, true, 0x1'57ff},
                                {0x835, true, true, 0x1'f7ff},
                                {0x836, true, true, 0x1'f7ff},
                                {0x837, true, true, 0x1'50ff},
                                {0x838, true, true, 0xffff'ffff},
                                {0x839, true, false, 0},
                                {0x83e, true, true, 0xb},
                                {0x83f, false, true, 0xff}};
  for (u32 i = 0; i < 24; ++i) rules.push_back({0x810 + i, true, false, 0});
  return rules;
}

TEST(X2Apic, EachRegisterIsReadableAndWritableAsTheTableSays) {
  ApicMachine m{2};
  m.enter_x2apic();
  const auto rules = x2apic_rules();
  for (u32 index = 0x800; index <= 0x8ff; ++index) {
    const auto rule =
        std::find_if(rules.begin(), rules.end(), [&](const MsrRule& r) { return r.msr == index; });
    const bool known = rule != rules.end();
    EXPECT_EQ(m[0].read_msr(index).has_value(), known && rule->read) << std::hex << index;
    if (!known || !rule->write) {
      EXPECT_FALSE(m[0].write_msr(index, 0)) << std::hex << index;
    }
    EXPECT_FALSE(m[1].read_msr(index).has_value());  // in xAPIC mode
    EXPECT_FALSE(m[1].write_msr(index, 0));
  }
}

TEST(X2Apic, EachReservedBitFaultsByItself) {
  ApicMachine m{2};
  m.enter_x2apic();
  for (const MsrRule& rule : x2apic_rules()) {
    if (!rule.write) continue;
    for (unsigned b = 0; b < 64; ++b) {
      EXPECT_EQ(m[0].write_msr(rule.msr, bit(b)), (rule.allowed & bit(b)) != 0)
          << std::hex << rule.msr << " bit " << std::dec << b;
    }
  }
}

TEST(X2Apic, IcrIsOne64BitRegisterAndSelfIpiPostsToItself) {
  ApicMachine m{2};
  m.enter_x2apic();
  m.enter_x2apic(1);
  EXPECT_TRUE(m[0].write_msr(0x830, (u64{1} << 32) | 0x60));
  EXPECT_EQ(m[0].read_msr(0x830), (u64{1} << 32) | 0x60);
  EXPECT_EQ(m.serve(1), 0x60);
  EXPECT_TRUE(m[0].write_msr(0x83f, 0x61));
  EXPECT_EQ(m.serve(0), 0x61);
  EXPECT_TRUE(m[0].write_msr(0x83f, 0x01));
  EXPECT_TRUE(m[0].write_msr(0x828, 0));
  EXPECT_EQ(m[0].read_msr(0x828), 0x60u);
}

TEST(X2Apic, TheTimersReservedModeAndAnAbsentTscDeadlineFault) {
  ApicMachine m;
  m.enter_x2apic();
  EXPECT_TRUE(m[0].write_msr(0x832, 0x4'0040));
  EXPECT_FALSE(m[0].write_msr(0x832, 0x6'0040));
  ApicMachine without{0};
  without.cpus.push_back(std::make_unique<ApicMachine::Cpu>(without.bus));
  without[0].power_up({.tsc_deadline = false}, TimerRatio{});
  without.enter_x2apic();
  EXPECT_FALSE(without[0].write_msr(0x832, 0x4'0040));
  EXPECT_FALSE(without[0].write_msr(cpu::msr::tsc_deadline, 1));
  EXPECT_FALSE(without[0].read_msr(cpu::msr::tsc_deadline).has_value());
}

TEST(LocalApic, OtherMsrsAreNotItsOwn) {
  ApicMachine m;
  EXPECT_FALSE(m[0].read_msr(0x10).has_value());
  EXPECT_FALSE(m[0].write_msr(0x10, 0));
  EXPECT_FALSE(m[0].write_msr(0x8ff, 0));
  EXPECT_FALSE(m[0].read_msr(0x7ff).has_value());
}

}  // namespace
}  // namespace aerie::vmm
