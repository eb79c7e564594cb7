#include "vmm/requests.h"

#include <gtest/gtest.h>

#include <thread>

namespace aerie::vmm {
namespace {

TEST(Mailbox, TheFirstSenderKicksAndLaterOnesDoNot) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.post(request::interrupt));
  EXPECT_FALSE(mailbox.post(request::tlb_flush));
  EXPECT_FALSE(mailbox.post_nmi());
  EXPECT_EQ(mailbox.pending(), request::interrupt | request::tlb_flush | request::nmi);
  EXPECT_TRUE(mailbox.nmi_was_kick());
  EXPECT_TRUE(mailbox.post(request::interrupt));
}

TEST(Mailbox, AnNmiThatComesWithoutAKickInFlightIsTheGuests) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.nmi_was_kick());
  EXPECT_TRUE(mailbox.post(request::interrupt));
  EXPECT_TRUE(mailbox.nmi_was_kick());
  EXPECT_FALSE(mailbox.nmi_was_kick());
  EXPECT_EQ(mailbox.pending(), request::interrupt);  // the work is still there
}

TEST(Mailbox, TheOwnerAskingItselfLeavesNoKickInFlight) {
  Mailbox mailbox;
  mailbox.post_self(request::tlb_flush);
  mailbox.post_self_nmi();
  mailbox.post_self_init();
  EXPECT_FALSE(mailbox.kick_in_flight());
  EXPECT_EQ(mailbox.pending(), request::tlb_flush | request::nmi | request::init);
}

TEST(Mailbox, TakesOnlyWhatIsAskedFor) {
  Mailbox mailbox;
  (void)mailbox.post(request::interrupt | request::quiesce);
  EXPECT_EQ(mailbox.take(request::interrupt | request::stop), request::interrupt);
  EXPECT_EQ(mailbox.pending(), request::quiesce);
  EXPECT_TRUE(mailbox.kick_in_flight());
}

TEST(Mailbox, CountsNmisUpToTwo) {
  Mailbox mailbox;
  EXPECT_EQ(mailbox.take_nmis(), 0u);
  (void)mailbox.post_nmi();
  mailbox.post_self_nmi();
  EXPECT_EQ(mailbox.take_nmis(), 2u);
  for (int i = 0; i < 5; ++i) (void)mailbox.post_nmi();
  EXPECT_EQ(mailbox.take_nmis(), 2u);
  EXPECT_EQ(mailbox.pending(), 0u);
}

TEST(Mailbox, InitDropsAnEarlierStartupIpiAndKeepsALaterOne) {
  Mailbox mailbox;
  (void)mailbox.post_sipi(0x12);
  (void)mailbox.post_init();
  EXPECT_EQ(mailbox.take_sipi(), std::nullopt);
  (void)mailbox.post_sipi(0x34);
  (void)mailbox.post_sipi(0x56);  // would find the processor started
  EXPECT_EQ(mailbox.take_sipi(), 0x34);
  EXPECT_EQ(mailbox.take_sipi(), std::nullopt);
}

TEST(NmiLatch, HoldsOneWhileOneIsHandledElseTwo) {
  NmiLatch latch;
  latch.add(2, false);
  latch.taken();
  EXPECT_TRUE(latch.pending());
  latch.add(2, true);
  latch.taken();
  EXPECT_FALSE(latch.pending());
  latch.add(2, true);
  latch.taken();
  EXPECT_FALSE(latch.pending());
}

TEST(Startup, InitThenStartup) {
  Mailbox mailbox;
  Startup startup;
  (void)mailbox.post_sipi(0x11);
  EXPECT_EQ(startup.next(mailbox, false).action, Startup::Action::none);  // it runs
  EXPECT_EQ(mailbox.pending(), 0u);

  (void)mailbox.post_init();
  (void)mailbox.post_sipi(0x99);
  EXPECT_EQ(startup.next(mailbox, false).action, Startup::Action::init);
  EXPECT_TRUE(startup.waiting());
  const Startup::Step step = startup.next(mailbox, false);
  EXPECT_EQ(step.action, Startup::Action::start);
  EXPECT_EQ(step.vector, 0x99);
  EXPECT_FALSE(startup.waiting());
  (void)mailbox.post_sipi(0x99);  // the second of INIT-SIPI-SIPI
  EXPECT_EQ(startup.next(mailbox, false).action, Startup::Action::none);
}

TEST(Startup, ABlockedInitStaysLatchedAndStartupIpisMeanwhileAreLost) {
  Mailbox mailbox;
  Startup startup;
  (void)mailbox.post_init();
  (void)mailbox.post_sipi(1);
  EXPECT_EQ(startup.next(mailbox, true).action, Startup::Action::none);
  EXPECT_EQ(startup.next(mailbox, true).action, Startup::Action::none);
  EXPECT_EQ(startup.next(mailbox, false).action, Startup::Action::init);
  EXPECT_EQ(startup.next(mailbox, false).action, Startup::Action::none);
  EXPECT_TRUE(startup.waiting());
}

// One thread sends work and "NMIs" (a counter stands for the pin, which latches one), another takes
// both. No work is ever left in the word with no NMI coming for it, and every NMI is a kick.
TEST(Mailbox, UnderStressNoWorkIsLeftBehindAndNoKickIsTakenForAGuestNmi) {
  Mailbox mailbox;
  std::atomic<int> pin{0};
  std::atomic<bool> done{false};
  std::atomic<u64> sent{0};
  u64 taken = 0, strangers = 0, left_behind = 0;
  constexpr u64 kRounds = 50'000;

  std::thread receiver{[&] {
    for (;;) {
      const bool last = done.load();
      if (pin.exchange(0) != 0) {
        strangers += !mailbox.nmi_was_kick();
        taken += (mailbox.take(request::interrupt) != 0);
      } else if (last) {
        break;
      }
    }
  }};
  const auto sender = [&] {
    for (u64 i = 0; i < kRounds; ++i) {
      ++sent;
      if (mailbox.post(request::interrupt)) {
        pin.store(1);
      }
    }
  };
  std::thread first{sender}, second{sender};
  first.join();
  second.join();
  done = true;
  receiver.join();
  left_behind = mailbox.pending();
  EXPECT_EQ(strangers, 0u);
  EXPECT_EQ(left_behind, 0u);
  EXPECT_GT(taken, 0u);
  EXPECT_LE(taken, sent.load());
}

}  // namespace
}  // namespace aerie::vmm
