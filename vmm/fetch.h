// The instruction at a guest's RIP, through the walk cache and the decode cache (DESIGN §3).
#pragma once

#include "vmm/vcpu.h"

namespace aerie::vmm {

// Bytes from `linear` to the end of its page, empty where L1 has no RAM or ROM there.
inline std::span<const u8> code_at(Vcpu& v, u64 linear) {
  auto& b = v.block();
  const mmu::ModeBits mode{b.cr0(), b.cr4(), b.efer()};
  const u8* bytes = v.walk_cache.code_bytes(mode, b.cr3(), linear, machine.l1_memory);
  return bytes == nullptr ? std::span<const u8>{}
                          : std::span<const u8>{bytes, kPageSize - (linear & kPageMask)};
}

[[gnu::cold, gnu::noinline]] const cpu::Instruction* fetch_slowly(Vcpu& v, u64 linear,
                                                                  cpu::CodeMode mode);

// nullptr: no instruction can be read or decoded there. L1 only; an L2's is vmm/nested_fetch.h.
[[gnu::always_inline]] inline const cpu::Instruction* fetch_instruction(Vcpu& v) {
  auto& b = v.block();
  const auto& cs = b.segment(cpu::SegmentRegister::cs);
  const cpu::CodeMode mode = cpu::code_mode(cs, b.efer());
  const u64 linear = mode == cpu::CodeMode::bits64 ? b.rip() : static_cast<u32>(cs.base + b.rip());
  const std::span<const u8> code = code_at(v, linear);
  if (const cpu::Instruction* known =
          v.decode_cache.find(linear, mode, code.data(), code.size())) [[likely]] {
    return known;
  }
  return fetch_slowly(v, linear, mode);
}

}  // namespace aerie::vmm
