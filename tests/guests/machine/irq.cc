// External interrupts: the IOAPIC, the PICs and the ExtINT path. Lines are driven by QEMU's
// pc-testdev, whose ports 0x2000 + IRQ set an ISA line; where there is none (Bochs), the PIT's edge
// is the source. 82093AA data sheet; SDM vol. 3, 10.5.2, 10.6, 10.8.5.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

constexpr unsigned kPin = 5;
constexpr unsigned kOtherPin = 10;
constexpr u8 kVector = 0x65;
constexpr u8 kOtherVector = 0x95;

void set_line(unsigned irq, bool level) {
  cpu::outb(static_cast<u16>(0x2000 + irq), level ? 1 : 0);
}
void pulse(unsigned irq) {
  set_line(irq, true);
  set_line(irq, false);
}
u32 taken(u8 vector = kVector) { return this_cpu().interrupts[vector]; }
u64 to(u32 id, u64 flags = 0, u8 vector = kVector) { return u64{id} << 56 | flags | vector; }
u64 here(u64 flags = 0, u8 vector = kVector) { return to(apic_id(), flags, vector); }
void settle() { spin_microseconds(100); }
void window() {
  cpu::sti();
  settle();
  cpu::cli();
}

// Lines low, whatever the case left.
struct LowLines {
  LowLines() { lower(); }
  ~LowLines() {
    lower();
    mask_ioapic();
  }
  LowLines(const LowLines&) = delete;
  LowLines& operator=(const LowLines&) = delete;
  static void lower() {
    set_line(kPin, false);
    set_line(kOtherPin, false);
  }
};

void registers_read_back() {
  const unsigned pins = ioapic_pins();
  expect(pins == 24 || pins == 16, "24 or 16 redirection entries");
  const u64 entry = to(1, redirection::masked | redirection::level | redirection::active_low, 0x77);
  set_ioapic_entry(kPin, entry);
  expect_equal("entry", ioapic_entry(kPin) & ~redirection::pending, entry);
  set_ioapic_entry(kPin, redirection::masked);
  expect_equal("version", ioapic_read(1) & 0xff, pins == 24 ? ioapic_read(1) & 0xff : 0x11);
}

// Remote IRR and delivery status are read-only.
void read_only_bits() {
  set_ioapic_entry(kPin, redirection::masked | redirection::level | redirection::remote_irr |
                             redirection::pending | kVector);
  expect_equal("remote IRR and delivery status",
               ioapic_entry(kPin) & (redirection::remote_irr | redirection::pending), 0);
}

void edge_once() {
  const LowLines lines;
  set_ioapic_entry(kPin, here());
  set_line(kPin, true);
  window();
  expect_equal("interrupts of an edge", taken(), 1);
  window();
  expect_equal("interrupts while the line stays high", taken(), 1);
  expect_equal("remote IRR of an edge", ioapic_entry(kPin) & redirection::remote_irr, 0);
  set_line(kPin, false);
  window();
  expect_equal("interrupts of the falling edge", taken(), 1);
  set_line(kPin, true);
  window();
  expect_equal("interrupts of the second edge", taken(), 2);
}

void edges_coalesce() {
  const LowLines lines;
  set_ioapic_entry(kPin, here());
  for (unsigned i = 0; i < 5; ++i) {
    pulse(kPin);
  }
  settle();
  window();
  expect_equal("five edges with IF=0", taken(), 1);
}

void edge_during_service_is_kept() {
  const LowLines lines;
  static volatile u32 entries;
  entries = 0;
  set_handler(kVector, [](Frame&) {
    entries = entries + 1;
    if (entries == 1) {
      pulse(kPin);
      settle();
      expect(apic_bit(Apic::irr, kVector) && apic_bit(Apic::isr, kVector), "IRR and ISR");
    }
    end_of_interrupt();
  });
  set_ioapic_entry(kPin, here());
  pulse(kPin);
  window();
  expect_equal("deliveries", entries, 2);
}

void masked_edge_is_lost() {
  const LowLines lines;
  set_ioapic_entry(kPin, here(redirection::masked));
  pulse(kPin);
  window();
  expect_equal("while masked", taken(), 0);
  set_ioapic_entry(kPin, here());
  window();
  expect_equal("after unmasking", taken(), 0);
}

