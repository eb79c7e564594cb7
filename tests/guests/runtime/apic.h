// The local APIC in either mode, the IOAPIC and the two PICs. SDM vol. 3, chapter 10; 82093AA and
// 8259A data sheets.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::guest {

inline constexpr u64 kApicPage = 0xfee0'0000;

// Registers by their xAPIC offset; the x2APIC MSR is 0x800 + offset / 16.
enum class Apic : u32 {
  id = 0x20,
  version = 0x30,
  tpr = 0x80,
  apr = 0x90,
  ppr = 0xa0,
  eoi = 0xb0,
  ldr = 0xd0,
  dfr = 0xe0,
  spurious = 0xf0,
  isr = 0x100,
  tmr = 0x180,
  irr = 0x200,
  esr = 0x280,
  icr_low = 0x300,
  icr_high = 0x310,
  timer = 0x320,
  thermal = 0x330,
  performance = 0x340,
  lint0 = 0x350,
  lint1 = 0x360,
  error = 0x370,
  initial_count = 0x380,
  current_count = 0x390,
  divide = 0x3e0,
  self_ipi = 0x3f0,
};

namespace icr {
inline constexpr u32 fixed = 0, lowest_priority = 1 << 8, smi = 2 << 8, nmi = 4 << 8, init = 5 << 8,
                     startup = 6 << 8, logical = 1 << 11, pending = 1 << 12, assert_level = 1 << 14,
                     level_triggered = 1 << 15, self = 1 << 18, all = 2 << 18, others = 3 << 18;
}
namespace lvt {
inline constexpr u32 fixed = 0, nmi = 4 << 8, extint = 7 << 8, masked = 1 << 16, one_shot = 0,
                     periodic = 1 << 17, tsc_deadline = 2 << 17;
}

// The mode of the processor at hand, and changes of it. To leave x2APIC the APIC goes through
// disabled (SDM vol. 3, 10.12.5), which Bochs does not survive: cases do not go back by themselves.
bool in_x2apic();
bool has_x2apic();
void enter_x2apic();
// From here on init_apic() enters x2APIC mode, on this processor and on those that start later.
void use_x2apic();
void leave_x2apic();

u32 apic_read(Apic reg);
void apic_write(Apic reg, u32 value);
u32 apic_id();
void end_of_interrupt();
// ISR, TMR or IRR: whether `vector`'s bit is set.
bool apic_bit(Apic bank, u8 vector);
// Software enabled, all LVTs masked, TPR 0, nothing in service.
void init_apic();

void send_ipi(u32 destination, u32 low);

// IOAPIC at 0xfec00000.
u32 ioapic_read(u32 index);
void ioapic_write(u32 index, u32 value);
namespace redirection {
inline constexpr u64 masked = bit(16), level = bit(15), remote_irr = bit(14), active_low = bit(13),
                     pending = bit(12), logical = bit(11);
}
unsigned ioapic_pins();
u64 ioapic_entry(unsigned pin);
void set_ioapic_entry(unsigned pin, u64 entry);
void mask_ioapic();

// The PICs, at vectors base and base + 8, everything masked.
void init_pics(u8 base);
void set_pic_masks(u16 masked);
void pic_end_of_interrupt(unsigned irq);
u16 pic_in_service();
u16 pic_requests();

}  // namespace aerie::guest
