// Events across the two levels: injection, IDT-vectoring information, interrupts and NMIs that exit
// or do not, windows, blocking, debug exceptions, the HLT activity state. SDM vol.
// 3, 26.2, 27.6, 28.2.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/time.h"
#include "tests/guests/runtime/vmx.h"

namespace aerie::guest {
namespace {

using cpu::EventType;
using cpu::Exception;
using cpu::Gpr;
namespace v = cpu::vmx;
namespace info = v::interruption_info;
namespace block = v::interruptibility;

constexpr u8 kVector = 0x55;

constexpr u32 event(EventType type, u8 vector, bool error = false) {
  return info::valid | static_cast<u32>(type) << 8 | vector | (error ? info::error_valid : 0);
}
void inject(u32 word, u32 error = 0, u32 length = 0) {
  vmwrite(Field::entry_interruption_info, word);
  vmwrite(Field::entry_exception_error, error);
  vmwrite(Field::entry_instruction_length, length);
}

// What the last handled event in L2 pushed.
struct Seen {
  u32 count;
  u64 vector, error, rip, rflags, dr6;
};
volatile Seen seen;
void note(Frame& frame) {
  seen.count = seen.count + 1;
  seen.vector = frame.vector;
  seen.error = frame.error;
  seen.rip = frame.rip;
  seen.rflags = frame.rflags;
  seen.dr6 = cpu::read_dr<6>();
}
void start_noting(u8 vector) {
  seen.count = 0;
  seen.rip = 0;
  set_handler(vector, note);
}
void note_and_eoi(Frame& frame) {
  note(frame);
  end_of_interrupt();
}
void send_self(u8 vector) { send_ipi(0, icr::self | icr::assert_level | vector); }

// --- Injection. 27.6.1.

void inject_each_kind() {
  struct Row {
    std::string_view name;
    u32 word;
    u32 error, length;
    bool after_instruction;  // RIP pushed is RIP + length
  };
  const Row rows[] = {
      {"#GP with an error code", event(EventType::hardware_exception, 13, true), 0x1238, 0, false},
      {"#UD", event(EventType::hardware_exception, 6), 0, 0, false},
      {"#PF", event(EventType::hardware_exception, 14, true), 7, 0, false},
      {"#AC", event(EventType::hardware_exception, 17, true), 0, 0, false},
      {"external interrupt", event(EventType::external_interrupt, kVector), 0, 0, false},
      {"INT n", event(EventType::software_interrupt, kVector), 0, 2, true},
      {"INT3", event(EventType::software_exception, 3), 0, 1, true},
      {"INT3 with a prefix", event(EventType::software_exception, 3), 0, 3, true},
      {"ICEBP", event(EventType::privileged_software_exception, 1), 0, 1, true},
      {"NMI", event(EventType::nmi, 2), 0, 0, false},
  };
  for (const Row& row : rows) {
    L2 l2;
    const auto body = [] { asm volatile("nop; nop; nop; nop; nop; nop" ::: "memory"); };
    l2.start(body);
    const u64 rip = vmread(Field::guest_rip);
    if ((row.word & 0x7ff) == kVector) {
      vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
    }
    const u8 vector = info::vector(row.word);
    start_noting(vector);
    cpu::write_cr2(0x4242);
    inject(row.word, row.error, row.length);
    // Where the pushed RIP is not an instruction's the body would go astray: NOPs follow nothing
    // here, so take L2 back to its start in the handler.
    static u64 start_rip;
    start_rip = rip;
    set_handler(vector, [](Frame& frame) {
      note(frame);
      frame.rip = start_rip;
    });
    l2.expect_return(row.name);
    expect_equal(row.name, seen.count, 1);
    expect_equal(row.name, seen.rip, row.after_instruction ? rip + row.length : rip);
    if ((row.word & info::error_valid) != 0) {
      expect_equal(row.name, seen.error, row.error);
    }
    expect_equal("the event is spent", vmread(Field::entry_interruption_info) & info::valid, 0);
    expect_equal("CR2 untouched", cpu::read_cr2(), 0x4242);
    set_handler(vector, nullptr);
  }
}

// Injection does not cause exits by the exception bitmap.
void injection_ignores_bitmap() {
  L2 l2;
  vmwrite(Field::exception_bitmap, cpu::exception_bit(Exception::gp));
  l2.start([](u64) {});
  start_noting(13);
  inject(event(EventType::hardware_exception, 13, true), 0x10);
  l2.expect_return("an injected #GP");
  expect_equal("taken by L2", seen.count, 1);
}

void injection_wakes_hlt_state() {
  L2 l2;
  l2.start([](u64) {});
  start_noting(kVector);
  vmwrite(Field::guest_activity, static_cast<u32>(v::Activity::hlt));
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  inject(event(EventType::external_interrupt, kVector));
  l2.expect_return("an interrupt into HLT");
  expect_equal("taken by L2", seen.count, 1);
  expect_equal("activity state", vmread(Field::guest_activity), 0);
}

void injected_nmi_blocks_nmis() {
  L2 l2;
  l2.start([](u64) {});
  set_handler(2, [](Frame&) { vmcall(); });
  inject(event(EventType::nmi, 2));
  if (l2.expect_exit_and_skip("VMCALL in the handler", BasicExit::vmcall)) {
    expect_equal("blocking by NMI", vmread(Field::guest_interruptibility) & block::nmi, block::nmi);
  }
  l2.expect_return("after IRET");
  expect_equal("no blocking", vmread(Field::guest_interruptibility) & block::nmi, 0);
}

// --- IDT-vectoring information. 28.2.4.

// An error code that names an IDT entry (6.13). TCG doubles the vector and forgets EXT in 64-bit
// mode.
void expect_idt_error_code(u8 vector, bool external) {
  const u64 got = vmread(Field::exit_interruption_error);
  if (host() == under_aerie) {
    expect_equal("error code: IDT", got & 2, 2);
  } else {
    expect_equal("error code: IDT, EXT", got, vector << 3 | 2 | (external ? 1 : 0));
  }
}

void vectoring_of_software_interrupt() {
  L2 l2;
  vmwrite(Field::exception_bitmap, cpu::exception_bit(Exception::np));
  set_gate_present(kVector, false);
  l2.start([](u64) { asm volatile("int %0" ::"i"(kVector)); });
  if (l2.expect_exit("#NP", BasicExit::exception_or_nmi)) {
    expect_equal("#NP", vmread(Field::exit_interruption_info),
                 event(EventType::hardware_exception, 11, true));
    expect_idt_error_code(kVector, false);
    expect_equal("vectoring: software interrupt", vmread(Field::idt_vectoring_info) & 0x8000'0fff,
                 event(EventType::software_interrupt, kVector));
    expect_equal("its length", l2.length(), 2);
  }
  set_gate_present(kVector, true);
  // Delivered by injecting what was vectored.
  start_noting(kVector);
  const u64 rip = vmread(Field::guest_rip);
  inject(event(EventType::software_interrupt, kVector), 0, 2);
  l2.expect_return("injected again");
  expect_equal("RIP after INT", seen.rip, rip + 2);
}

void vectoring_of_exception() {
  L2 l2;
  vmwrite(Field::exception_bitmap, cpu::exception_bit(Exception::np));
  set_gate_present(6, false);
  l2.start([](u64) { asm volatile("ud2"); });
  if (l2.expect_exit("#NP", BasicExit::exception_or_nmi)) {
    expect_equal("#NP", vmread(Field::exit_interruption_info),
                 event(EventType::hardware_exception, 11, true));
    expect_idt_error_code(6, (vmread(Field::exit_interruption_error) & 1) != 0);
    expect_equal("vectoring: #UD", vmread(Field::idt_vectoring_info) & 0x8000'0fff,
                 event(EventType::hardware_exception, 6));
  }
  set_gate_present(6, true);
}

void vectoring_of_injection() {
  L2 l2;
  vmwrite(Field::exception_bitmap, cpu::exception_bit(Exception::np));
  set_gate_present(kVector, false);
  l2.start([](u64) {});
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  inject(event(EventType::external_interrupt, kVector));
  if (l2.expect_exit("#NP", BasicExit::exception_or_nmi)) {
    expect_idt_error_code(kVector, true);
    expect_equal("vectoring: external interrupt", vmread(Field::idt_vectoring_info) & 0x8000'0fff,
                 event(EventType::external_interrupt, kVector));
  }
  set_gate_present(kVector, true);
}

// PITFALLS: an EPT violation while an injected event is delivered.
void vectoring_on_ept_violation() {
  L2 l2;
  Ept tables;
  if (!tables.install(l2)) {
    skip("no EPT");
    return;
  }
  l2.start([](u64) {});
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  start_noting(kVector);
  const u64 stack = (vmread(Field::guest_rsp) - 8) & ~kPageMask;
  const u64 old = tables.entry(stack);
  tables.entry(stack) = old & ~ept::write;
  tables.invalidate();
  inject(event(EventType::external_interrupt, kVector));
  if (l2.expect_exit("the push", BasicExit::ept_violation)) {
    expect_equal("vectoring", vmread(Field::idt_vectoring_info) & 0x8000'0fff,
                 event(EventType::external_interrupt, kVector));
    expect_equal("guest-physical page", vmread(Field::guest_physical_address) & ~kPageMask, stack);
    expect_equal("qualification: a write to a readable, executable page", l2.qualification() & 0x3f,
                 0x2a);
  }
  expect_equal("not taken yet", seen.count, 0);
  tables.entry(stack) = old;
  tables.invalidate();
  inject(static_cast<u32>(vmread(Field::idt_vectoring_info)) & 0x8000'0fff);
  l2.expect_return("injected again");
  expect_equal("taken once", seen.count, 1);
}

// A page fault in L2 whose delivery meets an EPT violation: the #PF is vectored, CR2 is L2's.
void vectoring_of_page_fault() {
  L2 l2;
  Ept tables;
  if (!tables.install(l2)) {
    skip("no EPT");
    return;
  }
  constexpr u64 kAddress = 0x3'0000'0000;
  static u64 page;
  page = alloc_page();
  l2.start([](u64) {
    // RSP at a page that EPT makes read-only, then a fault.
    const Fault fault = catch_fault([] {
      asm volatile("mov %0, %%rsp; movl $1, (%1)" ::"r"(page + kPageSize), "r"(kAddress)
                   : "memory");
    });
    expect_fault("the page fault", fault, Exception::pf, 2);
    expect_equal("CR2", fault.cr2, kAddress);
  });
  tables.entry(page) = page | ept::read | ept::wb;
  if (l2.expect_exit("the push", BasicExit::ept_violation)) {
    expect_equal("vectoring: #PF", vmread(Field::idt_vectoring_info) & 0x8000'0fff,
                 event(EventType::hardware_exception, 14, true));
    expect_equal("vectoring: error code", vmread(Field::idt_vectoring_error), 2);
    expect_equal("guest-physical page", vmread(Field::guest_physical_address) & ~kPageMask, page);
  }
  tables.entry(page) |= ept::write;
  tables.invalidate();
  inject(static_cast<u32>(vmread(Field::idt_vectoring_info)) & 0x8000'0fff,
         static_cast<u32>(vmread(Field::idt_vectoring_error)));
  l2.expect_return("injected again");
}

// --- External interrupts. 26.2, 28.2.2.

void interrupt_exits(bool acknowledge, bool if_in_l2) {
  L2 l2;
  l2.pin(v::pin::external_interrupt);
  l2.exit(acknowledge ? v::exit::acknowledge_interrupt : 0,
          acknowledge ? 0 : v::exit::acknowledge_interrupt);
  set_handler(kVector, note_and_eoi);
  seen.count = 0;
  l2.start([](u64) {
    for (unsigned i = 0; i < 1000; ++i) {
      cpu::pause();
    }
  });
  if (if_in_l2) {
    vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  }
  send_self(kVector);
  if (!l2.expect_exit("an interrupt that was pending at entry", BasicExit::external_interrupt)) {
    return;
  }
  if (acknowledge) {
    expect_equal("interruption information", vmread(Field::exit_interruption_info),
                 event(EventType::external_interrupt, kVector));
    expect(apic_bit(Apic::isr, kVector), "in service");
    end_of_interrupt();
    expect_equal("taken through an IDT", seen.count, 0);
  } else {
    expect_equal("no interruption information", vmread(Field::exit_interruption_info) & info::valid,
                 0);
    expect(apic_bit(Apic::irr, kVector), "still requested");
    asm volatile("sti; nop; nop; cli" ::: "memory");
    expect_equal("taken by L1", seen.count, 1);
  }
  l2.expect_return("no second exit");
}
void interrupt_exit_acknowledged() { interrupt_exits(true, true); }
void interrupt_exit_left_pending() { interrupt_exits(false, true); }
void interrupt_exit_with_if_clear() {
  interrupt_exits(true, false);
  interrupt_exits(false, false);
}

// Without the control L2's own IDT takes it, when L2's IF allows.
void interrupt_taken_by_l2() {
  L2 l2;
  if (!l2.pin(0, v::pin::external_interrupt)) {
    return;
  }
  set_handler(kVector, note_and_eoi);
  seen.count = 0;
  static u32 with_if_clear, with_if_set;
  l2.start([](u64) {
    send_self(kVector);
    spin_microseconds(5);
    with_if_clear = seen.count;
    asm volatile("sti; nop; nop; nop; cli" ::: "memory");
    with_if_set = seen.count;
  });
  l2.expect_return("a self-IPI in L2");
  expect_equal("with IF clear", with_if_clear, 0);
  expect_equal("with IF set", with_if_set, 1);
}

// An interrupt that exits at every instruction boundary of an L2: nothing lost, nothing done twice.
void interrupt_exit_sweep() {
  L2 l2;
  l2.pin(v::pin::external_interrupt);
  l2.exit(v::exit::acknowledge_interrupt);
  static u64 sum;
  static u32 signature;
  const u32 wanted = cpu::cpuid(1).eax;
  apic_write(Apic::divide, 0xb);
  apic_write(Apic::timer, kVector);
  u32 exits = 0;
  for (u64 count = 1; count <= option("sweep", 300); ++count) {
    l2.start(
        [](u64 initial) {
          u64 accumulator = 0;
          u32 eax = 0;
          apic_write(Apic::initial_count, static_cast<u32>(initial));
          asm volatile(
              "sti; add $1, %0; add $2, %0; mov $1, %%eax; cpuid; mov %%eax, %1; add $4, %0;"
              "mov %2, %%ss; add $8, %0; add $16, %0; cli"
              : "+r"(accumulator), "+r"(eax)
              : "r"(u64{kData})
              : "rax", "rbx", "rcx", "rdx", "memory", "cc");
          sum = accumulator;
          signature = eax;
        },
        count);
    vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
    for (unsigned guard = 0; guard < 10; ++guard) {
      if (!l2.enter()) {
        fail("VMfail");
        return;
      }
      if (l2.reason() == static_cast<u32>(BasicExit::external_interrupt)) {
        ++exits;
        end_of_interrupt();
      } else if (l2.reason() == static_cast<u32>(BasicExit::cpuid)) {
        const auto r = cpu::cpuid(static_cast<u32>(l2.registers[Gpr::rax]));
        l2.registers[Gpr::rax] = r.eax;
        l2.skip_instruction();
      } else {
        break;
      }
    }
    if (!expect_equal("the end", l2.reason(), static_cast<u32>(BasicExit::vmcall)) ||
        !expect_equal("sum", sum, 31) || !expect_equal("CPUID", signature, wanted)) {
      print("  count {}\n", count);
      return;
    }
    apic_write(Apic::initial_count, 0);
    asm volatile("sti; nop; cli" ::: "memory");  // one that came later
  }
  expect(exits > 0, "the sweep to meet the code");
}

void interrupt_ends_hlt() {
  L2 l2;
  l2.pin(v::pin::external_interrupt);
  l2.exit(v::exit::acknowledge_interrupt);
  l2.proc(0, v::proc::hlt);
  apic_write(Apic::divide, 0xb);
  apic_write(Apic::timer, kVector);
  static u64 after;
  after = 0;
  l2.start([](u64) {
    apic_write(Apic::initial_count, 20000);
    asm volatile("sti; hlt" ::: "memory");
    after = 1;
  });
  if (l2.expect_exit("the timer", BasicExit::external_interrupt)) {
    expect_equal("vector", vmread(Field::exit_interruption_info) & 0xff, kVector);
    expect_equal("not past HLT's successor", after, 0);
    end_of_interrupt();
  }
  // L1 delivers it: the HLT ends.
  vmwrite(Field::guest_activity, 0);
  start_noting(kVector);
  inject(event(EventType::external_interrupt, kVector));
  l2.expect_return("after HLT");
  expect_equal("taken by L2", seen.count, 1);
  expect_equal("HLT ended", after, 1);
}

// Entry into the HLT activity state; the exit saves it. 25.4.2, 28.3.4.
void hlt_state_entry() {
  L2 l2;
  l2.pin(v::pin::external_interrupt);
  l2.exit(v::exit::acknowledge_interrupt);
  l2.start([](u64) {});
  vmwrite(Field::guest_activity, static_cast<u32>(v::Activity::hlt));
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  const u64 rip = vmread(Field::guest_rip);
  apic_write(Apic::divide, 0xb);
  apic_write(Apic::timer, kVector);
  apic_write(Apic::initial_count, 50000);
  if (l2.expect_exit("the timer", BasicExit::external_interrupt)) {
    end_of_interrupt();
    expect_equal("RIP where it was", vmread(Field::guest_rip), rip);
  }
}
void hlt_state_saved() {
  L2 l2;
  l2.pin(v::pin::external_interrupt);
  l2.exit(v::exit::acknowledge_interrupt);
  l2.start([](u64) {});
  vmwrite(Field::guest_activity, static_cast<u32>(v::Activity::hlt));
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  apic_write(Apic::timer, kVector);
  apic_write(Apic::initial_count, 50000);
  if (l2.expect_exit("the timer", BasicExit::external_interrupt)) {
    end_of_interrupt();
    expect_equal("activity state", vmread(Field::guest_activity),
                 static_cast<u32>(v::Activity::hlt));
  }
}

// --- Windows. 26.2.

void interrupt_window() {
  L2 l2;
  if (!l2.proc(v::proc::interrupt_window)) {
    skip("no interrupt-window exiting");
    return;
  }
  l2.start([](u64) { asm volatile("nop; sti; nop; nop; cli; vmcall" ::: "memory"); });
  const u64 start = vmread(Field::guest_rip);
  if (l2.expect_exit("the window", BasicExit::interrupt_window)) {
    // Not with IF clear, not in STI's shadow. The body has a frame's prologue or none: look at the
    // bytes.
    const auto* code = page_pointer<u8>(start);
    unsigned sti = 0;
    while (code[sti] != 0xfb) {
      ++sti;
    }
    expect_equal("after STI and one instruction", vmread(Field::guest_rip), start + sti + 2);
    expect_equal("no blocking", vmread(Field::guest_interruptibility), 0);
    expect_equal("no interruption information", vmread(Field::exit_interruption_info) & info::valid,
                 0);
    const u64 rip = vmread(Field::guest_rip);
    if (l2.expect_exit("again at once, IF being set", BasicExit::interrupt_window)) {
      expect_equal("RIP has not moved", vmread(Field::guest_rip), rip);
    }
    vmwrite(Field::guest_interruptibility, block::sti);
    if (l2.expect_exit("after one instruction, with STI blocking", BasicExit::interrupt_window)) {
      expect_equal("RIP", vmread(Field::guest_rip), rip + 1);
    }
  }
  l2.proc(0, v::proc::interrupt_window);
  l2.expect_exit_and_skip("without the control", BasicExit::vmcall);
  l2.expect_return("the end");
}

// The event to inject comes first, then the window, before its handler's first instruction only if
// IF.
void interrupt_window_after_injection() {
  L2 l2;
  if (!l2.proc(v::proc::interrupt_window)) {
    skip("no interrupt-window exiting");
    return;
  }
  start_noting(kVector);
  l2.start([](u64) {});
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  const u64 rip = vmread(Field::guest_rip);
  inject(event(EventType::external_interrupt, kVector));
  if (l2.expect_exit("the window after the handler's IRET", BasicExit::interrupt_window)) {
    expect_equal("the handler ran", seen.count, 1);
    expect_equal("RIP", vmread(Field::guest_rip), rip);
  }
}

bool virtual_nmis(L2& l2) { return l2.pin(v::pin::nmi | v::pin::virtual_nmis); }

void nmi_window() {
  L2 l2;
  if (!virtual_nmis(l2) || !l2.proc(v::proc::nmi_window)) {
    skip("no virtual NMIs");
    return;
  }
  l2.start([](u64) { asm volatile("nop" ::: "memory"); });
  const u64 rip = vmread(Field::guest_rip);
  if (l2.expect_exit("open at once, IF being clear", BasicExit::nmi_window)) {
    expect_equal("RIP", vmread(Field::guest_rip), rip);
  }
  // Closed while virtual NMIs are blocked; open after the IRET.
  l2.proc(0, v::proc::nmi_window);
  set_handler(2, [](Frame&) { vmcall(); });
  inject(event(EventType::nmi, 2));
  if (l2.expect_exit_and_skip("VMCALL in the NMI handler", BasicExit::vmcall)) {
    expect_equal("virtual NMI blocking", vmread(Field::guest_interruptibility) & block::nmi,
                 block::nmi);
  }
  l2.proc(v::proc::nmi_window);
  if (l2.expect_exit("the window after IRET", BasicExit::nmi_window)) {
    expect_equal("RIP after IRET", vmread(Field::guest_rip), rip);
    expect_equal("no blocking", vmread(Field::guest_interruptibility) & block::nmi, 0);
  }
  l2.proc(0, v::proc::nmi_window);
  l2.expect_return("the end");
}

void nmi_window_waits_for_mov_ss() {
  L2 l2;
  if (!virtual_nmis(l2) || !l2.proc(v::proc::nmi_window)) {
    skip("no virtual NMIs");
    return;
  }
  l2.start([](u64) { asm volatile("nop; nop" ::: "memory"); });
  const u64 rip = vmread(Field::guest_rip);
  const unsigned first = page_pointer<u8>(rip)[0] == 0x90 ? 1 : 0;
  vmwrite(Field::guest_interruptibility, block::mov_ss);
  if (l2.expect_exit("the window", BasicExit::nmi_window)) {
    expect(first == 0 || vmread(Field::guest_rip) == rip + 1, "after one instruction");
    expect_equal("no blocking", vmread(Field::guest_interruptibility), 0);
  }
}

void nmi_exits() {
  L2 l2;
  if (!l2.pin(v::pin::nmi)) {
    skip("no NMI exiting");
    return;
  }
  seen.count = 0;
  set_handler(2, note);
  l2.start([](u64) {
    send_ipi(apic_id(), icr::nmi | icr::assert_level);
    spin_microseconds(20);
  });
  if (l2.expect_exit("an NMI in L2", BasicExit::exception_or_nmi)) {
    expect_equal("interruption information", vmread(Field::exit_interruption_info) & 0x8000'0fff,
                 event(EventType::nmi, 2));
    expect_equal("not delivered to anyone", seen.count, 0);
  }
  // L1 is in an NMI's blocking now (28.5.5); an IRET ends it.
  unblock_nmis();
  vmwrite(Field::guest_interruptibility, 0);
  l2.expect_return("the end");
  send_ipi(apic_id(), icr::nmi | icr::assert_level);
  spin_microseconds(20);
  expect_equal("L1 takes NMIs again", seen.count, 1);
}

// NMIs are blocked after an NMI exit, until L1's IRET. 28.5.5.
void nmi_blocked_after_nmi_exit() {
  L2 l2;
  if (!l2.pin(v::pin::nmi)) {
    skip("no NMI exiting");
    return;
  }
  seen.count = 0;
  set_handler(2, note);
  l2.start([](u64) {
    send_ipi(apic_id(), icr::nmi | icr::assert_level);
    spin_microseconds(20);
  });
  l2.expect_exit("an NMI in L2", BasicExit::exception_or_nmi);
  send_ipi(apic_id(), icr::nmi | icr::assert_level);
  spin_microseconds(20);
  expect_equal("NMIs before IRET", seen.count, 0);
  unblock_nmis();
  spin_microseconds(20);
  expect_equal("NMIs after IRET", seen.count, 1);
}

// Without NMI exiting L2's own IDT takes NMIs.
void nmi_taken_by_l2() {
  L2 l2;
  if (!l2.pin(0, v::pin::nmi | v::pin::virtual_nmis)) {
    return;
  }
  seen.count = 0;
  set_handler(2, note);
  l2.start([](u64) {
    send_ipi(apic_id(), icr::nmi | icr::assert_level);
    spin_microseconds(20);
  });
  l2.expect_return("an NMI in L2");
  expect_equal("NMIs", seen.count, 1);
}

// --- Blocking seen at exits. 28.3.4.

void blocking_saved_at_exits() {
  L2 l2;
  l2.start([](u64) {
    asm volatile("sti; vmcall; cli; mov %0, %%ss; vmcall; nop; vmcall" ::"r"(u64{kData})
                 : "memory");
  });
  if (l2.expect_exit_and_skip("VMCALL after STI", BasicExit::vmcall)) {
    expect_equal("STI blocking", vmread(Field::guest_interruptibility), block::sti);
    vmwrite(Field::guest_interruptibility, 0);
  }
  if (l2.expect_exit_and_skip("VMCALL after MOV SS", BasicExit::vmcall)) {
    expect_equal("MOV-SS blocking", vmread(Field::guest_interruptibility), block::mov_ss);
    vmwrite(Field::guest_interruptibility, 0);
  }
  if (l2.expect_exit_and_skip("VMCALL later", BasicExit::vmcall)) {
    expect_equal("no blocking", vmread(Field::guest_interruptibility), 0);
  }
  l2.expect_return("the end");
}

// STI while IF is set does not block.
void sti_with_if_set_does_not_block() {
  L2 l2;
  l2.start([](u64) { asm volatile("sti; nop; sti; vmcall; cli" ::: "memory"); });
  if (l2.expect_exit_and_skip("VMCALL", BasicExit::vmcall)) {
    expect_equal("no blocking", vmread(Field::guest_interruptibility), 0);
  }
  l2.expect_return("the end");
}

// --- Debug exceptions. 25.4.2, 27.7.3, 28.3.4.

void pending_debug_delivered() {
  L2 l2;
  start_noting(1);
  cpu::write_dr<6>(cpu::dr6::initial);
  l2.start([](u64) { asm volatile("nop" ::: "memory"); });
  const u64 rip = vmread(Field::guest_rip);
  vmwrite(Field::guest_pending_debug, v::pending_debug::enabled_breakpoint | 2);
  l2.expect_return("a pending debug exception");
  expect_equal("taken once", seen.count, 1);
  expect_equal("before the first instruction", seen.rip, rip);
  expect_equal("DR6.B1", seen.dr6 & 0xf, 2);
  expect_equal("nothing pending", vmread(Field::guest_pending_debug), 0);
  cpu::write_dr<6>(cpu::dr6::initial);
}

void pending_single_step_delivered() {
  L2 l2;
  seen.count = 0;
  set_handler(1, [](Frame& frame) {
    note(frame);
    frame.rflags &= ~cpu::rflags::tf;
  });
  cpu::write_dr<6>(cpu::dr6::initial);
  l2.start([](u64) { asm volatile("nop" ::: "memory"); });
  const u64 rip = vmread(Field::guest_rip);
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::tf);
  vmwrite(Field::guest_pending_debug, v::pending_debug::bs);
  l2.expect_return("a pending single step");
  expect_equal("taken once", seen.count, 1);
  expect_equal("before the first instruction", seen.rip, rip);
  expect_equal("DR6.BS", seen.dr6 & cpu::dr6::bs, cpu::dr6::bs);
  cpu::write_dr<6>(cpu::dr6::initial);
}

// L2 steps itself over an instruction that exits, L1 finishing it: the trap comes after it.
void single_step_over_exit() {
  L2 l2;
  static u64 traps[8];
  static unsigned count;
  count = 0;
  set_handler(1, [](Frame& frame) {
    traps[count % 8] = frame.rip;
    ++count;
    cpu::write_dr<6>(cpu::dr6::initial);
    if (count >= 8) {
      frame.rflags &= ~cpu::rflags::tf;
    }
  });
  l2.start([](u64) {
    asm volatile(
        "pushfq; orl $0x100, (%%rsp); popfq; mov $0, %%eax; cpuid; nop; pushfq;"
        "andl $~0x100, (%%rsp); popfq" ::
            : "rax", "rbx", "rcx", "rdx", "memory", "cc");
  });
  if (l2.expect_exit("CPUID", BasicExit::cpuid)) {
    expect_equal("traps before", count, 1);
    // What the manual has a VMM do (27.7.3): finish the instruction, and make its trap pending.
    l2.skip_instruction();
    vmwrite(Field::guest_pending_debug, v::pending_debug::bs);
    const u64 after = vmread(Field::guest_rip);
    l2.expect_return("the rest");
    expect_equal("the trap of CPUID", traps[1], after);
    expect_equal("the trap of NOP", traps[2], after + 1);
    expect_equal("traps", count, 6);
  }
}

// PITFALLS: TF by POPF followed by CPUID: pending-debug BS is 0 at CPUID's exit.
void popf_tf_then_exit() {
  L2 l2;
  l2.start([](u64) {
    asm volatile("pushfq; orl $0x100, (%%rsp); popfq; cpuid" ::
                     : "rax", "rbx", "rcx", "rdx", "memory", "cc");
  });
  if (l2.expect_exit("CPUID", BasicExit::cpuid)) {
    expect_equal("pending debug exceptions", vmread(Field::guest_pending_debug), 0);
    expect_equal("TF", vmread(Field::guest_rflags) & cpu::rflags::tf, cpu::rflags::tf);
  }
}

void dr7_and_debugctl_saved() {
  L2 l2;
  l2.exit(v::exit::save_debug);
  l2.entry(v::entry::load_debug);
  vmwrite(Field::guest_dr7, 0x401);
  l2.start([](u64) {
    expect_equal("DR7 loaded", cpu::read_dr<7>(), 0x401);
    cpu::write_dr<7>(0x404);
  });
  l2.expect_return("DR7");
  expect_equal("DR7 saved", vmread(Field::guest_dr7), 0x404);
  expect_equal("DR7 of L1", cpu::read_dr<7>(), 0x400);
}

// DR0-DR3 and DR6 are shared with L1. 28.3.1.
void debug_registers_shared() {
  L2 l2;
  cpu::write_dr<0>(0x1111);
  cpu::write_dr<3>(0x3333);
  static u64 dr0, dr3;
  l2.start([](u64) {
    dr0 = cpu::read_dr<0>();
    dr3 = cpu::read_dr<3>();
    cpu::write_dr<1>(0x2222);
    cpu::write_dr<6>(cpu::dr6::initial | 8);
  });
  l2.expect_return("debug registers");
  expect_equal("DR0 in L2", dr0, 0x1111);
  expect_equal("DR3 in L2", dr3, 0x3333);
  expect_equal("DR1 in L1", cpu::read_dr<1>(), 0x2222);
  expect_equal("DR6 in L1", cpu::read_dr<6>(), cpu::dr6::initial | 8);
  cpu::write_dr<6>(cpu::dr6::initial);
}

// CR2 is shared too.
void cr2_shared() {
  L2 l2;
  static u64 inside;
  cpu::write_cr2(0xabc0);
  l2.start([](u64) {
    inside = cpu::read_cr2();
    cpu::write_cr2(0xdef0);
  });
  l2.expect_return("CR2");
  expect_equal("CR2 in L2", inside, 0xabc0);
  expect_equal("CR2 in L1", cpu::read_cr2(), 0xdef0);
}

void monitor_trap() {
  L2 l2;
  if (!l2.proc(v::proc::monitor_trap)) {
    skip("no monitor trap flag");
    return;
  }
  l2.start([](u64) { asm volatile("nop; nop; nop" ::: "memory"); });
  u64 previous = vmread(Field::guest_rip);
  for (unsigned i = 0; i < 3; ++i) {
    if (!l2.expect_exit("after each instruction", BasicExit::monitor_trap)) {
      return;
    }
    const u64 rip = vmread(Field::guest_rip);
    expect(rip > previous && rip <= previous + 15, "one instruction further");
    previous = rip;
  }
}

constexpr Case kCases[] = {
    {"inject_each_kind", "SDM vol. 3, 27.6.1", inject_each_kind},
    {"injection_ignores_bitmap", "SDM vol. 3, 27.6.1.2", injection_ignores_bitmap},
    {"injection_wakes_hlt_state", "SDM vol. 3, 27.7.2", injection_wakes_hlt_state},
    {"injected_nmi_blocks_nmis", "SDM vol. 3, 27.6.1", injected_nmi_blocks_nmis},
    {"vectoring_of_software_interrupt", "SDM vol. 3, 28.2.4", vectoring_of_software_interrupt},
    {"vectoring_of_exception", "SDM vol. 3, 28.2.4", vectoring_of_exception},
    {"vectoring_of_injection", "SDM vol. 3, 28.2.4", vectoring_of_injection},
    {"vectoring_on_ept_violation", "SDM vol. 3, 28.2.4", vectoring_on_ept_violation},
    {"vectoring_of_page_fault", "SDM vol. 3, 28.2.4", vectoring_of_page_fault},
    {"interrupt_exit_acknowledged", "SDM vol. 3, 28.2.2", interrupt_exit_acknowledged},
    {"interrupt_exit_left_pending", "SDM vol. 3, 26.2", interrupt_exit_left_pending},
    {"interrupt_exit_with_if_clear", "SDM vol. 3, 26.2", interrupt_exit_with_if_clear, 0, bochs,
     "Bochs masks interrupts after an entry that leaves IF clear"},
    {"interrupt_taken_by_l2", "SDM vol. 3, 26.2", interrupt_taken_by_l2},
    {"interrupt_exit_sweep", "SDM vol. 3, 28.1", interrupt_exit_sweep},
    {"interrupt_ends_hlt", "SDM vol. 3, 26.2", interrupt_ends_hlt, 0, under_aerie,
     "open fault: STI blocking is saved out of sti; hlt (docs/status.md)"},
    {"hlt_state_entry", "SDM vol. 3, 27.7.2", hlt_state_entry},
    {"hlt_state_saved", "SDM vol. 3, 28.3.4", hlt_state_saved, 0, bochs, "Bochs saves state 0"},
    {"interrupt_window", "SDM vol. 3, 26.2", interrupt_window},
    {"interrupt_window_after_injection", "SDM vol. 3, 27.7.5", interrupt_window_after_injection},
    {"nmi_window", "SDM vol. 3, 26.2", nmi_window},
    {"nmi_window_waits_for_mov_ss", "SDM vol. 3, 26.2", nmi_window_waits_for_mov_ss},
    {"nmi_exits", "SDM vol. 3, 26.2", nmi_exits},
    {"nmi_blocked_after_nmi_exit", "SDM vol. 3, 28.5.5", nmi_blocked_after_nmi_exit, 0, bochs,
     "Bochs does not block NMIs on an NMI exit"},
    {"nmi_taken_by_l2", "SDM vol. 3, 26.2", nmi_taken_by_l2},
    {"blocking_saved_at_exits", "SDM vol. 3, 28.3.4", blocking_saved_at_exits},
    {"sti_with_if_set_does_not_block", "SDM vol. 2, STI", sti_with_if_set_does_not_block, 0,
     under_aerie, "TCG blocks after every STI"},
    {"pending_debug_delivered", "SDM vol. 3, 27.7.3", pending_debug_delivered},
    {"pending_single_step_delivered", "SDM vol. 3, 27.7.3", pending_single_step_delivered},
    {"single_step_over_exit", "SDM vol. 3, 27.7.3", single_step_over_exit},
    {"popf_tf_then_exit", "SDM vol. 3, 28.3.4", popf_tf_then_exit, 0, bochs,
     "Bochs makes BS pending"},
    {"dr7_and_debugctl_saved", "SDM vol. 3, 27.3.2.1, 28.3.1", dr7_and_debugctl_saved},
    {"debug_registers_shared", "SDM vol. 3, 28.3.1", debug_registers_shared},
    {"cr2_shared", "SDM vol. 3, 28.3.1", cr2_shared},
    {"monitor_trap", "SDM vol. 3, 26.5.2", monitor_trap, 0, bochs,
     "Bochs has no monitor-trap exit"},
};

}  // namespace

u8 guest_main() { return run_vmx_cases(kCases); }

}  // namespace aerie::guest
