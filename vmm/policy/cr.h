// Control registers and EFER as L1 may write them: which bits L1's processor has, which of them the
// processor underneath gets, and what the manuals check at a write. Pure functions over values;
// what a legal write leads to is told in the answer.
//
// SDM vol. 3, 2.5 (CR0, CR4), 4.1.2, 4.4.1, 4.10.4.1, 24.8 (VMX operation); vol. 2, MOV to control
// registers, XSETBV; APM vol. 2, 3.1.
#pragma once

#include "base/bits.h"
#include "base/types.h"
#include "cpu/arch/registers.h"
#include "vmm/policy/cpuid.h"
#include "vmm/policy/feature.h"

namespace aerie::vmm::policy {

// A CR4 or EFER bit: L1 may set it if it has the feature.
struct ControlBitRow {
  u64 bit;
  Feature needs;
  // The processor's own register never has it: L0 keeps it in what L1 reads, and does its work.
  bool shadow_only;
};

// Bits no row names are reserved for L1, whatever the processor underneath has.
inline constexpr ControlBitRow kCr4Bits[] = {
    {cpu::cr4::vme, feature("vme"), false},           {cpu::cr4::pvi, feature("vme"), false},
    {cpu::cr4::tsd, feature("tsc"), false},           {cpu::cr4::de, feature("de"), false},
    {cpu::cr4::pse, feature("pse"), false},           {cpu::cr4::pae, feature("pae"), false},
    {cpu::cr4::mce, feature("mce"), false},           {cpu::cr4::pge, feature("pge"), false},
    {cpu::cr4::pce, feature("msr"), false},           {cpu::cr4::osfxsr, feature("fxsr"), false},
    {cpu::cr4::osxmmexcpt, feature("sse"), false},    {cpu::cr4::umip, feature("umip"), false},
    {cpu::cr4::la57, feature("la57"), false},         {cpu::cr4::vmxe, feature("vmx"), true},
    {cpu::cr4::fsgsbase, feature("fsgsbase"), false}, {cpu::cr4::pcide, feature("pcid"), false},
    {cpu::cr4::osxsave, feature("xsave"), false},     {cpu::cr4::smep, feature("smep"), false},
    {cpu::cr4::smap, feature("smap"), false},         {cpu::cr4::pke, feature("pku"), false},
    {cpu::cr4::pks, feature("pks"), false},
};

inline constexpr ControlBitRow kEferBits[] = {
    {cpu::efer::sce, feature("syscall"), false},
    {cpu::efer::lme, feature("lm"), false},
    {cpu::efer::lma, feature("lm"), false},
    {cpu::efer::nxe, feature("nx"), false},
    {cpu::efer::svme, feature("svm"), true},  // the processor's own is always set: L0 runs it with
                                              // VMRUN
    {cpu::efer::ffxsr, feature("fxsr-opt"), false},
};

// What L1's control registers hold, as L1 sees them.
struct ControlState {
  u64 cr0 = cpu::cr0::et;
  u64 cr3 = 0;
  u64 cr4 = 0;
  u64 efer = 0;
  bool cs_long = false;        // CS.L
  bool vmx_operation = false;  // after VMXON, and not in an L2
  // VMX fixed bits that hold in VMX operation (IA32_VMX_CR0_FIXED0 and so on); ignored outside it.
  u64 vmx_cr0_fixed0 = cpu::cr0::pe | cpu::cr0::ne | cpu::cr0::pg;
  u64 vmx_cr4_fixed0 = cpu::cr4::vmxe;
};

// What L1's linear translations must forget (SDM vol. 3, 4.10.4.1), in rising order.
enum class Forget : u8 {
  nothing,
  current,         // of the current PCID, but for global ones
  current_global,  // of the current PCID, global ones too
  everything,      // of all PCIDs, global ones too
};

struct ControlWrite {
  bool legal = false;  // else #GP(0), and nothing below holds
  u64 value = 0;       // what L1 reads afterwards
  u64 efer = 0;        // CR0 and EFER writes: EFER afterwards, LMA recomputed
  Forget forget = Forget::nothing;
  bool paging_changed = false;  // the paging mode or a bit of permissions: new roots, walk caches
  // PAE paging begins or its PDPTEs are to be reloaded from CR3's page: where a present one has a
  // reserved bit, the write is #GP(0) after all (SDM vol. 3, 4.4.1).
  bool load_pdptes = false;
};

class CrPolicy {
 public:
  // `provided`: CR4 bits that L0 provides although the processor may lack them.
  void init(const CpuidPolicy& cpuid, u64 provided = 0) {
    cr4_allowed_ = allowed(kCr4Bits, cpuid, false);
    cr4_shadow_ = allowed(kCr4Bits, cpuid, true) | (provided & cr4_allowed_);
    efer_allowed_ = allowed(kEferBits, cpuid, false);
    physical_bits_ = static_cast<u8>(cpuid.physical_bits());
    xcr0_allowed_ = cpuid.xcr0();
    vendor_ = cpuid.vendor();
  }

