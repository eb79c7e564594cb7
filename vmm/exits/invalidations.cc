// INVLPG and INVPCID of an L1 whose linear addresses L0 translates (tdp=off).
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"
#include "vmm/l1_access.h"

namespace aerie::vmm::exits {

// SDM vol. 2, INVLPG. The processor has checked the CPL; there is no fault of the address's.
void invlpg(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != cpu::Op::invlpg) [[unlikely]] {
    v.refetch();
    return;
  }
  auto& b = v.block_l1();
  L1Access access{v};
  const cpu::AddressingMode mode = access.addressing_mode();
  u64 linear = cpu::effective_offset(*i, v.registers(), cpu::next_rip(*i, b.rip(), mode.code));
  if (mode.code == cpu::CodeMode::bits64) {
    if (i->segment >= cpu::SegmentRegister::fs) {
      linear += access.segment(i->segment).base;
    }
    if (is_canonical(linear, mode.linear_bits)) {
      v.linear_paging.invlpg(linear);
    }
  } else {
    v.linear_paging.invlpg(static_cast<u32>(linear + access.segment(i->segment).base));
  }
  v.skip(*i);
}

// SDM vol. 2, INVPCID. It raised #UD, since the processor does not have it.
void invpcid(Vcpu& v, const cpu::Instruction& i) {
  auto& b = v.block_l1();
  struct {
    u64 pcid;
    u64 linear;
  } descriptor;
  L1Access access{v};
  const cpu::AddressingMode mode = access.addressing_mode();
  if (b.cpl() != 0) {
    v.raise_gp();
    return;
  }
  u64 at = 0;
  if (!access.operand(i, sizeof(descriptor), cpu::MemoryAccess::read, at) ||
      !access.read_bytes(at, &descriptor, sizeof(descriptor))) {
    v.raise_fault(access.fault());
    return;
  }
  u64 type = v.registers().gpr[i.reg & 15];
  if (mode.code != cpu::CodeMode::bits64) {
    type = static_cast<u32>(type);
  }
  constexpr u64 kAddress = 0, kContext = 1, kTypes = 4;
  const bool pcide = (v.guest_cr4() & cpu::cr4::pcide) != 0;
  if (type >= kTypes || (descriptor.pcid & ~u64{kPageMask}) != 0 ||
      (type <= kContext && !pcide && descriptor.pcid != 0) ||
      (type == kAddress && !is_canonical(descriptor.linear, mode.linear_bits))) {
    v.raise_gp();
    return;
  }
  v.linear_paging.invpcid(static_cast<unsigned>(type), static_cast<u16>(descriptor.pcid),
                          descriptor.linear);
  v.skip(i);
}

// A task switch would load CR3 and go on in the new task; L0 does not perform it.
void task_switch(Vcpu& v, const cpu::Exit&) {
  end_run(telemetry::EndState::emulation_failed,
          "L1 cpu{}: a hardware task switch at rip {x}, which tdp=off does not perform", v.index(),
          v.block_l1().rip());
}

}  // namespace aerie::vmm::exits
