#include "vmm/ioapic.h"

#include <algorithm>

#include "base/log.h"

namespace aerie::vmm {
namespace {

using apic::DeliveryMode;

// What an entry may ask of the physical I/O APIC, and why not.
struct DeliveryRule {
  bool passes;
  bool needs_vector;  // one of 16-255
  const char* reason;
};
constexpr std::array<DeliveryRule, 8> kRules = {{
    {true, true, "a vector below 16"},                          // fixed
    {true, true, "a vector below 16"},                          // lowest priority
    {false, false, "SMI: system management mode is not L1's"},  // SMI
    {false, false, "a reserved delivery mode"},
    {true, false, ""},                          // NMI
    {false, false, "INIT: it would reset L0"},  // INIT
    {false, false, "a reserved delivery mode"},
    {true, false, ""},  // ExtINT
}};

constexpr u8 low_index(unsigned entry) { return static_cast<u8>(ioapic::redirection + 2 * entry); }
constexpr u8 high_index(unsigned entry) { return static_cast<u8>(low_index(entry) + 1); }

}  // namespace

void IoApic::power_up() {
  const u32 version = host_.read(ioapic::version);
  version_ = ioapic::version_number(version);
  entries_ = std::min(ioapic::entry_count(version), kMaxEntries);
  // The index register has 8 bits.
  entries_ = std::min(entries_, (256u - ioapic::redirection) / 2);
  for (unsigned i = 0; i < entries_; ++i) {
    table_[i].high = host_.read(high_index(i)) & ioapic::high_writable;
    write_low(i, host_.read(low_index(i)));
  }
}

u64 IoApic::mmio_read(u32 offset, unsigned size) {
  const SpinLock::Guard guard{lock_};
  switch (offset & 0xff) {
    case ioapic::select:
      return selected_;
    case ioapic::window:
      return size >= 4 ? read_selected() : 0;
    default:
      return 0;
  }
}

void IoApic::mmio_write(u32 offset, unsigned size, u64 value) {
  const SpinLock::Guard guard{lock_};
  switch (offset & 0xff) {
    case ioapic::select:
      selected_ = static_cast<u8>(value);
      break;
    case ioapic::window:
      if (size >= 4) {
        write_selected(static_cast<u32>(value));
      }
      break;
    case ioapic::eoi:
      if (size >= 4 && version_ >= ioapic::version_with_eoi) {
        host_.give_eoi(static_cast<u8>(value));
      }
      break;
    default:
      break;
  }
}

u32 IoApic::read_selected() {
  if (selected_ < ioapic::redirection) {
    return host_.read(selected_);
  }
  const unsigned entry = (selected_ - ioapic::redirection) / 2u;
  if (entry >= entries_) {
    return 0;
  }
  const Entry& e = table_[entry];
  if ((selected_ & 1) != 0) {
    return e.high;
  }
  return e.passed ? e.low | (host_.read(selected_) & ioapic::low_read_only) : e.low;
}

void IoApic::write_selected(u32 value) {
  if (selected_ == ioapic::id) {
    host_.write(ioapic::id, value & ioapic::id_writable);
    return;
  }
  if (selected_ < ioapic::redirection) {
    return;
  }
  const unsigned entry = (selected_ - ioapic::redirection) / 2u;
  if (entry >= entries_) {
    return;
  }
  if ((selected_ & 1) != 0) {
    table_[entry].high = value & ioapic::high_writable;
    host_.write(selected_, table_[entry].high);
  } else {
    write_low(entry, value);
  }
}

void IoApic::write_low(unsigned entry, u32 value) {
  Entry& e = table_[entry];
  e.low = value & ioapic::low_writable;
  e.passed = may_pass(entry, e.low);
  // Trigger mode and polarity are L1's also where the rest is not: they decide what the pin
  // remembers until the entry is unmasked.
  const u32 pin = e.low & (ioapic::level | ioapic::active_low);
  host_.write(low_index(entry), e.passed ? e.low : ioapic::masked | pin);
}

bool IoApic::may_pass(unsigned entry, u32 low) {
  const DeliveryRule& rule = kRules[static_cast<u8>(apic::delivery_mode(low))];
  if (rule.passes && (!rule.needs_vector || apic::is_legal_vector(static_cast<u8>(low)))) {
    return true;
  }
  if ((low & ioapic::masked) == 0 && !reported_) {
    reported_ = true;
    log_warning("ioapic: pin {} asks for {}; left masked, as are all such from here on", entry,
                rule.reason);
  }
  return false;
}

}  // namespace aerie::vmm
