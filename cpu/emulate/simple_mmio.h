// The fast half of emulation: a plain MOV between a register (or immediate) and one location that
// is known to be trapped. The fault gave its guest-physical address, so no guest table is walked
// and no segment looked at: the processor translated and checked the access before it faulted.
#pragma once

#include "cpu/decode/instruction.h"

namespace aerie::cpu {

// Does `i` on a device, if it is of the simple kind (Instruction::simple). `device` has read(size)
// giving the value and write(size, value) with the value cut to size; size is 1, 2, 4 or 8 bytes.
// False: nothing was done, emulate() may know it. RIP is the caller's to move on (next_rip()), as
// are RF and TF.
//
// An access that crosses the end of the page is the caller's to recognise, from the address the
// fault gave and the size.
template <class Device>
[[gnu::always_inline]] inline bool emulate_simple_mmio(const Instruction& i,
                                                       GuestRegisters& registers, Device&& device) {
  const unsigned size = i.source_size;
  switch (i.simple) {
    case SimpleAccess::load:
      registers.gpr[i.reg] = device.read(size);
      return true;
    case SimpleAccess::store_register:
      device.write(size, registers.gpr[i.reg] & (~u64{0} >> (64 - 8 * size)));
      return true;
    case SimpleAccess::store_immediate:
      device.write(size, static_cast<u64>(i.immediate) & (~u64{0} >> (64 - 8 * size)));
      return true;
    case SimpleAccess::none:
      break;
  }
  return false;
}

}  // namespace aerie::cpu
