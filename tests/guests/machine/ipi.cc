// Interprocessor interrupts: delivery modes, destination modes, shorthands; INIT and SIPI; NMIs.
// With x2apic=1 in x2APIC mode. SDM vol. 3, 9.4, 10.6, 6.7.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

constexpr u8 kVector = 0x61;
constexpr u32 kFixed = icr::fixed | icr::assert_level | kVector;

u32 taken(unsigned index, u8 vector = kVector) { return cpu(index).interrupts[vector]; }

// The other processors with interrupts on, counting what arrives, for the object's lifetime.
volatile bool listening;
class Listeners {
 public:
  explicit Listeners(bool halted = false) {
    listening = true;
    start_cpus();
    for (unsigned i = 1; i < cpu_count(); ++i) {
      for (volatile u32& n : cpu(i).interrupts) {
        n = 0;
      }
      start_on(i, halted ? halt : spin);
    }
    // All of them have IF=1 once each has answered one IPI.
    if (cpu_count() > 1) {
      send_ipi(0, icr::others | icr::assert_level | kHello);
      for (unsigned i = 1; i < cpu_count(); ++i) {
        expect(spin_until([&] { return taken(i, kHello) != 0; }), "a listener to answer");
      }
    }
  }
  ~Listeners() {
    listening = false;
    if (cpu_count() > 1) {
      send_ipi(0, icr::others | icr::assert_level | kHello);
      for (unsigned i = 1; i < cpu_count(); ++i) {
        expect(wait_for(i), "a listener to stop");
      }
    }
  }
  Listeners(const Listeners&) = delete;
  Listeners& operator=(const Listeners&) = delete;

 private:
  static constexpr u8 kHello = 0x30;
  static void spin(u64) {
    cpu::sti();
    while (listening) {
      cpu::pause();
    }
    cpu::cli();
  }
  static void halt(u64) {
    while (listening) {
      asm volatile("sti\n\thlt\n\tcli" ::: "memory");
    }
  }
};

// Exactly the processors in `wanted` (a bit each) have taken `times` of `vector`.
void expect_taken(std::string_view what, u32 wanted, u32 times = 1) {
  cpu::sti();
  spin_until(
      [&] {
        for (unsigned i = 0; i < cpu_count(); ++i) {
          if ((wanted >> i & 1) != 0 && taken(i) < times) {
            return false;
          }
        }
        return true;
      },
      2000);
  spin_microseconds(200);
  cpu::cli();
  for (unsigned i = 0; i < cpu_count(); ++i) {
    if (!expect_equal(what, taken(i), (wanted >> i & 1) != 0 ? times : 0)) {
      print("  on processor {}\n", i);
    }
    cpu(i).interrupts[kVector] = 0;
  }
}

u32 everyone() { return (u32{1} << cpu_count()) - 1; }

void fixed_physical() {
  const Listeners listeners;
  for (unsigned i = 0; i < cpu_count(); ++i) {
    send_ipi(cpu(i).apic_id, kFixed);
    expect_taken("physical destination", u32{1} << i);
  }
}

void fixed_physical_halted() {
  const Listeners listeners{true};
  for (unsigned round = 0; round < 50; ++round) {
    for (unsigned i = 1; i < cpu_count(); ++i) {
      const u32 before = taken(i);
      send_ipi(cpu(i).apic_id, kFixed);
      if (!expect(spin_until([&] { return taken(i) == before + 1; }),
                  "a halted processor to wake")) {
        return;
      }
    }
  }
}

