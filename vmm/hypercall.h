// VMCALL and VMMCALL of L1 itself, outside of what its virtualization makes of them: hypercalls to
// Aerie. The numbers and results are KVM's where Aerie offers the same call, as tools for KVM
// guests expect.
#pragma once

#include "cpu/decode/instruction.h"
#include "vmm/vcpu.h"

namespace aerie::vmm {

// RAX: number, then result; a number Aerie does not know gives -1000 (ENOSYS), CPL > 0 gives -1
// (EPERM).
void hypercall(Vcpu& v, const cpu::Instruction& instruction);

}  // namespace aerie::vmm