void level_remote_irr() {
  const LowLines lines;
  static volatile u64 inside, after;
  set_handler(kVector, [](Frame&) {
    inside = ioapic_entry(kPin);
    set_line(kPin, false);
    end_of_interrupt();
    after = ioapic_entry(kPin);
    this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1;
  });
  set_ioapic_entry(kPin, here(redirection::level));
  set_line(kPin, true);
  window();
  expect_equal("interrupts", taken(), 1);
  expect((inside & redirection::remote_irr) != 0, "remote IRR until EOI");
  expect((after & redirection::remote_irr) == 0, "remote IRR clear after EOI");
}

void level_tmr() {
  const LowLines lines;
  static volatile bool tmr_level, tmr_edge;
  set_handler(kVector, [](Frame&) {
    tmr_level = apic_bit(Apic::tmr, kVector);
    set_line(kPin, false);
    end_of_interrupt();
  });
  set_handler(kOtherVector, [](Frame&) {
    tmr_edge = apic_bit(Apic::tmr, kOtherVector);
    end_of_interrupt();
  });
  set_ioapic_entry(kPin, here(redirection::level));
  set_ioapic_entry(kOtherPin, here(0, kOtherVector));
  set_line(kPin, true);
  pulse(kOtherPin);
  window();
  expect(tmr_level, "TMR bit of a level interrupt");
  expect(!tmr_edge, "no TMR bit of an edge");
}

// A line still raised after EOI fires again, and again.
void level_fires_again() {
  const LowLines lines;
  set_handler(kVector, [](Frame&) {
    this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1;
    if (taken() == 5) {
      set_line(kPin, false);
    }
    end_of_interrupt();
  });
  set_ioapic_entry(kPin, here(redirection::level));
  set_line(kPin, true);
  cpu::sti();
  spin_until([] { return taken() >= 5; }, 100);
  settle();
  cpu::cli();
  expect_equal("interrupts", taken(), 5);
}

void level_without_eoi_waits() {
  const LowLines lines;
  set_handler(kVector,
              [](Frame&) { this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1; });
  set_ioapic_entry(kPin, here(redirection::level));
  set_line(kPin, true);
  window();
  set_line(kPin, false);
  set_line(kPin, true);
  window();
  expect_equal("before EOI", taken(), 1);
  end_of_interrupt();
  window();
  expect_equal("after EOI with the line high", taken(), 2);
  set_line(kPin, false);
  end_of_interrupt();
  window();
  expect_equal("after EOI with the line low", taken(), 2);
}

// Dropped before it could be taken: it was latched by the APIC and still comes, once.
void level_dropped_is_delivered_once() {
  const LowLines lines;
  set_ioapic_entry(kPin, here(redirection::level));
  set_line(kPin, true);
  expect(spin_until([] { return apic_bit(Apic::irr, kVector); }, 100), "IRR bit");
  set_line(kPin, false);
  window();
  expect_equal("interrupts", taken(), 1);
  expect_equal("remote IRR", ioapic_entry(kPin) & redirection::remote_irr, 0);
}

void level_masked_waits() {
  const LowLines lines;
  set_handler(kVector, [](Frame&) {
    this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1;
    set_line(kPin, false);
    end_of_interrupt();
  });
  set_ioapic_entry(kPin, here(redirection::level | redirection::masked));
  set_line(kPin, true);
  window();
  expect_equal("while masked", taken(), 0);
  set_ioapic_entry(kPin, here(redirection::level));
  window();
  expect_equal("after unmasking", taken(), 1);
}

// What Linux does with a level interrupt it handles late: mask, EOI, unmask.
void level_mask_eoi_unmask() {
  const LowLines lines;
  set_handler(kVector, [](Frame&) {
    this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1;
    set_ioapic_entry(kPin, here(redirection::level | redirection::masked));
    end_of_interrupt();
  });
  set_ioapic_entry(kPin, here(redirection::level));
  for (u32 round = 1; round <= 3; ++round) {
    set_line(kPin, true);
    window();
    expect_equal("masked by the handler", taken(), round * 2 - 1);
    set_ioapic_entry(kPin, here(redirection::level));
    window();
    expect_equal("still raised at the unmasking", taken(), round * 2);
    set_line(kPin, false);
    set_ioapic_entry(kPin, here(redirection::level));
    window();
    expect_equal("lowered", taken(), round * 2);
  }
}

