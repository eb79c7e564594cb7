// L1's linear memory as an instruction of L1 sees it that L0 performs: L1's own paging and rights,
// RAM, or devices. The emulator's environment, and the operands of the VMX instructions.
#pragma once

#include "cpu/decode/memory_operand.h"
#include "cpu/emulate/emulator.h"
#include "mmu/walker.h"
#include "vmm/device_map.h"

namespace aerie::vmm {

class L1Access {
 public:
  using u128 = cpu::u128;

  explicit L1Access(Vcpu& v) : v_{v} {}

  cpu::AddressingMode addressing_mode() const;

  // cpu::EmulationEnvironment. `size` 1, 2, 4 or 8.
  bool read(u64 linear, unsigned size, u64& value, cpu::MemoryIntent intent);
  bool write(u64 linear, unsigned size, u64 value);
  cpu::CompareExchange compare_exchange(u64 linear, unsigned size, u128 expected, u128 desired,
                                        u128& found);
  const cpu::Segment& segment(cpu::SegmentRegister name);
  cpu::EmulationFault fault() const { return fault_; }

  // Any size, over pages; plain memory only where more than 8 bytes. False: fault().
  bool read_bytes(u64 linear, void* to, usize size);
  bool write_bytes(u64 linear, const void* from, usize size);

  // Linear address of `i`'s memory operand of `size` bytes, with segmentation's checks. False:
  // fault().
  bool operand(const cpu::Instruction& i, unsigned size, cpu::MemoryAccess access, u64& linear);

 private:
  // False: fault_ holds the page fault.
  bool translate(u64 linear, u32 access_bits, Gpa& gpa);

  Vcpu& v_;
  cpu::EmulationFault fault_{};
  bool syscall_state_stored_ = false;
};

}  // namespace aerie::vmm
