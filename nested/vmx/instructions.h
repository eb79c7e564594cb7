// L1's VMX instructions but VMLAUNCH and VMRESUME. Checks in the order of their operation sections
// in SDM vol. 3, 31.3; VMfail numbers of 31.4.
#pragma once

#include "cpu/arch/msr.h"
#include "nested/vmx/engine.h"

namespace aerie::nested::vmx {

template <L1Context C>
void Vmx<C>::reset() {
  if (mode_ == Mode::non_root) {
    v_.set_running_l2(false);
  }
  mode_ = Mode::off;
  current_ = kNoVmcs;
  stale_ = 0;
  attention_ = 0;
  inject_ = injected_ = interrupted_ = {};
}

// #UD in real-address mode, virtual-8086 mode and compatibility mode (31.3, each instruction's
// first check).
template <L1Context C>
bool Vmx<C>::legal_mode(const Block& b) const {
  if ((b.efer() & cpu::efer::lma) != 0) {
    return b.segment(cpu::SegmentRegister::cs).long_mode();
  }
  return (b.cr0() & cpu::cr0::pe) != 0 && (b.rflags() & cpu::rflags::vm) == 0;
}

template <L1Context C>
bool Vmx<C>::long_mode(const Block& b) const {
  // A legal mode with LMA set is 64-bit mode.
  return (b.efer() & cpu::efer::lma) != 0;
}

template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::succeed(const cpu::Instruction& i) {
  Block& b = v_.block_l1();
  b.set_rflags(b.rflags() & ~cpu::rflags::arithmetic);
  v_.advance_l1(i);
}

// VMfailInvalid: CF. 31.2.
template <L1Context C>
[[gnu::cold]] void Vmx<C>::fail_invalid(const cpu::Instruction& i) {
  Block& b = v_.block_l1();
  b.set_rflags((b.rflags() & ~cpu::rflags::arithmetic) | cpu::rflags::cf);
  v_.advance_l1(i);
}

// VMfailValid: ZF, and the error number in the current VMCS.
template <L1Context C>
[[gnu::cold]] void Vmx<C>::fail_valid(cpu::vmx::InstructionError error, const cpu::Instruction& i) {
  Block& b = v_.block_l1();
  b.set_rflags((b.rflags() & ~cpu::rflags::arithmetic) | cpu::rflags::zf);
  c_.instruction_error = static_cast<u32>(error);
  v_.advance_l1(i);
}

template <L1Context C>
[[gnu::cold]] void Vmx<C>::fail(cpu::vmx::InstructionError error, const cpu::Instruction& i) {
  current_ == kNoVmcs ? fail_invalid(i) : fail_valid(error, i);
}

template <L1Context C>
bool Vmx<C>::operand_address(const cpu::Instruction& i, unsigned size, bool write, Gva& address) {
  const cpu::LinearAddress linear = operand_linear_address(
      v_.block_l1(), i, v_.registers(), size, write, (v_.l1_cr4() & cpu::cr4::la57) != 0);
  if (linear.fault.valid) [[unlikely]] {
    v_.raise_l1(linear.fault);
    return false;
  }
  address = Gva{linear.value};
  return true;
}

template <L1Context C>
bool Vmx<C>::read_operand(const cpu::Instruction& i, void* to, unsigned size) {
  Gva address;
  return operand_address(i, size, false, address) && v_.read_l1_linear(address, to, size);
}
template <L1Context C>
bool Vmx<C>::write_operand(const cpu::Instruction& i, const void* from, unsigned size) {
  Gva address;
  return operand_address(i, size, true, address) && v_.write_l1_linear(address, from, size);
}

// A VMXON or VMCS region's address: page aligned and within the physical-address width.
template <L1Context C>
bool Vmx<C>::region_address_valid(u64 address) const {
  return (address & kPageMask) == 0 && (address >> v_.capabilities().physical_bits()) == 0;
}

template <L1Context C>
bool Vmx<C>::execute(const cpu::Instruction& i) {
  if (mode_ != Mode::root) [[unlikely]] {
    return mode_ == Mode::off && i.op == cpu::Op::vmxon && vmxon(i);
  }
  const Block& b = v_.block_l1();
  if (!legal_mode(b)) [[unlikely]] {
    return false;
  }
  if (b.cpl() != 0) [[unlikely]] {
    // Not so for the ones that do not exist for this L1.
    if (i.op == cpu::Op::vmfunc || i.op == cpu::Op::getsec) {
      return false;
    }
    v_.raise_l1(cpu::Event::exception(cpu::Exception::gp, 0));
    return true;
  }
  switch (i.op) {
    case cpu::Op::vmread:
      vmread(i);
      return true;
    case cpu::Op::vmwrite:
      vmwrite(i);
      return true;
    case cpu::Op::vmresume:
      enter(i, false);
      return true;
    case cpu::Op::vmlaunch:
      enter(i, true);
      return true;
    case cpu::Op::vmptrld:
      vmptrld(i);
      return true;
    case cpu::Op::vmclear:
      vmclear(i);
      return true;
    case cpu::Op::vmptrst:
      vmptrst(i);
      return true;
    case cpu::Op::invept:
      if (!v_.capabilities().has(Feature::ept)) return false;
      invept(i);
      return true;
    case cpu::Op::invvpid:
      if (!v_.capabilities().has(Feature::vpid)) return false;
      invvpid(i);
      return true;
    case cpu::Op::vmxoff:
      vmxoff(i);
      return true;
    case cpu::Op::vmxon:
      fail(cpu::vmx::InstructionError::vmxon_in_root, i);
      return true;
    // No dual-monitor treatment of SMM.
    case cpu::Op::vmcall:
      fail(cpu::vmx::InstructionError::vmcall_in_root, i);
      return true;
    default:
      return false;  // VMFUNC in root operation, GETSEC
  }
}

template <L1Context C>
bool Vmx<C>::vmxon(const cpu::Instruction& i) {
  Block& b = v_.block_l1();
  if ((v_.l1_cr4() & cpu::cr4::vmxe) == 0 || !legal_mode(b)) {
    return false;
  }
  const Capabilities& caps = v_.capabilities();
  u64 control = 0;
  const bool enabled = v_.read_msr(cpu::msr::feature_control, control) &&
                       (control & cpu::msr::feature_control_bits::locked) != 0 &&
                       (control & cpu::msr::feature_control_bits::vmx_outside_smx) != 0;
  const u64 cr0 = v_.l1_cr0(), cr4 = v_.l1_cr4();
  const bool fixed = (cr0 & Capabilities::kCr0Fixed0) == Capabilities::kCr0Fixed0 &&
                     (cr4 & Capabilities::kCr4Fixed0) == Capabilities::kCr4Fixed0 &&
                     (cr4 & ~caps.cr4_fixed1()) == 0;
  if (b.cpl() != 0 || !fixed || !enabled) {
    v_.raise_l1(cpu::Event::exception(cpu::Exception::gp, 0));
    return true;
  }
  u64 address = 0;
  if (!read_operand(i, &address, sizeof(address))) {
    return true;
  }
  if (!region_address_valid(address)) {
    fail_invalid(i);
    return true;
  }
  const auto revision = v_.memory().template read<u32>(Gpa{address});
  if (!revision || *revision != kRevisionId) {
    fail_invalid(i);
    return true;
  }
  vmxon_region_ = Gpa{address};
  current_ = kNoVmcs;
  stale_ = 0;
  mode_ = Mode::root;
  succeed(i);
  return true;
}

template <L1Context C>
void Vmx<C>::vmxoff(const cpu::Instruction& i) {
  // The current VMCS's data must not be lost: software should have cleared it, but need not
  // (25.11.1).
  write_back();
  current_ = kNoVmcs;
  mode_ = Mode::off;
  succeed(i);
}

// Brings the current VMCS's data to L1's region. The bytes past kUsed never held anything.
template <L1Context C>
void Vmx<C>::write_back() {
  if (current_ == kNoVmcs) {
    return;
  }
  synchronise(stale_);
  if (!v_.memory().writable(current_, kPageSize)) {
    return;  // cannot be: VMPTRLD read a revision there; ROM is left alone
  }
  const auto* from = reinterpret_cast<const u64*>(&c_);
  auto* to = physical_pointer<u64>(Hpa{current_.value()});
  for (usize n = 0; n < Vmcs12::kUsed / sizeof(u64); ++n) {
    to[n] = from[n];
  }
}

template <L1Context C>
void Vmx<C>::vmclear(const cpu::Instruction& i) {
  u64 address = 0;
  if (!read_operand(i, &address, sizeof(address))) {
    return;
  }
  if (!region_address_valid(address)) {
    return fail(cpu::vmx::InstructionError::vmclear_invalid_address, i);
  }
  if (Gpa{address} == vmxon_region_) {
    return fail(cpu::vmx::InstructionError::vmclear_vmxon_pointer, i);
  }
  if (Gpa{address} == current_) {
    c_.launched = 0;
    write_back();
    current_ = kNoVmcs;
    stale_ = 0;
  } else {
    // Its data is in the region already; the launch state is all that changes.
    const u32 clear = 0;
    v_.memory().write(Gpa{address} + offsetof(Vmcs12, launched), &clear, sizeof(clear));
  }
  succeed(i);
}

template <L1Context C>
void Vmx<C>::vmptrld(const cpu::Instruction& i) {
  u64 address = 0;
  if (!read_operand(i, &address, sizeof(address))) {
    return;
  }
  if (!region_address_valid(address)) {
    return fail(cpu::vmx::InstructionError::vmptrld_invalid_address, i);
  }
  if (Gpa{address} == vmxon_region_) {
    return fail(cpu::vmx::InstructionError::vmptrld_vmxon_pointer, i);
  }
  if (Gpa{address} != current_) {
    // Reads where there is no memory yield ones: no revision either. No shadow VMCSs yet: bit 31
    // too.
    const auto revision = v_.memory().template read<u32>(Gpa{address});
    if (!revision || *revision != kRevisionId || !v_.memory().writable(Gpa{address}, kPageSize)) {
      return fail(cpu::vmx::InstructionError::vmptrld_wrong_revision, i);
    }
    write_back();
    const auto* from = physical_pointer<const volatile u64>(Hpa{address});
    auto* to = reinterpret_cast<u64*>(&c_);
    for (usize n = 0; n < Vmcs12::kUsed / sizeof(u64); ++n) {
      to[n] = from[n];
    }
    c_.revision_id = kRevisionId;
    current_ = Gpa{address};
    stale_ = 0;
    dirty_ = kAllGroups;
    xsetbv_seen_ = false;
    switched_xcr0_ = false;
  }
  succeed(i);
}

template <L1Context C>
void Vmx<C>::vmptrst(const cpu::Instruction& i) {
  const u64 address = current_.value();
  if (write_operand(i, &address, sizeof(address))) {
    succeed(i);
  }
}

template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::vmread(const cpu::Instruction& i) {
  if (current_ == kNoVmcs) [[unlikely]] {
    return fail_invalid(i);
  }
  cpu::GuestRegisters& registers = v_.registers();
  const unsigned size = long_mode(v_.block_l1()) ? 8 : 4;
  const u64 encoding =
      size == 8 ? registers.gpr[i.reg & 15] : static_cast<u32>(registers.gpr[i.reg & 15]);
  const FieldSlot slot = v_.fields().find(encoding);
  if (!slot.present()) [[unlikely]] {
    return fail_valid(cpu::vmx::InstructionError::unsupported_component, i);
  }
  if ((stale_ & slot.mask()) != 0) [[unlikely]] {
    synchronise_slow(slot.mask());
  }
  const u64 value = read_field(c_, slot);
  if (!i.has_memory()) [[likely]] {
    registers.gpr[i.rm & 15] = size == 8 ? value : static_cast<u32>(value);
  } else if (!write_operand(i, &value, size)) {
    return;
  }
  succeed(i);
}

template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::vmwrite(const cpu::Instruction& i) {
  if (current_ == kNoVmcs) [[unlikely]] {
    return fail_invalid(i);
  }
  const cpu::GuestRegisters& registers = v_.registers();
  const unsigned size = long_mode(v_.block_l1()) ? 8 : 4;
  u64 value = 0;
  if (!i.has_memory()) [[likely]] {
    value = registers.gpr[i.rm & 15];
  } else if (!read_operand(i, &value, size)) {
    return;
  }
  u64 encoding = registers.gpr[i.reg & 15];
  if (size == 4) [[unlikely]] {
    value = static_cast<u32>(value);
    encoding = static_cast<u32>(encoding);
  }
  const FieldSlot slot = v_.fields().find(encoding);
  if (!slot.present()) [[unlikely]] {
    return fail_valid(cpu::vmx::InstructionError::unsupported_component, i);
  }
  if (slot.read_only()) [[unlikely]] {
    return fail_valid(cpu::vmx::InstructionError::write_to_read_only, i);
  }
  if ((stale_ & slot.mask()) != 0) [[unlikely]] {
    synchronise_slow(slot.mask());
  }
  if (slot.group == static_cast<u8>(Group::exit) && stale_ != 0) [[unlikely]] {
    // The exit controls say what of the state in block_l2 was saved: save it as they were at the
    // exit.
    synchronise_slow(stale_);
  }
  if (write_field(c_, slot, value)) {
    dirty_ |= slot.mask();
  }
  succeed(i);
}

// There being a current VMCS while L1 runs, L1 is in VMX root operation.
template <L1Context C>
[[gnu::always_inline]] inline bool Vmx<C>::vmread_known(const cpu::Instruction& i) {
  Block& b = v_.block_l1();
  cpu::GuestRegisters& registers = v_.registers();
  const FieldSlot slot = v_.fields().find(registers.gpr[i.reg & 15]);
  if (!slot.present() || (stale_ & slot.mask()) != 0 || current_ == kNoVmcs || i.has_memory() ||
      b.cpl() != 0) [[unlikely]] {
    return false;
  }
  registers.gpr[i.rm & 15] = read_field(c_, slot);
  b.set_rflags(b.rflags() & ~cpu::rflags::arithmetic);
  return true;
}

template <L1Context C>
[[gnu::always_inline]] inline bool Vmx<C>::vmwrite_known(const cpu::Instruction& i) {
  Block& b = v_.block_l1();
  cpu::GuestRegisters& registers = v_.registers();
  const FieldSlot slot = v_.fields().find(registers.gpr[i.reg & 15]);
  if (!slot.present() || slot.read_only() || (stale_ & slot.mask()) != 0 || current_ == kNoVmcs ||
      i.has_memory() || b.cpl() != 0 || (slot.group == static_cast<u8>(Group::exit) && stale_ != 0))
      [[unlikely]] {
    return false;
  }
  if (write_field(c_, slot, registers.gpr[i.rm & 15])) {
    dirty_ |= slot.mask();
  }
  b.set_rflags(b.rflags() & ~cpu::rflags::arithmetic);
  return true;
}

// INVEPT: types 1 and 2. 31.3; table 31-? gives the descriptor: EPTP in bits 63:0, the rest
// reserved.
template <L1Context C>
void Vmx<C>::invept(const cpu::Instruction& i) {
  const u64 type = long_mode(v_.block_l1()) ? v_.registers().gpr[i.reg & 15]
                                            : static_cast<u32>(v_.registers().gpr[i.reg & 15]);
  const u64 supported = type == 1   ? ept_vpid_cap::invept_single
                        : type == 2 ? ept_vpid_cap::invept_all
                                    : 0;
  if ((v_.capabilities().ept_vpid() & supported) == 0) {
    return fail(cpu::vmx::InstructionError::invalid_operand_to_invalidation, i);
  }
  struct {
    u64 eptp;
    u64 reserved;
  } descriptor{};
  if (!read_operand(i, &descriptor, sizeof(descriptor))) {
    return;
  }
  if (type == 1 && !eptp_valid(descriptor.eptp, v_.capabilities())) {
    return fail(cpu::vmx::InstructionError::invalid_operand_to_invalidation, i);
  }
  v_.invept(static_cast<InveptType>(type), descriptor.eptp);
  succeed(i);
}

// INVVPID: VPID in bits 15:0, 63:16 must be 0, the linear address in 127:64.
template <L1Context C>
void Vmx<C>::invvpid(const cpu::Instruction& i) {
  const u64 type = long_mode(v_.block_l1()) ? v_.registers().gpr[i.reg & 15]
                                            : static_cast<u32>(v_.registers().gpr[i.reg & 15]);
  constexpr u64 kCapability[] = {ept_vpid_cap::invvpid_address, ept_vpid_cap::invvpid_single,
                                 ept_vpid_cap::invvpid_all, ept_vpid_cap::invvpid_retaining};
  if (type > 3 || (v_.capabilities().ept_vpid() & kCapability[type & 3]) == 0) {
    return fail(cpu::vmx::InstructionError::invalid_operand_to_invalidation, i);
  }
  struct {
    u64 vpid;
    u64 linear;
  } descriptor{};
  if (!read_operand(i, &descriptor, sizeof(descriptor))) {
    return;
  }
  const auto kind = static_cast<InvvpidType>(type);
  const bool bad_vpid = kind != InvvpidType::all_contexts && descriptor.vpid == 0;
  const bool bad_address = kind == InvvpidType::individual_address &&
                           !is_canonical(descriptor.linear, v_.capabilities().linear_bits());
  if ((descriptor.vpid >> 16) != 0 || bad_vpid || bad_address) {
    return fail(cpu::vmx::InstructionError::invalid_operand_to_invalidation, i);
  }
  v_.invvpid(kind, static_cast<u16>(descriptor.vpid), Gva{descriptor.linear});
  succeed(i);
}

}  // namespace aerie::nested::vmx
