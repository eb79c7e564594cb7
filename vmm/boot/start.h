// The steps of the boot that concern L1: its resources, its first processor, the waiting ones.
#pragma once

#include "base/types.h"

extern "C" [[noreturn]] void aerie_start_processor(aerie::u32 number);

namespace aerie::vmm {

// Host map, permission maps, one Vcpu a processor. Boot processor, before the others start.
void set_up_l1();
// Loads the payload and runs it. Boot processor.
[[noreturn]] void start_l1();
// Waits for L1's SIPI, then runs. Announces itself in machine.cpus_ready.
[[noreturn]] void start_waiting_processor(u32 number);

}  // namespace aerie::vmm
