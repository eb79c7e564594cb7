// Where an access of L1 goes that the processor did not perform: the I/O map of DESIGN §1. Its
// default is pass-through; what is Aerie's own is named here, once.
#pragma once

#include "vmm/vcpu.h"

namespace aerie::vmm {

// `gpa` to `gpa + size` within one page; size 1, 2, 4 or 8. Aerie's memory and the APIC region
// outside L1's own page hold nothing: all ones, and writes are dropped.
u64 device_read(Vcpu& v, Gpa gpa, unsigned size);
void device_write(Vcpu& v, Gpa gpa, unsigned size, u64 value);

// After L1 moved its APIC page from `before`: accesses to the new one exit. (They do for every
// processor, and go on to what the page covers where it is not theirs. What an L2 has mapped there
// already stays mapped until its L1 invalidates it: an L1 moves its APIC before it has guests, if
// at all.)
void trap_apic_page(Vcpu& v, Gpa before);

}  // namespace aerie::vmm
