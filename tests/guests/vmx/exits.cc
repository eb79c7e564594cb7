// VM exits caused by instructions and exceptions: which, with what information, and what does not
// exit. SDM vol. 3, 26.1, 26.3, 28.2.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/vmx.h"

namespace aerie::guest {
namespace {

using cpu::Exception;
using cpu::Gpr;
using cpu::vmx::ControlWord;
namespace msr = cpu::msr;
namespace pin = cpu::vmx::pin;
namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;

// --- One instruction, one exit.

struct InstructionRow {
  std::string_view name;
  void (*code)(u64);
  BasicExit exit;
  unsigned length;
  u32 proc = 0;
  u32 proc2 = 0;
  bool always = false;  // exits without a control
};

u64 memory_words[2];
constexpr InstructionRow kInstructions[] = {
    {"CPUID", [](u64) { cpu::cpuid(0); }, BasicExit::cpuid, 2, 0, 0, true},
    {"VMCALL", [](u64) { vmcall(); }, BasicExit::vmcall, 3, 0, 0, true},
    {"INVD", [](u64) { asm volatile("invd"); }, BasicExit::invd, 2, 0, 0, true},
    {"HLT", [](u64) { asm volatile("hlt"); }, BasicExit::hlt, 1, proc::hlt},
    {"INVLPG", [](u64) { asm volatile("invlpg (%0)" ::"a"(u64{0x12345678})); }, BasicExit::invlpg,
     3, proc::invlpg},
    {"RDPMC", [](u64) { asm volatile("rdpmc" ::"c"(0)
                                     : "rax", "rdx"); }, BasicExit::rdpmc, 2,
     proc::rdpmc},
    {"RDTSC", [](u64) { cpu::rdtsc(); }, BasicExit::rdtsc, 2, proc::rdtsc},
    {"RDTSCP",
     [](u64) {
       asm volatile("rdtscp" ::: "rax", "rcx", "rdx");
     },
     BasicExit::rdtscp, 3, proc::rdtsc, proc2::rdtscp},
    {"PAUSE", [](u64) { cpu::pause(); }, BasicExit::pause, 2, proc::pause},
    {"MWAIT", [](u64) { asm volatile("mwait" ::"a"(0), "c"(0)); }, BasicExit::mwait, 3,
     proc::mwait},
    {"MONITOR", [](u64) { asm volatile("monitor" ::"a"(memory_words), "c"(0), "d"(0)); },
     BasicExit::monitor, 3, proc::monitor},
    {"WBINVD", [](u64) { cpu::wbinvd(); }, BasicExit::wbinvd, 2, 0, proc2::wbinvd},
    {"MOV DR", [](u64) { cpu::write_dr<3>(0); }, BasicExit::mov_dr, 3, proc::mov_dr},
    {"SGDT", [](u64) { asm volatile("sgdt (%0)" ::"a"(memory_words)
                                    : "memory"); },
     BasicExit::gdtr_idtr, 3, 0, proc2::descriptor_table},
    {"SLDT",
     [](u64) {
       asm volatile("sldt %%eax" ::: "rax");
     },
     BasicExit::ldtr_tr, 3, 0, proc2::descriptor_table},
    {"STR",
     [](u64) {
       asm volatile("str %%eax" ::: "rax");
     },
     BasicExit::ldtr_tr, 3, 0, proc2::descriptor_table},
};

void instruction_exits() {
  for (const InstructionRow& row : kInstructions) {
    L2 l2;
    if (!l2.proc(row.proc) || !l2.proc2(row.proc2)) {
      print("  {}: its control is not offered\n", row.name);
      continue;
    }
    l2.start(row.code);
    if (!l2.expect_exit(row.name, row.exit)) {
      continue;
    }
    if (!expect_equal("instruction length", l2.length(), row.length)) {
      print("  of {}\n", row.name);
    }
    expect_equal("no IDT-vectoring information",
                 vmread(Field::idt_vectoring_info) & cpu::vmx::interruption_info::valid, 0);
    l2.skip_instruction();
    l2.expect_return(row.name);
  }
}

// With the control clear the instruction runs.
void instructions_without_control() {
  for (const InstructionRow& row : kInstructions) {
    const bool harmless = row.exit != BasicExit::hlt && row.exit != BasicExit::mwait &&
                          row.exit != BasicExit::rdpmc && row.exit != BasicExit::rdtscp;
    if (row.always || !harmless) {
      continue;
    }
    L2 l2;
    if (!l2.proc(0, row.proc) || !l2.proc2(0, row.proc2) ||
        (vmread(Field::proc_controls) & row.proc) != 0) {
      continue;  // has to be 1 on this processor
    }
    l2.start(row.code);
    l2.expect_return(row.name);
  }
}

void rdtscp_without_control_is_ud() {
  L2 l2;
  if (!l2.proc2(0, proc2::rdtscp)) {
    return;
  }
  const auto body = [] {
    const Fault fault = catch_fault([] { asm volatile("rdtscp" ::: "rax", "rcx", "rdx"); });
    expect_fault("RDTSCP", fault, Exception::ud);
  };
  l2.start(body);
  l2.expect_return("RDTSCP");
}

// Every general register crosses the exit and the entry, and RIP names the instruction.
void registers_survive() {
  L2 l2;
  l2.start([](u64) {
    asm volatile(
        "mov $0x0101, %%ebx; mov $0x0202, %%ecx; mov $0x0303, %%edx; mov $0x0404, %%esi;"
        "mov $0x0505, %%edi; mov $0x0808, %%r8d; mov $0x0909, %%r9d; mov $0x1010, %%r10d;"
        "mov $0x1111, %%r11d; mov $0x1212, %%r12d; mov $0x1313, %%r13d; mov $0x1414, %%r14d;"
        "mov $0x1515, %%r15d; mov $0x77, %%eax; stc; vmcall; pushf; pop %%rax; vmcall" ::
            : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
              "r14", "r15", "memory", "cc");
  });
  if (!l2.expect_exit("first VMCALL", BasicExit::vmcall)) {
    return;
  }
  const auto check = [&](u64 wanted) {
    constexpr Gpr kOrder[] = {Gpr::rbx, Gpr::rcx, Gpr::rdx, Gpr::rsi, Gpr::rdi, Gpr::r8, Gpr::r9,
                              Gpr::r10, Gpr::r11, Gpr::r12, Gpr::r13, Gpr::r14, Gpr::r15};
    constexpr u64 kValues[] = {0x101,  0x202,  0x303,  0x404,  0x505,  0x808, 0x909,
                               0x1010, 0x1111, 0x1212, 0x1313, 0x1414, 0x1515};
    for (unsigned i = 0; i < 13; ++i) {
      expect_equal("register", l2.registers[kOrder[i]], kValues[i] + wanted);
    }
  };
  check(0);
  expect_equal("CF in the guest's RFLAGS", vmread(Field::guest_rflags) & 1, 1);
  for (const Gpr r : {Gpr::rbx, Gpr::rcx, Gpr::rdx, Gpr::rsi, Gpr::rdi, Gpr::r8, Gpr::r9, Gpr::r10,
                      Gpr::r11, Gpr::r12, Gpr::r13, Gpr::r14, Gpr::r15}) {
    l2.registers[r] += 0x10000;
  }
  l2.skip_instruction();
  l2.expect_exit("second VMCALL", BasicExit::vmcall);
  check(0x10000);
  expect_equal("CF kept", l2.registers[Gpr::rax] & 1, 1);
}

// What an exit loads: RFLAGS 2, DR7 0x400, table limits 0xffff, the host's selectors and
// bases. 28.5.
void host_state_loaded() {
  L2 l2;
  vmwrite(Field::guest_dr7, 0x455);
  vmwrite(Field::guest_gdtr_limit, 0x77);
  const auto body = [] { cpu::cpuid(0); };
  l2.start(body);
  vmwrite(Field::guest_rflags, 0x8d7);
  if (!l2.expect_exit("CPUID", BasicExit::cpuid)) {
    return;
  }
  expect_equal("DR7", cpu::read_dr<7>(), 0x400);
  expect_equal("GDTR limit", read_gdtr().limit, 0xffff);
  expect_equal("IDTR limit", read_idtr().limit, 0xffff);
  expect_equal("GS base", cpu::rdmsr(msr::gs_base), reinterpret_cast<u64>(&cpu(0)));
  expect_equal("guest DR7 saved", vmread(Field::guest_dr7), 0x455);
  expect_equal("guest GDTR limit saved", vmread(Field::guest_gdtr_limit), 0x77);
  u64 tr = 0;
  asm volatile("str %0" : "=r"(tr));
  expect_equal("TR", tr & 0xffff, kTss0);
}

// --- Control registers. 25.6.6, table 28-3.

using cpu::vmx::CrAccess;

void cr_shadow_reads() {
  L2 l2;
  static u64 cr0_seen, cr4_seen, smsw_seen;
  vmwrite(Field::cr0_mask, cpu::cr0::ts | cpu::cr0::am);
  vmwrite(Field::cr0_read_shadow, cpu::cr0::ts | cpu::cr0::wp);
  vmwrite(Field::cr4_mask, cpu::cr4::vmxe | cpu::cr4::pge | cpu::cr4::de);
  vmwrite(Field::cr4_read_shadow, cpu::cr4::de | cpu::cr4::mce);
  const auto body = [] {
    cr0_seen = cpu::read_cr0();
    cr4_seen = cpu::read_cr4();
    asm volatile("smsw %0" : "=r"(smsw_seen));
  };
  l2.start(body);
  l2.expect_return("reads");
  const u64 cr0 = vmread(Field::guest_cr0);
  const u64 cr4 = vmread(Field::guest_cr4);
  expect_equal("CR0", cr0_seen, (cr0 & ~(cpu::cr0::ts | cpu::cr0::am)) | cpu::cr0::ts);
  expect_equal("CR4", cr4_seen,
               (cr4 & ~(cpu::cr4::vmxe | cpu::cr4::pge | cpu::cr4::de)) | cpu::cr4::de);
  expect_equal("SMSW", smsw_seen & 0xffff, cr0_seen & 0xffff);
}

void cr_mask_writes() {
  L2 l2;
  const u64 cr0 = cpu::read_cr0();
  const u64 cr4 = cpu::read_cr4();
  vmwrite(Field::cr0_mask, cpu::cr0::ts | cpu::cr0::am);
  vmwrite(Field::cr0_read_shadow, cpu::cr0::ts);
  vmwrite(Field::cr4_mask, cpu::cr4::de | cpu::cr4::vmxe);
  vmwrite(Field::cr4_read_shadow, cpu::cr4::vmxe);
  static u64 a, b, c, d;
  a = cr0 | cpu::cr0::ts | cpu::cr0::mp;  // as the shadow says: no exit; MP is the guest's
  b = cr0;                                // TS differs from the shadow
  c = cr4 | cpu::cr4::vmxe | cpu::cr4::tsd;
  d = cr4 | cpu::cr4::vmxe | cpu::cr4::de;
  const auto body = [] {
    asm volatile("mov %0, %%cr0" ::"r"(a));
    asm volatile("mov %0, %%cr4" ::"r"(c));
    vmcall();
    asm volatile("mov %0, %%rbx; mov %%rbx, %%cr0" ::"r"(b) : "rbx");
    asm volatile("mov %0, %%r11; mov %%r11, %%cr4" ::"r"(d) : "r11");
  };
  l2.start(body);
  l2.expect_exit_and_skip("no exit by writes that agree with the shadow", BasicExit::vmcall);
  expect_equal("guest-owned CR0.MP written", vmread(Field::guest_cr0) & cpu::cr0::mp, cpu::cr0::mp);
  expect_equal("host-owned CR0.TS untouched", vmread(Field::guest_cr0) & cpu::cr0::ts,
               cr0 & cpu::cr0::ts);
  expect_equal("guest-owned CR4.TSD written", vmread(Field::guest_cr4) & cpu::cr4::tsd,
               cpu::cr4::tsd);
  if (l2.expect_exit("MOV CR0 against the shadow", BasicExit::cr_access)) {
    expect_equal("qualification", l2.qualification(),
                 CrAccess{.cr = 0, .kind = CrAccess::Kind::mov_to, .gpr = Gpr::rbx}.encode());
    expect_equal("length", l2.length(), 3);
    expect_equal("CR0 not written", vmread(Field::guest_cr0) & cpu::cr0::mp, cpu::cr0::mp);
    l2.skip_instruction();
  }
  if (l2.expect_exit("MOV CR4 against the shadow", BasicExit::cr_access)) {
    expect_equal("qualification", l2.qualification(),
                 CrAccess{.cr = 4, .kind = CrAccess::Kind::mov_to, .gpr = Gpr::r11}.encode());
    expect_equal("length", l2.length(), 4);
    l2.skip_instruction();
  }
  l2.expect_return("the end");
}

void clts_and_lmsw() {
  L2 l2;
  vmwrite(Field::cr0_mask, cpu::cr0::ts | cpu::cr0::mp);
  vmwrite(Field::cr0_read_shadow, cpu::cr0::ts);
  const auto body = [] {
    asm volatile("clts");
    asm volatile("lmsw %w0" ::"a"(0x3));
    static u16 word = 0x2;
    asm volatile("lmsw %0" ::"m"(word));
    asm volatile("lmsw %w0" ::"a"(0x9));  // TS and MP as the shadow has them
  };
  l2.start(body);
  if (l2.expect_exit("CLTS", BasicExit::cr_access)) {
    expect_equal("CLTS, qualification", l2.qualification(),
                 CrAccess{.kind = CrAccess::Kind::clts}.encode());
    expect_equal("CLTS, length", l2.length(), 2);
    l2.skip_instruction();
  }
  if (l2.expect_exit("LMSW", BasicExit::cr_access)) {
    expect_equal("LMSW, qualification", l2.qualification(),
                 CrAccess{.kind = CrAccess::Kind::lmsw, .lmsw_source = 3}.encode());
    l2.skip_instruction();
  }
  if (l2.expect_exit("LMSW from memory", BasicExit::cr_access)) {
    expect_equal(
        "LMSW, qualification", l2.qualification(),
        CrAccess{.kind = CrAccess::Kind::lmsw, .lmsw_memory = true, .lmsw_source = 2}.encode());
    l2.skip_instruction();
  }
  l2.expect_return("LMSW that agrees");
  // CLTS with the shadow's TS clear does not exit, and leaves the host-owned bit.
  vmwrite(Field::cr0_read_shadow, 0);
  vmwrite(Field::guest_cr0, cpu::read_cr0() | cpu::cr0::ts);
  l2.start([](u64) { asm volatile("clts"); });
  l2.expect_return("CLTS with the shadow clear");
  expect_equal("TS", vmread(Field::guest_cr0) & cpu::cr0::ts, cpu::cr0::ts);
}

void cr3_exits() {
  L2 l2;
  if (!l2.proc(proc::cr3_load | proc::cr3_store)) {
    skip("no CR3 exiting");
    return;
  }
  const u64 cr3 = cpu::read_cr3();
  static u64 seen;
  static u64 other;
  other = cr3 ^ 0x18;  // PCD and PWT: the same tables
  const auto body = [] {
    asm volatile("mov %%cr3, %%r9; mov %%r9, %0" : "=m"(seen)::"r9");
    asm volatile("mov %0, %%rsi; mov %%rsi, %%cr3" ::"m"(other) : "rsi");
    asm volatile("mov %0, %%rsi; mov %%rsi, %%cr3" ::"m"(other) : "rsi");
  };
  l2.start(body);
  if (l2.expect_exit("MOV from CR3", BasicExit::cr_access)) {
    expect_equal("qualification", l2.qualification(),
                 CrAccess{.cr = 3, .kind = CrAccess::Kind::mov_from, .gpr = Gpr::r9}.encode());
    l2.registers[Gpr::r9] = 0x5a5a;
    l2.skip_instruction();
  }
  if (l2.expect_exit("MOV to CR3", BasicExit::cr_access)) {
    expect_equal("what L1 put there", seen, 0x5a5a);
    expect_equal("qualification", l2.qualification(),
                 CrAccess{.cr = 3, .kind = CrAccess::Kind::mov_to, .gpr = Gpr::rsi}.encode());
    expect_equal("CR3 not written", vmread(Field::guest_cr3), cr3);
    l2.skip_instruction();
  }
  // Now a CR3-target value: no exit.
  if ((cpu::rdmsr(msr::vmx_misc) >> 16 & 0x1ff) >= 1) {
    vmwrite(Field::cr3_target_count, 1);
    vmwrite(Field::cr3_target0, other);
    l2.expect_return("MOV to CR3 of a target value");
    expect_equal("CR3 written", vmread(Field::guest_cr3), other);
  }
}

void cr8_exits() {
  L2 l2;
  if (!l2.proc(proc::cr8_load | proc::cr8_store)) {
    skip("no CR8 exiting");
    return;
  }
  const auto body = [] {
    asm volatile("mov %0, %%rdx; mov %%rdx, %%cr8" ::"r"(u64{5}) : "rdx");
    asm volatile("mov %%cr8, %%r10" ::: "r10");
  };
  l2.start(body);
  if (l2.expect_exit("MOV to CR8", BasicExit::cr_access)) {
    expect_equal("qualification", l2.qualification(),
                 CrAccess{.cr = 8, .kind = CrAccess::Kind::mov_to, .gpr = Gpr::rdx}.encode());
    expect_equal("length", l2.length(), 4);
    l2.skip_instruction();
  }
  if (l2.expect_exit("MOV from CR8", BasicExit::cr_access)) {
    expect_equal("qualification", l2.qualification(),
                 CrAccess{.cr = 8, .kind = CrAccess::Kind::mov_from, .gpr = Gpr::r10}.encode());
    l2.skip_instruction();
  }
  l2.expect_return("the end");
  expect_equal("L1's TPR", apic_read(Apic::tpr), 0);
}

// A bit that VMX fixes cannot be changed by an L2 either: #GP in L2.
void fixed_bits_fault_in_l2() {
  L2 l2;
  const auto body = [] {
    const u64 cr4 = cpu::read_cr4();
    const Fault fault = catch_fault([&] { cpu::write_cr4(cr4 & ~cpu::cr4::vmxe); });
    expect_fault("MOV CR4 clearing VMXE", fault, Exception::gp, 0);
    const u64 cr0 = cpu::read_cr0();
    const Fault second = catch_fault([&] { cpu::write_cr0(cr0 & ~cpu::cr0::ne); });
    expect_fault("MOV CR0 clearing NE", second, Exception::gp, 0);
  };
  l2.start(body);
  l2.expect_return("faults");
}

void mov_dr_qualification() {
  L2 l2;
  if (!l2.proc(proc::mov_dr)) {
    skip("no MOV DR exiting");
    return;
  }
  const auto body = [] {
    asm volatile("mov %%dr6, %%r12" ::: "r12");
    asm volatile("mov %%rcx, %%dr1" ::: "rcx");
  };
  l2.start(body);
  if (l2.expect_exit("MOV from DR6", BasicExit::mov_dr)) {
    expect_equal("qualification", l2.qualification(),
                 (cpu::vmx::DrAccess{.dr = 6, .read = true, .gpr = Gpr::r12}.encode()));
    l2.skip_instruction();
  }
  if (l2.expect_exit("MOV to DR1", BasicExit::mov_dr)) {
    expect_equal("qualification", l2.qualification(),
                 (cpu::vmx::DrAccess{.dr = 1, .gpr = Gpr::rcx}.encode()));
    l2.skip_instruction();
  }
  l2.expect_return("the end");
}

void invlpg_qualification() {
  L2 l2;
  if (!l2.proc(proc::invlpg)) {
    skip("no INVLPG exiting");
    return;
  }
  const auto body = [] {
    asm volatile("invlpg 0x10(%0,%1,4)" ::"r"(u64{0x7000'0000}), "r"(u64{0x100}));
    asm volatile("invlpg (%0)" ::"r"(~u64{0xfff}));
  };
  l2.start(body);
  if (l2.expect_exit("INVLPG", BasicExit::invlpg)) {
    expect_equal("qualification", l2.qualification(), 0x7000'0410);
    expect_equal("length", l2.length(), 5);
    l2.skip_instruction();
  }
  if (l2.expect_exit("INVLPG of a high address", BasicExit::invlpg)) {
    expect_equal("qualification", l2.qualification(), ~u64{0xfff});
    l2.skip_instruction();
  }
  l2.expect_return("the end");
}

// --- I/O. 25.6.4, table 28-5. Ports 0x4f0-0x4ff: nothing is there.

using cpu::vmx::IoAccess;
constexpr u16 kPort = 0x4f0;

void io_unconditional() {
  L2 l2;
  if (!l2.proc(proc::unconditional_io, proc::io_bitmaps)) {
    skip("no unconditional I/O exiting");
    return;
  }
  static u32 buffer[4];
  const auto body = [] {
    asm volatile("inb $0x80, %%al" ::: "rax");
    asm volatile("outw %%ax, %%dx" ::"a"(0x1234), "d"(kPort));
    asm volatile("inl %%dx, %%eax" ::"d"(kPort) : "rax");
    u64 rsi = reinterpret_cast<u64>(buffer);
    u64 count = 2;
    asm volatile("rep outsl" : "+S"(rsi), "+c"(count) : "d"(kPort) : "memory");
    u64 rdi = reinterpret_cast<u64>(buffer);
    asm volatile("insb" : "+D"(rdi) : "d"(kPort) : "memory");
  };
  l2.start(body);
  const auto next = [&](std::string_view what, const IoAccess& access, unsigned length) {
    if (l2.expect_exit(what, BasicExit::io)) {
      expect_equal(what, l2.qualification(), access.encode());
      if (length != 0) {
        expect_equal(what, l2.length(), length);
      }
      l2.skip_instruction();
    }
  };
  next("IN AL, imm8", {.size = 1, .in = true, .immediate = true, .port = 0x80}, 2);
  next("OUT DX, AX", {.size = 2, .port = kPort}, 2);
  expect_equal("AX", l2.registers[Gpr::rax] & 0xffff, 0x1234);
  next("IN EAX, DX", {.size = 4, .in = true, .port = kPort}, 1);
  if (l2.expect_exit("REP OUTSD", BasicExit::io)) {
    expect_equal("REP OUTSD", l2.qualification(),
                 (IoAccess{.size = 4, .string = true, .rep = true, .port = kPort}.encode()));
    expect_equal("linear address", vmread(Field::guest_linear_address),
                 reinterpret_cast<u64>(buffer));
    expect_equal("RCX untouched", l2.registers[Gpr::rcx], 2);
    l2.skip_instruction();
  }
  if (l2.expect_exit("INSB", BasicExit::io)) {
    expect_equal("INSB", l2.qualification(),
                 (IoAccess{.size = 1, .in = true, .string = true, .port = kPort}.encode()));
    l2.skip_instruction();
  }
  l2.expect_return("the end");
}

void io_bitmaps() {
  L2 l2;
  const u64 a = alloc_page();
  const u64 b = alloc_page();
  if (!l2.proc(proc::io_bitmaps | proc::unconditional_io)) {
    skip("no I/O bitmaps");
    return;
  }
  vmwrite(Field::io_bitmap_a, a);
  vmwrite(Field::io_bitmap_b, b);
  const auto set = [&](u16 port, bool on) {
    u8& byte = page_pointer<u8>(port < 0x8000 ? a : b)[(port & 0x7fff) / 8];
    const auto mask = static_cast<u8>(1u << (port % 8));
    byte = static_cast<u8>(on ? byte | mask : byte & ~mask);
  };
  static u16 port;
  static u8 size;
  const auto body = [] {
    for (;;) {
      if (size == 1) {
        cpu::inb(port);
      } else if (size == 2) {
        cpu::inw(port);
      } else {
        cpu::inl(port);
      }
      vmcall();
    }
  };
  l2.start(body);
  const auto run = [&](std::string_view what, u16 p, u8 s, bool exits) {
    port = p;
    size = s;
    if (exits) {
      if (l2.expect_exit(what, BasicExit::io)) {
        expect_equal(what, IoAccess::decode(l2.qualification()).port, p);
        l2.skip_instruction();
      }
    }
    l2.expect_exit_and_skip(what, BasicExit::vmcall);
  };
  run("no bit", kPort, 1, false);
  set(kPort, true);
  run("bit set between entries", kPort, 1, true);
  run("the port below", kPort - 1, 1, false);
  run("a word across it", kPort - 1, 2, true);
  run("a doubleword across it", kPort - 3, 4, true);
  run("a doubleword just below", kPort - 4, 4, false);
  set(kPort, false);
  run("bit cleared between entries", kPort, 1, false);
  set(0x8765, true);
  run("bitmap B", 0x8765, 1, true);
  run("the same index of bitmap A", 0x0765, 1, false);
  set(0x8000, true);
  run("a word across both bitmaps", 0x7fff, 2, true);
  // A new bitmap's address counts from the next entry on.
  const u64 other = alloc_page();
  vmwrite(Field::io_bitmap_b, other);
  run("another bitmap B", 0x8765, 1, false);
  vmwrite(Field::io_bitmap_b, b);
  run("the first again", 0x8765, 1, true);
}

void io_wraps_around() {
  L2 l2;
  const u64 a = alloc_page();
  const u64 b = alloc_page();
  if (!l2.proc(proc::io_bitmaps)) {
    skip("no I/O bitmaps");
    return;
  }
  vmwrite(Field::io_bitmap_a, a);
  vmwrite(Field::io_bitmap_b, b);
  const auto body = [] { cpu::inl(0xfffe); };
  l2.start(body);
  l2.expect_exit_and_skip("an access past port 0xffff", BasicExit::io);
  l2.expect_return("the end");
}

// --- MSRs. 25.6.9.

void msr_bitmap() {
  L2 l2;
  static u32 index;
  static bool write;
  const auto body = [] {
    for (;;) {
      if (write) {
        cpu::wrmsr(index, 0);
      } else {
        cpu::rdmsr(index);
      }
      vmcall();
    }
  };
  l2.start(body);
  const auto run = [&](std::string_view what, u32 i, bool w, bool exits) {
    index = i;
    write = w;
    if (exits && l2.expect_exit(what, w ? BasicExit::wrmsr : BasicExit::rdmsr)) {
      expect_equal(what, l2.registers[Gpr::rcx], i);
      expect_equal(what, l2.length(), 2);
      l2.skip_instruction();
    }
    l2.expect_exit_and_skip(what, BasicExit::vmcall);
  };
  run("RDMSR, bit clear", msr::sysenter_cs, false, false);
  l2.intercept_msr(msr::sysenter_cs, true, false);
  run("RDMSR, bit set between entries", msr::sysenter_cs, false, true);
  run("WRMSR, bit clear", msr::sysenter_cs, true, false);
  l2.intercept_msr(msr::sysenter_cs, false, true);
  run("WRMSR, bit set", msr::sysenter_cs, true, true);
  l2.intercept_msr(msr::sysenter_cs, true, true, false);
  run("RDMSR, bit cleared again", msr::sysenter_cs, false, false);
  l2.intercept_msr(msr::lstar, true, true);
  run("RDMSR of a high MSR", msr::lstar, false, true);
  run("WRMSR of a high MSR", msr::lstar, true, true);
  run("RDMSR outside both ranges", 0x4000'0000, false, true);
  run("WRMSR outside both ranges", 0xc000'2000, true, true);
  run("RDMSR of index 0x2000", 0x2000, false, true);
  // PITFALLS: the new bitmap counts from the next entry on.
  const u64 all_ones = alloc_page();
  for (unsigned i = 0; i < 512; ++i) {
    page_pointer(all_ones)[i] = ~u64{0};
  }
  vmwrite(Field::msr_bitmap, all_ones);
  run("RDMSR, another bitmap", msr::sysenter_cs, false, true);
  l2.proc(0, proc::msr_bitmaps);
  vmwrite(Field::msr_bitmap, reinterpret_cast<u64>(l2.msr_bitmap()));
  run("RDMSR, no bitmaps", msr::sysenter_cs, false, true);
  l2.proc(proc::msr_bitmaps);
  run("RDMSR, the first bitmap again", msr::sysenter_cs, false, false);
}

// An edit counts however long the bitmap stayed as it was (a hypervisor may keep a merged copy).
void msr_bitmap_edited_late() {
  L2 l2;
  l2.start([](u64) {
    for (;;) {
      cpu::rdmsr(msr::lstar);
      vmcall();
    }
  });
  for (const unsigned quiet : {1u, 3u, 10u, 40u, 160u, 640u}) {
    for (unsigned i = 0; i < quiet; ++i) {
      if (!l2.expect_exit_and_skip("bit clear", BasicExit::vmcall)) {
        return;
      }
    }
    l2.intercept_msr(msr::lstar, true, false);
    for (unsigned i = 0; i < 3; ++i) {
      l2.expect_exit_and_skip("bit set", BasicExit::rdmsr);
      l2.expect_exit_and_skip("after it", BasicExit::vmcall);
    }
    l2.intercept_msr(msr::lstar, true, false, false);
  }
}

// MSRs that live in the VMCS are L2's own.
void msrs_of_the_guest_state() {
  L2 l2;
  vmwrite(Field::guest_sysenter_eip, 0x1111);
  vmwrite(Field::guest_fs_base, 0x2222);
  static u64 eip, fs, efer;
  const auto body = [] {
    eip = cpu::rdmsr(msr::sysenter_eip);
    fs = cpu::rdmsr(msr::fs_base);
    efer = cpu::rdmsr(msr::efer);
    cpu::wrmsr(msr::sysenter_esp, 0x3333);
    cpu::wrmsr(msr::fs_base, 0x4444);
  };
  l2.start(body);
  l2.expect_return("MSRs");
  expect_equal("SYSENTER_EIP", eip, 0x1111);
  expect_equal("FS base", fs, 0x2222);
  expect_equal("EFER", efer, cpu::rdmsr(msr::efer));
  expect_equal("SYSENTER_ESP saved", vmread(Field::guest_sysenter_esp), 0x3333);
  expect_equal("FS base saved", vmread(Field::guest_fs_base), 0x4444);
  expect_equal("L1's SYSENTER_ESP", cpu::rdmsr(msr::sysenter_esp), 0);
  expect_equal("L1's FS base", cpu::rdmsr(msr::fs_base), 0);
}

// MSRs that do not are shared: what one writes the other reads.
void msrs_shared() {
  L2 l2;
  const u64 lstar = cpu::rdmsr(msr::lstar);
  cpu::wrmsr(msr::lstar, 0x7777);
  cpu::wrmsr(msr::kernel_gs_base, 0x8888);
  static u64 seen_lstar, seen_gs;
  const auto body = [] {
    seen_lstar = cpu::rdmsr(msr::lstar);
    seen_gs = cpu::rdmsr(msr::kernel_gs_base);
    cpu::wrmsr(msr::lstar, 0x9999);
    cpu::wrmsr(msr::kernel_gs_base, 0xaaaa);
  };
  l2.start(body);
  l2.expect_return("MSRs");
  expect_equal("LSTAR seen by L2", seen_lstar, 0x7777);
  expect_equal("KERNEL_GS_BASE seen by L2", seen_gs, 0x8888);
  expect_equal("LSTAR after", cpu::rdmsr(msr::lstar), 0x9999);
  expect_equal("KERNEL_GS_BASE after", cpu::rdmsr(msr::kernel_gs_base), 0xaaaa);
  cpu::wrmsr(msr::lstar, lstar);
  cpu::wrmsr(msr::kernel_gs_base, 0);
}

// PITFALLS: L2's x2APIC MSRs, let through by L1's bitmap, are L1's APIC.
void x2apic_msrs_reach_l1s_apic() {
  L2 l2;
  static u64 tpr;
  apic_write(Apic::tpr, 0x20);
  const auto body = [] {
    tpr = cpu::rdmsr(0x808);
    cpu::wrmsr(0x808, 0x30);
  };
  l2.start(body);
  l2.expect_return("x2APIC MSRs");
  expect_equal("TPR read by L2", tpr, 0x20);
  expect_equal("TPR of L1 after", apic_read(Apic::tpr), 0x30);
  apic_write(Apic::tpr, 0);
}

void tsc_offset() {
  L2 l2;
  if (!l2.proc(proc::tsc_offsetting)) {
    skip("no TSC offsetting");
    return;
  }
  constexpr u64 kOffset = u64{1} << 50;
  vmwrite(Field::tsc_offset, kOffset);
  static u64 by_rdtsc, by_rdmsr;
  const auto body = [] {
    by_rdtsc = cpu::rdtsc();
    by_rdmsr = cpu::rdmsr(msr::tsc);
  };
  const u64 before = cpu::rdtsc();
  l2.start(body);
  l2.expect_return("TSC reads");
  const u64 after = cpu::rdtsc();
  expect(by_rdtsc - kOffset >= before && by_rdtsc - kOffset <= after, "RDTSC offset");
  expect(by_rdmsr >= by_rdtsc && by_rdmsr - kOffset <= after, "RDMSR of the TSC offset");
  expect(after - before < kOffset, "L1's TSC its own");
  // The offset's new value counts from the next entry on.
  vmwrite(Field::tsc_offset, 2 * kOffset);
  l2.start(body);
  l2.expect_return("TSC reads");
  expect(by_rdtsc - 2 * kOffset < kOffset, "RDTSC with the new offset");
}

// --- Exceptions. 26.2, 25.6.3, table 28-1.

namespace info = cpu::vmx::interruption_info;

void exception_bitmap() {
  L2 l2;
  vmwrite(Field::exception_bitmap, cpu::exception_bit(Exception::ud) |
                                       cpu::exception_bit(Exception::bp) |
                                       cpu::exception_bit(Exception::gp));
  const auto body = [] {
    asm volatile("ud2");
    asm volatile("int3");
    asm volatile("mov %0, %%ss" ::"r"(0x5550));
  };
  l2.start(body);
  if (l2.expect_exit("UD2", BasicExit::exception_or_nmi)) {
    expect_equal("#UD", vmread(Field::exit_interruption_info),
                 info::valid | 3 << 8 | static_cast<u32>(Exception::ud));
    vmwrite(Field::guest_rip, vmread(Field::guest_rip) + 2);
  }
  if (l2.expect_exit("INT3", BasicExit::exception_or_nmi)) {
    expect_equal("#BP, software exception", vmread(Field::exit_interruption_info),
                 info::valid | 6 << 8 | static_cast<u32>(Exception::bp));
    expect_equal("length", l2.length(), 1);
    l2.skip_instruction();
  }
  if (l2.expect_exit("MOV SS", BasicExit::exception_or_nmi)) {
    expect_equal("#GP", vmread(Field::exit_interruption_info),
                 info::valid | info::error_valid | 3 << 8 | static_cast<u32>(Exception::gp));
    expect_equal("error code", vmread(Field::exit_interruption_error), 0x5550);
    vmwrite(Field::guest_rip, vmread(Field::guest_rip) + 2);
  }
  l2.expect_return("the end");
}

void exceptions_not_intercepted() {
  L2 l2;
  const auto body = [] {
    expect_fault("UD2 in L2", catch_fault([] { asm volatile("ud2"); }), Exception::ud);
    expect_fault("INT3 in L2", catch_fault([] { asm volatile("int3"); }), Exception::bp);
    const Fault fault = catch_fault([] {
      asm volatile("movl $1, (%0)" ::"r"(u64{0x3'0000'0000}) : "memory");
    });
    if (expect_fault("page fault in L2", fault, Exception::pf, 2)) {
      expect_equal("CR2", fault.cr2, 0x3'0000'0000);
    }
    const Fault privileged = catch_fault([] { cpu::write_cr3(bit(62)); });
    expect_fault("#GP in L2", privileged, Exception::gp, 0);
  };
  l2.start(body);
  l2.expect_return("exceptions");
}

// PITFALLS: mask and match both matter; 25.6.3.
void page_fault_mask_and_match() {
  struct Row {
    bool bitmap;
    u32 mask, match;
    bool read_exits, write_exits;
  };
  constexpr Row kRows[] = {
      {true, 0, 0, true, true},   {true, 2, 2, false, true},    {true, 2, 0, true, false},
      {true, 0, 1, false, false}, {false, 0, 0, false, false},  {false, 2, 2, true, false},
      {false, 0, 1, true, true},  {true, 0x1f, 2, false, true},
  };
  for (const Row& row : kRows) {
    L2 l2;
    vmwrite(Field::exception_bitmap, row.bitmap ? cpu::exception_bit(Exception::pf) : 0);
    vmwrite(Field::page_fault_error_mask, row.mask);
    vmwrite(Field::page_fault_error_match, row.match);
    for (const bool write : {false, true}) {
      l2.start(
          [](u64 store) {
            catch_fault([&] {
              if (store != 0) {
                asm volatile("movl $1, (%0)" ::"r"(u64{0x3'0000'0000}) : "memory");
              } else {
                asm volatile("movl (%0), %%eax" ::"r"(u64{0x3'0000'0000}) : "rax");
              }
            });
          },
          write);
      const bool exits = write ? row.write_exits : row.read_exits;
      if (exits) {
        l2.expect_exit("a page fault that matches", BasicExit::exception_or_nmi);
      } else {
        l2.expect_return("a page fault that does not match");
      }
    }
  }
}

// PITFALLS: an intercepted #PF leaves CR2, an intercepted #DB leaves DR6 and DR7.
void intercepted_faults_leave_cr2_and_dr6() {
  L2 l2;
  vmwrite(Field::exception_bitmap,
          cpu::exception_bit(Exception::pf) | cpu::exception_bit(Exception::db));
  constexpr u64 kAddress = 0x3'0000'0008;
  l2.start([](u64) {
    cpu::write_cr2(0x1234);
    asm volatile("movl $1, (%0)" ::"r"(kAddress) : "memory");
  });
  if (l2.expect_exit("#PF", BasicExit::exception_or_nmi)) {
    expect_equal("qualification: the address", l2.qualification(), kAddress);
    expect_equal("error code", vmread(Field::exit_interruption_error), 2);
    expect_equal("CR2", cpu::read_cr2(), 0x1234);
  }
  cpu::write_dr<6>(cpu::dr6::initial);
  l2.start([](u64) {
    asm volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; nop" ::: "memory", "cc");
  });
  if (l2.expect_exit("#DB", BasicExit::exception_or_nmi)) {
    expect_equal("#DB", vmread(Field::exit_interruption_info),
                 info::valid | 3 << 8 | static_cast<u32>(Exception::db));
    expect_equal("qualification: BS", l2.qualification(), cpu::dr6::bs);
    expect_equal("DR6", cpu::read_dr<6>(), cpu::dr6::initial);
  }
}

void triple_fault() {
  L2 l2;
  vmwrite(Field::guest_idtr_limit, 0);
  l2.start([](u64) { asm volatile("ud2"); });
  l2.expect_exit("a triple fault", BasicExit::triple_fault);
  // L1 goes on and can use the VMCS again.
  vmwrite(Field::guest_idtr_limit, 0xfff);
  l2.start([](u64) {});
  l2.expect_return("the VMCS after it");
}

void double_fault_intercepted() {
  L2 l2;
  vmwrite(Field::exception_bitmap, cpu::exception_bit(Exception::df));
  vmwrite(Field::guest_idtr_limit, 13 * 16 - 1);  // #DF has a gate, #GP and #PF have none
  l2.start([](u64) { asm volatile("movl $1, (%0)" ::"r"(u64{0x3'0000'0000}) : "memory"); });
  if (l2.expect_exit("#DF", BasicExit::exception_or_nmi)) {
    expect_equal("#DF", vmread(Field::exit_interruption_info),
                 info::valid | info::error_valid | 3 << 8 | static_cast<u32>(Exception::df));
    expect_equal("error code", vmread(Field::exit_interruption_error), 0);
  }
}

// --- VMX instructions in L2 exit, with their operands in the instruction information.

using cpu::vmx::InstructionInfo;

void vmx_instructions_in_l2() {
  L2 l2;
  static u64 memory[4];
  const auto body = [] {
    asm volatile("vmread %%rbx, %%rcx" ::: "cc", "rcx");
    asm volatile("vmwrite 8(%0), %%rdx" ::"r"(memory) : "cc", "rdx");
    asm volatile("mov %0, %%r10; mov $2, %%r11d; vmptrld 0x10(%%r10,%%r11,4)" ::"r"(memory)
                 : "cc", "r10", "r11");
    asm volatile("vmxoff" ::: "cc");
    asm volatile("vmlaunch" ::: "cc");
    asm volatile("vmresume" ::: "cc");
    asm volatile("vmptrst (%%rsp)" ::: "cc", "memory");
    asm volatile("vmclear (%%rsp)" ::: "cc", "memory");
    asm volatile("vmxon (%%rsp)" ::: "cc", "memory");
  };
  l2.start(body);
  if (l2.expect_exit("VMREAD", BasicExit::vmread)) {
    const auto i = InstructionInfo::decode(static_cast<u32>(vmread(Field::exit_instruction_info)));
    expect(i.register_operand, "a register operand");
    expect_equal("destination", static_cast<u64>(i.register1), static_cast<u64>(Gpr::rcx));
    expect_equal("field register", i.register2, static_cast<u64>(Gpr::rbx));
    l2.skip_instruction();
  }
  if (l2.expect_exit("VMWRITE", BasicExit::vmwrite)) {
    const auto i = InstructionInfo::decode(static_cast<u32>(vmread(Field::exit_instruction_info)));
    expect(!i.register_operand && !i.base_invalid && i.index_invalid, "a base and no index");
    expect_equal("field register", i.register2, static_cast<u64>(Gpr::rdx));
    expect_equal("address size", i.address_size, 2);
    expect_equal("segment", i.segment, 3);
    expect_equal("displacement in the qualification", l2.qualification(), 8);
    l2.skip_instruction();
  }
  if (l2.expect_exit("VMPTRLD", BasicExit::vmptrld)) {
    const auto i = InstructionInfo::decode(static_cast<u32>(vmread(Field::exit_instruction_info)));
    expect_equal("base", i.base, static_cast<u64>(Gpr::r10));
    expect_equal("index", i.index, static_cast<u64>(Gpr::r11));
    expect_equal("scaling", i.scaling, 2);
    expect_equal("displacement", l2.qualification(), 0x10);
    l2.skip_instruction();
  }
  l2.expect_exit_and_skip("VMXOFF", BasicExit::vmxoff);
  l2.expect_exit_and_skip("VMLAUNCH", BasicExit::vmlaunch);
  l2.expect_exit_and_skip("VMRESUME", BasicExit::vmresume);
  if (l2.expect_exit("VMPTRST", BasicExit::vmptrst)) {
    const auto i = InstructionInfo::decode(static_cast<u32>(vmread(Field::exit_instruction_info)));
    expect_equal("segment of an RSP base: SS", i.segment, 2);
    l2.skip_instruction();
  }
  l2.expect_exit_and_skip("VMCLEAR", BasicExit::vmclear);
  l2.expect_exit_and_skip("VMXON", BasicExit::vmxon);
  l2.expect_return("the end");
}

void descriptor_table_information() {
  L2 l2;
  if (!l2.proc2(proc2::descriptor_table)) {
    skip("no descriptor-table exiting");
    return;
  }
  static DescriptorTablePointer pointer;
  const auto body = [] {
    asm volatile("sgdt %0" : "=m"(pointer));
    asm volatile("sidt %0" : "=m"(pointer));
    asm volatile("lidt %0" ::"m"(pointer));
    asm volatile("str %%r9w" ::: "r9");
    asm volatile("lldt %%cx" ::: "rcx");
  };
  l2.start(body);
  const auto which = [] {
    return InstructionInfo::decode(static_cast<u32>(vmread(Field::exit_instruction_info)))
               .register2 &
           3;
  };
  if (l2.expect_exit("SGDT", BasicExit::gdtr_idtr)) {
    expect_equal("SGDT", which(), 0);
    l2.skip_instruction();
  }
  if (l2.expect_exit("SIDT", BasicExit::gdtr_idtr)) {
    expect_equal("SIDT", which(), 1);
    l2.skip_instruction();
  }
  if (l2.expect_exit("LIDT", BasicExit::gdtr_idtr)) {
    expect_equal("LIDT", which(), 3);
    l2.skip_instruction();
  }
  if (l2.expect_exit("STR", BasicExit::ldtr_tr)) {
    expect_equal("STR", which(), 1);
    const auto i = InstructionInfo::decode(static_cast<u32>(vmread(Field::exit_instruction_info)));
    expect_equal("STR, register", static_cast<u64>(i.register1), static_cast<u64>(Gpr::r9));
    l2.skip_instruction();
  }
  if (l2.expect_exit("LLDT", BasicExit::ldtr_tr)) {
    expect_equal("LLDT", which(), 2);
    l2.skip_instruction();
  }
  l2.expect_return("the end");
}

// An MSR the bitmaps do not cover exits whether or not it exists. 25.6.9, 26.1.3.
void rdmsr_of_no_msr_exits() {
  L2 l2;
  l2.start([](u64) { cpu::rdmsr(0x3fff'ffff); });
  l2.expect_exit_and_skip("RDMSR", BasicExit::rdmsr);
  l2.expect_return("the end");
}

// A loop of exits, many of them: state that is wrong once in a thousand.
void many_exits() {
  L2 l2;
  static u64 sum;
  sum = 0;
  constexpr u64 kRounds = 2000;
  const auto body = [] {
    for (u64 i = 0; i < kRounds; ++i) {
      u32 eax = 0;
      asm volatile("cpuid" : "=a"(eax) : "a"(static_cast<u32>(i)) : "rbx", "rcx", "rdx");
      sum += eax;
    }
  };
  l2.start(body);
  for (u64 i = 0; i < kRounds; ++i) {
    if (!l2.expect_exit_and_skip("CPUID", BasicExit::cpuid) ||
        !expect_equal("leaf", l2.registers[Gpr::rax], i)) {
      return;
    }
    l2.registers[Gpr::rax] = i * 3;
  }
  l2.expect_return("the end");
  expect_equal("sum", sum, 3 * kRounds * (kRounds - 1) / 2);
}

constexpr Case kCases[] = {
    {"instruction_exits", "SDM vol. 3, 26.1.2, 26.1.3, 28.2.5", instruction_exits},
    {"instructions_without_control", "SDM vol. 3, 26.1.3", instructions_without_control},
    {"rdtscp_without_control_is_ud", "SDM vol. 3, 26.3", rdtscp_without_control_is_ud},
    {"registers_survive", "SDM vol. 3, 28.3", registers_survive},
    {"host_state_loaded", "SDM vol. 3, 28.5", host_state_loaded},
    {"cr_shadow_reads", "SDM vol. 3, 25.6.6", cr_shadow_reads},
    {"cr_mask_writes", "SDM vol. 3, 26.1.3, table 28-3", cr_mask_writes},
    {"clts_and_lmsw", "SDM vol. 3, 26.1.3, table 28-3", clts_and_lmsw},
    {"cr3_exits", "SDM vol. 3, 25.6.7, table 28-3", cr3_exits},
    {"cr8_exits", "SDM vol. 3, 26.1.3", cr8_exits},
    {"fixed_bits_fault_in_l2", "SDM vol. 3, 26.3", fixed_bits_fault_in_l2},
    {"mov_dr_qualification", "SDM vol. 3, table 28-4", mov_dr_qualification},
    {"invlpg_qualification", "SDM vol. 3, 28.2.1", invlpg_qualification},
    {"io_unconditional", "SDM vol. 3, table 28-5", io_unconditional},
    {"io_bitmaps", "SDM vol. 3, 25.6.4", io_bitmaps},
    {"io_wraps_around", "SDM vol. 3, 26.1.3", io_wraps_around},
    {"msr_bitmap", "SDM vol. 3, 25.6.9", msr_bitmap},
    {"msr_bitmap_edited_late", "SDM vol. 3, 25.6.9", msr_bitmap_edited_late},
    {"msrs_of_the_guest_state", "SDM vol. 3, 27.3.2, 28.3.1", msrs_of_the_guest_state},
    {"msrs_shared", "SDM vol. 3, 27.3.2", msrs_shared},
    {"x2apic_msrs_reach_l1s_apic", "SDM vol. 3, 26.5", x2apic_msrs_reach_l1s_apic, in_x2apic_mode},
    {"tsc_offset", "SDM vol. 3, 25.6.5", tsc_offset},
    {"exception_bitmap", "SDM vol. 3, 25.6.3, 28.2.2", exception_bitmap},
    {"exceptions_not_intercepted", "SDM vol. 3, 26.2", exceptions_not_intercepted},
    {"page_fault_mask_and_match", "SDM vol. 3, 25.6.3", page_fault_mask_and_match},
    {"intercepted_faults_leave_cr2_and_dr6", "SDM vol. 3, 28.1",
     intercepted_faults_leave_cr2_and_dr6},
    {"triple_fault", "SDM vol. 3, 26.2", triple_fault},
    {"double_fault_intercepted", "SDM vol. 3, 26.2, 6.15", double_fault_intercepted, 0, under_aerie,
     "TCG's #DF intercept never fires"},
    {"vmx_instructions_in_l2", "SDM vol. 3, 26.1.2, tables 28-13 and 28-14",
     vmx_instructions_in_l2},
    {"descriptor_table_information", "SDM vol. 3, tables 28-10 and 28-11",
     descriptor_table_information},
    {"rdmsr_of_no_msr_exits", "SDM vol. 3, 26.1.3", rdmsr_of_no_msr_exits},
    {"many_exits", "SDM vol. 3, 28", many_exits},
};

}  // namespace

u8 guest_main() { return run_vmx_cases(kCases); }

}  // namespace aerie::guest
