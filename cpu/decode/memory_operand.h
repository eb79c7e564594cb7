// Where a memory operand lies: effective address, segmentation, and the faults segmentation raises.
// SDM vol. 1, 3.7.5 and vol. 3, 5.3 (limits), 5.5 (types), 3.3.7.1 (canonical addresses).
#pragma once

#include "base/address.h"
#include "cpu/arch/exception.h"
#include "cpu/arch/segment.h"
#include "cpu/decode/instruction.h"

namespace aerie::cpu {

enum class MemoryAccess : u8 { read, write };

// What segmentation depends on besides the segment itself.
struct AddressingMode {
  CodeMode code = CodeMode::bits64;
  bool protected_mode =
      true;             // CR0.PE and not virtual-8086: segment types and null selectors count
  u8 linear_bits = 48;  // 57 with CR4.LA57
};

struct LinearAddress {
  u64 value = 0;
  Event fault{};  // valid: #GP(0) or #SS(0), and no address
};

// Offset of the memory operand within its segment, cut to the address size. `next` is the RIP after
// the instruction. `delta` is added before the cut (bit strings, string instructions).
inline u64 effective_offset(const Instruction& i, const GuestRegisters& registers, u64 next,
                            i64 delta = 0) {
  u64 offset = static_cast<u64>(i.displacement) + static_cast<u64>(delta);
  if (i.base < 16) {
    offset += registers.gpr[i.base];
  } else if (i.base == kRipRegister) {
    offset += next;
  }
  if (i.index < 16) {
    offset += registers.gpr[i.index] << i.scale;
  }
  return offset & (~u64{0} >> (64 - 8 * i.address_size));
}

// The checks of an access to `size` bytes at `offset` of `segment`, and its linear address.
LinearAddress linearize(const AddressingMode& mode, SegmentRegister name, const Segment& segment,
                        u64 offset, unsigned size, MemoryAccess access);

// The linear address of an instruction's memory operand. `segment(SegmentRegister)` gives the
// guest's segment register; in 64-bit mode it is asked for FS and GS only.
template <class Segments>
LinearAddress memory_operand_address(const Instruction& i, const AddressingMode& mode,
                                     const GuestRegisters& registers, u64 next, unsigned size,
                                     MemoryAccess access, Segments&& segment) {
  const u64 offset = effective_offset(i, registers, next);
  if (mode.code == CodeMode::bits64 && i.segment < SegmentRegister::fs) {
    return linearize(mode, i.segment, Segment{}, offset, size, access);
  }
  return linearize(mode, i.segment, segment(i.segment), offset, size, access);
}

}  // namespace aerie::cpu
