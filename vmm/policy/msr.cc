#include "vmm/policy/msr.h"

#include <algorithm>
#include <cstring>

namespace aerie::vmm::policy {
namespace {

namespace m = cpu::msr;
using msr_table::kCount;
using msr_table::kRows;

// IA32_ARCH_CAPABILITIES (SDM vol. 4, table 2-2): what an emulator cannot suffer from, ...
namespace arch_cap {
constexpr u64 rdcl_no = bit(0), skip_l1dfl_vmentry = bit(3), ssb_no = bit(4), mds_no = bit(5),
              if_pschange_mc_no = bit(6), taa_no = bit(8), sbdr_ssdp_no = bit(13),
              fbsdp_no = bit(14), psdp_no = bit(15), bhi_no = bit(20), pbrsb_no = bit(24),
              gds_no = bit(26), rfds_no = bit(27), its_no = bit(62);
// ... and what processors of AMD, which such a host is, do not suffer from (they have Spectre's
// faults and speculative store bypass, which L1 handles by SPEC_CTRL and its own code).
constexpr u64 amd_host = rdcl_no | skip_l1dfl_vmentry | mds_no | if_pschange_mc_no | taa_no |
                         sbdr_ssdp_no | fbsdp_no | psdp_no | pbrsb_no | gds_no | rfds_no | its_no;
constexpr u64 emulator = amd_host | ssb_no | bhi_no;
}  // namespace arch_cap

// The three ranges of the permission map, 2 KiB each (APM vol. 2, table 15-8).
constexpr u32 kSvmMapBases[] = {0, 0xc0000000, 0xc0010000};
constexpr u32 kSvmMapRange = 0x2000;

constexpr bool is_memory_type(u64 type) {
  return type == 0 || type == 1 || type == 4 || type == 5 || type == 6;
}

// Whether the processor's own check is at least the table's.
constexpr bool checked_by_hardware(MsrCheck check, bool host_checks) {
  return check == MsrCheck::any || host_checks;
}

}  // namespace

void MsrPolicy::init(const CpuidPolicy& cpuid, const MsrHost& host) {
  host_ = host;
  vendor_ = cpuid.vendor();
  physical_bits_ = cpuid.physical_bits();
  linear_bits_ = cpuid.linear_bits();
  for (usize i = 0; i < kCount; ++i) {
    const MsrRow& row = kRows[i];
    const bool exists =
        includes(row.who, vendor_) && (row.needs == kNoFeature || cpuid.has(row.needs));
    bounds_[i] = exists ? Bounds{row.first, row.last} : Bounds{1, 0};
    initial_[i] = row.initial;
  }
  const auto set = [&](usize row, u64 value) { initial_[row] = value; };
  if (cpuid.has(feature("mca"))) {
    // The banks; a control register for all where the processor has one. No threshold interrupts,
    // no local delivery.
    constexpr u64 count = 0xff, ctl_present = bit(8);
    const u64 cap = host.read(m::mcg_cap);
    const u64 banks = std::min<u64>(cap & count, 32);
    set(msr_table::row_number(m::mcg_cap), banks | (cap & ctl_present));
    Bounds& bounds = bounds_[msr_table::row_number(m::mc0_ctl)];
    bounds.last = bounds.first + static_cast<u32>(4 * banks) - 1;
    if (banks == 0) {
      bounds = {1, 0};
    }
    if ((cap & ctl_present) == 0) {
      bounds_[msr_table::row_number(m::mcg_ctl)] = {1, 0};
    }
  }
  if (cpuid.has(feature("mtrr"))) {
    constexpr u64 count = 0xff, fixed = bit(8), write_combining = bit(10);
    const u64 cap = host.read(m::mtrr_cap);
    const u64 pairs = std::min<u64>(cap & count, msr_table::kMtrrPairs);
    set(msr_table::row_number(m::mtrr_cap), pairs | (cap & (fixed | write_combining)));
    Bounds& bounds = bounds_[msr_table::row_number(m::mtrr_phys_base0)];
    bounds.last = bounds.first + static_cast<u32>(2 * pairs) - 1;
    if (pairs == 0) {
      bounds = {1, 0};
    }
  }
  for (usize i = 0; i < kCount; ++i) {
    if (kRows[i].from_host) {
      for (u32 index = bounds_[i].first; index <= bounds_[i].last; ++index) {
        firmware_[firmware_slot(i) + (index - kRows[i].first)] = host.read(index);
      }
    }
  }
  set(msr_table::row_number(m::arch_capabilities),
      cpuid.host_is_emulator() ? arch_cap::emulator : arch_cap::amd_host);
  constexpr unsigned kRatioShift = 8;
  set(msr_table::row_number(m::platform_info), ((cpuid.config().tsc_hz + 50'000'000) / 100'000'000)
                                                   << kRatioShift);
}

u8 MsrPolicy::find(u32 index) const {
  for (usize i = 0; i < kCount; ++i) {
    if (bounds_[i].first <= index && index <= bounds_[i].last) {
      return static_cast<u8>(i);
    }
  }
  return kNone;
}

std::optional<u32> MsrPolicy::svm_map_bit(u32 index) {
  for (u32 range = 0; range < std::size(kSvmMapBases); ++range) {
    if (index - kSvmMapBases[range] < kSvmMapRange) {
      return (range * kSvmMapRange + (index - kSvmMapBases[range])) * 2;
    }
  }
  return std::nullopt;
}

void MsrPolicy::fill_svm_map(std::span<u8, kSvmMapSize> map) const {
  std::memset(map.data(), 0xff, map.size());
  const auto clear = [&](u32 position) {
    map[position / 8] &= static_cast<u8>(~(1u << (position % 8)));
  };
  for (usize i = 0; i < kCount; ++i) {
    const MsrRow& row = kRows[i];
    if (row.direct == MsrDirect::none) {
      continue;
    }
    for (u32 index = bounds_[i].first; index <= bounds_[i].last; ++index) {
      const auto position = svm_map_bit(index);
      if (!position.has_value()) {
        continue;
      }
      // What cannot be read has to exit where the processor would not refuse it.
      if (!row.write_only || host_.checks_values) {
        clear(*position);
      }
      if (row.direct == MsrDirect::read_write &&
          checked_by_hardware(row.check, host_.checks_values)) {
        clear(*position + 1);
      }
    }
  }
}

void VcpuMsrs::power_up(const MsrPolicy& policy) {
  policy_ = &policy;
  tsc_adjust_ = 0;
  debugctl_ = 0;
  for (usize i = 0; i < kFound; ++i) {
    found_[i] = {};
    found_[i].index =
        static_cast<u32>(i ^ 1);  // belongs to another entry: equal to nothing looked up here
  }
  for (usize i = 0; i < kCount; ++i) {
    if (kRows[i].home == MsrHome::stored) {
      for (u32 index = kRows[i].first; index <= kRows[i].last; ++index) {
        value_at(static_cast<u8>(i), index) = policy.initial(i, index);
      }
    }
  }
}

const VcpuMsrs::Found* VcpuMsrs::search(Found& found, u32 index) {
  const u8 row = policy_->find(index);
  if (row == MsrPolicy::kNone) {
    return nullptr;
  }
  const MsrRow& r = kRows[row];
  found = {.index = index,
           .slot = static_cast<u16>(msr_table::kSlots[row] + (index - r.first)),
           .row = row,
           .home = r.home,
           .readable = !r.write_only,
           .check = r.check};
  return &found;
}

bool VcpuMsrs::check(u8 row_number, u32 index, u64 value) const {
  const MsrRow& row = kRows[row_number];
  const u64 address_bits = bit_mask(policy_->physical_bits() - 1, 12);
  switch (row.check) {
    case MsrCheck::any:
    case MsrCheck::ignored:
      return true;
    case MsrCheck::bits:
      return (value & ~row.mask) == 0;
    case MsrCheck::canonical:
      return is_canonical(value, policy_->linear_bits());
    case MsrCheck::canonical_on_intel:
      return policy_->vendor() == Vendor::amd || is_canonical(value, policy_->linear_bits());
    case MsrCheck::memory_types:
      for (unsigned i = 0; i < 8; ++i) {
        if (!is_memory_type((value >> (8 * i)) & 0xff)) {
          return false;
        }
      }
      return true;
    case MsrCheck::mtrr_pair: {
      constexpr u64 valid = bit(11), type = 0xff;
      const bool mask = (index & 1) != 0;
      return mask ? (value & ~(address_bits | valid)) == 0
                  : (value & ~(address_bits | type)) == 0 && is_memory_type(value & type);
    }
    case MsrCheck::mtrr_default: {
      constexpr u64 type = 0xff, fixed = bit(10), enable = bit(11);
      return (value & ~(type | fixed | enable)) == 0 && is_memory_type(value & type);
    }
    case MsrCheck::all_or_nothing:
      return value == 0 || value == ~u64{0};
    case MsrCheck::machine_check: {
      const u32 part = (index - row.first) % 4;
      if (part == 0) {
        return value == 0 || value == ~u64{0};
      }
      // STATUS is only ever cleared, unless an AMD processor is told otherwise. What ADDR and MISC
      // take differs among processors; here everything.
      constexpr usize hwcr = msr_table::row_number(m::hwcr);
      const bool status_writable =
          policy_->vendor() == Vendor::amd &&
          (values_[msr_table::kSlots[hwcr]] & msr_table::kHwcrMcStatusWrite) != 0;
      return part != 1 || value == 0 || status_writable;
    }
    case MsrCheck::denied:
    case MsrCheck::by_code:
      return false;
  }
  return false;
}

}  // namespace aerie::vmm::policy