// Two level lines in service at once; EOIs in the order of priority reach the right pins.
void level_nested_eoi() {
  const LowLines lines;
  static volatile u64 low_entry_inside_high;
  set_handler(kVector, [](Frame&) {
    set_line(kOtherPin, true);
    window();
    this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1;
    set_line(kPin, false);
    end_of_interrupt();
  });
  set_handler(kOtherVector, [](Frame&) {
    this_cpu().interrupts[kOtherVector] = this_cpu().interrupts[kOtherVector] + 1;
    set_line(kOtherPin, false);
    end_of_interrupt();
    low_entry_inside_high = ioapic_entry(kPin);
  });
  set_ioapic_entry(kPin, here(redirection::level));
  set_ioapic_entry(kOtherPin, here(redirection::level, kOtherVector));
  set_line(kPin, true);
  window();
  expect_equal("low", taken(), 1);
  expect_equal("high", taken(kOtherVector), 1);
  expect((low_entry_inside_high & redirection::remote_irr) != 0, "the low pin still in service");
  expect_equal("low pin's remote IRR", ioapic_entry(kPin) & redirection::remote_irr, 0);
  expect_equal("high pin's remote IRR", ioapic_entry(kOtherPin) & redirection::remote_irr, 0);
}

void level_sti_hlt() {
  const LowLines lines;
  set_handler(kVector, [](Frame&) {
    this_cpu().interrupts[kVector] = this_cpu().interrupts[kVector] + 1;
    set_line(kPin, false);
    end_of_interrupt();
  });
  set_ioapic_entry(kPin, here(redirection::level));
  for (u32 round = 0; round < 20; ++round) {
    set_line(kPin, true);
    asm volatile("sti\n\thlt\n\tcli" ::: "memory");
  }
  expect_equal("interrupts", taken(), 20);
}

void to_other_processor() {
  const LowLines lines;
  start_cpus();
  static volatile bool stop;
  stop = false;
  for (volatile u32& n : cpu(1).interrupts) {
    n = 0;
  }
  start_on(1, [](u64) {
    cpu::sti();
    while (!stop) {
      cpu::pause();
    }
    cpu::cli();
  });
  set_ioapic_entry(kPin, to(cpu(1).apic_id));
  pulse(kPin);
  expect(spin_until([] { return cpu(1).interrupts[kVector] == 1; }), "an edge at processor 1");
  set_handler(kOtherVector, [](Frame&) {
    set_line(kOtherPin, false);
    this_cpu().interrupts[kOtherVector] = this_cpu().interrupts[kOtherVector] + 1;
    end_of_interrupt();
  });
  set_ioapic_entry(kOtherPin, to(cpu(1).apic_id, redirection::level, kOtherVector));
  for (u32 round = 1; round <= 3; ++round) {
    set_line(kOtherPin, true);
    expect(spin_until([&] { return cpu(1).interrupts[kOtherVector] == round; }),
           "a level interrupt at processor 1");
    spin_microseconds(50);
  }
  expect_equal("interrupts here", taken() + taken(kOtherVector), 0);
  stop = true;
  wait_for(1);
}

