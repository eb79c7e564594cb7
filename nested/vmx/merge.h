// From vmcs12 to the control block L2 runs with, and back. Group by group: a VM entry merges what
// L1 changed since the last one, an exit leaves most of the guest state where it is (kLeftInBlock)
// until L1 reads it. The control block is derived from vmcs12 and never the other way round.
#pragma once

#include "cpu/arch/msr.h"
#include "nested/vmx/engine.h"
#include "nested/vmx/exit_routing_table.h"

namespace aerie::nested::vmx {

template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::synchronise(GroupMask groups) {
  if ((groups & stale_) != 0) {
    synchronise_slow(groups);
  }
}

// Brings stale groups of the last exit's guest state into vmcs12. 28.3: what an exit saves.
template <L1Context C>
[[gnu::noinline]] void Vmx<C>::synchronise_slow(GroupMask groups) {
  using cpu::SegmentRegister;
  const Block& b = v_.block_l2();
  const GroupMask now = groups & stale_;
  stale_ &= ~now;
  if ((now & mask(Group::guest_cs_ss)) != 0) {
    c_.segment(SegmentRegister::cs).set(b.segment(SegmentRegister::cs));
    c_.segment(SegmentRegister::ss).set(b.segment(SegmentRegister::ss));
  }
  if ((now & mask(Group::guest_segments)) != 0) {
    constexpr SegmentRegister kOthers[] = {SegmentRegister::es,   SegmentRegister::ds,
                                           SegmentRegister::fs,   SegmentRegister::gs,
                                           SegmentRegister::ldtr, SegmentRegister::tr};
    for (const SegmentRegister r : kOthers) {
      c_.segment(r).set(b.segment(r));
    }
  }
  if ((now & mask(Group::guest_tables)) != 0) {
    for (const SegmentRegister r : {SegmentRegister::gdtr, SegmentRegister::idtr}) {
      const cpu::Segment s = b.segment(r);
      c_.segment(r).limit = s.limit;
      c_.segment(r).base = s.base;
    }
  }
  if ((now & mask(Group::guest_cr3)) != 0) {
    c_.guest_cr3 = b.cr3();
  }
  if ((now & mask(Group::guest_pdptes)) != 0 && translation_.ept &&
      pae_paging(c_.guest_cr0, c_.guest_cr4, l2_efer_)) {
    // The processor's copies are those of CR3's table (an SVM host keeps none of its own).
    u64 pdptes[4];
    if (v_.read_l2_physical(Ngpa{b.cr3() & 0xffff'ffe0}, pdptes, sizeof(pdptes))) {
      c_.guest_pdpte0 = pdptes[0] & ~bit(5);
      c_.guest_pdpte1 = pdptes[1] & ~bit(5);
      c_.guest_pdpte2 = pdptes[2] & ~bit(5);
      c_.guest_pdpte3 = pdptes[3] & ~bit(5);
    }
  }
  if ((now & mask(Group::guest_debug)) != 0 && has(c_.exit_controls, cpu::vmx::exit::save_debug)) {
    c_.guest_dr7 = b.dr7();
    c_.guest_debugctl = b.debugctl();
  }
  if ((now & mask(Group::guest_msrs)) != 0) {
    if (has(c_.exit_controls, cpu::vmx::exit::save_efer)) {
      c_.guest_efer = l2_efer_;
    }
    if (has(c_.exit_controls, cpu::vmx::exit::save_pat)) {
      c_.guest_pat = b.pat();
    }
  }
  if ((now & mask(Group::guest_sysenter)) != 0) {
    c_.guest_sysenter_cs = static_cast<u32>(b.sysenter_cs());
    c_.guest_sysenter_esp = b.sysenter_esp();
    c_.guest_sysenter_eip = b.sysenter_eip();
  }
}

// Everything but RIP and RFLAGS. False: CR3 selects page-directory pointers that are no good
// (27.3.1.6).
template <L1Context C>
[[gnu::noinline]] bool Vmx<C>::merge(GroupMask dirty) {
  using cpu::SegmentRegister;
  using cpu::vmx::entry::load_efer;
  Block& b = v_.block_l2();
  // A group may be merged from vmcs12 only when it is there in whole.
  synchronise(dirty);

  if ((dirty & (mask(Group::host_state, Group::exit))) != 0) {
    make_host_image();
  }
  if ((dirty & mask(Group::guest_cs_ss)) != 0) {
    b.set_segment(SegmentRegister::cs, c_.segment(SegmentRegister::cs).neutral());
    b.set_segment(SegmentRegister::ss, c_.segment(SegmentRegister::ss).neutral());
  }
  if ((dirty & mask(Group::guest_segments)) != 0) {
    for (const SegmentRegister r :
         {SegmentRegister::es, SegmentRegister::ds, SegmentRegister::fs, SegmentRegister::gs,
          SegmentRegister::ldtr, SegmentRegister::tr}) {
      b.set_segment(r, c_.segment(r).neutral());
    }
  }
  if ((dirty & mask(Group::guest_tables)) != 0) {
    for (const SegmentRegister r : {SegmentRegister::gdtr, SegmentRegister::idtr}) {
      b.set_segment(r, {0, 0, c_.segment(r).limit, c_.segment(r).base});
    }
  }
  if ((dirty & mask(Group::guest_sysenter)) != 0) {
    b.set_sysenter_cs(c_.guest_sysenter_cs);
    b.set_sysenter_esp(c_.guest_sysenter_esp);
    b.set_sysenter_eip(c_.guest_sysenter_eip);
  }
  if ((dirty & mask(Group::guest_debug, Group::entry)) != 0 &&
      has(c_.entry_controls, cpu::vmx::entry::load_debug)) {
    synchronise(mask(Group::guest_debug));
    b.set_dr7((c_.guest_dr7 & 0xffff'2fff) | cpu::dr7::fixed);
    b.set_debugctl(c_.guest_debugctl);
  }
  if ((dirty & mask(Group::guest_msrs, Group::entry)) != 0 &&
      has(c_.entry_controls, cpu::vmx::entry::load_pat)) {
    synchronise(mask(Group::guest_msrs));
    b.set_pat(c_.guest_pat);
  }
  if ((dirty & mask(Group::guest_cr3)) != 0) {
    b.set_cr3(c_.guest_cr3);
  }
  if ((dirty & mask(Group::entry)) != 0) {
    constexpr u32 kLoads = cpu::vmx::entry::load_debug | cpu::vmx::entry::load_pat | load_efer;
    inherits_ = (c_.entry_controls & kLoads) != kLoads;
  }
  if ((dirty & mask(Group::guest_blocking)) != 0) {
    b.set_interrupt_shadow(has(c_.guest_interruptibility, cpu::vmx::interruptibility::sti |
                                                              cpu::vmx::interruptibility::mov_ss));
  }
  if ((dirty & mask(Group::tsc, Group::proc, Group::ept, Group::vpid)) != 0) {
    using namespace cpu::vmx;
    tsc_offset_ = has(proc(), proc::tsc_offsetting) ? c_.tsc_offset : 0;
    translation_ = {.ept = has(proc2(), proc2::ept),
                    .eptp = c_.eptp,
                    .vpid = has(proc2(), proc2::vpid) ? c_.vpid : u16{0}};
  }
  constexpr GroupMask kControl = mask(Group::guest_cr, Group::guest_msrs, Group::entry,
                                      Group::cr_masks, Group::pin, Group::proc, Group::exceptions);
  if ((dirty & kControl) != 0) {
    if ((dirty & mask(Group::guest_cr, Group::guest_msrs, Group::entry)) != 0) {
      if (has(c_.entry_controls, load_efer)) {
        synchronise(mask(Group::guest_msrs));
        l2_efer_ = c_.guest_efer;
      }
      // CD and NW keep L1's values (27.3.2.1).
      constexpr u64 kKept = cpu::cr0::cd | cpu::cr0::nw;
      c_.guest_cr0 = (c_.guest_cr0 & ~kKept) | (v_.l1_cr0() & kKept) | cpu::cr0::et;
      if (inherits_) {
        inherit_l1_state();
      }
      apply_control_registers();
    }
    make_intercepts();
  }
  if ((dirty & mask(Group::guest_cr, Group::guest_cr3, Group::entry, Group::proc)) != 0 &&
      !translation_.ept && pae_paging(c_.guest_cr0, c_.guest_cr4, l2_efer_) &&
      !pdptes_loadable(b.cr3())) [[unlikely]] {
    return false;
  }
  return true;
}

// What of DR7, DEBUGCTL, PAT and EFER the entry controls leave as L1 has them (27.3.2.1).
template <L1Context C>
[[gnu::noinline]] void Vmx<C>::inherit_l1_state() {
  decltype(auto) b2 = cpu::handle(v_.block_l2());
  decltype(auto) b1 = cpu::handle(v_.block_l1());
  const u32 controls = c_.entry_controls;
  if (!has(controls, cpu::vmx::entry::load_debug)) {
    b2.set_dr7(b1.dr7());
    b2.set_debugctl(b1.debugctl());
  }
  if (!has(controls, cpu::vmx::entry::load_pat)) {
    b2.set_pat(b1.pat());
  }
  if (!has(controls, cpu::vmx::entry::load_efer)) {
    // LMA becomes "IA-32e mode guest"; so does LME where paging is on.
    const bool ia32e = has(controls, cpu::vmx::entry::ia32e_guest);
    u64 efer = v_.l1_efer() & ~cpu::efer::lma;
    if ((c_.guest_cr0 & cpu::cr0::pg) != 0) {
      efer &= ~cpu::efer::lme;
      efer |= ia32e ? cpu::efer::lme : 0;
    }
    l2_efer_ = efer | (ia32e ? cpu::efer::lma : 0);
    b2.set_efer(l2_efer_);
  }
}

// CR0, CR4 and EFER of L2 as the processor gets them.
template <L1Context C>
void Vmx<C>::apply_control_registers() {
  Block& b = v_.block_l2();
  b.set_cr0(v_.processor_cr0(c_.guest_cr0));
  b.set_cr4(l2_cr4_for_processor());
  b.set_efer(l2_efer_);
}

// A processor that cannot intercept XSETBV runs L2 with OSXSAVE clear until L2's first XSETBV has
// arrived as #UD (DESIGN §5).
template <L1Context C>
u64 Vmx<C>::l2_cr4_for_processor() {
  u64 value = v_.processor_cr4(c_.guest_cr4);
  osxsave_live_ = false;
  if (!v_.intercepts_xsetbv() && (value & cpu::cr4::osxsave) != 0) {
    if (xsetbv_seen_) {
      osxsave_live_ = true;
    } else {
      value &= ~cpu::cr4::osxsave;
    }
  }
  return value;
}

// What of L2 comes to L0: L0's own needs and L1's (exit_routing_table.h), and where the CR0 and CR4
// that L2 sees are not the processor's.
template <L1Context C>
[[gnu::noinline]] void Vmx<C>::make_intercepts() {
  using namespace cpu::vmx;
  cpu::Intercepts i = v_.l0_intercepts() | kAlwaysIntercepted;
  const u32 words[] = {pin(), proc(), proc2()};
  for (const ControlledExit& row : kControlledExits) {
    if (((words[static_cast<u8>(row.word)] & row.bit) != 0) == row.when_set) {
      i.on(row.reason);
    }
  }
  i.exceptions |= c_.exception_bitmap & ~exception_bit(cpu::Exception::pf);
  // 26.2: #PF exits where (error & mask == match) equals the bitmap's bit 14.
  const bool pf_bit = has(c_.exception_bitmap, exception_bit(cpu::Exception::pf));
  if (pf_bit || c_.page_fault_error_mask != 0 || c_.page_fault_error_match != 0) {
    i.exceptions |= exception_bit(cpu::Exception::pf);
  }
  i.exceptions |= exception_bit(cpu::Exception::ud);
  if ((c_.exception_bitmap &
       (exception_bit(cpu::Exception::bp) | exception_bit(cpu::Exception::of))) != 0) {
    i.on(cpu::ExitReason::software_interrupt);
  }
  if (has(proc(), proc::mov_dr)) {
    i.dr_reads = i.dr_writes = 0xffff;
  } else if (has(c_.exception_bitmap, exception_bit(cpu::Exception::db))) {
    // An intercepted #DB must leave DR6 as it was: L0 keeps L2's apart (hides_dr6_).
    i.dr_reads |= (1u << 4) | (1u << 6);
    i.dr_writes |= (1u << 4) | (1u << 6);
  }
  hides_dr6_ = has(c_.exception_bitmap, exception_bit(cpu::Exception::db));
  if (has(proc(), proc::cr3_load)) i.cr_writes |= 1u << 3;
  if (has(proc(), proc::cr3_store)) i.cr_reads |= 1u << 3;
  wanted_ = i;
  update_intercepts();
}

template <L1Context C>
void Vmx<C>::update_intercepts() {
  Block& b = v_.block_l2();
  cpu::Intercepts i = wanted_;
  if (visible_cr(c_.guest_cr0, c_.cr0_mask, c_.cr0_read_shadow) != b.cr0()) i.cr_reads |= 1u << 0;
  if (visible_cr(c_.guest_cr4, c_.cr4_mask, c_.cr4_read_shadow) != b.cr4()) i.cr_reads |= 1u << 4;
  if (stepping_) i.exceptions |= exception_bit(cpu::Exception::db);
  if (l2_nmi_blocked()) i.on(cpu::ExitReason::iret);
  b.set_intercepts(i);
}

// Host state as an exit loads it (28.5): the parts that depend on vmcs12 alone.
template <L1Context C>
[[gnu::noinline]] void Vmx<C>::make_host_image() {
  const bool long_host = has(c_.exit_controls, cpu::vmx::exit::host_64);
  // Attributes as cpu::Segment has them. Data: read/write, accessed, G, B. Code: execute/read,
  // accessed, G and either L or D.
  constexpr u16 kData = 0xc93;
  const u16 code = long_host ? 0xa9b : 0xc9b;
  const auto data = [](u16 selector, u64 base) {
    // A null selector makes the register unusable, its base loaded all the same (28.5.2).
    return cpu::Segment{selector, selector == 0 ? u16{0} : kData, 0xffff'ffff, base};
  };
  host_.es = data(c_.host_es_selector, 0);
  host_.ds = data(c_.host_ds_selector, 0);
  host_.fs = data(c_.host_fs_selector, c_.host_fs_base);
  host_.gs = data(c_.host_gs_selector, c_.host_gs_base);
  host_.ss = data(c_.host_ss_selector, 0);
  host_.cs = {c_.host_cs_selector, code, 0xffff'ffff, 0};
  host_.tr = {c_.host_tr_selector, 0x08b, 0x67, c_.host_tr_base};
  host_.ldtr = {};
  host_.gdtr = {0, 0, 0xffff, c_.host_gdtr_base};
  host_.idtr = {0, 0, 0xffff, c_.host_idtr_base};
  // 28.5.1: with a 64-bit host PAE is set, without it PCIDE is cleared.
  host_.cr4 = long_host ? c_.host_cr4 | cpu::cr4::pae : c_.host_cr4 & ~cpu::cr4::pcide;
  host_.sysenter_cs = c_.host_sysenter_cs;
}

}  // namespace aerie::nested::vmx
