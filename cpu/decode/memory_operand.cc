#include "cpu/decode/memory_operand.h"

namespace aerie::cpu {
namespace {

// SDM vol. 3, 5.3: expand-down segments allow what lies above the limit, up to FFFFH or FFFFFFFFH
// by the B flag. An access does not wrap around the end of the segment.
bool within_limit(const Segment& segment, u64 offset, unsigned size) {
  const u64 last = offset + size - 1;
  const bool expand_down = segment.code_or_data() && (segment.type() & 0xc) == 4;
  if (!expand_down) {
    return last <= segment.limit;
  }
  return offset > segment.limit && last <= (segment.default_big() ? 0xffff'ffff : 0xffff);
}

// SDM vol. 3, 5.5: no access by a null selector, no write to code or read-only data, no read of
// execute-only code.
bool type_allows(const Segment& segment, MemoryAccess access) {
  if (!segment.present()) {
    return false;
  }
  const bool code = (segment.type() & 8) != 0;
  const bool readable_or_writable = (segment.type() & 2) != 0;
  return access == MemoryAccess::write ? !code && readable_or_writable
                                       : !code || readable_or_writable;
}

}  // namespace

LinearAddress linearize(const AddressingMode& mode, SegmentRegister name, const Segment& segment,
                        u64 offset, unsigned size, MemoryAccess access) {
  const Event fault =
      Event::exception(name == SegmentRegister::ss ? Exception::ss : Exception::gp, 0);
  if (mode.code == CodeMode::bits64) {
    // Bases of ES, CS, SS and DS count as zero; no limit, no type.
    const u64 base = name == SegmentRegister::fs || name == SegmentRegister::gs ? segment.base : 0;
    const u64 linear = base + offset;
    if (!is_canonical(linear, mode.linear_bits) ||
        !is_canonical(linear + size - 1, mode.linear_bits)) {
      return {.fault = fault};
    }
    return {.value = linear};
  }
  if (mode.protected_mode && !type_allows(segment, access)) {
    return {.fault = fault};
  }
  if (!within_limit(segment, offset, size)) {
    return {.fault = fault};
  }
  return {.value = static_cast<u32>(segment.base + offset)};
}

}  // namespace aerie::cpu
