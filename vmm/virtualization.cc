#include "vmm/virtualization.h"

#include "base/panic.h"

namespace aerie::vmm {

bool vmx_instruction(Vcpu&, const cpu::Instruction&) { return false; }
void handle_l2_exit(Vcpu&, const cpu::Exit&) { panic("an exit of L2 without an engine"); }
void deliver_events_to_l2(Vcpu&) {}
bool init_is_blocked(const Vcpu&) { return false; }
void virtualization_reset(Vcpu&) {}

}  // namespace aerie::vmm
