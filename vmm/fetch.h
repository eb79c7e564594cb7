// The instruction at L1's RIP (DESIGN §3): the exit sites first, then the walk cache and the decode
// cache.
#pragma once

#include "vmm/vcpu.h"

namespace aerie::vmm {

[[gnu::cold, gnu::noinline]] const cpu::Instruction* fetch_slowly(Vcpu& v);

// Only what the exit sites know.
[[gnu::always_inline]] inline const cpu::Instruction* known_instruction(Vcpu& v) {
  const auto& b = v.block_l1();
  return b.segment(cpu::SegmentRegister::cs).long_mode()
             ? v.exit_sites.find(b.rip(), b.cr3(), v.paging_mode())
             : nullptr;
}

// nullptr: no instruction can be read or decoded there.
[[gnu::always_inline]] inline const cpu::Instruction* fetch_instruction(Vcpu& v) {
  const cpu::Instruction* known = known_instruction(v);
  return known != nullptr ? known : fetch_slowly(v);
}

}  // namespace aerie::vmm
