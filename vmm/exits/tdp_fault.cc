#include "base/panic.h"
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"

namespace aerie::vmm::exits {
void tdp_fault(Vcpu& v, const cpu::Exit& exit) {
  const cpu::Instruction* i = fetch_instruction(v);
  if (i == nullptr) { v.refetch(); return; }
  const Gpa gpa{exit.info2};
  if (v.apic.owns_page(gpa) && i->simple != cpu::SimpleAccess::none) {
    const u32 off = static_cast<u32>(gpa.offset());
    if (i->simple == cpu::SimpleAccess::load) {
      cpu::write_register(v.registers(), i->reg, i->operand_size, v.apic.mmio_read(off, i->operand_size));
    } else {
      u64 value = i->simple == cpu::SimpleAccess::store_register ? cpu::read_register(v.registers(), i->reg, i->operand_size) : static_cast<u64>(i->immediate);
      v.apic.mmio_write(off, i->operand_size, value);
    }
    v.reevaluate();
    v.skip(*i);
    return;
  }
  panic("tdp fault at {x} rip {x} error {x}", gpa, v.block().rip(), exit.error_code);
}
}  // namespace aerie::vmm::exits
