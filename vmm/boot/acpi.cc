#include "vmm/boot/acpi.h"

#include <cstring>

#include "base/physical.h"

namespace aerie::vmm {
namespace {

struct [[gnu::packed]] Rsdp {
  char signature[8];
  u8 checksum;
  char oem[6];
  u8 revision;
  u32 rsdt;
};

struct [[gnu::packed]] TableHeader {
  char signature[4];
  u32 length;
  u8 rest[28];
};
static_assert(sizeof(TableHeader) == 36);

constexpr u32 kMaxTableBytes = 1 * kMiB;

bool sums_to_zero(const u8* bytes, usize size) {
  u8 sum = 0;
  for (usize i = 0; i < size; ++i) {
    sum = static_cast<u8>(sum + bytes[i]);
  }
  return sum == 0;
}

const Rsdp* search_rsdp(u64 begin, u64 end) {
  constexpr usize kRsdp1Bytes = 20;
  for (u64 at = begin; at + kRsdp1Bytes <= end; at += 16) {
    const u8* bytes = physical_pointer<u8>(Hpa{at});
    if (std::memcmp(bytes, "RSD PTR ", 8) == 0 && sums_to_zero(bytes, kRsdp1Bytes)) {
      return reinterpret_cast<const Rsdp*>(bytes);
    }
  }
  return nullptr;
}

const TableHeader* table(u32 address) {
  const auto* header = physical_pointer<TableHeader>(Hpa{address});
  const bool sane =
      address != 0 && header->length >= sizeof(TableHeader) && header->length <= kMaxTableBytes;
  return sane ? header : nullptr;
}

void read_madt(const TableHeader& madt, Processors& out) {
  const auto* bytes = reinterpret_cast<const u8*>(&madt);
  constexpr u32 kFirstEntry = 44;
  out.found = true;
  for (u32 at = kFirstEntry; at + 2 <= madt.length;) {
    const u8 type = bytes[at];
    const u8 size = bytes[at + 1];
    if (size < 2 || at + size > madt.length) {
      return;
    }
    if (type == 0 && size >= 8) {  // processor local APIC
      constexpr u8 kEnabled = 1;
      if ((bytes[at + 4] & kEnabled) != 0 && out.count < out.apic_ids.size()) {
        out.apic_ids[out.count++] = bytes[at + 3];
      }
    } else if (type == 1 && size >= 12) {  // IOAPIC
      std::memcpy(&out.ioapic, bytes + at + 4, 4);
    }
    at += size;
  }
}

}  // namespace

Processors find_processors() {
  Processors out;
  u16 ebda_segment = 0;
  std::memcpy(&ebda_segment, physical_pointer<u8>(Hpa{0x40e}), 2);
  const u64 ebda = u64{ebda_segment} << 4;
  const Rsdp* rsdp = ebda >= 0x80000 && ebda < 0xa0000 ? search_rsdp(ebda, ebda + kKiB) : nullptr;
  if (rsdp == nullptr) {
    rsdp = search_rsdp(0xe0000, 0x100000);
  }
  const TableHeader* rsdt = rsdp == nullptr ? nullptr : table(rsdp->rsdt);
  if (rsdt == nullptr) {
    return out;
  }
  const auto* entries = reinterpret_cast<const u8*>(rsdt) + sizeof(TableHeader);
  for (u32 i = 0; i < (rsdt->length - sizeof(TableHeader)) / 4; ++i) {
    u32 address;
    std::memcpy(&address, entries + 4 * i, 4);
    const TableHeader* t = table(address);
    if (t != nullptr && std::memcmp(t->signature, "APIC", 4) == 0) {
      read_madt(*t, out);
      return out;
    }
  }
  return out;
}

}  // namespace aerie::vmm
