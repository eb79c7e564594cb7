#include "vmm/device_map.h"

#include "base/log.h"
#include "base/physical.h"

namespace aerie::vmm {
namespace {

constexpr u64 ones(unsigned size) { return ~u64{0} >> (64 - 8 * size); }

template <class T>
volatile T& passed_through(Gpa gpa) {
  return *physical_pointer<volatile T>(Hpa{gpa.value()});
}

// What a processor's moved APIC page covers is still there for the others.
bool reaches_machine(Gpa gpa) {
  const mmu::HostMap::Lookup where = machine.host_map.lookup(gpa);
  return where.present || where.hidden;
}

}  // namespace

u64 device_read(Vcpu& v, Gpa gpa, unsigned size) {
  if (v.apic.owns_page(gpa)) [[likely]] {
    return v.apic.mmio_read(static_cast<u32>(gpa.offset()), size);
  }
  if (machine.ioapic->owns_page(gpa)) {
    return machine.ioapic->mmio_read(static_cast<u32>(gpa.offset()), size);
  }
  if (!reaches_machine(gpa)) {
    return ones(size);
  }
  switch (size) {
    case 1:
      return passed_through<u8>(gpa);
    case 2:
      return passed_through<u16>(gpa);
    case 4:
      return passed_through<u32>(gpa);
    default:
      return passed_through<u64>(gpa);
  }
}

void device_write(Vcpu& v, Gpa gpa, unsigned size, u64 value) {
  if (v.apic.owns_page(gpa)) [[likely]] {
    v.apic.mmio_write(static_cast<u32>(gpa.offset()), size, value);
    // Of an EOI only a vector that it lets through matters; it is by far the most frequent write.
    if (gpa.offset() != apic::eoi || v.apic.wants_window()) {
      v.reevaluate();
    }
    return;
  }
  if (machine.ioapic->owns_page(gpa)) {
    machine.ioapic->mmio_write(static_cast<u32>(gpa.offset()), size, value);
    return;
  }
  if (!reaches_machine(gpa)) {
    return;
  }
  switch (size) {
    case 1:
      passed_through<u8>(gpa) = static_cast<u8>(value);
      break;
    case 2:
      passed_through<u16>(gpa) = static_cast<u16>(value);
      break;
    case 4:
      passed_through<u32>(gpa) = static_cast<u32>(value);
      break;
    default:
      passed_through<u64>(gpa) = value;
      break;
  }
}

void trap_apic_page(Vcpu& v, Gpa before) {
  // Each move may cost table pages, and an L1 that wanders all over memory would use up L0's.
  constexpr unsigned kMostMoves = 64;
  static std::atomic<unsigned> moves{0};

  const Gpa page = v.apic.base_page();
  if (machine.host_map.lookup(page).present) {
    if (moves.fetch_add(1, std::memory_order_relaxed) >= kMostMoves ||
        !machine.host_map.hide(machine.pages, page)) {
      log_warning("cpu{}: the APIC page moves to {x}, where L1 will not find it", v.index(), page);
    }
    if (linear_pager != nullptr) {
      v.linear_paging.host_map_changed();
    }
    v.block_l1().flush(cpu::TlbFlush::everything);
    v.block_l2().flush(cpu::TlbFlush::everything);
  }
  for (unsigned i = 0; i < machine.cpus; ++i) {
    if (machine.vcpus[i] != nullptr && machine.vcpus[i]->apic.base_page() == before) {
      return;
    }
  }
  machine.host_map.show(before);
}

}  // namespace aerie::vmm
