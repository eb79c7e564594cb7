// L1's I/O APIC: its page is trapped, what L1 writes is kept as L1's view, filtered, and written to
// the machine's own. Interrupts go from there to the physical local APICs and arrive as all
// physical interrupts do (vmm/interrupts.h); the EOI of a level interrupt reaches the I/O APIC with
// the physical EOI that L0 defers until L1's.
#pragma once

#include <array>

#include "base/address.h"
#include "base/spinlock.h"
#include "base/types.h"
#include "vmm/host_ioapic.h"

namespace aerie::vmm {

class IoApic {
 public:
  IoApic(HostIoApic& host, Gpa base) : host_{host}, base_{base} {}

  // Reads what firmware left, and takes it as L1's view; filters it too.
  void power_up();

  bool owns_page(Gpa gpa) const { return gpa.page() == base_; }

  // Any processor. The architecture's accesses are of 4 bytes, aligned; the index register takes 1
  // and 2 bytes too. Of an 8-byte access the lower half counts. Other reads give 0, other writes do
  // nothing.
  u64 mmio_read(u32 offset, unsigned size);
  void mmio_write(u32 offset, unsigned size, u64 value);

  unsigned entries() const { return entries_; }

 private:
  static constexpr unsigned kMaxEntries = 240;

  struct Entry {
    u32 low = ioapic::masked;  // as L1 wrote it
    u32 high = 0;
    bool passed = true;  // the physical entry is L1's, not a masked one in its place
  };

  u32 read_selected();
  void write_selected(u32 value);
  void write_low(unsigned entry, u32 value);
  bool may_pass(unsigned entry, u32 low);

  HostIoApic& host_;
  Gpa base_;
  SpinLock lock_;
  std::array<Entry, kMaxEntries> table_{};
  unsigned entries_ = 0;
  u8 version_ = 0;
  u8 selected_ = 0;
  bool reported_ = false;
};

}  // namespace aerie::vmm
