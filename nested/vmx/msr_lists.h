// The MSR areas of VM entries and exits: SDM vol. 3, 27.4, 28.4 and 28.6, the entry's format in
// table 25-15.
#pragma once

#include "cpu/arch/msr.h"
#include "nested/vmx/engine.h"

namespace aerie::nested::vmx {

struct MsrAreaEntry {
  u32 index;
  u32 reserved;
  u64 value;
};
static_assert(sizeof(MsrAreaEntry) == 16);

// MSRs that no list may load (27.4, 28.6) or store (28.4).
constexpr bool msr_list_may_load(const MsrAreaEntry& e) {
  return e.reserved == 0 && e.index != cpu::msr::fs_base && e.index != cpu::msr::gs_base &&
         (e.index >> 8) != 0x8 && e.index != cpu::msr::smm_monitor_ctl &&
         e.index != cpu::msr::bios_update_trigger && e.index != cpu::msr::bios_sign_id;
}
constexpr bool msr_list_may_store(const MsrAreaEntry& e) {
  return e.reserved == 0 && (e.index >> 8) != 0x8 && e.index != cpu::msr::smbase;
}

template <L1Context C>
[[gnu::noinline]] u64 Vmx<C>::load_entry_msrs() {
  for (u32 n = 0; n < c_.entry_msr_load_count; ++n) {
    const auto e = n < kMaxMsrListEntries
                       ? v_.memory().template read<MsrAreaEntry>(
                             Gpa{c_.entry_msr_load_address + u64{n} * sizeof(MsrAreaEntry)})
                       : std::nullopt;
    if (!e || !msr_list_may_load(*e) || !write_l2_msr(e->index, e->value)) {
      return n + 1;
    }
  }
  return 0;
}

template <L1Context C>
[[gnu::noinline]] bool Vmx<C>::store_exit_msrs() {
  for (u32 n = 0; n < c_.exit_msr_store_count; ++n) {
    const Gpa at{c_.exit_msr_store_address + u64{n} * sizeof(MsrAreaEntry)};
    const auto e =
        n < kMaxMsrListEntries ? v_.memory().template read<MsrAreaEntry>(at) : std::nullopt;
    u64 value = 0;
    if (!e || !msr_list_may_store(*e)) {
      return false;
    }
    if (e->index == cpu::msr::tsc) {
      value = v_.l1_tsc();  // the offset counts for L2's own reads only
    } else if (!read_l2_msr(e->index, value)) {
      return false;
    }
    if (!v_.memory().write(at + offsetof(MsrAreaEntry, value), &value, sizeof(value))) {
      return false;
    }
  }
  return true;
}

// After the host state has been loaded: as WRMSR by L1.
template <L1Context C>
[[gnu::noinline]] bool Vmx<C>::load_exit_msrs() {
  for (u32 n = 0; n < c_.exit_msr_load_count; ++n) {
    const auto e = n < kMaxMsrListEntries
                       ? v_.memory().template read<MsrAreaEntry>(
                             Gpa{c_.exit_msr_load_address + u64{n} * sizeof(MsrAreaEntry)})
                       : std::nullopt;
    if (!e || !msr_list_may_load(*e) || !v_.write_msr(e->index, e->value)) {
      return false;
    }
  }
  return true;
}

}  // namespace aerie::nested::vmx
