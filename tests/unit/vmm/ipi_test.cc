#include "vmm/ipi.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/vmm/apic_machine.h"

namespace aerie::vmm {
namespace {

using Set = std::set<unsigned>;
constexpr u32 kVector = 0x61;
constexpr u32 kLogical = 1u << 11;
constexpr u32 kAll = 2u << 18, kOthers = 3u << 18, kSelf = 1u << 18;
constexpr u32 kLowest = 1u << 8, kNmi = 4u << 8, kInit = 5u << 8, kStartup = 6u << 8;

Set send(ApicMachine& m, u32 low, u32 destination, unsigned from = 0) {
  m.write(apic::icr_high, destination << 24, from);
  m.write(apic::icr_low, low, from);
  return m.receivers(kVector);
}
Set all_of(unsigned count) {
  Set set;
  for (unsigned i = 0; i < count; ++i) set.insert(i);
  return set;
}

TEST(Ipi, PhysicalDestinationsReachTheProcessorWithThatId) {
  for (unsigned count = 2; count <= kMaxCpus; ++count) {
    ApicMachine m{count};
    for (u32 destination = 0; destination < 256; ++destination) {
      Set expected;
      if (destination == 0xff)
        expected = all_of(count);
      else if (destination < count)
        expected = {destination};
      EXPECT_EQ(send(m, kVector, destination), expected) << destination;
    }
  }
}

TEST(Ipi, ShorthandsLeaveTheDestinationAside) {
  for (unsigned count = 2; count <= kMaxCpus; ++count) {
    for (unsigned from = 0; from < count; ++from) {
      ApicMachine m{count};
      EXPECT_EQ(send(m, kVector | kSelf, 0x77, from), Set{from});
      EXPECT_EQ(send(m, kVector | kAll, 0x77, from), all_of(count));
      Set others = all_of(count);
      others.erase(from);
      EXPECT_EQ(send(m, kVector | kOthers, 0x77, from), others);
    }
  }
}

TEST(Ipi, AliasedPhysicalIdsAllReceive) {
  ApicMachine m{3};
  m.write(apic::id, 0x4200'0000, 1);
  m.write(apic::id, 0x4200'0000, 2);
  EXPECT_EQ(send(m, kVector, 0x42), (Set{1, 2}));
  EXPECT_EQ(send(m, kVector, 1), Set{});
}

TEST(Ipi, FlatLogicalDestinationsAreMasks) {  // SDM vol. 3, 11.6.2.2
  ApicMachine m{8};
  for (unsigned i = 0; i < 8; ++i) {
    m.write(apic::ldr, 0x100'0000u << i, i);
  }
  for (u32 destination = 0; destination < 256; ++destination) {
    Set expected;
    for (unsigned i = 0; i < 8; ++i) {
      if ((destination >> i) & 1) expected.insert(i);
    }
    EXPECT_EQ(send(m, kVector | kLogical, destination), expected) << destination;
  }
}

TEST(Ipi, ClusterLogicalDestinationsMatchClusterAndMember) {
  ApicMachine m{8};
  for (unsigned i = 0; i < 8; ++i) {
    m.write(apic::dfr, 0, i);
    m.write(apic::ldr, (((i / 4 + 2) << 4) | (1u << (i % 4))) << 24, i);  // clusters 2 and 3
  }
  for (u32 destination = 0; destination < 256; ++destination) {
    Set expected;
    for (unsigned i = 0; i < 8; ++i) {
      const bool cluster = (destination >> 4) == i / 4 + 2 || (destination >> 4) == 0xf;
      if (cluster && ((destination >> (i % 4)) & 1)) expected.insert(i);
    }
    EXPECT_EQ(send(m, kVector | kLogical, destination), expected) << destination;
  }
}

TEST(Ipi, LogicalBroadcastReachesAProcessorWithNoLogicalId) {
  ApicMachine m{3};
  EXPECT_EQ(send(m, kVector | kLogical, 0xff), all_of(3));
  EXPECT_EQ(send(m, kVector | kLogical, 0x7f), Set{});
}

TEST(Ipi, X2ApicDestinationsHave32Bits) {
  ApicMachine m{8};
  for (unsigned i = 0; i < 8; ++i) m.enter_x2apic(i);
  const auto send_x2 = [&m](u32 low, u32 destination) {
    EXPECT_TRUE(m[0].write_msr(0x830, (u64{destination} << 32) | low));
    return m.receivers(kVector);
  };
  EXPECT_EQ(send_x2(kVector, 5), Set{5});
  EXPECT_EQ(send_x2(kVector, 0xff), Set{});
  EXPECT_EQ(send_x2(kVector, 0x0100'0005), Set{});
  EXPECT_EQ(send_x2(kVector, 0xffff'ffff), all_of(8));
  EXPECT_EQ(send_x2(kVector | kLogical, 0x0000'00a5), (Set{0, 2, 5, 7}));
  EXPECT_EQ(send_x2(kVector | kLogical, 0x0001'00a5), Set{});
  EXPECT_EQ(send_x2(kVector | kLogical, 0xffff'ffff), all_of(8));
}

TEST(Ipi, X2ApicLogicalIdsAreDerivedFromTheId) {  // SDM vol. 3, 11.12.10.2
  EXPECT_EQ(apic::x2apic_ldr(0), 1u);
  EXPECT_EQ(apic::x2apic_ldr(15), 0x8000u);
  EXPECT_EQ(apic::x2apic_ldr(16), 0x1'0001u);
  EXPECT_EQ(apic::x2apic_ldr(0x123), 0x12'0008u);
}

TEST(Ipi, ADisabledApicReceivesNothing) {
  ApicMachine m{3};
  ASSERT_TRUE(m[1].write_msr(cpu::msr::apic_base, 0xfee00000));
  m.write(apic::icr_high, 1u << 24);
  m.write(apic::icr_low, kInit | 0x4000);
  m.write(apic::icr_low, kOthers | kNmi | 0x4000);
  EXPECT_EQ(m[1].mailbox().pending(), 0u);
  EXPECT_EQ(m[2].mailbox().pending(), request::nmi);
}

TEST(Ipi, LowestPriorityReachesExactlyOneOfTheLowestTpr) {
  ApicMachine m{4};
  m.write(apic::tpr, 0x20, 0);
  m.write(apic::tpr, 0x10, 1);
  m.write(apic::tpr, 0x10, 2);
  m.write(apic::tpr, 0x00, 3);
  m.write(apic::svr, 0xff, 3);  // lower still, but accepts nothing
  Set seen;
  for (int i = 0; i < 16; ++i) {
    const Set got = send(m, kVector | kLowest, 0xff);
    ASSERT_EQ(got.size(), 1u);
    seen.insert(*got.begin());
  }
  EXPECT_EQ(seen, (Set{1, 2}));
}

TEST(Ipi, NmiInitAndStartupGoToTheMailbox) {
  ApicMachine m{3};
  m.write(apic::icr_low, kOthers | kNmi | 0x4000);
  EXPECT_EQ(m[0].mailbox().pending(), 0u);
  EXPECT_EQ(m[1].mailbox().take_nmis(), 1u);
  m.write(apic::icr_high, 2u << 24);
  m.write(apic::icr_low, kInit | 0xc000);  // level, assert
  EXPECT_EQ(m[2].mailbox().take(request::init), request::init);
  m.write(apic::icr_low, kInit | 0x8000);  // level, de-assert
  EXPECT_EQ(m[2].mailbox().take(request::init), 0u);
  m.write(apic::icr_low, kInit);  // edge
  EXPECT_EQ(m[2].mailbox().take(request::init), request::init);
  m.write(apic::icr_low, kStartup | 0x08);
  EXPECT_EQ(m[2].mailbox().take_sipi(), 0x08);
  // To itself, by number, NMI and INIT arrive; no kick goes out for them.
  m.host(0).sent.clear();
  m.write(apic::icr_high, 0);
  m.write(apic::icr_low, kNmi);
  m.write(apic::icr_low, kInit | 0x4000);
  EXPECT_EQ(m[0].mailbox().pending(), request::nmi | request::init);
  EXPECT_TRUE(m.host(0).sent.empty());
}

TEST(Ipi, SmiReservedAndExtIntModesDoNothing) {
  ApicMachine m{2};
  for (u32 mode : {2u, 3u, 7u}) {
    m.write(apic::icr_low, kOthers | (mode << 8) | 0x50);
    EXPECT_EQ(m[1].mailbox().pending(), 0u);
    EXPECT_EQ(m.serve(1), -1);
  }
}

TEST(Ipi, OneKickIsSentUntilTheReceiverTakesIt) {
  ApicMachine m{3};
  m.write(apic::icr_high, 2u << 24);
  m.write(apic::icr_low, 0x50);
  ASSERT_EQ(m.host(0).sent.size(), 1u);
  EXPECT_EQ(m.host(0).sent[0], (std::pair<u32, u32>{2, 0x4400}));
  m.write(apic::icr_low, 0x50);
  m.write(apic::icr_low, 0x51);
  EXPECT_EQ(m.host(0).sent.size(), 1u);
  EXPECT_TRUE(m[2].mailbox().nmi_was_kick());
  m.write(apic::icr_low, 0x51);  // is in the IRR still
  EXPECT_EQ(m.host(0).sent.size(), 1u);
  m.write(apic::icr_low, 0x52);
  EXPECT_EQ(m.host(0).sent.size(), 2u);
}

TEST(Ipi, KicksGoToTheInitialIdWhateverL1WroteToItsIdRegister) {
  ApicMachine m{2};
  m.write(apic::id, 0x4200'0000, 1);
  m.write(apic::icr_high, 0x42u << 24);
  m.write(apic::icr_low, 0x50);
  ASSERT_EQ(m.host(0).sent.size(), 1u);
  EXPECT_EQ(m.host(0).sent[0].first, 1u);
}

TEST(Ipi, AnEdgeIpiClearsTheTriggerModeBit) {
  ApicMachine m{2};
  m.host(1).raise(0x50, true);
  m.take_physical(1);
  EXPECT_EQ(m.read(apic::tmr + 0x20, 1), 1u << 16);
  m.write(apic::icr_high, 1u << 24);
  m.write(apic::icr_low, 0x50);
  EXPECT_EQ(m.read(apic::tmr + 0x20, 1), 0u);
}

// Two processors send, one receives; each vector is sent again only after it was taken, so that
// none may coalesce: all must arrive.
TEST(Ipi, UnderStressEveryIpiArrives) {
  ApicMachine m{3};
  constexpr int kRounds = 20'000;
  std::atomic<int> taken[2] = {0, 0};
  std::atomic<bool> done{false};
  const auto sender = [&](unsigned cpu) {
    for (int i = 0; i < kRounds; ++i) {
      m.write(apic::icr_high, 2u << 24, cpu);
      m.write(apic::icr_low, 0x50 + 0x10 * cpu, cpu);
      while (taken[cpu].load() != i + 1) std::this_thread::yield();
    }
  };
  std::thread receiver{[&] {
    while (!done) {
      if (m[2].mailbox().pending() == 0) {
        std::this_thread::yield();
        continue;
      }
      (void)m[2].mailbox().nmi_was_kick();
      m[2].mailbox().take(request::interrupt);
      for (int v = m.serve(2); v >= 0; v = m.serve(2)) ++taken[(v - 0x50) / 0x10];
    }
  }};
  std::thread a{sender, 0}, b{sender, 1};
  a.join();
  b.join();
  done = true;
  receiver.join();
  EXPECT_EQ(taken[0], kRounds);
  EXPECT_EQ(taken[1], kRounds);
}

}  // namespace
}  // namespace aerie::vmm
