// Processors under shadow paging, with a TLB that keeps everything until something flushes it: what
// QEMU's TCG, which flushes at every VMRUN, cannot show. A guest's instructions in, translations
// and faults out.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "arena.h"
#include "mmu/linear_pager.h"

namespace aerie::mmu::test {

// Which of L0's doings are left out: each must make the random test fail (mutation checks).
enum class Omit : u8 {
  nothing,
  invlpg_hardware,  // INVLPG: the processor's own translation stays
  tag_flush,        // LinearPager::tag_for() said to flush
  cr3_flush,        // MOV CR3 without bit 63
  invlpg_shadow,    // INVLPG altogether
  invlpg_global,    // INVLPG: global translations under other PCIDs
  invpcid_address,
  invpcid_context,
  flush_all,  // CR4.PGE, INVPCID types 2 and 3
};

struct LinearMachine {
  static constexpr unsigned kCpus = 2;

  struct Outcome {
    bool ok = false;
    u64 gpa = 0;
    u32 error = 0;
    bool emulated = false;
  };
  struct Translation {
    u64 page;
    u8 rights, key;
  };
  struct Cpu {
    u64 cr0 = cpu::cr0::pe | cpu::cr0::pg | cpu::cr0::wp, cr3 = 0;
    u64 cr4 = cpu::cr4::pae | cpu::cr4::pge;
    u64 efer = cpu::efer::lme | cpu::efer::lma | cpu::efer::nxe;
    u32 pkru = 0;
    std::array<u64, 4> pdptes{};
    LinearMode mode;
    LinearRoot* root = nullptr;
    std::map<std::pair<u32, u64>, Translation> tlb;  // by tag and page
  };

  explicit LinearMachine(LinearPager::Options options = {.pages = 192, .tags = 5}) {
    const HostMap::Range excluded[] = {{Gpa{Arena::kL1Size}, Gpa{Arena::kL1Size + Arena::kL0Size}},
                                       {Gpa{8 * kMiB}, Gpa{8 * kMiB + kPageSize}}};
    EXPECT_TRUE(host.build(arena.allocator, 36, excluded));
    EXPECT_TRUE(pager->init(arena.allocator, arena.memory, host, features, options));
    for (unsigned i = 0; i < kCpus; ++i) {
      mode_changed(i);
    }
  }

  // --- the guest's instructions
  void mov_cr3(unsigned n, u64 value) {
    Cpu& c = cpus[n];
    const bool pcide = (c.cr4 & cpu::cr4::pcide) != 0;
    const bool keep = pcide && (value & bit(63)) != 0;
    c.cr3 = value & ~bit(63);
    load_pdptes(n);
    if (!keep && omit != Omit::cr3_flush) {
      pager->flush_context(n, pcid(n), 0);
    }
  }
  void mode_changed(unsigned n) {
    Cpu& c = cpus[n];
    c.mode = LinearMode{c.cr0, c.cr4, c.efer, 0};
    load_pdptes(n);
  }
  void flush_all(unsigned n) {
    if (omit != Omit::flush_all) {
      pager->flush_all(n);
    }
  }
  void invlpg(unsigned n, u64 linear) {
    enter(n);
    if (omit == Omit::invlpg_shadow) {
      return;
    }
    Cpu& c = cpus[n];
    const u32 tag = tag_of(n);
    const bool global = (c.cr4 & cpu::cr4::pge) != 0 && omit != Omit::invlpg_global;
    if (pager->flush_address(n, *c.root, linear, global) && omit != Omit::invlpg_hardware) {
      c.tlb.erase({tag, linear >> kPageShift});
    }
  }
  void invpcid(unsigned n, unsigned type, u16 pcid, u64 linear) {
    if (type == 0 && omit != Omit::invpcid_address) {
      pager->flush_address_of(n, pcid, linear, 0);
    } else if (type == 1 && omit != Omit::invpcid_context) {
      pager->flush_context(n, pcid, 0);
    } else if (type > 1) {
      flush_all(n);
    }
  }
  Outcome access(unsigned n, u64 linear, u32 bits) {
    for (unsigned tries = 0; tries < 8; ++tries) {
      enter(n);
      Cpu& c = cpus[n];
      Translation t{};
      if (translate(n, linear, t) && allowed(c, t, bits)) {
        return {.ok = true, .gpa = t.page << kPageShift | (linear & kPageMask)};
      }
      c.tlb.erase({tag_of(n), linear >> kPageShift});  // a fault drops it (SDM vol. 3, 4.10.4.1)
      const LinearFault f = pager->handle_fault(n, *c.root, paging(n), linear, bits);
      switch (f.kind) {
        case LinearFault::Kind::page_fault:
          return {.error = f.error};
        case LinearFault::Kind::device:
        case LinearFault::Kind::emulate:
          return {.ok = true, .gpa = f.gpa.value(), .emulated = true};
        case LinearFault::Kind::busy:
          others_exit(n);
          break;
        default:
          break;
      }
    }
    ADD_FAILURE() << "the access to " << std::hex << linear << " faults for ever";
    return {};
  }