void logical_destination() {
  const LowLines lines;
  apic_write(Apic::dfr, 0xffff'ffff);
  apic_write(Apic::ldr, u32{4} << 24);
  set_ioapic_entry(kPin, to(4, redirection::logical));
  pulse(kPin);
  window();
  expect_equal("own logical ID", taken(), 1);
  set_ioapic_entry(kPin, to(8, redirection::logical));
  pulse(kPin);
  window();
  expect_equal("another logical ID", taken(), 1);
}

void lowest_priority_delivery() {
  const LowLines lines;
  apic_write(Apic::dfr, 0xffff'ffff);
  apic_write(Apic::ldr, u32{1} << 24);
  set_ioapic_entry(kPin, to(1, redirection::logical | icr::lowest_priority));
  pulse(kPin);
  window();
  expect_equal("interrupts", taken(), 1);
}

void nmi_delivery() {
  const LowLines lines;
  set_ioapic_entry(kPin, here(icr::nmi, 0));
  pulse(kPin);
  expect(spin_until([] { return taken(2) == 1; }, 100), "an NMI with IF=0");
}

// The TPR holds back device interrupts as it does IPIs.
void tpr_holds_device_interrupt() {
  const LowLines lines;
  set_ioapic_entry(kPin, here());
  apic_write(Apic::tpr, kVector & 0xf0);
  pulse(kPin);
  window();
  expect_equal("at TPR's class", taken(), 0);
  apic_write(Apic::tpr, 0);
  window();
  expect_equal("with TPR 0", taken(), 1);
}

// --- Sources that every PC has: the PIT, pin 2 or the PIC's IRQ 0.
void pit_edge() {
  set_ioapic_entry(2, here());
  start_pit_one_shot(500);
  cpu::sti();
  expect(spin_until([] { return taken() == 1; }, 200), "the PIT's interrupt");
  settle();
  cpu::cli();
  expect_equal("interrupts", taken(), 1);
}

void pit_periodic() {
  set_ioapic_entry(2, here());
  start_pit_periodic(1193);
  for (unsigned i = 0; i < 5; ++i) {
    asm volatile("sti\n\thlt\n\tcli" ::: "memory");
  }
  stop_pit();
  expect(taken() >= 5, "five HLTs ended by the PIT");
}

constexpr u8 kPicBase = 0x20;
void start_pic(u16 unmasked) {
  init_pics(kPicBase);
  // All lines edge triggered (ELCR; firmware sets PCI's to level).
  cpu::outb(0x4d0, 0);
  cpu::outb(0x4d1, 0);
  apic_write(Apic::lint0, lvt::extint);
  set_pic_masks(static_cast<u16>(~unmasked));
}
volatile u16 in_service;
volatile bool apic_in_service;
void pic_handler(Frame& frame) {
  const auto vector = static_cast<u8>(frame.vector);
  in_service = pic_in_service();
  apic_in_service = apic_bit(Apic::isr, vector);
  this_cpu().interrupts[vector] = this_cpu().interrupts[vector] + 1;
  pic_end_of_interrupt(vector - kPicBase);
}

void extint_through_lint0() {
  set_handler(kPicBase, pic_handler);
  start_pic(1);
  start_pit_one_shot(500);
  cpu::sti();
  expect(spin_until([] { return taken(kPicBase) == 1; }, 200), "the PIC's interrupt");
  cpu::cli();
  expect_equal("PIC's ISR", in_service, 1);
  expect(!apic_in_service, "no bit in the APIC's ISR");
}

void extint_ignores_tpr() {
  set_handler(kPicBase, pic_handler);
  apic_write(Apic::tpr, 0xf0);
  start_pic(1);
  start_pit_one_shot(500);
  cpu::sti();
  expect(spin_until([] { return taken(kPicBase) == 1; }, 200), "the PIC's interrupt");
  cpu::cli();
}

void extint_masked_lint0() {
  set_handler(kPicBase, pic_handler);
  start_pic(1);
  apic_write(Apic::lint0, lvt::extint | lvt::masked);
  start_pit_one_shot(100);
  expect(spin_until([] { return (pic_requests() & 1) != 0; }, 200), "the PIC's request");
  window();
  expect_equal("LINT0 masked", taken(kPicBase), 0);
  apic_write(Apic::lint0, lvt::extint);
  window();
  expect_equal("LINT0 unmasked with the request waiting", taken(kPicBase), 1);
}

void pic_masks() {
  set_handler(kPicBase, pic_handler);
  start_pic(0);
  start_pit_one_shot(100);
  expect(spin_until([] { return (pic_requests() & 1) != 0; }, 200), "the PIC's request");
  window();
  expect_equal("masked in the PIC", taken(kPicBase), 0);
  set_pic_masks(0xfffe);
  window();
  expect_equal("unmasked in the PIC", taken(kPicBase), 1);
}

void pic_slave_line() {
  const LowLines lines;
  set_handler(kPicBase + kOtherPin, pic_handler);
  start_pic(1 << kOtherPin | 1 << 2);
  pulse(kOtherPin);
  set_line(kOtherPin, true);
  window();
  expect_equal("interrupts of the slave", taken(kPicBase + kOtherPin), 1);
  expect_equal("ISRs of both", in_service, 1 << kOtherPin | 1 << 2);
}

// A level-triggered line (ELCR) fires until it is lowered.
void pic_level_line() {
  const LowLines lines;
  set_handler(kPicBase + kOtherPin, [](Frame& frame) {
    if (taken(kPicBase + kOtherPin) == 2) {
      set_line(kOtherPin, false);
    }
    pic_handler(frame);
  });
  start_pic(1 << kOtherPin | 1 << 2);
  cpu::outb(0x4d1, 1 << (kOtherPin - 8));
  set_line(kOtherPin, true);
  window();
  expect_equal("interrupts", taken(kPicBase + kOtherPin), 3);
}

void pic_wakes_hlt() {
  set_handler(kPicBase, pic_handler);
  start_pic(1);
  start_pit_periodic(1193);
  for (unsigned i = 0; i < 5; ++i) {
    asm volatile("sti\n\thlt\n\tcli" ::: "memory");
  }
  stop_pit();
  expect(taken(kPicBase) >= 5, "five HLTs ended by the PIC");
}

constexpr Case kCases[] = {
    {"registers_read_back", "82093AA, 3.2", registers_read_back},
    {"read_only_bits", "82093AA, 3.2.4", read_only_bits},
    {"edge_once", "82093AA, 3.2.4", edge_once, testdev},
    {"edges_coalesce", "SDM vol. 3, 10.8.4", edges_coalesce, testdev},
    {"edge_during_service_is_kept", "SDM vol. 3, 10.8.4", edge_during_service_is_kept, testdev},
    {"masked_edge_is_lost", "82093AA, 3.2.4", masked_edge_is_lost, testdev},
    {"level_remote_irr", "82093AA, 3.2.4", level_remote_irr, testdev},
    {"level_tmr", "SDM vol. 3, 10.8.4", level_tmr, testdev},
    {"level_fires_again", "82093AA, 3.2.4", level_fires_again, testdev},
    {"level_without_eoi_waits", "82093AA, 3.2.4", level_without_eoi_waits, testdev},
    {"level_dropped_is_delivered_once", "SDM vol. 3, 10.8.4", level_dropped_is_delivered_once,
     testdev},
    {"level_masked_waits", "82093AA, 3.2.4", level_masked_waits, testdev},
    {"level_mask_eoi_unmask", "82093AA, 3.2.4", level_mask_eoi_unmask, testdev},
    {"level_nested_eoi", "SDM vol. 3, 10.8.5", level_nested_eoi, testdev},
    {"level_sti_hlt", "SDM vol. 2, STI", level_sti_hlt, testdev},
    {"to_other_processor", "82093AA, 3.2.4", to_other_processor, testdev | two_cpus},
    {"logical_destination", "SDM vol. 3, 10.6.2.2", logical_destination, testdev | no_x2apic},
    {"lowest_priority_delivery", "SDM vol. 3, 10.6.2.4", lowest_priority_delivery,
     testdev | no_x2apic},
    {"nmi_delivery", "82093AA, 3.2.4", nmi_delivery, testdev},
    {"tpr_holds_device_interrupt", "SDM vol. 3, 10.8.3.1", tpr_holds_device_interrupt, testdev},
    {"pit_edge", "82093AA, 3.2.4", pit_edge},
    {"pit_periodic", "SDM vol. 2, HLT", pit_periodic},
    {"extint_through_lint0", "SDM vol. 3, 10.5.1", extint_through_lint0},
    {"extint_ignores_tpr", "SDM vol. 3, 10.8.3.1", extint_ignores_tpr},
    {"extint_masked_lint0", "SDM vol. 3, 10.5.1", extint_masked_lint0, 0, bochs,
     "Bochs does not look at LINT0"},
    {"pic_masks", "8259A, OCW1", pic_masks},
    {"pic_slave_line", "8259A, cascade mode", pic_slave_line, testdev},
    {"pic_level_line", "8259A, level triggered mode", pic_level_line, testdev},
    {"pic_wakes_hlt", "SDM vol. 2, HLT", pic_wakes_hlt},
};

}  // namespace

u8 guest_main() { return run_cases(kCases); }

}  // namespace aerie::guest
