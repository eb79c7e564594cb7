#include "tests/guests/runtime/apic.h"

#include <initializer_list>

#include "cpu/arch/instructions.h"
#include "cpu/arch/msr.h"

namespace aerie::guest {
namespace {

bool x2apic_wanted = false;
constexpr u64 kIoapicPage = 0xfec0'0000;

constexpr u32 msr_of(Apic reg) { return cpu::msr::x2apic_first + (static_cast<u32>(reg) >> 4); }
// An instruction of known form, so that what traps is a plain 32-bit MOV.
u32 load(u64 address) {
  u32 value;
  asm volatile("movl (%1), %0" : "=r"(value) : "r"(address) : "memory");
  return value;
}
void store(u64 address, u32 value) {
  asm volatile("movl %1, (%0)" ::"r"(address), "r"(value) : "memory");
}

}  // namespace

bool in_x2apic() {
  return (cpu::rdmsr(cpu::msr::apic_base) & cpu::msr::apic_base_bits::x2apic) != 0;
}
bool has_x2apic() { return (cpu::cpuid(1).ecx & bit(21)) != 0; }
void enter_x2apic() {
  cpu::wrmsr(cpu::msr::apic_base,
             cpu::rdmsr(cpu::msr::apic_base) | cpu::msr::apic_base_bits::x2apic);
}
void leave_x2apic() {
  const u64 base = cpu::rdmsr(cpu::msr::apic_base) &
                   ~(cpu::msr::apic_base_bits::x2apic | cpu::msr::apic_base_bits::enable);
  cpu::wrmsr(cpu::msr::apic_base, base);
  cpu::wrmsr(cpu::msr::apic_base, base | cpu::msr::apic_base_bits::enable);
}

u32 apic_read(Apic reg) {
  return in_x2apic() ? static_cast<u32>(cpu::rdmsr(msr_of(reg)))
                     : load(kApicPage + static_cast<u32>(reg));
}
void apic_write(Apic reg, u32 value) {
  if (in_x2apic()) {
    cpu::wrmsr(msr_of(reg), value);
  } else {
    store(kApicPage + static_cast<u32>(reg), value);
  }
}

u32 apic_id() { return in_x2apic() ? apic_read(Apic::id) : apic_read(Apic::id) >> 24; }
void end_of_interrupt() { apic_write(Apic::eoi, 0); }

bool apic_bit(Apic bank, u8 vector) {
  const auto reg = static_cast<Apic>(static_cast<u32>(bank) + 0x10 * (vector / 32));
  return (apic_read(reg) >> (vector % 32) & 1) != 0;
}

void use_x2apic() {
  x2apic_wanted = true;
  init_apic();
}

void init_apic() {
  if (x2apic_wanted && !in_x2apic()) {
    enter_x2apic();
  }
  apic_write(Apic::spurious, 0x1ff);
  for (const Apic reg : {Apic::timer, Apic::lint0, Apic::lint1, Apic::error}) {
    apic_write(reg, lvt::masked | 0xfe);
  }
  apic_write(Apic::initial_count, 0);
  apic_write(Apic::tpr, 0);
  // What an earlier case may have left in service.
  for (unsigned i = 0; i < 256; ++i) {
    bool any = false;
    for (u32 bank = 0; bank < 8; ++bank) {
      any = any || apic_read(static_cast<Apic>(static_cast<u32>(Apic::isr) + 0x10 * bank)) != 0;
    }
    if (!any) {
      break;
    }
    end_of_interrupt();
  }
}

void send_ipi(u32 destination, u32 low) {
  if (in_x2apic()) {
    cpu::wrmsr(msr_of(Apic::icr_low), u64{destination} << 32 | low);
    return;
  }
  apic_write(Apic::icr_high, destination << 24);
  apic_write(Apic::icr_low, low);
  for (unsigned spins = 0; (apic_read(Apic::icr_low) & icr::pending) != 0 && spins < 100'000;
       ++spins) {
    cpu::pause();
  }
}

u32 ioapic_read(u32 index) {
  store(kIoapicPage, index);
  return load(kIoapicPage + 0x10);
}
void ioapic_write(u32 index, u32 value) {
  store(kIoapicPage, index);
  store(kIoapicPage + 0x10, value);
}
unsigned ioapic_pins() { return ((ioapic_read(1) >> 16) & 0xff) + 1; }
u64 ioapic_entry(unsigned pin) {
  return ioapic_read(0x10 + 2 * pin) | u64{ioapic_read(0x11 + 2 * pin)} << 32;
}
void set_ioapic_entry(unsigned pin, u64 entry) {
  ioapic_write(0x11 + 2 * pin, static_cast<u32>(entry >> 32));
  ioapic_write(0x10 + 2 * pin, static_cast<u32>(entry));
}
void mask_ioapic() {
  for (unsigned pin = 0; pin < ioapic_pins(); ++pin) {
    set_ioapic_entry(pin, redirection::masked);
  }
}

void init_pics(u8 base) {
  cpu::outb(0x20, 0x11);  // ICW1: edge, cascade, ICW4 follows
  cpu::outb(0xa0, 0x11);
  cpu::outb(0x21, base);
  cpu::outb(0xa1, static_cast<u8>(base + 8));
  cpu::outb(0x21, 4);
  cpu::outb(0xa1, 2);
  cpu::outb(0x21, 1);
  cpu::outb(0xa1, 1);
  set_pic_masks(0xffff);
}
void set_pic_masks(u16 masked) {
  cpu::outb(0x21, static_cast<u8>(masked));
  cpu::outb(0xa1, static_cast<u8>(masked >> 8));
}
void pic_end_of_interrupt(unsigned irq) {
  if (irq >= 8) {
    cpu::outb(0xa0, 0x20);
  }
  cpu::outb(0x20, 0x20);
}
u16 pic_in_service() {
  cpu::outb(0x20, 0x0b);
  cpu::outb(0xa0, 0x0b);
  return static_cast<u16>(cpu::inb(0x20) | cpu::inb(0xa0) << 8);
}
u16 pic_requests() {
  cpu::outb(0x20, 0x0a);
  cpu::outb(0xa0, 0x0a);
  return static_cast<u16>(cpu::inb(0x20) | cpu::inb(0xa0) << 8);
}

}  // namespace aerie::guest
