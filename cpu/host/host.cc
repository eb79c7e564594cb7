#include "cpu/host/host.h"

#include "base/panic.h"
#include "cpu/arch/instructions.h"
#include "cpu/arch/msr.h"
#include "cpu/arch/registers.h"

extern "C" {
extern aerie::u8 interrupt_stubs[];
extern aerie::u8 boot_gdt_pointer_high[];

[[noreturn]] void host_exception(aerie::u64 vector, aerie::u64 error, aerie::u64 rip,
                                 aerie::u64 cr2, aerie::u64 rsp) {
  aerie::panic("exception {} in L0, error {x}, rip {x}, cr2 {x}, rsp {x}", vector, error, rip, cr2,
               rsp);
}
}

namespace aerie::cpu {
namespace {

struct [[gnu::packed]] Gate {
  u16 offset_low;
  u16 selector;
  u8 ist;
  u8 type;
  u16 offset_middle;
  u32 offset_high;
  u32 reserved;
};
static_assert(sizeof(Gate) == 16);

constexpr u16 kCodeSelector = 0x08;
constexpr u8 kInterruptGate = 0x8e;
constexpr u64 kStubSize = 16;

Gate idt[256];

}  // namespace

void build_idt() {
  for (unsigned vector = 0; vector < 256; ++vector) {
    const u64 stub = reinterpret_cast<u64>(interrupt_stubs) + vector * kStubSize;
    idt[vector] = {static_cast<u16>(stub),
                   kCodeSelector,
                   0,
                   kInterruptGate,
                   static_cast<u16>(stub >> 16),
                   static_cast<u32>(stub >> 32),
                   0};
  }
}

void load_descriptor_tables() {
  struct [[gnu::packed]] {
    u16 limit;
    u64 base;
  } const pointer{sizeof(idt) - 1, reinterpret_cast<u64>(idt)};
  asm volatile("lidt %0" ::"m"(pointer));
  asm volatile("lgdt %0" ::"m"(*boot_gdt_pointer_high));
  // CS first: the trampoline's descriptor table has its 64-bit code segment elsewhere.
  asm volatile(
      "pushq %0\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "lretq\n"
      "1:" ::"i"(kCodeSelector)
      : "rax", "memory");
  asm volatile("mov %0, %%ss; mov %0, %%ds; mov %0, %%es; mov %1, %%fs; mov %1, %%gs" ::"r"(0x10),
               "r"(0));
}

const char* svm_unusable() {
  if (cpuid(0x80000000).eax < 0x8000000a || (cpuid(0x80000001).ecx & bit(2)) == 0) {
    return "the processor has no SVM (CPUID 8000_0001 ECX bit 2)";
  }
  if ((cpuid(0x8000000a).edx & 1) == 0) {
    return "the processor's SVM has no nested paging (CPUID 8000_000A EDX bit 0)";
  }
  constexpr u64 kSvmDisabled = bit(4);
  if ((rdmsr(msr::vm_cr) & kSvmDisabled) != 0) {
    return "SVM is disabled by firmware (VM_CR.SVMDIS)";
  }
  return nullptr;
}

void enable_svm(Hpa host_save_area) {
  wrmsr(msr::efer, rdmsr(msr::efer) | efer::svme);
  wrmsr(msr::vm_hsave_pa, host_save_area.value());
  clgi();
  sti();
}

}  // namespace aerie::cpu
