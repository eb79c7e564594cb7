// Hostile processors: random accesses of every kind and size, random physical interrupts, and what
// must hold after each step.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/vmm/apic_machine.h"

namespace aerie::vmm {
namespace {

void check_invariants(ApicMachine& m, unsigned i, int step) {
  LocalApic& apic = m[i];
  ModelApic& host = m.host(i);
  // The physical ISR is what L0 has deferred, no more and no less.
  for (unsigned v = 0; v < 256; ++v) {
    ASSERT_EQ(host.isr.test(static_cast<u8>(v)), apic.physical().deferred(static_cast<u8>(v)))
        << "vector " << v << " step " << step;
  }
  // No vector below 16 is ever pending or in service, and none is deliverable with the APIC off.
  ASSERT_EQ(apic.mmio_read(apic::irr, 2) & ~host.irr.word32(0), 0u) << step;
  ASSERT_EQ(apic.mmio_read(apic::isr, 2), 0u) << step;
  if (!apic.software_enabled()) {
    ASSERT_FALSE(apic.deliverable().has_value()) << step;
  }
  // The physical APIC is as L0 needs it.
  ASSERT_EQ(host.registers[apic::svr], 0x1ffu);
  ASSERT_EQ(host.registers[apic::tpr], 0u);
  ASSERT_EQ(host.registers.count(apic::id), 0u);
  for (u32 lint : {apic::lvt_lint0, apic::lvt_lint1}) {
    const u32 entry = host.registers[lint];
    const auto mode = apic::delivery_mode(entry);
    ASSERT_TRUE((entry & apic::lvt_masked) != 0 || mode == apic::DeliveryMode::nmi ||
                mode == apic::DeliveryMode::extint ||
                (mode == apic::DeliveryMode::fixed && (entry & 0xff) >= 16))
        << std::hex << entry;
  }
  // A physical timer that runs has a legal vector and someone who waits for it.
  if (host.timer_running) {
    ASSERT_GE(host.registers[apic::lvt_timer], 16u);
    ASSERT_LE(host.registers[apic::lvt_timer], 255u);
    ASSERT_TRUE(apic.timer().armed_vector().has_value());
  }
  // Only NMIs leave, and only to processors that exist.
  for (const auto& [destination, low] : host.sent) {
    ASSERT_EQ(low, 0x4400u);
    ASSERT_LT(destination, m.cpus.size());
    ASSERT_NE(destination, i);
  }
  host.sent.clear();
}

TEST(ApicProperties, HoldForRandomHostileProcessors) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random{seed};
    ApicMachine m{4};
    for (int step = 0; step < 20'000; ++step) {
      const unsigned i = static_cast<unsigned>(random() % 4);
      LocalApic& apic = m[i];
      const u64 value = random() % 3 == 0 ? random() : random() & 0x7ffff;
      switch (random() % 12) {
        case 0:
        case 1:
        case 2:
          apic.mmio_write(static_cast<u32>((random() % 64) << 4), 4, value);
          break;
        case 3:
          apic.mmio_write(static_cast<u32>(random() & 0xfff), 1u << (random() % 4), value);
          break;
        case 4:
          apic.mmio_read(static_cast<u32>(random() & 0xfff), 1u << (random() % 4));
          break;
        case 5:
          (void)apic.write_msr(static_cast<u32>(0x800 + random() % 0x100), value & random());
          (void)apic.read_msr(static_cast<u32>(0x800 + random() % 0x100));
          break;
        case 6:
          if (random() % 8 == 0) {
            (void)apic.write_msr(cpu::msr::apic_base, 0xfee00000 | ((random() & 3) << 10));
          } else {
            apic.mmio_write(apic::svr, 4, 0x1ff);
          }
          break;
        case 7:
          (void)apic.write_msr(cpu::msr::tsc_deadline, m.host(i).clock + random() % 5000);
          break;
        case 8:
          m.host(i).raise(static_cast<u8>(16 + random() % 240), random() % 2 == 0);
          break;
        case 9:
          m.host(i).advance_to(m.host(i).clock + random() % 3000);
          break;
        case 10:
          if (random() % 50 == 0) {
            apic.init_reset();
          } else {
            m.serve(i);
          }
          break;
        default:
          apic.physical_interrupt(static_cast<u8>(random()));  // with no ISR bit, or a deferred one
          break;
      }
      // A vector is acknowledged once; what random() invented above may be in service already.
      if (apic.prepare_window(random() % 2 == 0)) {
        m.take_physical(i);
      }
      if (apic.extint() && random() % 2 == 0) apic.extint_taken();
      if (random() % 4 == 0) apic.release_extint();
      if (const auto vector = apic.deliverable(); vector && random() % 2 == 0) {
        ASSERT_GT(*vector & 0xf0, apic.priority() & 0xf0);
        apic.accept(*vector);
      }
      check_invariants(m, i, step);
      if (HasFatalFailure()) return;
      (void)apic.mailbox().nmi_was_kick();
      apic.mailbox().take(0xff & ~(request::nmi | request::sipi));
      apic.mailbox().take_nmis();
      apic.mailbox().take_sipi();
    }
  }
}

// Whatever happened before: once every interrupt is served, nothing is deferred, so every line can
// fire again.
TEST(ApicProperties, AfterAllIsServedNoPhysicalEoiIsOwed) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random{seed};
    ApicMachine m;
    for (int step = 0; step < 500; ++step) {
      switch (random() % 4) {
        case 0:
        case 1:
          m.host(0).raise(static_cast<u8>(16 + random() % 240), random() % 2 == 0);
          break;
        case 2:
          if (const auto vector = m[0].deliverable()) m[0].accept(*vector);
          break;
        default:
          m[0].eoi();
          break;
      }
      m.take_physical();
    }
    for (int rounds = 0; rounds < 600; ++rounds) {
      m[0].eoi();
      m.take_physical();
      m.serve();
    }
    EXPECT_TRUE(m.host(0).isr.empty()) << seed;
    EXPECT_TRUE(m.host(0).irr.empty()) << seed;
    EXPECT_FALSE(m[0].physical().any_deferred()) << seed;
    EXPECT_EQ(m.read(apic::ppr), 0u);
  }
}

}  // namespace
}  // namespace aerie::vmm
