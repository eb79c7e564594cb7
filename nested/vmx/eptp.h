// The EPT pointer: SDM vol. 3, 25.6.11, table 25-9 and the checks of 27.2.1.1.
#pragma once

#include "cpu/vmx/controls.h"
#include "nested/vmx/capabilities.h"

namespace aerie::nested::vmx {

// Whether a VM entry with EPT enabled would accept this EPTP.
inline bool eptp_valid(u64 value, const Capabilities& capabilities) {
  const cpu::vmx::Eptp eptp{value};
  const u64 cap = capabilities.ept_vpid();
  const bool type = (eptp.memory_type() == 0 && (cap & ept_vpid_cap::uncacheable) != 0) ||
                    (eptp.memory_type() == 6 && (cap & ept_vpid_cap::write_back) != 0);
  const bool levels = (eptp.levels() == 4 && (cap & ept_vpid_cap::levels_4) != 0) ||
                      (eptp.levels() == 5 && (cap & ept_vpid_cap::levels_5) != 0);
  return type && levels && (!eptp.accessed_dirty() || (cap & ept_vpid_cap::accessed_dirty) != 0) &&
         (value & (cpu::vmx::Eptp::kReserved | bit(7))) == 0 &&
         (value >> capabilities.physical_bits()) == 0;
}

}  // namespace aerie::nested::vmx