  GuestPaging paging(unsigned n) const {
    const Cpu& c = cpus[n];
    GuestPaging p = GuestPaging::make(c.cr0, c.cr3, c.cr4, c.efer, features);
    p.pdptes = p.mode.mode() == PagingMode::pae ? c.pdptes.data() : nullptr;
    p.pkru = c.pkru;
    return p;
  }
  u16 pcid(unsigned n) const {
    const Cpu& c = cpus[n];
    return (c.cr4 & cpu::cr4::pcide) != 0 ? static_cast<u16>(c.cr3 & kPageMask) : u16{0};
  }
  // As before each run of the guest.
  void enter(unsigned n) {
    Cpu& c = cpus[n];
    u32 kick = 0;
    do {
      c.root = pager->switch_root(n, c.mode, c.cr3, c.pdptes.data(), kick);
      if (c.root == nullptr) {
        others_exit(n);
      }
    } while (c.root == nullptr);
    const LinearPager::Tag tag = pager->tag_for(n, *c.root);
    tags[n] = tag.tag;
    if (tag.flush && omit != Omit::tag_flush) {
      std::erase_if(c.tlb, [&](const auto& e) { return e.first.first == tag.tag; });
    }
    if (pager->enter_guest(n)) {
      c.tlb.clear();
    }
  }
  u32 tag_of(unsigned n) const { return tags[n]; }

  Arena arena;
  HostMap host;
  PagingFeatures features{.maxphyaddr = 40};
  std::unique_ptr<LinearPager> pager = std::make_unique<LinearPager>();
  std::array<Cpu, kCpus> cpus{};
  std::array<u32, kCpus> tags{};
  Omit omit = Omit::nothing;

 private:
  // The other processors pass through L0.
  void others_exit(unsigned n) {
    for (unsigned i = 0; i < kCpus; ++i) {
      if (i != n && pager->enter_guest(i)) {
        cpus[i].tlb.clear();
      }
    }
  }
  void load_pdptes(unsigned n) {
    Cpu& c = cpus[n];
    if (c.mode.pae()) {
      std::memcpy(c.pdptes.data(), arena.at<u64>(c.cr3 & bit_mask(31, 5)), sizeof(c.pdptes));
    }
  }
  bool translate(unsigned n, u64 linear, Translation& t) {
    Cpu& c = cpus[n];
    const std::pair<u32, u64> name{tag_of(n), linear >> kPageShift};
    if (const auto at = c.tlb.find(name); at != c.tlb.end()) {
      t = at->second;
      return true;
    }
    const LinearPager::Walk w = pager->lookup(*c.root, linear);
    if (w.present) {
      t = {w.hpa.value() >> kPageShift, w.rights, w.key};
      c.tlb[name] = t;
    }
    return w.present;
  }
  // The processor's checks: with WP, XD and the guest's own SMEP, SMAP and keys.
  static bool allowed(const Cpu& c, const Translation& t, u32 bits) {
    const u64 cr4 = LinearMode::processor_cr4(c.cr0, c.cr4);
    const PermissionMode mode{true, (cr4 & cpu::cr4::smep) != 0, (cr4 & cpu::cr4::smap) != 0, true};
    if (is_denied(kPermissions[mode.index()], bits, t.rights)) {
      return false;
    }
    return (bits & access::fetch) != 0 || (t.rights & right::user) == 0 ||
           (cr4 & cpu::cr4::pke) == 0 ||
           !key_denies(c.pkru, t.key, (bits & access::write) != 0, true);
  }
};

}  // namespace aerie::mmu::test