  // Bits L1 may set; of them, the ones the processor's own register never has.
  u64 cr4_allowed() const { return cr4_allowed_; }
  u64 cr4_shadow_only() const { return cr4_shadow_; }
  u64 efer_allowed() const { return efer_allowed_; }
  u64 xcr0_allowed() const { return xcr0_allowed_; }
  // CR4 as the processor has it when L1 reads `guest`, and back.
  u64 hardware_cr4(u64 guest) const { return guest & ~cr4_shadow_; }
  // EFER: an SVM host always runs its guest with SVME.
  static u64 hardware_efer(u64 guest) { return guest | cpu::efer::svme; }
  u64 cr3_reserved(const ControlState& s) const {
    const u64 high = bit_mask(63, physical_bits_);
    return (s.efer & cpu::efer::lma) != 0 ? high : 0;  // outside IA-32e mode CR3 has 32 bits
  }

  // MOV to CR0. LMSW and CLTS are such writes too, of the value they lead to.
  ControlWrite write_cr0(const ControlState& s, u64 value) const;
  // MOV to CR3. With CR4.PCIDE, bit 63 asks that nothing be forgotten; it is not kept.
  ControlWrite write_cr3(const ControlState& s, u64 value) const;
  // MOV to CR4.
  ControlWrite write_cr4(const ControlState& s, u64 value) const;
  // WRMSR to EFER. LMA is not writable; a value that differs in it is taken as if it did not
  // (Intel: its write is ignored; SDM vol. 4, table 2-2).
  ControlWrite write_efer(const ControlState& s, u64 value) const;
  // XSETBV of register `index` (SDM vol. 2, XSETBV; vol. 1, 13.3): false is #GP(0).
  bool xcr0_legal(u32 index, u64 value) const;

 private:
  template <usize N>
  static u64 allowed(const ControlBitRow (&rows)[N], const CpuidPolicy& cpuid, bool shadow_only) {
    u64 bits = 0;
    for (const ControlBitRow& row : rows) {
      if (cpuid.has(row.needs) && (!shadow_only || row.shadow_only)) {
        bits |= row.bit;
      }
    }
    return bits;
  }

