#pragma once
#include "cpu/arch/instructions.h"
namespace aerie::vmm::policy {
struct CpuidTable {
  cpu::CpuidResult read(u32 leaf, u32 subleaf) {
    auto r = cpu::cpuid(leaf, subleaf);
    if (leaf == 1) r.ecx |= 1u << 31;
    return r;
  }
  void xcr0_changed(u64) {}
};
struct MsrState {};
inline bool is_valid_xcr0(u64) { return true; }
}  // namespace aerie::vmm::policy
