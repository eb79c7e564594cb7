// The processor's own local APIC and its time-stamp counter, as L0 uses them: the physical half of
// what vmm/local_apic.h virtualizes. An access reaches the APIC of the processor that makes it.
//
// Hosted, tests put a model in its place (tests/unit/vmm/apic_model.h).
#pragma once

#include "base/address.h"
#include "base/physical.h"
#include "base/types.h"
#include "cpu/arch/instructions.h"
#include "vmm/apic_registers.h"

namespace aerie::vmm {

class HostApic {
 public:
#if AERIE_HOSTED
  virtual ~HostApic() = default;
  virtual u32 read(u32 offset) = 0;
  virtual void write(u32 offset, u32 value) = 0;
  virtual u64 tsc() = 0;
#else
  u32 read(u32 offset) { return page()[offset / 4]; }
  void write(u32 offset, u32 value) { page()[offset / 4] = value; }
  u64 tsc() { return cpu::rdtsc(); }
#endif

  bool test(u32 set, u8 vector) {
    return ((read(set + (vector >> 5) * 16u) >> (vector & 31)) & 1) != 0;
  }
  void give_eoi() { write(apic::eoi, 0); }

  // A kick (vmm/requests.h). `physical_id` is the one the processor came with: L0 never changes
  // physical IDs, so that a kick always finds its processor whatever L1 writes to its ID register.
  void send_nmi(u32 physical_id) {
    while ((read(apic::icr_low) & apic::icr::delivery_status) != 0) {
      cpu::pause();
    }
    write(apic::icr_high, physical_id << 24);
    write(apic::icr_low,
          (static_cast<u32>(apic::DeliveryMode::nmi) << 8) | apic::icr::assert_level);
  }

#if !AERIE_HOSTED
 private:
  static volatile u32* page() { return physical_pointer<volatile u32>(Hpa{apic::kDefaultBase}); }
#endif
};

}  // namespace aerie::vmm
