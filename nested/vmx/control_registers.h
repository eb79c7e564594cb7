// What a guest's MOV to CR0 or CR4 must satisfy, and what follows from it; pure functions over
// values. L0 decides every CR0 and CR4 write of an L2 itself, since the processor's own values
// differ from the ones L2 may have. SDM vol. 3, 2.5, 4.1, 26.3 and appendices A.7 and A.8.
#pragma once

#include "base/types.h"
#include "cpu/arch/registers.h"

namespace aerie::nested::vmx {

// CR0 with bits that VMX operation fixes (appendix A.7); PE and PG are free for an unrestricted
// guest.
inline constexpr u64 kCr0Fixed0 = cpu::cr0::pe | cpu::cr0::ne | cpu::cr0::pg;
constexpr u64 cr0_required(bool unrestricted_guest) {
  return unrestricted_guest ? cpu::cr0::ne : kCr0Fixed0;
}

// What CR0 reads as, and what a write is compared with (25.6.6).
constexpr u64 visible_cr(u64 real, u64 mask, u64 shadow) {
  return (real & ~mask) | (shadow & mask);
}

struct PagingState {
  u64 cr0, cr4, efer;
  bool cs_long;  // CS.L, in IA-32e mode: 64-bit mode
};

// Whether MOV to CR0 of `value` by a guest in state `s` is legal; if not it raises #GP(0).
constexpr bool cr0_write_legal(u64 value, const PagingState& s, u64 required) {
  using namespace cpu;
  if ((value >> 32) != 0 || (value & required) != required) {
    return false;
  }
  if ((value & cr0::pg) != 0 && (value & cr0::pe) == 0) return false;
  if ((value & cr0::nw) != 0 && (value & cr0::cd) == 0) return false;
  const bool enable = (value & ~s.cr0 & cr0::pg) != 0;
  const bool disable = (~value & s.cr0 & cr0::pg) != 0;
  if (enable && (s.efer & efer::lme) != 0 && ((s.cr4 & cr4::pae) == 0 || s.cs_long)) return false;
  if (disable && ((s.efer & efer::lma) != 0 && s.cs_long)) return false;
  if (disable && (s.cr4 & cr4::pcide) != 0) return false;
  if ((value & cr0::wp) == 0 && (s.cr4 & cr4::cet) != 0) return false;
  return true;
}

// Whether MOV to CR4 of `value` is legal; `allowed` are the bits L2's processor has, `required`
// those VMX operation fixes to 1 (VMXE).
constexpr bool cr4_write_legal(u64 value, const PagingState& s, u64 cr3, u64 allowed,
                               u64 required) {
  using namespace cpu;
  if ((value & ~allowed) != 0 || (value & required) != required) return false;
  if ((s.efer & efer::lma) != 0) {
    if ((value & cr4::pae) == 0 || ((value ^ s.cr4) & cr4::la57) != 0) return false;
  }
  if ((value & ~s.cr4 & cr4::pcide) != 0 && ((s.efer & efer::lma) == 0 || (cr3 & 0xfff) != 0))
    return false;
  if ((value & cr4::cet) != 0 && (s.cr0 & cr0::wp) == 0) return false;
  return true;
}

// EFER after CR0 has become `cr0`: LMA follows LME and PG.
constexpr u64 efer_after_cr0(u64 efer, u64 cr0) {
  const bool active = (cr0 & cpu::cr0::pg) != 0 && (efer & cpu::efer::lme) != 0;
  return active ? efer | cpu::efer::lma : efer & ~cpu::efer::lma;
}

constexpr bool pae_paging(u64 cr0, u64 cr4, u64 efer) {
  return (cr0 & cpu::cr0::pg) != 0 && (cr4 & cpu::cr4::pae) != 0 && (efer & cpu::efer::lma) == 0;
}

// A PDPTE that loading CR3 would refuse (4.4.1). Bit 5 is left out of the reserved ones: a TCG
// processor sets an accessed bit there (FACTS).
constexpr bool pdpte_valid(u64 pdpte, unsigned physical_bits) {
  if ((pdpte & 1) == 0) {
    return true;
  }
  const u64 reserved = bit_mask(63, physical_bits) | bit_mask(8, 6) | bit_mask(2, 1);
  return (pdpte & reserved) == 0;
}

}  // namespace aerie::nested::vmx
