#include "vmm/hypercall.h"

#include "vmm/ipi.h"

namespace aerie::vmm {
namespace {

using cpu::Gpr;

constexpr u64 kSendIpi = 10;
constexpr i64 kNoSuchCall = -1000, kNotPermitted = -1, kInvalid = -22;

// RBX, RCX: bitmap of targets, bit 0 being APIC ID RDX; RSI: ICR bits 31:0. The number of targets
// reached.
i64 send_ipi(Vcpu& v) {
  const auto& r = v.registers();
  const u32 icr = static_cast<u32>(r[Gpr::rsi]);
  constexpr u32 kDestinationBits = 0x000c'0800;  // shorthand, logical mode
  if ((icr & kDestinationBits) != 0) {
    return kInvalid;
  }
  const u64 bitmap[2] = {r[Gpr::rbx], r[Gpr::rcx]};
  const u64 first = static_cast<u32>(r[Gpr::rdx]);
  i64 reached = 0;
  for (unsigned i = 0; i < machine.cpus; ++i) {
    const u64 id = machine.vcpus[i]->apic.initial_id();
    if (id >= first && id - first < 128 &&
        ((bitmap[(id - first) / 64] >> ((id - first) % 64)) & 1) != 0) {
      v.apic.bus().send(v.apic, icr, static_cast<u32>(id));
      ++reached;
    }
  }
  v.reevaluate();
  return reached;
}

}  // namespace

void hypercall(Vcpu& v, const cpu::Instruction& instruction) {
  auto& r = v.registers();
  i64 result = kNoSuchCall;
  if (v.block_l1().cpl() != 0) {
    result = kNotPermitted;
  } else if (r[Gpr::rax] == kSendIpi) {
    result = send_ipi(v);
  }
  r[Gpr::rax] = static_cast<u64>(result);
  v.skip(instruction);
}

}  // namespace aerie::vmm
