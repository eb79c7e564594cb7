// Physical interrupts and NMIs while L1 runs, and the ends of its windows.
#include "cpu/host/host.h"
#include "vmm/exits/exits.h"
#include "vmm/fetch.h"

namespace aerie::vmm::exits {

using cpu::Op;

void external_interrupt(Vcpu& v, const cpu::Exit&) { v.take_interrupt(); }

void nmi(Vcpu& v, const cpu::Exit&) {
  cpu::host_nmi_window();
  v.take_nmis();
}

// L1 can take an interrupt now, or a step is over; deliver_events() finds out what is there.
void interrupt_window(Vcpu& v, const cpu::Exit&) { v.reevaluate(); }

// Intercepted while NMIs are blocked. The IRET has yet to be executed and unblocks them, whether or
// not it faults (SDM vol. 3, 6.7.1).
void iret(Vcpu& v, const cpu::Exit&) { v.step(StepReason::nmi_unblocking); }

}  // namespace aerie::vmm::exits
