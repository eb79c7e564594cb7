// The one table of vmcs12's fields, and the lookup that a trapped VMREAD or VMWRITE uses, made from
// it and from what the capability MSRs offer.
#pragma once

#include <array>
#include <cstring>
#include <span>
#include <string_view>

#include "base/types.h"
#include "cpu/vmx/controls.h"
#include "cpu/vmx/fields.h"
#include "nested/vmx/groups.h"
#include "nested/vmx/vmcs12.h"

namespace aerie::nested::vmx {

class Capabilities;

// A field exists on processors that support the 1-setting of any of `bits` (SDM vol. 3, 25.11.2 and
// chapter 25's remarks on single fields). bits == 0: on all.
struct Gate {
  cpu::vmx::ControlWord word = cpu::vmx::ControlWord::pin;
  u64 bits = 0;
};

struct FieldRow {
  cpu::vmx::Field field;
  u16 offset;  // in Vmcs12
  Group group;
  Gate gate;
  std::string_view name;
};

// Whether L1's processor has that field.
bool field_exists(const FieldRow& row, const Capabilities& capabilities);

// All fields that Aerie can store, in the order of their encodings.
std::span<const FieldRow> vmcs12_fields();

// What the lookup yields, packed so that a field is reached with one load from the index.
struct FieldSlot {
  u16 offset;
  u8 group;
  u8 flags;

  static constexpr u8 kShiftMask = 0x3f, kPresent = 0x40, kReadOnly = 0x80;

  constexpr bool present() const { return flags != 0; }
  // VMWRITE fails with InstructionError::write_to_read_only.
  constexpr bool read_only() const { return (flags & kReadOnly) != 0; }
  constexpr GroupMask mask() const { return GroupMask{1} << group; }
  // 64 minus the field's width.
  constexpr unsigned shift() const { return flags & kShiftMask; }
};
static_assert(sizeof(FieldSlot) == 4);

// Zero-extended value of a field. SDM vol. 3, 31.3, VMREAD; the operand's own size truncates it
// further.
inline u64 read_field(const Vmcs12& vmcs, FieldSlot slot) {
  u64 word;
  __builtin_memcpy(&word, reinterpret_cast<const u8*>(&vmcs) + slot.offset, sizeof(word));
  return word << slot.shift() >> slot.shift();
}
// Stores the low bits of `value`; returns whether that changed the field. An operand of less than
// 64 bits is to be zero-extended first: a 64-bit or natural-width field's upper bits are cleared
// then.
inline bool write_field(Vmcs12& vmcs, FieldSlot slot, u64 value) {
  u8* const at = reinterpret_cast<u8*>(&vmcs) + slot.offset;
  u64 word;
  __builtin_memcpy(&word, at, sizeof(word));
  const u64 change = (word ^ value) << slot.shift() >> slot.shift();
  word ^= change;
  __builtin_memcpy(at, &word, sizeof(word));
  return change != 0;
}

// Encoding → slot, by the 13 low bits of the encoding with the bits 9:7 left out, which no field
// uses: 4,096 slots, of which those in use lie in 24 short runs. The "high" access type of a 64-bit
// field has a slot of its own, a 32-bit field four bytes on.
class FieldIndex {
 public:
  // Fills the index with the fields that `capabilities` offer; those of read-only data are marked
  // so unless IA32_VMX_MISC bit 29 says that VMWRITE reaches them.
  void build(const Capabilities& capabilities);

  // The slot of `encoding` as the instruction's register operand gives it (32 or 64 bits,
  // zero-extended). Not present(): no such field, InstructionError::unsupported_component.
  FieldSlot find(u64 encoding) const {
    if ((encoding & ~kValidBits) != 0) [[unlikely]] {
      return {};
    }
    return slots_[slot_of(encoding)];
  }
  FieldSlot find(cpu::vmx::Field field) const { return find(static_cast<u64>(field)); }

 private:
  static constexpr u64 kValidBits = 0x7c7f;
  static constexpr usize slot_of(u64 encoding) {
    return ((encoding >> 3) & 0xf80) | (encoding & 0x7f);
  }

  std::array<FieldSlot, 4096> slots_{};
};

// Name of the field with this encoding, or an empty view.
std::string_view field_name(cpu::vmx::Field field);

}  // namespace aerie::nested::vmx
