// The machine's I/O APIC as L0 uses it: the physical half of vmm/ioapic.h. Not locked: its user is.
//
// Hosted, tests put a model in its place (tests/unit/vmm/ioapic_test.cc).
#pragma once

#include "base/address.h"
#include "base/physical.h"
#include "base/types.h"
#include "vmm/ioapic_registers.h"

namespace aerie::vmm {

class HostIoApic {
 public:
#if AERIE_HOSTED
  virtual ~HostIoApic() = default;
  virtual u32 read(u8 index) = 0;
  virtual void write(u8 index, u32 value) = 0;
  virtual void give_eoi(u8 vector) = 0;
#else
  explicit HostIoApic(Hpa base) : page_{physical_pointer<volatile u32>(base)} {}

  u32 read(u8 index) {
    page_[ioapic::select / 4] = index;
    return page_[ioapic::window / 4];
  }
  void write(u8 index, u32 value) {
    page_[ioapic::select / 4] = index;
    page_[ioapic::window / 4] = value;
  }
  void give_eoi(u8 vector) { page_[ioapic::eoi / 4] = vector; }

 private:
  volatile u32* page_;
#endif
};

}  // namespace aerie::vmm
