// The I/O APIC's registers and its redirection entries. Intel 82093AA data sheet, 3.0; ICH9 data
// sheet, 13.5.
#pragma once

#include "base/bits.h"
#include "base/types.h"
#include "vmm/apic_registers.h"

namespace aerie::vmm::ioapic {

inline constexpr u64 kDefaultBase = 0xfec0'0000;

// In the page.
inline constexpr u32 select = 0x00, window = 0x10, eoi = 0x40;
// Behind the window.
inline constexpr u8 id = 0x00, version = 0x01, arbitration = 0x02, redirection = 0x10;

inline constexpr u32 id_writable = 0x0f00'0000;
constexpr u8 version_number(u32 word) { return static_cast<u8>(word); }
constexpr unsigned entry_count(u32 version_word) {
  return static_cast<unsigned>(Field<23, 16>::get(version_word)) + 1;
}
// From this version on there is an EOI register.
inline constexpr u8 version_with_eoi = 0x20;

// Low half of an entry.
inline constexpr u32 masked = 1u << 16, level = 1u << 15, remote_irr = 1u << 14,
                     active_low = 1u << 13, delivery_status = 1u << 12, logical = 1u << 11;
inline constexpr u32 low_writable = 0x1'afff, low_read_only = remote_irr | delivery_status;
// High half: the destination.
inline constexpr u32 high_writable = 0xff00'0000;

}  // namespace aerie::vmm::ioapic
