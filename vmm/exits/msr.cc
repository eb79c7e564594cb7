// RDMSR and WRMSR of L1. Which MSRs there are and what a write must satisfy:
// vmm/policy/msr_table.h.
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"
#include "vmm/msr_access.h"

namespace aerie::vmm::exits {

using cpu::Gpr;
using cpu::Op;

void rdmsr(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::rdmsr) [[unlikely]] {
    v.refetch();
    return;
  }
  auto& r = v.registers();
  const std::optional<u64> value = MsrAccess{v}.read(static_cast<u32>(r[Gpr::rcx]));
  if (!value) {
    v.raise_gp();
    return;
  }
  r[Gpr::rax] = static_cast<u32>(*value);
  r[Gpr::rdx] = *value >> 32;
  v.skip(*i);
}

void wrmsr(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::wrmsr) [[unlikely]] {
    v.refetch();
    return;
  }
  auto& r = v.registers();
  const u64 value = (r[Gpr::rdx] << 32) | static_cast<u32>(r[Gpr::rax]);
  if (!MsrAccess{v}.write(static_cast<u32>(r[Gpr::rcx]), value)) {
    v.raise_gp();
    return;
  }
  v.skip(*i);
}

}  // namespace aerie::vmm::exits
