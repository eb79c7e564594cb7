// What Aerie reads of ACPI: which processors there are and where the IOAPIC is (MADT).
// ACPI 6.5, 5.2.
#pragma once

#include <array>

#include "base/types.h"

namespace aerie::vmm {

struct Processors {
  std::array<u8, 64> apic_ids{};  // enabled ones, in the MADT's order
  unsigned count = 0;
  u32 ioapic = 0xfec00000;
  bool found = false;  // whether there was a MADT at all
};

// Reads firmware's tables through the physical window; every length is checked against its table.
Processors find_processors();

}  // namespace aerie::vmm
