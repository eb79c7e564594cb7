// How a guest under shadow paging translates linear addresses, as far as it tells shadow roots
// apart; and what the processor's own control registers must be while it runs (DESIGN §4, modes
// (b), (e), (f)).
#pragma once

#include "cpu/arch/registers.h"
#include "mmu/guest_formats.h"
#include "mmu/linear_entry.h"
#include "mmu/role.h"

namespace aerie::mmu {

class LinearMode {
 public:
  // Of a vCPU at reset: no paging.
  constexpr LinearMode() : LinearMode{0, 0, 0, 0} {}
  // `space`: whose physical addresses the guest's tables hold; 0: L1's own.
  constexpr LinearMode(u64 cr0, u64 cr4, u64 efer, unsigned space) {
    const ModeBits bits{cr0, cr4, efer};
    const bool wp = (cr0 & cpu::cr0::wp) != 0;
    unsigned permissions = linear::kWp;
    if (!wp) {
      constexpr u64 kOwner = cpu::cr4::smap | cpu::cr4::pke | cpu::cr4::pks;
      permissions = ((cr4 & cpu::cr4::smep) != 0 ? linear::kSmep : 0) |
                    ((cr4 & kOwner) != 0 ? linear::kOwnerChecked : 0);
    }
    permissions |= bits.nxe() ? linear::kNxe : 0;
    TableFormat format = TableFormat::flat;
    switch (bits.mode()) {
      case PagingMode::none:
        permissions = linear::kWp;
        break;
      case PagingMode::legacy:
        format = bits.pse() ? TableFormat::legacy_pse : TableFormat::legacy;
        permissions &= ~linear::kNxe;
        cr3_mask_ = bit_mask(31, 12);
        break;
      case PagingMode::pae:
        format = TableFormat::pae;
        cr3_mask_ = bit_mask(31, 5);
        break;
      case PagingMode::ia32e5:
        top_ = 5;
        [[fallthrough]];
      case PagingMode::ia32e4:
        format = TableFormat::ia32e;
        top_ = top_ == 5 ? 5 : 4;
        pcid_ = (cr4 & cpu::cr4::pcide) != 0;
        cr3_mask_ = kAddressMask | (pcid_ ? kPageMask : 0);
        break;
    }
    role_ = Role{}
                .with_format(format)
                .with_permission_mode(permissions)
                .with_access(right::all)
                .with_quadrant(top_ == 5 ? 1 : 0)
                .with_space(space);
    key_ = kValid | (static_cast<u64>(format) << 53) | (static_cast<u64>(permissions) << 56) |
           (static_cast<u64>(top_ == 5) << 60) | (static_cast<u64>(space) << 61);
  }

  // Never 0. PAE's roots belong to a vCPU, as its PDPTEs do; its number is in the key.
  constexpr u64 key(u64 cr3, unsigned cpu) const {
    return key_ | (cr3 & cr3_mask_) | (pae() ? u64{cpu} << 40 : 0);
  }
  // Entries of the shadow's top level carry their guest's role, one level down.
  constexpr Role role() const { return role_; }
  // Level of the shadow's root: 3 for all of 32-bit code, which the processor runs with PAE.
  constexpr unsigned top() const { return top_; }
  constexpr bool long_mode() const { return top_ >= 4; }
  constexpr bool pae() const { return role_.format() == TableFormat::pae; }
  constexpr bool flat() const { return role_.format() == TableFormat::flat; }
  constexpr bool pcid() const { return pcid_; }
  static constexpr u16 pcid_of(u64 key) {
    return (key >> 53 & 7) == static_cast<u64>(TableFormat::ia32e)
               ? static_cast<u16>(key & kPageMask)
               : u16{0};
  }
  constexpr u64 table(u64 cr3) const { return cr3 & cr3_mask_ & ~u64{pcid_ ? kPageMask : 0}; }
  static constexpr unsigned space_of(u64 key) { return static_cast<unsigned>(key >> 61); }

  // The processor's registers for a guest whose own are given. Paging is always on, with WP, in
  // the format of the shadow; SMEP, SMAP and keys only where the guest has paging.
  static constexpr u64 processor_cr0(u64 cr0) { return cr0 | cpu::cr0::pg | cpu::cr0::wp; }
  static constexpr u64 processor_cr4(u64 cr0, u64 cr4) {
    constexpr u64 kChecks =
        cpu::cr4::smep | cpu::cr4::smap | cpu::cr4::pke | cpu::cr4::pks | cpu::cr4::pge;
    const u64 own = (cr0 & cpu::cr0::pg) != 0 ? cr4 : cr4 & ~kChecks;
    return (own & ~cpu::cr4::pcide) | cpu::cr4::pae;
  }
  static constexpr u64 processor_efer(u64 efer) {
    const u64 own = (efer & cpu::efer::lma) != 0 ? efer : efer & ~cpu::efer::lme;
    return own | cpu::efer::nxe;
  }

 private:
  static constexpr u64 kValid = bit(52);
  Role role_{};
  u64 key_ = 0;
  u64 cr3_mask_ = 0;
  u8 top_ = 3;
  bool pcid_ = false;
};

}  // namespace aerie::mmu