void physical_broadcast() {
  const Listeners listeners;
  send_ipi(in_x2apic() ? 0xffff'ffff : 0xff, kFixed);
  expect_taken("physical broadcast", everyone());
}

void shorthands() {
  const Listeners listeners;
  send_ipi(0x55, icr::self | kFixed);
  expect_taken("self", 1);
  send_ipi(0x55, icr::all | kFixed);
  expect_taken("all including self", everyone());
  send_ipi(0x55, icr::others | kFixed);
  expect_taken("all excluding self", everyone() & ~1u);
}

void nobody_there() {
  const Listeners listeners;
  send_ipi(0x77, kFixed);
  expect_taken("absent physical destination", 0);
  if (!in_x2apic()) {
    expect_equal("ICR idle", apic_read(Apic::icr_low) & icr::pending, 0);
  }
}

// Logical IDs, on every processor: flat one bit each, cluster two processors a cluster.
void set_logical_flat(u64) {
  apic_write(Apic::dfr, 0xffff'ffff);
  apic_write(Apic::ldr, u32{1} << (24 + this_cpu().index));
}
void set_logical_cluster(u64) {
  const unsigned index = this_cpu().index;
  apic_write(Apic::dfr, 0x0fff'ffff);
  apic_write(Apic::ldr, (index / 2) << 28 | u32{1} << (24 + index % 2));
}
void on_all(void (*function)(u64)) {
  start_cpus();
  function(0);
  for (unsigned i = 1; i < cpu_count(); ++i) {
    run_on(i, function);
  }
}

void logical_flat() {
  on_all(set_logical_flat);
  {
    const Listeners listeners;
    for (u32 mask = 1; mask <= everyone(); ++mask) {
      send_ipi(mask, icr::logical | kFixed);
      expect_taken("flat mask", mask);
    }
    send_ipi(0xff, icr::logical | kFixed);
    expect_taken("flat broadcast", everyone());
  }
}

void logical_cluster() {
  on_all(set_logical_cluster);
  {
    const Listeners listeners;
    for (unsigned i = 0; i < cpu_count(); ++i) {
      send_ipi((i / 2) << 4 | 1u << (i % 2), icr::logical | kFixed);
      expect_taken("one of a cluster", u32{1} << i);
    }
    send_ipi(3, icr::logical | kFixed);
    expect_taken("both of cluster 0", 3);
    send_ipi(0x21, icr::logical | kFixed);
    expect_taken("empty cluster", cpu_count() > 4 ? 1u << 4 : 0);
  }
  on_all(set_logical_flat);
}

void logical_cluster_broadcast() {
  on_all(set_logical_cluster);
  {
    const Listeners listeners;
    send_ipi(0xff, icr::logical | kFixed);
    expect_taken("broadcast", everyone());
  }
  on_all(set_logical_flat);
}

void logical_x2apic() {
  const Listeners listeners;
  for (u32 mask = 1; mask <= everyone(); ++mask) {
    u32 logical = 0;
    for (unsigned i = 0; i < cpu_count(); ++i) {
      if ((mask >> i & 1) != 0) {
        logical |= (cpu(i).apic_id >> 4) << 16 | 1u << (cpu(i).apic_id & 15);
      }
    }
    send_ipi(logical, icr::logical | kFixed);
    expect_taken("cluster mask", mask);
  }
  send_ipi(0x0007'0001, icr::logical | kFixed);
  expect_taken("empty cluster", 0);
}

void lowest_priority_is_one() {
  if (!in_x2apic()) {
    on_all(set_logical_flat);
  }
  const Listeners listeners;
  cpu::sti();
  for (unsigned round = 0; round < 20; ++round) {
    u32 logical = 0;
    u32 before = 0;
    for (unsigned i = 0; i < cpu_count(); ++i) {
      logical |= in_x2apic() ? 1u << (cpu(i).apic_id & 15) : 1u << i;
      before += taken(i);
    }
    send_ipi(logical, icr::logical | icr::lowest_priority | icr::assert_level | kVector);
    const auto total = [] {
      u32 sum = 0;
      for (unsigned i = 0; i < cpu_count(); ++i) {
        sum += taken(i);
      }
      return sum;
    };
    spin_until([&] { return total() != before; }, 2000);
    spin_microseconds(100);
    if (!expect_equal("processors that took it", total() - before, 1)) {
      return;
    }
  }
}

// A storm in both directions: none lost, none doubled, as each waits for the last one's answer.
void ping_pong() {
  const Listeners listeners;
  set_handler(0x71, [](Frame&) {
    end_of_interrupt();
    send_ipi(cpu(0).apic_id, icr::assert_level | 0x72);
  });
  constexpr u32 kRounds = 500;
  for (u32 round = 1; round <= kRounds; ++round) {
    send_ipi(cpu(1).apic_id, icr::assert_level | 0x71);
    while (taken(0, 0x72) < round) {
      // HLT woken by the answer, which may come at any instruction of this.
      asm volatile("cli" ::: "memory");
      if (taken(0, 0x72) >= round) {
        break;
      }
      asm volatile("sti\n\thlt" ::: "memory");
    }
  }
  cpu::cli();
  expect_equal("answers", taken(0, 0x72), kRounds);
}

// --- NMI
u32 nmis(unsigned index) { return cpu(index).interrupts[2]; }

void nmi_to_each() {
  const Listeners listeners;
  for (unsigned i = 0; i < cpu_count(); ++i) {
    const u32 before = nmis(i);
    send_ipi(cpu(i).apic_id, icr::nmi | icr::assert_level);
    expect(spin_until([&] { return nmis(i) == before + 1; }), "an NMI");
  }
  send_ipi(0, icr::nmi | icr::others | icr::assert_level);
  for (unsigned i = 1; i < cpu_count(); ++i) {
    expect(spin_until([&] { return nmis(i) == 2; }), "an NMI by shorthand");
  }
  spin_microseconds(200);
  expect_equal("NMIs on this one", nmis(0), 1);
}

void nmi_ignores_if() {
  cpu::cli();
  send_ipi(apic_id(), icr::nmi | icr::assert_level);
  expect(spin_until([] { return nmis(0) == 1; }), "an NMI with IF=0");
}

volatile u32 nmi_depth;
volatile u32 nmi_deepest;
volatile u32 nmi_total;
void nesting_nmi(Frame&) {
  nmi_depth = nmi_depth + 1;
  if (nmi_depth > nmi_deepest) {
    nmi_deepest = nmi_depth;
  }
  nmi_total = nmi_total + 1;
  if (nmi_total == 1) {
    for (unsigned i = 0; i < 3; ++i) {
      send_ipi(apic_id(), icr::nmi | icr::assert_level);
      spin_microseconds(20);
    }
    expect_equal("NMIs inside the handler", nmi_total, 1);
  }
  nmi_depth = nmi_depth - 1;
}

// NMIs are blocked until IRET; one is held. SDM vol. 3, 6.7.1.
void nmi_blocked_until_iret() {
  nmi_depth = 0;
  nmi_deepest = 0;
  nmi_total = 0;
  set_handler(2, nesting_nmi);
  send_ipi(apic_id(), icr::nmi | icr::assert_level);
  spin_until([] { return nmi_total >= 2; }, 50);
  spin_microseconds(200);
  expect_equal("deepest nesting", nmi_deepest, 1);
  expect_equal("NMIs: the first, and one that was held", nmi_total, 2);
}

// An IRET of another kind (from a fault in the handler) ends the blocking too.
void nmi_unblocked_by_any_iret() {
  nmi_total = 0;
  static volatile u32 seen_inside;
  seen_inside = 0;
  set_gate(2, 0, 0);  // on the interrupted stack, so that nesting is harmless
  set_handler(2, [](Frame&) {
    nmi_total = nmi_total + 1;
    if (nmi_total == 1) {
      send_ipi(apic_id(), icr::nmi | icr::assert_level);
      spin_microseconds(20);
      expect_equal("NMIs before the IRET", nmi_total, 1);
      unblock_nmis();
      spin_microseconds(20);
      seen_inside = nmi_total;
    }
  });
  send_ipi(apic_id(), icr::nmi | icr::assert_level);
  spin_until([] { return nmi_total >= 2; }, 50);
  expect_equal("NMIs after an IRET inside the handler", seen_inside, 2);
  expect_equal("NMIs", nmi_total, 2);
}

void nmi_wakes_hlt() {
  start_cpus();
  for (unsigned round = 0; round < 20; ++round) {
    const u32 before = nmis(0);
    // From the other processor, at a time that moves over CLI; HLT.
    start_on(
        1,
        [](u64 delay) {
          for (u64 i = 0; i < delay; ++i) {
            cpu::pause();
          }
          // Again and again: an NMI before the HLT would not end it.
          listening = true;
          while (listening) {
            send_ipi(cpu(0).apic_id, icr::nmi | icr::assert_level);
            spin_microseconds(300);
          }
        },
        round * 7);
    asm volatile("cli\n\thlt" ::: "memory");
    listening = false;
    expect(wait_for(1), "the sender to stop");
    if (!expect(nmis(0) > before, "an NMI taken")) {
      return;
    }
  }
}

// --- INIT and SIPI
void restart_from(std::string_view what, void (*state)(u64), unsigned times) {
  start_cpus();
  for (unsigned round = 0; round < times; ++round) {
    if (state != nullptr) {
      start_on(1, state);
      spin_microseconds(50);
    }
    const u32 before = cpu(1).starts;
    if (!expect(restart_cpu(1), what)) {
      return;
    }
    expect_equal("starts", cpu(1).starts, before + 1);
    static volatile u32 answer;
    answer = 0;
    run_on(
        1, [](u64 argument) { answer = static_cast<u32>(argument); }, round + 1);
    if (!expect_equal("work after the restart", answer, round + 1)) {
      return;
    }
  }
}

void init_sipi_restarts() { restart_from("restart out of a polling loop", nullptr, 50); }
void init_wakes_halted() {
  restart_from(
      "restart out of HLT with IF=0", [](u64) { asm volatile("cli\n\t1: hlt\n\tjmp 1b"); }, 20);
  restart_from(
      "restart out of HLT with IF=1", [](u64) { asm volatile("1: sti\n\thlt\n\tjmp 1b"); }, 20);
}
void init_interrupts_emulated_loop() {
  restart_from(
      "restart out of a CPUID loop",
      [](u64) {
        for (;;) {
          cpu::cpuid(0);
        }
      },
      20);
  restart_from(
      "restart out of an NMI handler",
      [](u64) {
        set_handler(2, [](Frame&) {
          for (;;) {
            cpu::pause();
          }
        });
        send_ipi(apic_id(), icr::nmi | icr::assert_level);
        for (;;) {
          cpu::pause();
        }
      },
      5);
}

// What a processor has after INIT and SIPI. SDM vol. 3, table 9-1.
void init_state() {
  start_cpus();
  expect(restart_cpu(1), "a restart");
  expect_equal("CR0: ET; CD and NW as they were (0 here)", ap_start_state().cr0 & 0x8000'0013,
               0x10);
  expect_equal("RFLAGS", ap_start_state().rflags, 2);
  expect_equal("CS selector", ap_start_state().cs, 0x800);
  static volatile u32 thermal, tpr;
  run_on(1, [](u64) {
    // init_apic() has run: look at what it does not set.
    tpr = apic_read(Apic::tpr);
    thermal = apic_read(Apic::thermal);
  });
  expect_equal("TPR", tpr, 0);
  expect_equal("an LVT no one has set", thermal & lvt::masked, lvt::masked);
}

void init_edx_is_signature() {
  start_cpus();
  expect(restart_cpu(1), "a restart");
  expect_equal("EDX after INIT", ap_start_state().edx, cpu::cpuid(1).eax);
}

void sipi_without_init_ignored() {
  const Listeners listeners;
  const u32 before = cpu(1).starts;
  for (unsigned i = 0; i < 3; ++i) {
    send_ipi(cpu(1).apic_id, icr::startup | icr::assert_level | 8);
    spin_microseconds(200);
  }
  expect_equal("starts", cpu(1).starts, before);
  send_ipi(cpu(1).apic_id, kFixed);
  expect(spin_until([] { return taken(1) == 1; }), "the processor to go on");
}

void two_sipis_are_one_start() {
  start_cpus();
  const u32 before = cpu(1).starts;
  expect(restart_cpu(1, 2), "a restart");
  spin_microseconds(500);
  expect_equal("starts", cpu(1).starts, before + 1);
}

void init_deassert_ignored() {
  const Listeners listeners;
  const u32 before = cpu(1).starts;
  send_ipi(cpu(1).apic_id, icr::init | icr::level_triggered);
  spin_microseconds(200);
  send_ipi(cpu(1).apic_id, kFixed);
  expect(spin_until([] { return taken(1) == 1; }), "the processor to go on");
  expect_equal("starts", cpu(1).starts, before);
}

// A processor that waits for a SIPI takes no interrupts.
void wait_for_sipi_is_deaf() {
  start_cpus();
  const u32 taken_before = taken(1);
  const u32 starts_before = cpu(1).starts;
  send_ipi(cpu(1).apic_id, icr::init | icr::assert_level);
  spin_microseconds(200);
  send_ipi(cpu(1).apic_id, kFixed);
  spin_microseconds(500);
  expect_equal("starts", cpu(1).starts, starts_before);
  expect_equal("interrupts", taken(1), taken_before);
  expect(restart_cpu(1), "a restart");
}

void init_all_others() {
  start_cpus();
  u32 before[kMaxCpus];
  for (unsigned i = 1; i < cpu_count(); ++i) {
    before[i] = cpu(i).starts;
  }
  send_ipi(0, icr::init | icr::others | icr::assert_level);
  spin_microseconds(500);
  send_ipi(0, icr::startup | icr::others | icr::assert_level | 8);
  for (unsigned i = 1; i < cpu_count(); ++i) {
    expect(spin_until([&] { return cpu(i).starts == before[i] + 1; }), "every other to start");
  }
}

constexpr Case kCases[] = {
    {"fixed_physical", "SDM vol. 3, 10.6.2.1", fixed_physical, two_cpus},
    {"fixed_physical_halted", "SDM vol. 2, HLT", fixed_physical_halted, two_cpus},
    {"physical_broadcast", "SDM vol. 3, 10.6.2.1", physical_broadcast, two_cpus},
    {"shorthands", "SDM vol. 3, 10.6.1", shorthands, two_cpus},
    {"nobody_there", "SDM vol. 3, 10.6.1", nobody_there, two_cpus},
    {"logical_flat", "SDM vol. 3, 10.6.2.2", logical_flat, two_cpus | no_x2apic},
    {"logical_cluster", "SDM vol. 3, 10.6.2.2", logical_cluster, two_cpus | no_x2apic},
    {"logical_cluster_broadcast", "SDM vol. 3, 10.6.2.2", logical_cluster_broadcast,
     two_cpus | no_x2apic, raw_tcg, "TCG finds nobody"},
    {"logical_x2apic", "SDM vol. 3, 10.12.10.2", logical_x2apic, two_cpus | in_x2apic_mode},
    {"lowest_priority_is_one", "SDM vol. 3, 10.6.2.4", lowest_priority_is_one, two_cpus},
    {"ping_pong", "SDM vol. 3, 10.8.4", ping_pong, two_cpus},
    {"nmi_to_each", "SDM vol. 3, 6.7", nmi_to_each, two_cpus},
    {"nmi_ignores_if", "SDM vol. 3, 6.7", nmi_ignores_if},
    {"nmi_blocked_until_iret", "SDM vol. 3, 6.7.1", nmi_blocked_until_iret},
    {"nmi_unblocked_by_any_iret", "SDM vol. 3, 6.7.1", nmi_unblocked_by_any_iret},
    {"nmi_wakes_hlt", "SDM vol. 2, HLT", nmi_wakes_hlt, two_cpus},
    {"init_sipi_restarts", "SDM vol. 3, 9.4.3", init_sipi_restarts, two_cpus},
    {"init_wakes_halted", "SDM vol. 3, 9.4.3", init_wakes_halted, two_cpus},
    {"init_interrupts_emulated_loop", "SDM vol. 3, 10.4.7.3", init_interrupts_emulated_loop,
     two_cpus},
    {"init_state", "SDM vol. 3, table 9-1", init_state, two_cpus},
    {"init_edx_is_signature", "SDM vol. 3, table 9-1", init_edx_is_signature, two_cpus},
    {"sipi_without_init_ignored", "SDM vol. 3, 9.4.2", sipi_without_init_ignored, two_cpus},
    {"two_sipis_are_one_start", "SDM vol. 3, 9.4.2", two_sipis_are_one_start, two_cpus},
    {"init_deassert_ignored", "SDM vol. 3, 10.6.1", init_deassert_ignored, two_cpus},
    {"wait_for_sipi_is_deaf", "SDM vol. 3, 9.4.2", wait_for_sipi_is_deaf, two_cpus},
    {"init_all_others", "SDM vol. 3, 9.4.4", init_all_others, two_cpus},
};

}  // namespace

u8 guest_main() { return run_cases(kCases); }

}  // namespace aerie::guest
