#include "vmm/device_map.h"

#include "base/physical.h"

namespace aerie::vmm {
namespace {

constexpr u64 ones(unsigned size) { return ~u64{0} >> (64 - 8 * size); }

template <class T>
volatile T& passed_through(Gpa gpa) {
  return *physical_pointer<volatile T>(Hpa{gpa.value()});
}

}  // namespace

u64 device_read(Vcpu& v, Gpa gpa, unsigned size) {
  if (v.apic.owns_page(gpa)) [[likely]] {
    return v.apic.mmio_read(static_cast<u32>(gpa.offset()), size);
  }
  if (machine.ioapic->owns_page(gpa)) {
    return machine.ioapic->mmio_read(static_cast<u32>(gpa.offset()), size);
  }
  if (!machine.host_map.lookup(gpa).present) {
    return ones(size);
  }
  switch (size) {
    case 1: return passed_through<u8>(gpa);
    case 2: return passed_through<u16>(gpa);
    case 4: return passed_through<u32>(gpa);
    default: return passed_through<u64>(gpa);
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
  if (!machine.host_map.lookup(gpa).present) {
    return;
  }
  switch (size) {
    case 1: passed_through<u8>(gpa) = static_cast<u8>(value); break;
    case 2: passed_through<u16>(gpa) = static_cast<u16>(value); break;
    case 4: passed_through<u32>(gpa) = static_cast<u32>(value); break;
    default: passed_through<u64>(gpa) = value; break;
  }
}

}  // namespace aerie::vmm
