// What L1 is told it runs on, and what the processor refuses: CPUID, MSRs, control registers, XCR0,
// debug exceptions around emulated instructions.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/memory.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

using cpu::Exception;

Fault wrmsr(u32 index, u64 value) {
  return catch_fault([&] { cpu::wrmsr(index, value); });
}
Fault rdmsr(u32 index) {
  return catch_fault([&] { cpu::rdmsr(index); });
}
bool intel() { return cpu::cpuid(0).ebx == 0x756e'6547; }  // "Genu"
unsigned physical_bits() { return cpu::cpuid(0x8000'0008).eax & 0xff; }

// --- CPUID

// A vendor's virtualization, and no other's.
void cpuid_one_vendor() {
  const auto leaf0 = cpu::cpuid(0);
  const bool amd = leaf0.ebx == 0x6874'7541;
  expect(intel() || amd, "GenuineIntel or AuthenticAMD");
  const bool has_vmx = (cpu::cpuid(1).ecx & bit(5)) != 0;
  const bool has_svm = (cpu::cpuid(0x8000'0001).ecx & bit(2)) != 0;
  if (intel()) {
    expect_equal("ECX of leaf 0", leaf0.ecx, 0x6c65'746e);
    expect_equal("EDX of leaf 0", leaf0.edx, 0x4965'6e69);
    expect(!has_svm, "no SVM on an Intel processor");
  } else {
    expect_equal("ECX of leaf 0", leaf0.ecx, 0x444d'4163);
    expect_equal("EDX of leaf 0", leaf0.edx, 0x6974'6e65);
    expect(!has_vmx, "no VMX on an AMD processor");
  }
  if (host() == under_aerie) {
    expect(has_vmx || !intel(), "VMX on an Intel processor");
  }
}

void cpuid_brand_string() {
  bool printable = true;
  u32 first = 0;
  for (u32 leaf = 0x8000'0002; leaf <= 0x8000'0004; ++leaf) {
    const auto r = cpu::cpuid(leaf);
    for (const u32 word : {r.eax, r.ebx, r.ecx, r.edx}) {
      first = first == 0 ? word : first;
      for (unsigned i = 0; i < 32; i += 8) {
        const u32 c = word >> i & 0xff;
        printable = printable && (c == 0 || (c >= 0x20 && c < 0x7f));
      }
    }
  }
  expect(printable, "printable characters");
  expect(first != 0, "a brand string");
}

void cpuid_limits() {
  const u32 basic = cpu::cpuid(0).eax;
  const u32 extended = cpu::cpuid(0x8000'0000).eax;
  expect(basic >= 7, "leaf 7");
  expect(extended >= 0x8000'0008, "leaf 80000008");
  const unsigned bits = physical_bits();
  expect(bits >= 36 && bits <= 52, "a physical address width of 36 to 52");
  expect((cpu::cpuid(0x8000'0008).eax >> 8 & 0xff) >= 48, "48 linear address bits");
  if (intel()) {
    const auto beyond = cpu::cpuid(basic + 0x100);
    const auto highest = cpu::cpuid(basic);
    expect_equal("a leaf above the highest answers as the highest: EBX", beyond.ebx, highest.ebx);
  }
}

void cpuid_osxsave_follows_cr4() {
  const u64 cr4 = cpu::read_cr4();
  cpu::write_cr4(cr4 & ~cpu::cr4::osxsave);
  expect_equal("OSXSAVE, CR4 bit clear", cpu::cpuid(1).ecx & bit(27), 0);
  cpu::write_cr4(cr4 | cpu::cr4::osxsave);
  expect_equal("OSXSAVE, CR4 bit set", cpu::cpuid(1).ecx & bit(27), bit(27));
  cpu::write_cr4(cr4);
}

void cpuid_keeps_other_registers() {
  u64 rsi = 0x1111'2222'3333'4444, rdi = 0x5555'6666'7777'8888, r8 = 0x99, r15 = ~u64{0}, rax, rbx;
  asm volatile(
      "mov %[r8], %%r8; mov %[r15], %%r15; mov $-1, %%rax; mov $-1, %%rbx; mov $0, %%ecx; mov $0, "
      "%%eax;"
      "stc; cpuid; jnc 1f; mov %%r8, %[r8]; mov %%r15, %[r15]; 1:"
      : "+S"(rsi), "+D"(rdi), [r8] "+m"(r8), [r15] "+m"(r15), "=a"(rax), "=b"(rbx)
      :
      : "rcx", "rdx", "r8", "r15", "cc", "memory");
  expect_equal("RSI", rsi, 0x1111'2222'3333'4444);
  expect_equal("RDI", rdi, 0x5555'6666'7777'8888);
  expect_equal("R8", r8, 0x99);
  expect_equal("R15", r15, ~u64{0});
  expect_equal("RAX's upper half", rax >> 32, 0);
  expect_equal("RBX's upper half", rbx >> 32, 0);
}

// --- MSRs

void msr_unknown() {
  for (const u32 index : {0x1u << 30, 0x5a5a'5a5au, 0xc000'ff00u, 0x3fffu}) {
    expect_fault("RDMSR of an unknown MSR", rdmsr(index), Exception::gp, 0);
    expect_fault("WRMSR of an unknown MSR", wrmsr(index, 0), Exception::gp, 0);
  }
}

void msr_needs_cpl0() {
  // Left to the privilege checks of CPL 3 code: RDMSR there is #GP.
  alignas(16) static u8 user_stack[4096];
  static u64 return_rsp;
  for (u64 linear = 0x40'0000; linear < 0x80'0000; linear += 0x20'0000) {
    // The image and this stack, user accessible.
    page_pointer(page_pointer(page_pointer(cpu::read_cr3() & pte::address)[0] & pte::address)[0] &
                 pte::address)[linear >> 21] |= pte::user;
  }
  cpu::write_cr3(cpu::read_cr3());
  tss(0).rsp[0] = reinterpret_cast<u64>(alloc_page()) + kPageSize;
  const Fault fault = catch_fault([] {
    asm volatile(
        "mov %%rsp, %0; push %1; push %2; pushfq; push %3; lea 1f(%%rip), %%rax; push %%rax; iretq;"
        "1: mov $0x10, %%ecx; rdmsr; ud2" ::"m"(return_rsp),
        "r"(u64{kUserData}), "r"(reinterpret_cast<u64>(user_stack + sizeof user_stack)),
        "r"(u64{kUserCode})
        : "rax", "rcx", "rdx", "memory");
  });
  expect_fault("RDMSR at CPL 3", fault, Exception::gp, 0);
  for (u64 linear = 0x40'0000; linear < 0x80'0000; linear += 0x20'0000) {
    page_pointer(page_pointer(page_pointer(cpu::read_cr3() & pte::address)[0] & pte::address)[0] &
                 pte::address)[linear >> 21] &= ~pte::user;
  }
  cpu::write_cr3(cpu::read_cr3());
}

void msr_efer_faults() {
  const u64 efer = cpu::rdmsr(cpu::msr::efer);
  expect_fault("EFER, reserved bit 63", wrmsr(cpu::msr::efer, efer | bit(63)), Exception::gp, 0);
  expect_fault("EFER, reserved bit 9", wrmsr(cpu::msr::efer, efer | bit(9)), Exception::gp, 0);
  expect_fault("EFER.LME changed with paging on", wrmsr(cpu::msr::efer, efer & ~cpu::efer::lme),
               Exception::gp, 0);
  expect_equal("EFER untouched", cpu::rdmsr(cpu::msr::efer), efer);
}

void msr_pat_faults() {
  const u64 pat = cpu::rdmsr(cpu::msr::pat);
  expect_fault("PAT, type 2", wrmsr(cpu::msr::pat, (pat & ~u64{0xff}) | 2), Exception::gp, 0);
  expect_fault("PAT, type 8", wrmsr(cpu::msr::pat, (pat & ~u64{0xff}) | 8), Exception::gp, 0);
  expect_equal("PAT untouched", cpu::rdmsr(cpu::msr::pat), pat);
  const u64 other = 0x0007'0406'0007'0106;
  expect_no_fault("PAT, valid types", wrmsr(cpu::msr::pat, other));
  expect_equal("PAT", cpu::rdmsr(cpu::msr::pat), other);
  cpu::wrmsr(cpu::msr::pat, pat);
}

void msr_noncanonical() {
  for (const u32 index : {cpu::msr::fs_base, cpu::msr::kernel_gs_base, cpu::msr::lstar}) {
    const u64 old = cpu::rdmsr(index);
    expect_fault("a non-canonical address", wrmsr(index, non_canonical()), Exception::gp, 0);
    expect_equal("untouched", cpu::rdmsr(index), old);
    expect_no_fault("a canonical address", wrmsr(index, ~bit_mask(46, 0)));
    expect_equal("taken", cpu::rdmsr(index), ~bit_mask(46, 0));
    cpu::wrmsr(index, old);
  }
}

void msr_sysenter_noncanonical() {
  if (!intel()) {
    skip("AMD processors take any address");
    return;
  }
  for (const u32 index : {cpu::msr::sysenter_esp, cpu::msr::sysenter_eip}) {
    expect_fault("a non-canonical address", wrmsr(index, non_canonical()), Exception::gp, 0);
  }
}

void msr_tsc_write() {
  const u64 before = cpu::rdtsc();
  cpu::wrmsr(cpu::msr::tsc, before + (u64{1} << 40));
  const u64 after = cpu::rdtsc();
  expect(after - before >= u64{1} << 40, "the TSC set forward");
  expect(cpu::rdmsr(cpu::msr::tsc) >= after, "MSR 0x10 reads as RDTSC");
  cpu::wrmsr(cpu::msr::tsc, cpu::rdtsc() - (u64{1} << 40));
}

void msr_tsc_adjust() {
  if ((cpu::cpuid(7).ebx & bit(1)) == 0) {
    skip("no IA32_TSC_ADJUST");
    return;
  }
  const u64 adjust = cpu::rdmsr(cpu::msr::tsc_adjust);
  const u64 before = cpu::rdtsc();
  cpu::wrmsr(cpu::msr::tsc_adjust, adjust + (u64{1} << 40));
  expect(cpu::rdtsc() - before >= u64{1} << 40, "the TSC set forward by TSC_ADJUST");
  const u64 base = cpu::rdtsc();
  cpu::wrmsr(cpu::msr::tsc, base - (u64{1} << 40));
  const u64 moved = cpu::rdmsr(cpu::msr::tsc_adjust);
  expect(moved - adjust < u64{1} << 30 || adjust - moved < u64{1} << 30,
         "a write of the TSC to move TSC_ADJUST as well");
  cpu::wrmsr(cpu::msr::tsc_adjust, adjust);
}

void msr_vmx_read_only() {
  for (u32 index = cpu::msr::vmx_basic; index <= cpu::msr::vmx_cr4_fixed1; ++index) {
    expect_fault("WRMSR of a VMX capability", wrmsr(index, cpu::rdmsr(index)), Exception::gp, 0);
  }
}

void msr_mtrr() {
  const u64 cap = cpu::rdmsr(cpu::msr::mtrr_cap);
  const u64 old = cpu::rdmsr(cpu::msr::mtrr_def_type);
  expect_fault("MTRRcap is read-only", wrmsr(cpu::msr::mtrr_cap, cap), Exception::gp, 0);
  expect_fault("default type 2", wrmsr(cpu::msr::mtrr_def_type, (old & ~u64{7}) | 2), Exception::gp,
               0);
  expect_equal("untouched", cpu::rdmsr(cpu::msr::mtrr_def_type), old);
}

// --- Control registers

Fault write_cr0(u64 value) {
  return catch_fault([&] { cpu::write_cr0(value); });
}
Fault write_cr3(u64 value) {
  return catch_fault([&] { cpu::write_cr3(value); });
}
Fault write_cr4(u64 value) {
  return catch_fault([&] { cpu::write_cr4(value); });
}

void cr0_faults() {
  const u64 cr0 = cpu::read_cr0();
  expect_fault("PG without PE", write_cr0(cr0 & ~cpu::cr0::pe), Exception::gp, 0);
  expect_fault("NW without CD", write_cr0((cr0 | cpu::cr0::nw) & ~cpu::cr0::cd), Exception::gp, 0);
  for (const unsigned n : {32u, 48u, 63u}) {
    expect_fault("bit of the upper half", write_cr0(cr0 | bit(n)), Exception::gp, 0);
  }
  expect_fault("PG cleared in 64-bit mode", write_cr0(cr0 & ~cpu::cr0::pg), Exception::gp, 0);
  expect_equal("CR0 untouched", cpu::read_cr0(), cr0);
}

void cr0_et_is_fixed() {
  const u64 cr0 = cpu::read_cr0();
  cpu::write_cr0(cr0 & ~cpu::cr0::et);
  expect_equal("ET", cpu::read_cr0() & cpu::cr0::et, cpu::cr0::et);
  // Reserved bits of the lower half are ignored.
  expect_no_fault("bit 6", write_cr0(cr0 | bit(6)));
  expect_equal("bit 6 reads", cpu::read_cr0() & bit(6), 0);
  cpu::write_cr0(cr0);
}

void cr0_lmsw_clts() {
  const u64 cr0 = cpu::read_cr0();
  cpu::write_cr0(cr0 | cpu::cr0::ts);
  asm volatile("clts");
  expect_equal("TS after CLTS", cpu::read_cr0() & cpu::cr0::ts, 0);
  asm volatile("lmsw %w0" ::"r"(0xa));  // TS, MP; PE cannot be cleared
  expect_equal("after LMSW", cpu::read_cr0() & 0xf, cpu::cr0::pe | cpu::cr0::mp | cpu::cr0::ts);
  u64 word = 0;
  asm volatile("smsw %0" : "=r"(word));
  expect_equal("SMSW", word & 0xffff, cpu::read_cr0() & 0xffff);
  cpu::write_cr0(cr0);
}

void cr4_faults() {
  const u64 cr4 = cpu::read_cr4();
  expect_fault("PAE cleared in 64-bit mode", write_cr4(cr4 & ~cpu::cr4::pae), Exception::gp, 0);
  for (const unsigned n : {15u, 31u, 32u, 63u}) {
    expect_fault("a reserved bit", write_cr4(cr4 | bit(n)), Exception::gp, 0);
  }
  if ((cpu::cpuid(1).ecx & bit(17)) == 0) {
    expect_fault("PCIDE without PCID", write_cr4(cr4 | cpu::cr4::pcide), Exception::gp, 0);
  }
  expect_equal("CR4 untouched", cpu::read_cr4(), cr4);
}

void cr4_la57_in_long_mode() {
  const u64 cr4 = cpu::read_cr4();
  expect_fault("LA57 toggled in long mode", write_cr4(cr4 ^ cpu::cr4::la57), Exception::gp, 0);
  expect_equal("CR4 untouched", cpu::read_cr4(), cr4);
}

void cr4_vmxe_needs_vmx() {
  const u64 cr4 = cpu::read_cr4();
  const bool has_vmx = (cpu::cpuid(1).ecx & bit(5)) != 0;
  const Fault fault = write_cr4(cr4 | cpu::cr4::vmxe);
  if (has_vmx) {
    expect_no_fault("VMXE with VMX", fault);
    expect_equal("VMXE reads back", cpu::read_cr4() & cpu::cr4::vmxe, cpu::cr4::vmxe);
    cpu::write_cr4(cr4);
  } else {
    expect_fault("VMXE without VMX", fault, Exception::gp, 0);
  }
}

void cr3_faults() {
  const u64 cr3 = cpu::read_cr3();
  expect_fault("a bit above MAXPHYADDR", write_cr3(cr3 | bit(physical_bits())), Exception::gp, 0);
  expect_fault("bit 62", write_cr3(cr3 | bit(62)), Exception::gp, 0);
  expect_fault("bit 63 without PCIDE", write_cr3(cr3 | bit(63)), Exception::gp, 0);
  expect_equal("CR3 untouched", cpu::read_cr3(), cr3);
}

void cr_undefined() {
  const Fault cr1 = catch_fault([] { asm volatile(".byte 0x0f, 0x20, 0xc8" ::: "rax"); });
  expect_fault("MOV from CR1", cr1, Exception::ud);
  const Fault cr5 = catch_fault([] { asm volatile(".byte 0x0f, 0x22, 0xe8"); });
  expect_fault("MOV to CR5", cr5, Exception::ud);
}

// --- XCR0

struct Osxsave {
  Osxsave() : cr4{cpu::read_cr4()} { cpu::write_cr4(cr4 | cpu::cr4::osxsave); }
  ~Osxsave() { cpu::write_cr4(cr4); }
  Osxsave(const Osxsave&) = delete;
  Osxsave& operator=(const Osxsave&) = delete;
  u64 cr4;
};
Fault xsetbv(u32 index, u64 value) {
  return catch_fault([&] { cpu::xsetbv(index, value); });
}

void xsetbv_faults() {
  const Osxsave on;
  const u64 xcr0 = cpu::xgetbv(0);
  expect_fault("x87 clear", xsetbv(0, 0), Exception::gp, 0);
  expect_fault("AVX without SSE", xsetbv(0, 5), Exception::gp, 0);
  expect_fault("bit 63", xsetbv(0, bit(63) | 1), Exception::gp, 0);
  expect_fault("XCR1", xsetbv(1, 1), Exception::gp, 0);
  const u64 supported = cpu::cpuid(0xd).eax | u64{cpu::cpuid(0xd).edx} << 32;
  expect_fault("a component that CPUID lacks", xsetbv(0, supported | bit(40) | 1), Exception::gp,
               0);
  expect_equal("XCR0 untouched", cpu::xgetbv(0), xcr0);
}

void xsetbv_needs_osxsave() {
  const u64 cr4 = cpu::read_cr4();
  cpu::write_cr4(cr4 & ~cpu::cr4::osxsave);
  expect_fault("XSETBV", xsetbv(0, 1), Exception::ud);
  expect_fault("XGETBV", catch_fault([] { cpu::xgetbv(0); }), Exception::ud);
  cpu::write_cr4(cr4);
}

void xcr0_sets_cpuid_size() {
  const Osxsave on;
  const u64 xcr0 = cpu::xgetbv(0);
  cpu::xsetbv(0, 3);
  expect_equal("XGETBV", cpu::xgetbv(0), 3);
  expect_equal("CPUID.D:EBX with x87 and SSE", cpu::cpuid(0xd).ebx, 576);
  cpu::xsetbv(0, 7);
  expect_equal("CPUID.D:EBX with AVX", cpu::cpuid(0xd).ebx, 832);
  cpu::xsetbv(0, xcr0);
}

// --- Debug exceptions

struct Trap {
  u64 rip, dr6, rflags;
};
volatile Trap traps[16];
volatile u32 trap_count;
void note_trap(Frame& frame) {
  if (trap_count < 16) {
    volatile Trap& trap = traps[trap_count];
    trap.rip = frame.rip;
    trap.dr6 = cpu::read_dr<6>();
    trap.rflags = frame.rflags;
  }
  trap_count = trap_count + 1;
  cpu::write_dr<6>(cpu::dr6::initial);
  if (trap_count >= 16) {
    frame.rflags &= ~cpu::rflags::tf;  // what should have ended has not
    cpu::write_dr<7>(cpu::dr7::initial);
  }
}
void start_traps() {
  trap_count = 0;
  cpu::write_dr<6>(cpu::dr6::initial);
  set_handler(1, note_trap);
}

extern "C" const u64 guest_steps[];
asm(R"(
        .pushsection .rodata
        .balign 8
guest_steps:
        .quad step_1, step_2, step_3, step_4, step_5, step_6, step_7, step_8
        .popsection
)");

// One #DB with BS after each instruction, the emulated ones among them.
void single_step() {
  start_traps();
  asm volatile(R"(
        pushfq
        orl $0x100, (%%rsp)
        popfq
        nop                         # the first instruction with TF set
step_1: mov $0, %%eax
step_2: cpuid
step_3: mov $0x1b, %%ecx
step_4: rdmsr
step_5: mov %%cr0, %%rax
step_6: in $0x61, %%al
step_7: pushfq
step_8: andl $~0x100, (%%rsp)
        popfq
)" ::
                   : "rax", "rbx", "rcx", "rdx", "memory", "cc");
  // POPFQ at the end is itself stepped: TF was set when it began.
  expect_equal("traps", trap_count, 10);
  for (unsigned i = 0; i < 8; ++i) {
    expect_equal("RIP", traps[i].rip, guest_steps[i]);
    expect_equal("DR6.BS", traps[i].dr6 & cpu::dr6::bs, cpu::dr6::bs);
  }
}

// TF together with a write of the APIC page, which a hypervisor emulates.
void single_step_apic_write() {
  start_traps();
  asm volatile(R"(
        pushfq
        orl $0x100, (%%rsp)
        popfq
        movl $0x20, (%0)
        movl (%0), %%eax
        pushfq
        andl $~0x100, (%%rsp)
        popfq
)" ::"r"(kApicPage + 0x80)
               : "rax", "memory", "cc");
  expect_equal("traps", trap_count, 5);
  expect_equal("TPR", apic_read(Apic::tpr), 0x20);
  apic_write(Apic::tpr, 0);
}

// MOV SS holds off the trap of one instruction.
void single_step_mov_ss() {
  start_traps();
  asm volatile(R"(
        pushfq
        orl $0x100, (%%rsp)
        popfq
        mov %0, %%ss
        nop
        pushfq
        andl $~0x100, (%%rsp)
        popfq
)" ::"r"(u64{kData})
               : "memory", "cc");
  expect_equal("traps", trap_count, 4);
}

void icebp() {
  start_traps();
  asm volatile(".byte 0xf1");
  expect_equal("traps", trap_count, 1);
  expect_equal("DR6.BS", traps[0].dr6 & cpu::dr6::bs, 0);
}

u64 watched;
void data_breakpoint() {
  start_traps();
  cpu::write_dr<0>(reinterpret_cast<u64>(&watched));
  cpu::write_dr<7>(cpu::dr7::initial | 1 | 0xd0000);  // G0 off, L0, write, 4 bytes
  asm volatile("movl $1, %0" : "=m"(watched));
  asm volatile("movl %0, %%eax" ::"m"(watched) : "rax");
  cpu::write_dr<7>(cpu::dr7::initial);
  expect_equal("traps: the store, not the load", trap_count, 1);
  expect_equal("DR6.B0", traps[0].dr6 & 0xf, 1);
}

void code_breakpoint_sets_rf() {
  start_traps();
  // The label is in this block; the breakpoint is set before it is reached.
  asm volatile(R"(
        lea 1f(%%rip), %%rax
        mov %%rax, %%dr0
        mov $0x401, %%eax
        mov %%rax, %%dr7
1:      nop
        mov $0x400, %%eax
        mov %%rax, %%dr7
)" ::
                   : "rax", "memory");
  expect_equal("traps: once, since IRET brought RF back", trap_count, 1);
  expect_equal("DR6.B0", traps[0].dr6 & 0xf, 1);
  expect_equal("RF in the frame", traps[0].rflags & cpu::rflags::rf, cpu::rflags::rf);
}

void general_detect() {
  start_traps();
  cpu::write_dr<7>(cpu::dr7::initial | cpu::dr7::gd);
  u64 value = 0;
  asm volatile("mov %%dr3, %0" : "=r"(value));
  expect_equal("traps", trap_count, 1);
  expect_equal("DR6.BD", traps[0].dr6 & cpu::dr6::bd, cpu::dr6::bd);
  expect_equal("GD cleared by the exception", cpu::read_dr<7>() & cpu::dr7::gd, 0);
  cpu::write_dr<7>(cpu::dr7::initial);
}

void dr_upper_half() {
  for (const unsigned n : {32u, 63u}) {
    expect_fault("MOV DR7", catch_fault([&] { cpu::write_dr<7>(bit(n)); }), Exception::gp, 0);
    expect_fault("MOV DR6", catch_fault([&] { cpu::write_dr<6>(bit(n)); }), Exception::gp, 0);
  }
}

// Faults push RF = 1, except the ones of a trap kind. SDM vol. 3, 17.3.1.1.
void rf_on_faults() {
  const auto rf = [](const Fault& fault) { return fault.rflags & cpu::rflags::rf; };
  expect_equal("#UD", rf(catch_fault([] { asm volatile("ud2"); })), cpu::rflags::rf);
  expect_equal("#GP", rf(catch_fault([] { asm volatile("mov %0, %%ss" ::"r"(0x4240)); })),
               cpu::rflags::rf);
  expect_equal("#BP", rf(catch_fault([] { asm volatile("int3"); })), 0);
}

// The #UD and #GP that a hypervisor injects for what it emulates carry RF too, and RIP of the
// faulting instruction.
void rf_on_injected_faults() {
  if (host() != under_aerie) {
    skip("no hypervisor injects here");
    return;
  }
  const Fault fault = catch_fault([] { cpu::wrmsr(cpu::msr::efer, bit(63)); });
  expect_fault("WRMSR", fault, Exception::gp, 0);
  expect_equal("RF", fault.rflags & cpu::rflags::rf, cpu::rflags::rf);
}

// A fault's RIP is the faulting instruction's, with prefixes.
void fault_rip_of_emulated() {
  u64 expected = 0;
  const Fault fault = catch_fault([&] {
    asm volatile(
        "lea 1f(%%rip), %0; mov %0, %1; mov %2, %%ecx; mov %3, %%eax; mov %3, %%edx;"
        "1: .byte 0x48; wrmsr"
        : "=&r"(expected), "=m"(expected)
        : "i"(cpu::msr::efer), "i"(-1)
        : "rax", "rcx", "rdx");
  });
  expect_fault("WRMSR with a REX prefix", fault, Exception::gp, 0);
  expect_equal("RIP", fault.rip, expected);
}

// A handful of instructions that L0 may have to decode, with redundant prefixes and across a page.
void emulated_with_prefixes() {
  u32 eax = 0, ebx = 0;
  asm volatile(".byte 0x66, 0x2e, 0x48; cpuid" : "=a"(eax), "=b"(ebx) : "a"(0) : "rcx", "rdx");
  expect_equal("CPUID with 66 2E 48", ebx, cpu::cpuid(0).ebx);
  const u64 pages = alloc_pages(2);
  auto* code = page_pointer<u8>(pages + kPageSize - 1);
  code[0] = 0x0f;  // CPUID; RET
  code[1] = 0xa2;
  code[2] = 0xc3;
  asm volatile("call *%2" : "=a"(eax), "=b"(ebx) : "D"(code), "a"(0) : "rcx", "rdx", "memory");
  expect_equal("CPUID across a page boundary", ebx, cpu::cpuid(0).ebx);
  // The same bytes' page rewritten: CPUID becomes XOR EBX, EBX; a cached decoding would be wrong.
  code[0] = 0x31;
  code[1] = 0xdb;
  ebx = 1;
  asm volatile("call *%1" : "+b"(ebx) : "D"(code) : "rax", "rcx", "rdx", "memory");
  expect_equal("rewritten code", ebx, 0);
  code[0] = 0x0f;
  code[1] = 0xa2;
  asm volatile("call *%2" : "=a"(eax), "=b"(ebx) : "D"(code), "a"(0) : "rcx", "rdx", "memory");
  expect_equal("CPUID again", ebx, cpu::cpuid(0).ebx);
}

// The linear page of an emulated instruction mapped elsewhere, with INVLPG: the new bytes count.
void emulated_remapped() {
  constexpr u64 kLinear = 0x2'0000'0000;
  const u64 first = alloc_page();
  const u64 second = alloc_page();
  const auto fill = [](u64 page, u8 leaf_register) {
    auto* code = page_pointer<u8>(page);
    const u8 bytes[] = {0x31, 0xc9, 0x0f, leaf_register, 0xc3};  // XOR ECX, ECX; ...; RET
    for (unsigned i = 0; i < sizeof bytes; ++i) {
      code[i] = bytes[i];
    }
  };
  fill(first, 0xa2);   // CPUID
  fill(second, 0x31);  // RDTSC
  u32 eax, ebx, edx;
  const auto call = [&] {
    ebx = 0x5a5a;
    asm volatile("call *%3"
                 : "=a"(eax), "+b"(ebx), "=d"(edx)
                 : "S"(kLinear), "a"(0)
                 : "rcx", "memory");
  };
  for (unsigned i = 0; i < 4; ++i) {
    map_page(kLinear, first);
    call();
    expect_equal("CPUID", ebx, cpu::cpuid(0).ebx);
    map_page(kLinear, second);
    call();
    expect_equal("RDTSC leaves EBX", ebx, 0x5a5a);
  }
  map_page(kLinear, 0, 0);
}

// HLT, then the instruction after it, exactly once.
void hlt_resumes_after() {
  u64 count = 0;
  for (unsigned i = 0; i < 10; ++i) {
    send_ipi(0, icr::self | icr::assert_level | 0x44);
    asm volatile("sti; hlt; inc %0; cli" : "+r"(count)::"memory");
  }
  expect_equal("instructions after HLT", count, 10);
}

constexpr std::string_view kIgnoresMsrs = "unknown MSRs read 0 there";
constexpr Case kCases[] = {
    {"cpuid_one_vendor", "SDM vol. 2, CPUID; APM vol. 3, E.3.1", cpuid_one_vendor, 0, raw_tcg,
     "-cpu max shows SVM under any vendor"},
    {"cpuid_brand_string", "SDM vol. 2, CPUID", cpuid_brand_string},
    {"cpuid_limits", "SDM vol. 2, CPUID", cpuid_limits},
    {"cpuid_osxsave_follows_cr4", "SDM vol. 2, CPUID", cpuid_osxsave_follows_cr4, avx},
    {"cpuid_keeps_other_registers", "SDM vol. 2, CPUID", cpuid_keeps_other_registers},
    {"msr_unknown", "SDM vol. 2, RDMSR", msr_unknown, 0, raw_tcg | bochs, kIgnoresMsrs},
    {"msr_needs_cpl0", "SDM vol. 2, RDMSR", msr_needs_cpl0},
    {"msr_efer_faults", "SDM vol. 3, 2.2.1", msr_efer_faults, 0, raw_tcg,
     "TCG masks EFER silently"},
    {"msr_pat_faults", "SDM vol. 3, 11.12.2", msr_pat_faults, 0, raw_tcg, "TCG takes any type"},
    {"msr_noncanonical", "SDM vol. 4, table 2-2", msr_noncanonical, 0, raw_tcg,
     "TCG does not check"},
    {"msr_sysenter_noncanonical", "SDM vol. 2, WRMSR", msr_sysenter_noncanonical, 0, raw_tcg,
     "TCG does not check"},
    {"msr_tsc_write", "SDM vol. 3, 17.17.3", msr_tsc_write, 0, raw_tcg, "MSR 0x10 reads 0"},
    {"msr_tsc_adjust", "SDM vol. 3, 17.17.3", msr_tsc_adjust, 0, raw_tcg, "TCG keeps a plain word"},
    {"msr_vmx_read_only", "SDM vol. 3, A.1", msr_vmx_read_only, vmx},
    {"msr_mtrr", "SDM vol. 3, 11.11.2", msr_mtrr, 0, raw_tcg, "TCG takes any type"},
    {"cr0_faults", "SDM vol. 2, MOV CR", cr0_faults, 0, raw_tcg, "TCG truncates MOV CR0"},
    {"cr0_et_is_fixed", "SDM vol. 3, 2.5", cr0_et_is_fixed, 0, raw_tcg, "TCG keeps bit 6"},
    {"cr0_lmsw_clts", "SDM vol. 2, LMSW, CLTS", cr0_lmsw_clts},
    {"cr4_faults", "SDM vol. 2, MOV CR", cr4_faults, 0, raw_tcg, "TCG masks CR4 silently"},
    {"cr4_la57_in_long_mode", "SDM vol. 2, MOV CR", cr4_la57_in_long_mode, 0, raw_tcg,
     "TCG toggles it"},
    {"cr4_vmxe_needs_vmx", "SDM vol. 3, 23.7", cr4_vmxe_needs_vmx, 0, raw_tcg,
     "TCG masks CR4 silently"},
    {"cr3_faults", "SDM vol. 2, MOV CR", cr3_faults, 0, raw_tcg, "TCG does not check bit 63"},
    {"cr_undefined", "SDM vol. 2, MOV CR", cr_undefined},
    {"xsetbv_faults", "SDM vol. 1, 13.3", xsetbv_faults, avx},
    {"xsetbv_needs_osxsave", "SDM vol. 2, XSETBV", xsetbv_needs_osxsave, avx},
    {"xcr0_sets_cpuid_size", "SDM vol. 1, 13.2", xcr0_sets_cpuid_size, avx},
    {"single_step", "SDM vol. 3, 17.3.1.4", single_step},
    {"single_step_apic_write", "SDM vol. 3, 17.3.1.4", single_step_apic_write, no_x2apic},
    {"single_step_mov_ss", "SDM vol. 3, 6.8.3", single_step_mov_ss},
    {"icebp", "SDM vol. 2, INT1", icebp, 0, raw_tcg, "TCG has no ICEBP"},
    {"data_breakpoint", "SDM vol. 3, 17.2.4", data_breakpoint},
    {"code_breakpoint_sets_rf", "SDM vol. 3, 17.3.1.1", code_breakpoint_sets_rf, 0,
     raw_tcg | bochs | under_aerie, "neither TCG nor Bochs sets RF"},
    {"general_detect", "SDM vol. 3, 17.3.1.3", general_detect, 0, raw_tcg | under_aerie,
     "TCG has no GD"},
    {"dr_upper_half", "SDM vol. 3, 17.2.6", dr_upper_half, 0, raw_tcg, "TCG does not check"},
    {"rf_on_faults", "SDM vol. 3, 17.3.1.1", rf_on_faults, 0, raw_tcg, "TCG does not set RF"},
    {"rf_on_injected_faults", "SDM vol. 3, 17.3.1.1", rf_on_injected_faults},
    {"fault_rip_of_emulated", "SDM vol. 3, 6.5", fault_rip_of_emulated, 0, raw_tcg,
     "TCG masks EFER silently"},
    {"emulated_with_prefixes", "SDM vol. 2, 2.1", emulated_with_prefixes},
    {"emulated_remapped", "SDM vol. 3, 4.10.4", emulated_remapped},
    {"hlt_resumes_after", "SDM vol. 2, HLT", hlt_resumes_after},
};

}  // namespace

u8 guest_main() { return run_cases(kCases); }

}  // namespace aerie::guest
