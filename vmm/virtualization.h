// Where the vCPU meets the virtualization its L1 uses: nested/vmx, later nested/svm. vmm calls
// these at fixed points; the engine behind them is chosen by what L1 is shown.
#pragma once

#include "cpu/decode/instruction.h"
#include "vmm/vcpu.h"

namespace aerie::vmm {

// What the engines offer on this host, for CPUID policy.
policy::FeatureSet virtualization_features();
// Once the policies and the vCPUs are made.
void set_up_virtualization();
// VMX capability MSRs, SVM's own MSRs. Nothing, false: #GP.
std::optional<u64> virtualization_msr_read(Vcpu& v, u32 index);
bool virtualization_msr_write(Vcpu& v, u32 index, u64 value);
// L1 executed a VMX instruction. False: it is #UD here.
bool vmx_instruction(Vcpu& v, const cpu::Instruction& instruction);
// An exit of L2.
void handle_l2_exit(Vcpu& v, const cpu::Exit& exit);
// Before an entry to L2 for which events may be waiting. What runs afterwards may be L1. False: L2
// halts.
bool deliver_events_to_l2(Vcpu& v);
// L2 would take an interrupt now, by its own IDT or by an exit to L1.
bool l2_accepts_interrupt(Vcpu& v);
// L1 is where INIT stays latched (VMX root operation, GIF clear).
bool init_is_blocked(const Vcpu& v);
// L1's processor was reset.
void virtualization_reset(Vcpu& v);

}  // namespace aerie::vmm