  u64 cr4_allowed_ = 0;
  u64 cr4_shadow_ = 0;
  u64 efer_allowed_ = 0;
  u64 xcr0_allowed_ = 1;
  u8 physical_bits_ = 36;
  Vendor vendor_ = Vendor::intel;
};

constexpr bool paging_enabled(u64 cr0) { return (cr0 & cpu::cr0::pg) != 0; }
constexpr bool pae_paging(u64 cr0, u64 cr4, u64 efer) {
  return paging_enabled(cr0) && (cr4 & cpu::cr4::pae) != 0 && (efer & cpu::efer::lma) == 0;
}
// EFER once CR0 is `cr0`: LMA is LME and PG.
constexpr u64 efer_with_lma(u64 efer, u64 cr0) {
  const bool active = paging_enabled(cr0) && (efer & cpu::efer::lme) != 0;
  return active ? efer | cpu::efer::lma : efer & ~cpu::efer::lma;
}

// CR4 bits of which a change reloads PAE's PDPTEs (SDM vol. 3, 4.4.1).
inline constexpr u64 kCr4ReloadsPdptes =
    cpu::cr4::pae | cpu::cr4::pge | cpu::cr4::pse | cpu::cr4::smep;
inline constexpr u64 kCr0ReloadsPdptes = cpu::cr0::pg | cpu::cr0::cd | cpu::cr0::nw;

inline ControlWrite CrPolicy::write_cr0(const ControlState& s, u64 value) const {
  using namespace cpu;
  ControlWrite w{.value = (value & cr0::defined) | cr0::et, .efer = efer_with_lma(s.efer, value)};
  const u64 changed = w.value ^ s.cr0;
  const bool enables = (changed & value & cr0::pg) != 0;
  const bool disables = (changed & ~value & cr0::pg) != 0;
  if ((value >> 32) != 0 || ((value & cr0::pg) != 0 && (value & cr0::pe) == 0) ||
      ((value & cr0::nw) != 0 && (value & cr0::cd) == 0)) {
    return w;
  }
  // IA-32e mode begins only with PAE set and from a segment that is not 64-bit, and does not end in
  // 64-bit mode (SDM vol. 3, 4.1.2 and vol. 2, MOV).
  if (enables && (s.efer & efer::lme) != 0 && ((s.cr4 & cr4::pae) == 0 || s.cs_long)) {
    return w;
  }
  if (disables && (((s.efer & efer::lma) != 0 && s.cs_long) || (s.cr4 & cr4::pcide) != 0)) {
    return w;
  }
  if (s.vmx_operation && (value & s.vmx_cr0_fixed0) != s.vmx_cr0_fixed0) {
    return w;
  }
  w.legal = true;
  w.paging_changed = (changed & (cr0::pg | cr0::wp)) != 0;
  w.forget = (changed & cr0::pg) != 0 ? Forget::everything : Forget::nothing;
  w.load_pdptes = (changed & kCr0ReloadsPdptes) != 0 && pae_paging(w.value, s.cr4, w.efer);
  return w;
}

inline ControlWrite CrPolicy::write_cr3(const ControlState& s, u64 value) const {
  using namespace cpu;
  const bool pcid = (s.cr4 & cr4::pcide) != 0;
  const bool keep = pcid && (value & bit(63)) != 0;
  ControlWrite w{.value = pcid ? value & ~bit(63) : value, .efer = s.efer};
  if ((w.value & cr3_reserved(s)) != 0) {
    return w;
  }
  w.legal = true;
  w.forget = keep ? Forget::nothing : Forget::current;
  w.load_pdptes = pae_paging(s.cr0, s.cr4, s.efer);
  return w;
}

inline ControlWrite CrPolicy::write_cr4(const ControlState& s, u64 value) const {
  using namespace cpu;
  ControlWrite w{.value = value, .efer = s.efer};
  const u64 changed = value ^ s.cr4;
  const bool ia32e = (s.efer & efer::lma) != 0;
  if ((value & ~cr4_allowed_) != 0) {
    return w;
  }
  if (ia32e && ((value & cr4::pae) == 0 || (changed & cr4::la57) != 0)) {
    return w;
  }
  if ((changed & value & cr4::pcide) != 0 && (!ia32e || (s.cr3 & kPageMask) != 0)) {
    return w;
  }
  if (s.vmx_operation && (value & s.vmx_cr4_fixed0) != s.vmx_cr4_fixed0) {
    return w;
  }
  w.legal = true;
  constexpr u64 paging = cr4::pse | cr4::pae | cr4::pge | cr4::la57 | cr4::pcide | cr4::smep |
                         cr4::smap | cr4::pke | cr4::pks;
  w.paging_changed = (changed & paging) != 0;
  if ((changed & cr4::pge) != 0 || (changed & ~value & cr4::pcide) != 0) {
    w.forget = Forget::everything;
  } else if ((changed & cr4::pae) != 0 || (changed & value & cr4::smep) != 0) {
    w.forget = Forget::current_global;
  } else if ((changed & cr4::pse) != 0) {
    // Not demanded, yet large-page bits have changed their meaning.
    w.forget = Forget::current_global;
  }
  w.load_pdptes = (changed & kCr4ReloadsPdptes) != 0 && pae_paging(s.cr0, value, s.efer);
  return w;
}

inline ControlWrite CrPolicy::write_efer(const ControlState& s, u64 value) const {
  using namespace cpu;
  ControlWrite w{.value = (value & ~efer::lma) | (s.efer & efer::lma)};
  w.efer = w.value;
  const u64 changed = w.value ^ s.efer;
  if ((value & ~efer_allowed_) != 0 || ((changed & efer::lme) != 0 && paging_enabled(s.cr0))) {
    return w;
  }
  w.legal = true;
  w.paging_changed = (changed & efer::nxe) != 0;
  w.forget = (changed & efer::nxe) != 0 ? Forget::everything : Forget::nothing;
  return w;
}

inline bool CrPolicy::xcr0_legal(u32 index, u64 value) const {
  constexpr u64 x87 = bit(0), sse = bit(1), avx = bit(2), bound = bit_mask(4, 3),
                avx512 = bit_mask(7, 5);
  const auto all_or_none = [&](u64 bits) { return (value & bits) == 0 || (value & bits) == bits; };
  if (index != 0 || (value & x87) == 0 || (value & ~xcr0_allowed_) != 0) {
    return false;
  }
  if ((value & avx) != 0 && (value & sse) == 0) {
    return false;
  }
  return all_or_none(bound) && all_or_none(avx512) && ((value & avx512) == 0 || (value & avx) != 0);
}

}  // namespace aerie::vmm::policy
