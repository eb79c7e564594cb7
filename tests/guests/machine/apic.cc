// The local APIC of one processor: priorities, EOI, self-IPIs, register access in every instruction
// form that compilers and kernels use on the xAPIC page. With x2apic=1 all but the page's own cases
// run in x2APIC mode. SDM vol. 3, chapter 10.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/memory.h"
#include "tests/guests/runtime/time.h"

namespace aerie::guest {
namespace {

constexpr u8 kLow = 0x45;
constexpr u8 kHigh = 0x85;

u32 taken(u8 vector) { return this_cpu().interrupts[vector]; }
void send_self(u8 vector) { send_ipi(0, icr::self | icr::assert_level | vector); }
// Takes what is pending and deliverable. Aerie, TCG and Bochs alike deliver a self-IPI before the
// next instruction but one; a few more cost nothing.
void window() { asm volatile("sti\n\tnop\n\tnop\n\tnop\n\tcli" ::: "memory"); }

void self_ipi_delivers() {
  cpu::sti();
  send_self(kLow);
  expect(spin_until([] { return taken(kLow) != 0; }, 100), "the interrupt");
  expect_equal("interrupts", taken(kLow), 1);
  cpu::cli();
  send_self(kLow);
  send_self(kLow);
  expect(apic_bit(Apic::irr, kLow), "IRR bit with IF=0");
  window();
  expect_equal("two IPIs with one IRR bit are one interrupt", taken(kLow), 2);
}

void every_vector() {
  // 0xff is the spurious vector here (Bochs never takes that one out of service).
  for (unsigned vector = 0x20; vector < 0xff; ++vector) {
    send_self(static_cast<u8>(vector));
    window();
    if (!expect_equal("interrupts", taken(static_cast<u8>(vector)), 1)) {
      print("  vector {x}\n", vector);
      return;
    }
  }
}

// Vectors 0-15 are illegal: ESR bit 5 (send) or 6 (receive), nothing is delivered.
void illegal_vector_sets_esr() {
  apic_write(Apic::esr, 0);
  send_self(5);
  window();
  apic_write(Apic::esr, 0);
  expect((apic_read(Apic::esr) & 0x60) != 0, "ESR send- or receive-illegal-vector");
  expect(!apic_bit(Apic::irr, 5), "no IRR bit");
}

void tpr_blocks() {
  for (const u32 tpr : {0x40u, 0x4fu, 0x45u}) {
    this_cpu().interrupts[kLow] = 0;
    apic_write(Apic::tpr, tpr);
    expect_equal("PPR", apic_read(Apic::ppr), tpr);
    send_self(kLow);
    window();
    expect_equal("interrupts of TPR's own class", taken(kLow), 0);
    send_self(kHigh);
    window();
    expect_equal("interrupts of a higher class", taken(kHigh), 1);
    apic_write(Apic::tpr, 0x3f);
    window();
    expect_equal("interrupts after TPR was lowered", taken(kLow), 1);
    this_cpu().interrupts[kHigh] = 0;
  }
}

void cr8_is_tpr() {
  const auto read_cr8 = [] {
    u64 value;
    asm volatile("mov %%cr8, %0" : "=r"(value));
    return value;
  };
  apic_write(Apic::tpr, 0x70);
  expect_equal("CR8", read_cr8(), 7);
  asm volatile("mov %0, %%cr8" ::"r"(u64{3}));
  expect_equal("TPR", apic_read(Apic::tpr), 0x30);
  send_self(0x35);
  window();
  expect_equal("interrupts below CR8", taken(0x35), 0);
  asm volatile("mov %0, %%cr8" ::"r"(u64{2}));
  window();
  expect_equal("interrupts above CR8", taken(0x35), 1);
}

void cr8_reserved_bits() {
  for (const u64 value : {u64{0x10}, bit(32), bit(63)}) {
    const Fault fault = catch_fault([&] { asm volatile("mov %0, %%cr8" ::"r"(value)); });
    expect_fault("MOV CR8 with a reserved bit", fault, cpu::Exception::gp, 0);
  }
}

// A handler that does not give an EOI.
volatile u32 order[8];
volatile u32 order_count;
void note(Frame& frame) {
  order[order_count % 8] = static_cast<u32>(frame.vector);
  order_count = order_count + 1;
}

void nested_by_priority() {
  order_count = 0;
  set_handler(kLow, [](Frame& frame) {
    note(frame);
    expect(apic_bit(Apic::isr, kLow), "ISR bit of the low vector");
    expect_equal("PPR is the low vector's class", apic_read(Apic::ppr), kLow & 0xf0);
    send_self(0x41);   // same class: waits
    send_self(kHigh);  // higher: nests
    window();
    note(frame);
    end_of_interrupt();
  });
  set_handler(kHigh, [](Frame& frame) {
    note(frame);
    expect(apic_bit(Apic::isr, kLow) && apic_bit(Apic::isr, kHigh), "both ISR bits");
    end_of_interrupt();
    expect(apic_bit(Apic::isr, kLow) && !apic_bit(Apic::isr, kHigh), "EOI clears the highest");
  });
  set_handler(0x41, [](Frame& frame) {
    note(frame);
    end_of_interrupt();
  });
  send_self(kLow);
  window();
  window();
  expect_equal("deliveries", order_count, 4);
  expect_equal("first", order[0], kLow);
  expect_equal("second", order[1], kHigh);
  expect_equal("third", order[2], kLow);
  expect_equal("fourth", order[3], 0x41);
}

void highest_first() {
  order_count = 0;
  for (const u8 vector : {u8{0x51}, u8{0x91}, u8{0x31}, u8{0x92}}) {
    set_handler(vector, [](Frame& frame) {
      note(frame);
      end_of_interrupt();
    });
    send_self(vector);
  }
  window();
  window();
  window();
  window();
  expect_equal("deliveries", order_count, 4);
  constexpr u32 kWanted[] = {0x92, 0x91, 0x51, 0x31};
  for (unsigned i = 0; i < 4; ++i) {
    expect_equal("order", order[i], kWanted[i]);
  }
}

void no_eoi_no_more() {
  order_count = 0;
  set_handler(kLow, note);
  send_self(kLow);
  window();
  send_self(kLow);
  window();
  expect_equal("deliveries before EOI", order_count, 1);
  expect(apic_bit(Apic::isr, kLow) && apic_bit(Apic::irr, kLow), "in service and requested");
  end_of_interrupt();
  window();
  expect_equal("deliveries after EOI", order_count, 2);
  end_of_interrupt();
}

void eoi_with_nothing_in_service() {
  end_of_interrupt();
  expect_equal("PPR", apic_read(Apic::ppr), 0);
}

void software_disable() {
  apic_write(Apic::timer, 0x60);
  apic_write(Apic::spurious, 0xff);
  expect((apic_read(Apic::timer) & lvt::masked) != 0, "LVT masked by software disable");
  apic_write(Apic::timer, 0x60);
  expect((apic_read(Apic::timer) & lvt::masked) != 0, "LVT mask cannot be cleared meanwhile");
  apic_write(Apic::spurious, 0x1ff);
  expect((apic_read(Apic::timer) & lvt::masked) != 0, "LVT stays masked after enabling");
}

void register_identity() {
  const u32 version = apic_read(Apic::version);
  expect((version & 0xff) >= 0x10 && (version & 0xff) <= 0x15, "integrated APIC version");
  expect(((version >> 16) & 0xff) >= 4, "at least five LVT entries");
  expect_equal("CPUID.1:EBX[31:24]", cpu::cpuid(1).ebx >> 24, apic_id() & 0xff);
  expect((cpu::rdmsr(cpu::msr::apic_base) & cpu::msr::apic_base_bits::bsp) != 0, "BSP flag");
  expect_equal("APIC base", cpu::rdmsr(cpu::msr::apic_base) & bit_mask(35, 12), kApicPage);
}

// HLT with IF=1 ends at once where the interrupt already waits.
void hlt_with_pending() {
  for (unsigned i = 0; i < 100; ++i) {
    send_self(kLow);
    asm volatile("sti\n\thlt\n\tcli" ::: "memory");
  }
  expect_equal("interrupts", taken(kLow), 100);
}

// Reserved bits of IA32_APIC_BASE, and the illegal change from x2APIC to xAPIC or of a disabled
// APIC to x2APIC. SDM vol. 3, 10.12.5.
void apic_base_faults() {
  const u64 base = cpu::rdmsr(cpu::msr::apic_base);
  const auto write = [](u64 value) {
    return catch_fault([&] { cpu::wrmsr(cpu::msr::apic_base, value); });
  };
  expect_fault("reserved bit 0", write(base | 1), cpu::Exception::gp, 0);
  expect_fault("bit 63", write(base | bit(63)), cpu::Exception::gp, 0);
  if (in_x2apic()) {
    expect_fault("x2APIC to xAPIC", write(base & ~cpu::msr::apic_base_bits::x2apic),
                 cpu::Exception::gp, 0);
  }
  expect_equal("unchanged", cpu::rdmsr(cpu::msr::apic_base), base);
}

// --- The page, as instructions see it. TPR is the register: plain, readable, writable.
volatile u32* tpr_word() { return reinterpret_cast<volatile u32*>(kApicPage + 0x80); }

void page_mov_forms() {
  auto* tpr = tpr_word();
  u32 value = 0;
  u64 value64 = ~u64{0};
  asm volatile("movl $0x10, (%0)" ::"r"(tpr) : "memory");
  asm volatile("movl (%1), %0" : "=r"(value) : "r"(tpr));
  expect_equal("MOV m32, imm32", value, 0x10);
  asm volatile("mov %0, %%eax; mov %%eax, 0xfee00080" ::"r"(0x20) : "eax", "memory");
  asm volatile("mov 0xfee00080, %%eax; mov %%eax, %0" : "=r"(value)::"eax");
  expect_equal("MOV disp32", value, 0x20);
  asm volatile("movl %k1, (%0,%2,4)" ::"r"(kApicPage), "r"(u64{0x30}), "r"(u64{0x20}) : "memory");
  asm volatile("movl (%1,%2,8), %k0" : "+r"(value64) : "r"(kApicPage), "r"(u64{0x10}));
  expect_equal("MOV with SIB, upper half cleared", value64, 0x30);
  asm volatile("mov %0, %%r13; movl %k1, 0x80(%%r13)" ::"r"(kApicPage), "r"(u64{0x40})
               : "r13", "memory");
  asm volatile("mov %1, %%r12; movl 0x80(%%r12), %%r9d; mov %%r9d, %0"
               : "=r"(value)
               : "r"(kApicPage)
               : "r12", "r9");
  expect_equal("MOV with REX registers", value, 0x40);
  asm volatile("movabs %%eax, 0xfee00080" ::"a"(0x50) : "memory");
  asm volatile("movabs 0xfee00080, %%eax" : "=a"(value));
  expect_equal("MOV moffs", value, 0x50);
  asm volatile(".byte 0x67; movl (%%eax), %0" : "=r"(value) : "a"(tpr));
  expect_equal("MOV with a 32-bit address", value, 0x50);
  asm volatile("movl %0, %%gs:(%1)" ::"r"(0x60),
               "r"(reinterpret_cast<u64>(tpr) - cpu::rdmsr(cpu::msr::gs_base))
               : "memory");
  expect_equal("MOV with GS", *tpr, 0x60);
  asm volatile("push %1; popq %0" : "=r"(value64) : "r"(u64{7}));
  expect_equal("stack unharmed", value64, 7);
}

void page_read_modify_write() {
  auto* tpr = tpr_word();
  u32 value = 0x70;
  *tpr = 0x20;
  asm volatile("xchgl %0, (%1)" : "+r"(value) : "r"(tpr) : "memory");
  expect_equal("XCHG, old", value, 0x20);
  expect_equal("XCHG, new", *tpr, 0x70);
  const auto flags = [](u64 f) { return f & cpu::rflags::arithmetic; };
  u64 f;
  *tpr = 0x21;
  asm volatile("orl $0x52, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "memory", "cc");
  expect_equal("OR", *tpr, 0x73);
  expect_equal("OR, flags", flags(f) & ~cpu::rflags::af, 0);
  asm volatile("andl %2, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr), "r"(0x30) : "memory", "cc");
  expect_equal("AND", *tpr, 0x30);
  expect_equal("AND, flags: PF", flags(f) & ~cpu::rflags::af, cpu::rflags::pf);
  asm volatile("xorl $0x30, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "memory", "cc");
  expect_equal("XOR", *tpr, 0);
  expect_equal("XOR, flags: ZF PF", flags(f) & ~cpu::rflags::af, cpu::rflags::zf | cpu::rflags::pf);
  asm volatile("addl $0x48, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "memory", "cc");
  expect_equal("ADD", *tpr, 0x48);
  asm volatile("subl $0x08, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "memory", "cc");
  expect_equal("SUB", *tpr, 0x40);
  asm volatile("btsl $5, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "memory", "cc");
  expect_equal("BTS", *tpr, 0x60);
  expect_equal("BTS, CF", f & cpu::rflags::cf, 0);
  asm volatile("btrl $6, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "memory", "cc");
  expect_equal("BTR", *tpr, 0x20);
  expect_equal("BTR, CF", f & cpu::rflags::cf, 1);
  u32 eax = 0x20;
  asm volatile("cmpxchgl %3, (%2); pushfq; popq %1"
               : "+a"(eax), "=r"(f)
               : "r"(tpr), "r"(0x90)
               : "memory", "cc");
  expect_equal("CMPXCHG, equal", *tpr, 0x90);
  expect((f & cpu::rflags::zf) != 0, "CMPXCHG, ZF");
  eax = 0x11;
  asm volatile("cmpxchgl %3, (%2); pushfq; popq %1"
               : "+a"(eax), "=r"(f)
               : "r"(tpr), "r"(0xa0)
               : "memory", "cc");
  expect_equal("CMPXCHG, different", *tpr, 0x90);
  expect_equal("CMPXCHG, EAX", eax, 0x90);
  expect((f & cpu::rflags::zf) == 0, "CMPXCHG, no ZF");
}

void page_reads_with_flags() {
  auto* tpr = tpr_word();
  *tpr = 0x50;
  u64 f;
  asm volatile("cmpl $0x50, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "cc");
  expect((f & cpu::rflags::zf) != 0, "CMP m32, imm: ZF");
  asm volatile("cmpl (%1), %2; pushfq; popq %0" : "=r"(f) : "r"(tpr), "r"(0x40) : "cc");
  expect((f & cpu::rflags::cf) != 0, "CMP r32, m32: CF");
  asm volatile("testl $0xf, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "cc");
  expect((f & cpu::rflags::zf) != 0, "TEST m32, imm: ZF");
  asm volatile("btl $4, (%1); pushfq; popq %0" : "=r"(f) : "r"(tpr) : "cc");
  expect((f & cpu::rflags::cf) != 0, "BT m32, imm: CF");
  u32 value = 3;
  asm volatile("addl (%1), %0" : "+r"(value) : "r"(tpr) : "cc");
  expect_equal("ADD r32, m32", value, 0x53);
  asm volatile("orl (%1), %0" : "+r"(value) : "r"(tpr) : "cc");
  expect_equal("OR r32, m32", value, 0x53);
}

void page_string_forms() {
  const u64 tpr = reinterpret_cast<u64>(tpr_word());
  u32 memory[2] = {0x80, 0};
  u64 rdi = tpr;
  u64 rsi = reinterpret_cast<u64>(&memory[0]);
  asm volatile("movsl" : "+D"(rdi), "+S"(rsi)::"memory");
  expect_equal("MOVS to the page", *tpr_word(), 0x80);
  expect_equal("MOVS, RDI", rdi, tpr + 4);
  expect_equal("MOVS, RSI", rsi, reinterpret_cast<u64>(&memory[1]));
  rdi = reinterpret_cast<u64>(&memory[1]);
  rsi = tpr;
  asm volatile("movsl" : "+D"(rdi), "+S"(rsi)::"memory");
  expect_equal("MOVS from the page", memory[1], 0x80);
  rdi = tpr;
  asm volatile("stosl" : "+D"(rdi) : "a"(0x60) : "memory");
  expect_equal("STOS", *tpr_word(), 0x60);
  rsi = tpr;
  u64 rax = ~u64{0};
  asm volatile("std; lodsl; cld" : "+S"(rsi), "+a"(rax)::"memory");
  expect_equal("LODS", rax, 0x60);
  expect_equal("LODS with DF=1, RSI", rsi, tpr - 4);
  rdi = tpr;
  u64 count = 1;
  asm volatile("rep stosl" : "+D"(rdi), "+c"(count) : "a"(0x30) : "memory");
  expect_equal("REP STOS", *tpr_word(), 0x30);
  expect_equal("REP STOS, RCX", count, 0);
}

// An access through a second linear address, writable or not, and one that its page table forbids.
void page_by_other_mappings() {
  constexpr u64 kAlias = 0x1'0000'0000;
  map_page(kAlias, kApicPage, pte::present | pte::writable | pte::cache_disable);
  *reinterpret_cast<volatile u32*>(kAlias + 0x80) = 0x20;
  expect_equal("store through an alias", *tpr_word(), 0x20);
  map_page(kAlias, kApicPage, pte::present | pte::cache_disable);
  expect_equal("load through a read-only alias", *reinterpret_cast<volatile u32*>(kAlias + 0x80),
               0x20);
  const Fault fault = catch_fault([] { *reinterpret_cast<volatile u32*>(kAlias + 0x80) = 0x30; });
  if (expect_fault("store through a read-only alias", fault, cpu::Exception::pf, 3)) {
    expect_equal("CR2", fault.cr2, kAlias + 0x80);
  }
  expect_equal("TPR untouched", *tpr_word(), 0x20);
  map_page(kAlias, 0, 0);
}

void x2apic_msrs() {
  const auto read = [](u32 index) { return catch_fault([&] { cpu::rdmsr(index); }); };
  const auto write = [](u32 index, u64 value) {
    return catch_fault([&] { cpu::wrmsr(index, value); });
  };
  expect_fault("read of EOI", read(0x80b), cpu::Exception::gp, 0);
  expect_fault("EOI with a value", write(0x80b, 1), cpu::Exception::gp, 0);
  expect_fault("write of the ID", write(0x802, 0), cpu::Exception::gp, 0);
  expect_fault("write of LDR", write(0x80d, 0), cpu::Exception::gp, 0);
  expect_fault("DFR does not exist", read(0x80e), cpu::Exception::gp, 0);
  expect_fault("ICR high does not exist", read(0x831), cpu::Exception::gp, 0);
  expect_fault("read of SELF IPI", read(0x83f), cpu::Exception::gp, 0);
  expect_fault("TPR, reserved bits", write(0x808, 0x100), cpu::Exception::gp, 0);
  expect_fault("ESR with a value", write(0x828, 1), cpu::Exception::gp, 0);
  cpu::wrmsr(0x83f, kLow);
  window();
  expect_equal("SELF IPI", taken(kLow), 1);
}

void x2apic_logical_id() {
  const u32 id = static_cast<u32>(cpu::rdmsr(0x802));
  expect_equal("LDR from the ID", cpu::rdmsr(0x80d), (id >> 4) << 16 | u32{1} << (id & 15));
}

void x2apic_leaves_the_page() {
  const u32 tpr = apic_read(Apic::tpr);
  const Fault fault = catch_fault([] { *tpr_word() = 0x20; });
  expect_no_fault("a store to the page", fault);
  expect_equal("TPR", apic_read(Apic::tpr), tpr);
}

constexpr Case kCases[] = {
    {"register_identity", "SDM vol. 3, 10.4.8", register_identity},
    {"self_ipi_delivers", "SDM vol. 3, 10.6.1", self_ipi_delivers},
    {"every_vector", "SDM vol. 3, 10.8.3", every_vector},
    {"illegal_vector_sets_esr", "SDM vol. 3, 10.5.3", illegal_vector_sets_esr, 0, raw_tcg,
     "TCG delivers vectors below 16"},
    {"tpr_blocks", "SDM vol. 3, 10.8.3.1", tpr_blocks},
    {"cr8_is_tpr", "SDM vol. 3, 10.8.6", cr8_is_tpr},
    {"cr8_reserved_bits", "SDM vol. 3, 10.8.6.1", cr8_reserved_bits, 0, raw_tcg,
     "TCG takes any value"},
    {"nested_by_priority", "SDM vol. 3, 10.8.4", nested_by_priority},
    {"highest_first", "SDM vol. 3, 10.8.4", highest_first},
    {"no_eoi_no_more", "SDM vol. 3, 10.8.5", no_eoi_no_more},
    {"eoi_with_nothing_in_service", "SDM vol. 3, 10.8.5", eoi_with_nothing_in_service},
    {"software_disable", "SDM vol. 3, 10.4.7.2", software_disable, 0, raw_tcg,
     "TCG does not force the LVT masks"},
    {"hlt_with_pending", "SDM vol. 2, HLT", hlt_with_pending},
    {"apic_base_faults", "SDM vol. 3, 10.12.5", apic_base_faults, 0, raw_tcg,
     "TCG takes any value"},
    {"page_mov_forms", "SDM vol. 3, 10.4.1.2", page_mov_forms, no_x2apic},
    {"page_read_modify_write", "SDM vol. 3, 10.4.1.2", page_read_modify_write, no_x2apic},
    {"page_reads_with_flags", "SDM vol. 3, 10.4.1.2", page_reads_with_flags, no_x2apic},
    {"page_string_forms", "SDM vol. 3, 10.4.1.2", page_string_forms, no_x2apic},
    {"page_by_other_mappings", "SDM vol. 3, 4.6 and 10.4.1", page_by_other_mappings, no_x2apic},
    {"x2apic_msrs", "SDM vol. 3, 10.12.1.2", x2apic_msrs, in_x2apic_mode},
    {"x2apic_logical_id", "SDM vol. 3, 10.12.10.2", x2apic_logical_id, in_x2apic_mode, bochs,
     "Bochs reads 0"},
    {"x2apic_leaves_the_page", "SDM vol. 3, 10.12.2", x2apic_leaves_the_page, in_x2apic_mode},
};

}  // namespace

u8 guest_main() { return run_cases(kCases); }

}  // namespace aerie::guest
