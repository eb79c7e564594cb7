#include "tests/guests/runtime/acpi.h"

#include <cstring>

namespace aerie::guest {
namespace {

u32 word(const u8* at) {
  u32 value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

const u8* find_rsdp() {
  const auto scan = [](u64 from, u64 to) -> const u8* {
    for (u64 address = from; address < to; address += 16) {
      const auto* at = reinterpret_cast<const u8*>(address);
      if (std::memcmp(at, "RSD PTR ", 8) == 0) {
        return at;
      }
    }
    return nullptr;
  };
  if (const u8* found = scan(0xe'0000, 0x10'0000); found != nullptr) {
    return found;
  }
  return scan(0x8'0000, 0xa'0000);
}

}  // namespace

Acpi::Acpi() {
  const u8* rsdp = find_rsdp();
  if (rsdp == nullptr) {
    return;
  }
  const auto* rsdt = reinterpret_cast<const u8*>(u64{word(rsdp + 16)});
  for (u32 offset = 36; offset + 4 <= word(rsdt + 4); offset += 4) {
    const auto* table = reinterpret_cast<const u8*>(u64{word(rsdt + offset)});
    if (std::memcmp(table, "APIC", 4) == 0) {
      read_madt(table);
    } else if (std::memcmp(table, "HPET", 4) == 0) {
      hpet_ = word(table + 44);
    }
  }
}

void Acpi::read_madt(const u8* table) {
  const u32 length = word(table + 4);
  for (u32 offset = 44; offset + 2 <= length && table[offset + 1] != 0;
       offset += table[offset + 1]) {
    const u8* entry = table + offset;
    const bool enabled_processor = entry[0] == 0 && (word(entry + 4) & 1) != 0;
    if (enabled_processor && count_ < sizeof ids_) {
      ids_[count_++] = entry[3];
    }
  }
}

const Acpi& acpi() {
  static const Acpi instance;
  return instance;
}

}  // namespace aerie::guest
