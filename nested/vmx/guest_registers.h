// What L2's own instructions do to its control registers and MSRs where L0 performs them: L1 let
// them pass, but the processor's values are not the ones L2 may have. SDM vol. 3, 26.3 (changes to
// instruction behaviour in VMX non-root operation).
#pragma once

#include "cpu/arch/msr.h"
#include "nested/vmx/engine.h"

namespace aerie::nested::vmx {

// L2's instruction is done.
template <L1Context C>
void Vmx<C>::advance_l2(unsigned length) {
  Block& b = v_.block_l2();
  u64 rip = b.rip() + length;
  if ((l2_efer_ & cpu::efer::lma) == 0 || !b.segment(cpu::SegmentRegister::cs).long_mode()) {
    rip = static_cast<u32>(rip);
  }
  b.set_rip(rip);
  b.set_interrupt_shadow(false);
  const u64 flags = b.rflags();
  if ((flags & (cpu::rflags::rf | cpu::rflags::tf)) != 0) [[unlikely]] {
    b.set_rflags(flags & ~cpu::rflags::rf);
    if ((flags & cpu::rflags::tf) != 0 && !stepping_) {
      pending_debug_ |= cpu::vmx::pending_debug::bs;
      recompute_attention();
    }
  }
}

// PDPTEs that PAE paging would load with this CR3: SDM vol. 3, 4.4.1. True where they are good.
template <L1Context C>
[[gnu::cold]] bool Vmx<C>::pdptes_loadable(u64 cr3) {
  u64 pdptes[4];
  const Ngpa table{cr3 & 0xffff'ffe0};
  if (translation_.ept) {
    if (!v_.read_l2_physical(table, pdptes, sizeof(pdptes))) {
      return true;  // the processor's own walk will exit on it
    }
  } else if (!v_.memory().read(Gpa{table.value()}, pdptes, sizeof(pdptes))) {
    return false;
  }
  for (const u64 p : pdptes) {
    if (!pdpte_valid(p, v_.capabilities().physical_bits())) {
      return false;
    }
  }
  return true;
}

template <L1Context C>
void Vmx<C>::commit_cr0(u64 value, const cpu::Instruction& i) {
  Block& b = v_.block_l2();
  value |= cpu::cr0::et;
  const bool cs_long = b.segment(cpu::SegmentRegister::cs).long_mode();
  const PagingState s{c_.guest_cr0, c_.guest_cr4, l2_efer_, cs_long};
  const bool unrestricted = has(proc2(), cpu::vmx::proc2::unrestricted_guest);
  if (!cr0_write_legal(value, s, cr0_required(unrestricted))) {
    return general_protection();
  }
  const u64 efer = efer_after_cr0(l2_efer_, value);
  constexpr u64 kPaging = cpu::cr0::pg | cpu::cr0::cd | cpu::cr0::nw;
  if (((value ^ c_.guest_cr0) & kPaging) != 0 && pae_paging(value, c_.guest_cr4, efer) &&
      !pdptes_loadable(b.cr3())) {
    return general_protection();
  }
  if (((value ^ c_.guest_cr0) & (cpu::cr0::pg | cpu::cr0::wp)) != 0) {
    b.flush(cpu::TlbFlush::tag);
  }
  c_.guest_cr0 = value;
  l2_efer_ = efer;
  apply_control_registers();
  update_intercepts();
  advance_l2(i.length);
}

// 26.3, MOV to CR0: bits that L1 owns keep their value; a write that would change what L2 sees of
// them exits.
template <L1Context C>
void Vmx<C>::mov_to_cr0(u64 value, const cpu::Instruction& i) {
  const u64 mask = c_.cr0_mask;
  if (((value ^ c_.cr0_read_shadow) & mask) != 0) {
    return exit_on_instruction(
        cpu::vmx::BasicExit::cr_access, i,
        cpu::vmx::CrAccess{.cr = 0, .gpr = static_cast<cpu::Gpr>(i.rm & 15)}.encode());
  }
  // Reserved low bits are ignored; bits 63:32 fault.
  value &= ~u64{0xffff'ffff} | cpu::cr0::defined;
  commit_cr0((c_.guest_cr0 & mask) | (value & ~mask), i);
}

template <L1Context C>
void Vmx<C>::mov_to_cr3(u64 value, const cpu::Instruction& i) {
  Block& b = v_.block_l2();
  if (has(proc(), cpu::vmx::proc::cr3_load)) {
    const u64 targets[] = {c_.cr3_target0, c_.cr3_target1, c_.cr3_target2, c_.cr3_target3};
    bool target = false;
    for (u32 n = 0; n < c_.cr3_target_count && n < kCr3Targets; ++n) {
      target = target || targets[n] == value;
    }
    if (!target) {
      return exit_on_instruction(
          cpu::vmx::BasicExit::cr_access, i,
          cpu::vmx::CrAccess{.cr = 3, .gpr = static_cast<cpu::Gpr>(i.rm & 15)}.encode());
    }
  }
  const bool pcid = (c_.guest_cr4 & cpu::cr4::pcide) != 0;
  const u64 address = pcid ? value & ~bit(63) : value;
  if ((l2_efer_ & cpu::efer::lma) != 0 && (address >> v_.capabilities().physical_bits()) != 0) {
    return general_protection();
  }
  if (pae_paging(c_.guest_cr0, c_.guest_cr4, l2_efer_) && !pdptes_loadable(address)) {
    return general_protection();
  }
  b.set_cr3(address);
  if (!pcid || (value & bit(63)) == 0) {
    b.flush(cpu::TlbFlush::tag);
  }
  advance_l2(i.length);
}

template <L1Context C>
void Vmx<C>::mov_to_cr4(u64 value, const cpu::Instruction& i) {
  Block& b = v_.block_l2();
  const u64 mask = c_.cr4_mask;
  if (((value ^ c_.cr4_read_shadow) & mask) != 0) {
    return exit_on_instruction(
        cpu::vmx::BasicExit::cr_access, i,
        cpu::vmx::CrAccess{.cr = 4, .gpr = static_cast<cpu::Gpr>(i.rm & 15)}.encode());
  }
  const u64 next = (c_.guest_cr4 & mask) | (value & ~mask);
  const PagingState s{c_.guest_cr0, c_.guest_cr4, l2_efer_,
                      b.segment(cpu::SegmentRegister::cs).long_mode()};
  if (!cr4_write_legal(next, s, b.cr3(), v_.capabilities().cr4_fixed1(),
                       Capabilities::kCr4Fixed0)) {
    return general_protection();
  }
  constexpr u64 kPaging = cpu::cr4::pae | cpu::cr4::pge | cpu::cr4::pse | cpu::cr4::smep;
  const u64 changed = next ^ c_.guest_cr4;
  if ((changed & kPaging) != 0 && pae_paging(c_.guest_cr0, next, l2_efer_) &&
      !pdptes_loadable(b.cr3())) {
    return general_protection();
  }
  if ((changed & (kPaging | cpu::cr4::pcide | cpu::cr4::smap | cpu::cr4::pke | cpu::cr4::la57)) !=
      0) {
    b.flush(cpu::TlbFlush::tag);
  }
  if ((changed & next & cpu::cr4::osxsave) != 0) {
    xsetbv_seen_ = false;  // its XSETBV is to come
  }
  c_.guest_cr4 = next;
  apply_control_registers();
  update_intercepts();
  advance_l2(i.length);
}

// MSRs as L2's RDMSR and WRMSR reach them once L1 lets them pass, and as the entry's MSR list loads
// them: those that entries and exits switch are L2's own, the rest are the processor's, L1's
// included.
template <L1Context C>
[[gnu::noinline]] bool Vmx<C>::read_l2_msr(u32 index, u64& value) {
  Block& b = v_.block_l2();
  switch (index) {
    case cpu::msr::efer:
      value = l2_efer_;
      return true;
    case cpu::msr::pat:
      value = b.pat();
      return true;
    case cpu::msr::debugctl:
      value = b.debugctl();
      return true;
    case cpu::msr::tsc:
      value = v_.l1_tsc() + tsc_offset_;
      return true;
    case cpu::msr::fs_base:
    case cpu::msr::gs_base:
      b.store_syscall_state();
      value = b.segment(index == cpu::msr::fs_base ? cpu::SegmentRegister::fs
                                                   : cpu::SegmentRegister::gs)
                  .base;
      return true;
    case cpu::msr::sysenter_cs:
      b.store_syscall_state();
      value = b.sysenter_cs();
      return true;
    case cpu::msr::sysenter_esp:
      b.store_syscall_state();
      value = b.sysenter_esp();
      return true;
    case cpu::msr::sysenter_eip:
      b.store_syscall_state();
      value = b.sysenter_eip();
      return true;
    default:
      return v_.read_msr(index, value);
  }
}

template <L1Context C>
[[gnu::noinline]] bool Vmx<C>::write_l2_msr(u32 index, u64 value) {
  Block& b = v_.block_l2();
  const unsigned linear_bits = (c_.guest_cr4 & cpu::cr4::la57) != 0 ? 57 : 48;
  switch (index) {
    case cpu::msr::efer: {
      if ((value & ~(v_.efer_allowed() | cpu::efer::lma)) != 0) return false;
      if (((value ^ l2_efer_) & cpu::efer::lme) != 0 && (c_.guest_cr0 & cpu::cr0::pg) != 0)
        return false;
      value = (value & ~cpu::efer::lma) | (l2_efer_ & cpu::efer::lma);
      if (((value ^ l2_efer_) & cpu::efer::nxe) != 0) {
        b.flush(cpu::TlbFlush::tag);
      }
      l2_efer_ = value;
      b.set_efer(value);
      return true;
    }
    case cpu::msr::pat:
      if (!cpu::msr::is_valid_pat(value)) return false;
      b.set_pat(value);
      return true;
    case cpu::msr::debugctl:
      if ((value & ~(cpu::msr::debugctl_bits::lbr | cpu::msr::debugctl_bits::btf)) != 0)
        return false;
      b.set_debugctl(value);
      return true;
    case cpu::msr::tsc:
      return v_.write_msr(index, value - tsc_offset_);
    case cpu::msr::fs_base:
    case cpu::msr::gs_base: {
      if (!is_canonical(value, linear_bits)) return false;
      const auto r =
          index == cpu::msr::fs_base ? cpu::SegmentRegister::fs : cpu::SegmentRegister::gs;
      b.store_syscall_state();
      cpu::Segment s = b.segment(r);
      s.base = value;
      b.set_segment(r, s);
      b.load_syscall_state();
      return true;
    }
    case cpu::msr::sysenter_cs:
      b.store_syscall_state();
      b.set_sysenter_cs(static_cast<u32>(value));
      b.load_syscall_state();
      return true;
    case cpu::msr::sysenter_esp:
      if (!is_canonical(value, linear_bits)) return false;
      b.store_syscall_state();
      b.set_sysenter_esp(value);
      b.load_syscall_state();
      return true;
    case cpu::msr::sysenter_eip:
      if (!is_canonical(value, linear_bits)) return false;
      b.store_syscall_state();
      b.set_sysenter_eip(value);
      b.load_syscall_state();
      return true;
    default:
      return v_.write_msr(index, value);
  }
}

// 25.6.9: four bitmaps of 1 KiB: reads of 0-0x1fff, reads of 0xc0000000-0xc0001fff, the same for
// writes. L1 may change them at any time: they are read when the exit comes.
template <L1Context C>
bool Vmx<C>::msr_wanted(u32 index, bool write) const {
  if (!has(proc(), cpu::vmx::proc::msr_bitmaps)) {
    return true;
  }
  u64 offset = write ? 2048 : 0;
  if (index >= 0xc000'0000) {
    offset += 1024;
    index -= 0xc000'0000;
  }
  if (index > 0x1fff) {
    return true;
  }
  const u8* byte = v_.memory().template pointer<u8>(Gpa{c_.msr_bitmap + offset + index / 8});
  return byte == nullptr || ((*byte >> (index & 7)) & 1) != 0;
}

// 25.6.4 and 26.1.3: bitmap A for ports below 0x8000, B above; each byte of the access counts, and
// one that wraps around the port space exits.
template <L1Context C>
bool Vmx<C>::io_wanted(u16 port, unsigned size) const {
  if (!has(proc(), cpu::vmx::proc::io_bitmaps)) {
    return has(proc(), cpu::vmx::proc::unconditional_io);
  }
  if (u32{port} + size > 0x10000) {
    return true;
  }
  for (unsigned n = 0; n < size; ++n) {
    const u32 p = port + n;
    const u64 base = p < 0x8000 ? c_.io_bitmap_a : c_.io_bitmap_b;
    const u8* byte = v_.memory().template pointer<u8>(Gpa{base + (p & 0x7fff) / 8});
    if (byte == nullptr || ((*byte >> (p & 7)) & 1) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace aerie::nested::vmx
