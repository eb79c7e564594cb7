#include "vmm/fetch.h"

namespace aerie::vmm {

const cpu::Instruction* fetch_slowly(Vcpu& v) {
  const auto& b = v.block_l1();
  const auto& cs = b.segment(cpu::SegmentRegister::cs);
  const cpu::CodeMode mode = cpu::code_mode(cs, b.efer());
  const u64 linear = mode == cpu::CodeMode::bits64 ? b.rip() : static_cast<u32>(cs.base + b.rip());
  const mmu::ModeBits paging = v.paging_mode();
  // Bytes to the end of their page, none where L1 has no RAM or ROM.
  const auto code_at = [&](u64 at) {
    const u8* bytes = v.walk_cache.code_bytes(paging, b.cr3(), at, machine.l1_memory);
    return bytes == nullptr ? std::span<const u8>{}
                            : std::span<const u8>{bytes, kPageSize - (at & kPageMask)};
  };
  const std::span<const u8> code = code_at(linear);
  const cpu::Instruction* i = v.decode_cache.find(linear, mode, code.data(), code.size());
  if (i == nullptr) {
    v.telemetry().count(telemetry::Event::decode_miss);
    i = v.decode_cache.lookup(linear, mode, code_at).instruction;
  }
  mmu::WalkCache::Path path;
  if (i != nullptr && mode == cpu::CodeMode::bits64 &&
      v.walk_cache.path(paging, b.cr3(), linear, 0, path)) {
    v.exit_sites.add(linear, b.cr3(), paging, 0, path, code.data(), *i);
  }
  return i;
}

}  // namespace aerie::vmm
