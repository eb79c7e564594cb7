// Instructions of L1 that L0 performs in its place.
#include "cpu/arch/instructions.h"
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"
#include "vmm/hypercall.h"

namespace aerie::vmm::exits {

using cpu::Gpr;
using cpu::Op;

namespace {

[[gnu::cold, gnu::noinline]] void cpuid_slowly(Vcpu& v) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::cpuid) {
    v.refetch();
    return;
  }
  // Where XSETBV cannot be intercepted, XCR0 has to be looked at when its sizes are asked for.
  if (static_cast<u32>(v.registers()[Gpr::rax]) == 0xd) {
    v.update_cpuid();
  }
  v.cpuid.execute(v.registers());
  v.skip(*i);
}

}  // namespace

void cpuid(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = known_instruction(v);
  if (i == nullptr || i->op != Op::cpuid || static_cast<u32>(v.registers()[Gpr::rax]) == 0xd ||
      !v.cpuid.execute_known(v.registers())) [[unlikely]] {
    cpuid_slowly(v);
    return;
  }
  v.skip_known(*i);
}

void hlt(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::hlt) [[unlikely]] {
    v.refetch();
    return;
  }
  v.skip(*i);
  v.halt();
}

// DMA is coherent and L1 owns the machine's devices: WBINVD is done as asked; INVD as WBINVD, since
// it would drop what L0 has in the caches.
void cache(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || (i->op != Op::wbinvd && i->op != Op::invd && i->op != Op::wbnoinvd)) {
    v.refetch();
    return;
  }
  cpu::wbinvd();
  v.skip(*i);
}

// CPUID.1:ECX.MONITOR is not shown to L1, so both are #UD (SDM vol. 2, MONITOR); at CPL > 0 too.
void monitor(Vcpu& v, const cpu::Exit&) { v.raise(cpu::Exception::ud); }

// Only hosts that can intercept it come here; the processor has checked CPL, not the value.
void xsetbv(Vcpu& v, const cpu::Exit&) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr || i->op != Op::xsetbv) {
    v.refetch();
    return;
  }
  const auto& r = v.registers();
  const u64 value = (r[Gpr::rdx] << 32) | static_cast<u32>(r[Gpr::rax]);
  if (!machine.cr_policy.xcr0_legal(static_cast<u32>(r[Gpr::rcx]), value)) {
    v.raise_gp();
    return;
  }
  cpu::xsetbv(0, value);
  v.update_cpuid();
  v.skip(*i);
}

// L1 has no performance counters (CPUID leaf 0AH is empty): any counter number is one that does not
// exist.
void rdpmc(Vcpu& v, const cpu::Exit&) { v.raise_gp(); }

// Without EFER.SVME, which nobody offers L1 yet, SVM's instructions are #UD; VMMCALL is a
// hypercall.
void svm_instruction(Vcpu& v, const cpu::Exit& exit) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (exit.reason == cpu::ExitReason::vmmcall && i != nullptr && i->op == Op::vmmcall) {
    hypercall(v, *i);
    return;
  }
  v.raise(cpu::Exception::ud);
}

}  // namespace aerie::vmm::exits
