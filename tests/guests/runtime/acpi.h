// What the guests need of ACPI: the processors in the MADT and the HPET's address. ACPI 6.5, 5.2.
#pragma once

#include <span>

#include "base/types.h"

namespace aerie::guest {

class Acpi {
 public:
  Acpi();
  // Local APIC IDs of the enabled processors; empty without a MADT.
  std::span<const u8> apic_ids() const { return {ids_, count_}; }
  u64 hpet() const { return hpet_; }  // 0: none

 private:
  void read_madt(const u8* table);

  u8 ids_[32] = {};
  usize count_ = 0;
  u64 hpet_ = 0;
};

const Acpi& acpi();

}  // namespace aerie::guest
