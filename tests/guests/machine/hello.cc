// The smallest guest: that the runtime itself works. One case a promise of the runtime.
#include "cpu/arch/instructions.h"
#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

void long_mode() {
  expect_equal("EFER.LMA and LME", cpu::rdmsr(cpu::msr::efer) & (cpu::efer::lma | cpu::efer::lme),
               cpu::efer::lma | cpu::efer::lme);
}

void fault_is_a_value() {
  const Fault fault = catch_fault([] { asm volatile("ud2"); });
  expect_fault("UD2", fault, cpu::Exception::ud);
  const Fault second = catch_fault([] {
    const Fault inner = catch_fault([] { asm volatile("int3"); });
    expect_fault("INT3 within", inner, cpu::Exception::bp);
    asm volatile("mov %0, %%ss" ::"r"(0x4242));
  });
  expect_fault("MOV SS, bad selector", second, cpu::Exception::gp, 0x4240);
}

void processors_start() {
  expect(start_cpus(), "all processors to start");
  for (unsigned i = 1; i < cpu_count(); ++i) {
    static volatile u32 answer;
    answer = 0;
    run_on(
        i, [](u64 argument) { answer = static_cast<u32>(argument) + this_cpu().index; }, 100);
    expect_equal("answer", answer, 100 + i);
  }
}

constexpr Case kCases[] = {
    {"long_mode", "SDM vol. 3, 10.8.5", long_mode},
    {"fault_is_a_value", "SDM vol. 3, 6.15", fault_is_a_value},
    {"processors_start", "SDM vol. 3, 9.4.3", processors_start, two_cpus},
};

}  // namespace

u8 guest_main() { return run_cases(kCases); }

}  // namespace aerie::guest
