#include "vmm/virtualization.h"

#include "base/panic.h"

namespace aerie::vmm {

policy::FeatureSet virtualization_features() { return {}; }
std::optional<u64> virtualization_msr_read(Vcpu&, u32) { return std::nullopt; }
bool virtualization_msr_write(Vcpu&, u32, u64) { return false; }
bool vmx_instruction(Vcpu&, const cpu::Instruction&) { return false; }
void handle_l2_exit(Vcpu&, const cpu::Exit&) { panic("an exit of L2 without an engine"); }
void deliver_events_to_l2(Vcpu&) {}
bool init_is_blocked(const Vcpu&) { return false; }
void virtualization_reset(Vcpu&) {}

}  // namespace aerie::vmm
