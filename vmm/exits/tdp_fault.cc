// Accesses of L1 to what its map leaves out: the APIC page and the region around it, the IOAPIC
// page, Aerie's own memory.
#include "base/panic.h"
#include "cpu/emulate/simple_mmio.h"
#include "vmm/device_map.h"
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"
#include "vmm/l1_access.h"

namespace aerie::vmm::exits {
namespace {

// A register of a device at a known address, for the moves that touch nothing else.
struct Register {
  Vcpu& v;
  Gpa gpa;

  u64 read(unsigned size) { return device_read(v, gpa, size); }
  void write(unsigned size, u64 value) { device_write(v, gpa, size, value); }
};

// False: an instruction it does not know.
[[gnu::cold]] bool emulate(Vcpu& v, const cpu::Instruction& i) {
  v.telemetry().count(telemetry::Event::emulated);
  auto& b = v.block_l1();
  L1Access access{v};
  cpu::EmulatedState state{v.registers(), b.rip(), b.rflags(), access.addressing_mode()};
  const cpu::EmulationResult result = cpu::Emulator{access, state, i}.run();
  switch (result.outcome) {
    case cpu::Emulated::done:
      b.set_rflags(state.rflags);
      v.skip(i);
      return true;
    case cpu::Emulated::again:
      b.set_rflags(state.rflags);
      if (result.single_step) {
        b.set_dr6(b.dr6() | cpu::dr6::bs);
        v.raise(cpu::Exception::db);
      }
      return true;
    case cpu::Emulated::fault:
      v.raise_fault(result.fault);
      return true;
    case cpu::Emulated::unsupported:
      break;
  }
  return false;
}

// `plain`: by an instruction's operand, not by the walk of its tables.
[[gnu::always_inline]] inline void access_at(Vcpu& v, Gpa gpa, bool plain) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr) [[unlikely]] {
    v.refetch();
    return;
  }
  constexpr u64 kLongest = 8;
  const bool simple = plain && gpa.offset() <= kPageSize - kLongest;
  if (simple && cpu::emulate_simple_mmio(*i, v.registers(), Register{v, gpa})) [[likely]] {
    v.skip(*i);
    return;
  }
  if (!emulate(v, *i)) {
    end_run(telemetry::EndState::emulation_failed,
            "L1 cpu{}: the instruction at rip {x} (kind {}, {} bytes) accesses the trapped page "
            "{x} in a way Aerie does not perform",
            v.index(), v.block_l1().rip(), static_cast<u32>(i->op), i->length, gpa);
  }
}

}  // namespace

void tdp_fault(Vcpu& v, const cpu::Exit& bare) {
  const cpu::Exit exit = v.complete(bare);
  access_at(v, Gpa{exit.info2}, (exit.error_code & cpu::tdp_fault::page_walk) == 0);
}

void access_device(Vcpu& v, Gpa gpa, bool plain) { access_at(v, gpa, plain); }

bool emulate_access(Vcpu& v) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr) {
    v.refetch();
    return true;
  }
  return emulate(v, *i);
}

}  // namespace aerie::vmm::exits
