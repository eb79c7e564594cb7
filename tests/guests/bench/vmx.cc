// The cost of VMX for L1: its VMX instructions, and an exit of its L2 that it answers with nothing
// but VMRESUME (the exiting instruction is executed again, so no VMREAD or VMWRITE is in the
// figure).
#include "tests/guests/runtime/vmx.h"
#include "cpu/arch/msr.h"
#include "tests/guests/bench/measure.h"

extern "C" aerie::u64 guest_bench_resume(aerie::u64 count, aerie::u64 argument);

namespace aerie::guest {
namespace {

// u64 guest_bench_resume(u64 count): `count` times VMRESUME and the exit of what L2 does. L2 must
// leave RBX alone. Returns 0 if an entry failed.
asm(R"(
        .text
        .globl guest_bench_resume
guest_bench_resume:
        push %rbx
        push %rbp
        push %r12
        push %r13
        push %r14
        push %r15
        mov %rdi, %rbx
        mov $0x6c14, %eax
        vmwrite %rsp, %rax
        mov $0x6c16, %eax
        lea 1f(%rip), %rdx
        vmwrite %rdx, %rax
        mov $0xc0000082, %ecx
        mov %rsi, %rdi
        jmp 2f
1:      dec %rbx
        jz 3f
2:      vmresume
        xor %eax, %eax
        jmp 4f
3:      mov $1, %eax
4:      pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %rbp
        pop %rbx
        ret
)");

bool failed = false;

// An L2 that executes one instruction which exits, measured from VMRESUME to VMRESUME.
void bench_exit(std::string_view name, L2& l2, BasicExit wanted, void (*function)(u64),
                u64 argument = 0) {
  if (!bench_chosen(name)) {
    return;
  }
  l2.start(function, argument);
  if (!l2.enter() || (l2.reason() & cpu::vmx::kExitEntryFailure) != 0) {
    print("BENCH-FAIL {}\n", name);
    failed = true;
    return;
  }
  const u64 rounds = option("rounds", 200);
  // The difference of kRepeat + 1 exits and one: what is around the loop falls out.
  const Cost one =
      time_runs([&] { failed = guest_bench_resume(1, argument) == 0 || failed; }, rounds);
  const Cost many =
      time_runs([&] { failed = guest_bench_resume(kRepeat + 1, argument) == 0 || failed; }, rounds);
  if (l2.reason() != static_cast<u32>(wanted)) {
    print("BENCH-FAIL {}: exit {x}\n", name, l2.reason());
    failed = true;
    return;
  }
  print_cost(name, many, one);
}

void bench_instructions() {
  u64 value = 0;
  const u64 rip = static_cast<u64>(Field::guest_rip);
  bench("vmread", [&] { asm volatile("vmread %1, %0" : "+r"(value) : "r"(rip) : "cc"); });
  bench("vmwrite", [&] { asm volatile("vmwrite %0, %1" ::"r"(value), "r"(rip) : "cc", "memory"); });
  u64 memory = 0;
  bench("vmread_memory", [&] {
    asm volatile("vmread %1, %0" : "=m"(memory) : "r"(rip) : "cc", "memory");
  });
  const u64 exit_reason = static_cast<u64>(Field::exit_reason);
  bench("vmread_exit_reason", [&] {
    asm volatile("vmread %1, %0" : "+r"(value) : "r"(exit_reason) : "cc");
  });
  const u64 region = vmptrst();
  bench("vmptrld_same", [&] { asm volatile("vmptrld %0" ::"m"(region) : "cc", "memory"); });
  const u64 other = alloc_vmcs();
  vmclear(other);
  bench("vmptrld_switch_pair", [&] {
    asm volatile("vmptrld %0" ::"m"(other) : "cc", "memory");
    asm volatile("vmptrld %0" ::"m"(region) : "cc", "memory");
  });
  if ((ept_vpid_capability() & bit(25)) != 0) {
    const Ept tables;
    const InvalidateDescriptor descriptor{tables.eptp(), 0};
    bench("invept_single", [&] {
      asm volatile("invept %0, %1" ::"m"(descriptor), "r"(u64{1}) : "cc", "memory");
    });
  }
}

void measure_all() {
  L2 l2;
  const Ept tables;
  if (option("noept", 0) == 0) {
    tables.install(l2);
  }
  bench_instructions();
  bench_exit("l2_cpuid", l2, BasicExit::cpuid, [](u64) {
    for (;;) {
      asm volatile("xor %%eax, %%eax; cpuid" ::: "rax", "rbx", "rcx", "rdx");
    }
  });
  bench_exit("l2_vmcall", l2, BasicExit::vmcall, [](u64) { vmcall(); });
  l2.intercept_msr(cpu::msr::lstar, true, true);
  bench_exit("l2_rdmsr", l2, BasicExit::rdmsr, [](u64) {
    asm volatile("rdmsr" ::"c"(cpu::msr::lstar) : "rax", "rdx");
  });
  l2.proc(cpu::vmx::proc::hlt);
  bench_exit("l2_hlt", l2, BasicExit::hlt, [](u64) { asm volatile("hlt"); });
  // An EPT violation that L1 does not mend.
  if (option("noept", 0) == 0) {
    const u64 page = alloc_page();
    Ept absent;
    absent.entry(page) = 0;
    absent.install(l2);
    bench_exit(
        "l2_ept_violation", l2, BasicExit::ept_violation,
        [](u64 address) { asm volatile("movl (%0), %%eax" ::"r"(address)
                                       : "rax"); }, page);
  }
}

}  // namespace

u8 guest_main() {
  if ((cpu::cpuid(1).ecx & bit(5)) == 0) {
    print("BENCH-SKIP no VMX\n");
    return 38;
  }
  if (!vmx_on()) {
    return 2;
  }
  measure_all();
  vmx_off();
  return failed ? 1 : 0;
}

}  // namespace aerie::guest
