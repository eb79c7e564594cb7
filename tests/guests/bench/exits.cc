// The cost of L1's own exits. The names are those of `aerie bench`.
#include "cpu/arch/msr.h"
#include "cpu/arch/registers.h"
#include "tests/guests/bench/measure.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

constexpr u8 kVector = 0x55;
volatile u32* apic_word(Apic reg) {
  return reinterpret_cast<volatile u32*>(kApicPage + static_cast<u32>(reg));
}
void wrmsr_apic(Apic reg, u64 value) {
  cpu::wrmsr(cpu::msr::x2apic_first + (static_cast<u32>(reg) >> 4), value);
}

void bench_apic_page() {
  volatile u32* const eoi = apic_word(Apic::eoi);
  volatile u32* const icr_low = apic_word(Apic::icr_low);
  volatile u32* const tpr = apic_word(Apic::tpr);
  bench("eoi_write", [&] { *eoi = 0; });
  bench("self_ipi_write", [&] { *icr_low = icr::self | icr::assert_level | kVector; });
  bench("tpr_write", [&] { *tpr = 0; });
  bench("tpr_read", [&] { asm volatile("movl (%0), %%eax" ::"r"(tpr) : "rax"); });
  bench("self_ipi_sti_nop", [&] {
    *icr_low = icr::self | icr::assert_level | kVector;
    asm volatile("sti; nop; cli" ::: "memory");
  });
  bench("self_ipi_sti_hlt", [&] {
    *icr_low = icr::self | icr::assert_level | kVector;
    asm volatile("sti; hlt; cli" ::: "memory");
  });
}

void bench_x2apic() {
  use_x2apic();
  bench("x2apic_eoi_write", [] { wrmsr_apic(Apic::eoi, 0); });
  bench("x2apic_self_ipi_write",
        [] { wrmsr_apic(Apic::icr_low, icr::self | icr::assert_level | kVector); });
  bench("x2apic_tpr_write", [] { wrmsr_apic(Apic::tpr, 0); });
}

}  // namespace

u8 guest_main() {
  set_handler(kVector, [](Frame&) { end_of_interrupt(); });
  bench("nothing", [] {});
  bench("cpuid", [] { asm volatile("xor %%eax, %%eax; cpuid" ::: "rax", "rbx", "rcx", "rdx"); });
  bench("rdmsr_tsc_adjust", [] {
    asm volatile("rdmsr" ::"c"(cpu::msr::tsc_adjust) : "rax", "rdx");
  });
  bench("rdmsr_apic_base", [] { asm volatile("rdmsr" ::"c"(cpu::msr::apic_base) : "rax", "rdx"); });
  bench("wrmsr_tsc_adjust", [] { cpu::wrmsr(cpu::msr::tsc_adjust, 0); });
  bench("in_port", [] { asm volatile("inb $0x61, %%al" ::: "rax"); });
  const u64 cr4 = cpu::read_cr4();
  bench("toggle_cr4_pge", [&] {
    cpu::write_cr4(cr4 ^ cpu::cr4::pge);
    cpu::write_cr4(cr4);
  });
  const u64 cr0 = cpu::read_cr0();
  bench("toggle_cr0_wp", [&] {
    cpu::write_cr0(cr0 ^ cpu::cr0::wp);
    cpu::write_cr0(cr0);
  });
  bench_apic_page();
  if ((cpu::cpuid(1).ecx & bit(24)) != 0) {
    apic_write(Apic::timer, lvt::tsc_deadline | lvt::masked | kVector);
    bench("tsc_deadline_write", [] { cpu::wrmsr(cpu::msr::tsc_deadline, u64{1} << 60); });
    cpu::wrmsr(cpu::msr::tsc_deadline, 0);
  }
  if (has_x2apic()) {
    bench_x2apic();
  }
  return 0;
}

}  // namespace aerie::guest
