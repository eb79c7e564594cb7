// Valid VMCSs of several kinds of guest, for tests of the VM-entry checks to break.
#pragma once

#include <array>
#include <cstring>

#include "base/physical.h"
#include "cpu/arch/registers.h"
#include "cpu/vmx/controls.h"
#include "nested/vmx/entry_checks.h"

namespace aerie::nested::vmx::test {

// A small memory of L1's that stands for the machine's.
class SmallMemory {
 public:
  static constexpr u64 kSize = 16 * kPageSize;
  SmallMemory() {
    physical_window = bytes_.data();
    const mmu::L1Memory::Range ranges[] = {{Gpa{0}, Gpa{kSize}}};
    memory.set_ranges(ranges);
  }
  ~SmallMemory() { physical_window = nullptr; }
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

  template <class T>
  void store(u64 address, T value) {
    std::memcpy(bytes_.data() + address, &value, sizeof(value));
  }
  mmu::L1Memory memory;

 private:
  alignas(4096) std::array<u8, kSize> bytes_{};
};

// All that the rules look at.
struct EntryState {
  Vmcs12 v{};
  CapabilityConfig config;
  SmallMemory* memory = nullptr;
  Gpa vmcs_address{0x3000};
  bool l1_long_mode = true;

  VmcsSegment& segment(cpu::SegmentRegister r) { return v.segment(r); }
  bool code_64bit() const {
    return (v.entry_controls & cpu::vmx::entry::ia32e_guest) != 0 &&
           v.segment(cpu::SegmentRegister::cs).long_mode();
  }
};

// Offered as on this host, or with all features, implemented or not.
inline CapabilityConfig usual_config() {
  CapabilityConfig config;
  config.cr4_allowed = cpu::cr4::vme | cpu::cr4::pvi | cpu::cr4::tsd | cpu::cr4::de |
                       cpu::cr4::pse | cpu::cr4::pae | cpu::cr4::mce | cpu::cr4::pge |
                       cpu::cr4::pce | cpu::cr4::osfxsr | cpu::cr4::osxmmexcpt | cpu::cr4::umip |
                       cpu::cr4::la57 | cpu::cr4::fsgsbase | cpu::cr4::osxsave | cpu::cr4::smep |
                       cpu::cr4::smap | cpu::cr4::pcide | cpu::cr4::cet;
  config.physical_bits = 40;
  config.linear_bits = 48;
  return config;
}
inline CapabilityConfig full_config() {
  CapabilityConfig config = usual_config();
  for (const FeatureRow& row : features()) {
    config.anyway.add(row.feature);
  }
  config.hidden.add(Feature::any_error_code);
  return config;
}

// A 64-bit guest of a 64-bit L1: all features are offered, few are used.
inline EntryState long_mode_state(SmallMemory& memory) {
  namespace cv = cpu::vmx;
  using enum cpu::SegmentRegister;
  EntryState s;
  s.config = full_config();
  s.memory = &memory;
  Vmcs12& v = s.v;
  v.revision_id = kRevisionId;
  v.pin_controls = 0x16;
  v.proc_controls = 0x0400'6172 | cv::proc::secondary;
  v.proc2_controls = 0;
  v.exit_controls = 0x0003'6dfb | cv::exit::host_64;
  v.entry_controls = 0x0000'11fb | cv::entry::ia32e_guest;
  v.vmcs_link_pointer = ~u64{0};

  v.host_cr0 = 0x8000'0031 | cpu::cr0::wp;
  v.host_cr3 = 0x1000;
  v.host_cr4 = cpu::cr4::vmxe | cpu::cr4::pae;
  v.host_cs_selector = 0x8;
  v.host_ss_selector = 0x10;
  v.host_tr_selector = 0x80;
  v.host_rip = 0xffff'8000'0010'0000;
  v.host_efer = cpu::efer::lma | cpu::efer::lme;
  v.host_pat = 0x0007'0406'0007'0406;

  v.guest_cr0 = 0x8000'0031 | cpu::cr0::wp;
  v.guest_cr3 = 0x1000;
  v.guest_cr4 = cpu::cr4::vmxe | cpu::cr4::pae;
  v.guest_dr7 = 0x400;
  v.guest_efer = cpu::efer::lma | cpu::efer::lme;
  v.guest_pat = 0x0007'0406'0007'0406;
  v.guest_rip = 0xffff'8000'0020'0000;
  v.guest_rflags = 2;
  s.segment(cs) = {0x8, 0, 0xffff'ffff, 0xa09b, 0, 0};
  for (const cpu::SegmentRegister r : {ss, ds, es, fs, gs}) {
    s.segment(r) = {0x10, 0, 0xffff'ffff, 0xc093, 0, 0};
  }
  s.segment(ldtr) = {0x18, 0, 0xffff, 0x82, 0, 0};
  s.segment(tr) = {0x80, 0, 0x67, 0x8b, 0, 0};
  s.segment(gdtr).limit = 0xff;
  s.segment(idtr).limit = 0xfff;
  return s;
}

// A 32-bit guest with PAE paging and EPT.
inline EntryState pae_state(SmallMemory& memory) {
  namespace cv = cpu::vmx;
  EntryState s = long_mode_state(memory);
  s.v.proc2_controls |= cv::proc2::ept;
  s.v.eptp = 0x1000 | (3 << 3) | 6;
  s.v.entry_controls &= ~cv::entry::ia32e_guest;
  s.v.guest_efer = 0;
  s.v.guest_rip = 0x10'0000;
  s.v.guest_pdpte0 = s.v.guest_pdpte1 = s.v.guest_pdpte2 = s.v.guest_pdpte3 = 0x2001;
  s.segment(cpu::SegmentRegister::cs).access_rights = 0xc09b;
  return s;
}

// The same without EPT: its PDPTEs are in memory.
inline EntryState pae_in_memory_state(SmallMemory& memory) {
  EntryState s = pae_state(memory);
  s.v.proc2_controls &= ~cpu::vmx::proc2::ept;
  s.v.guest_cr3 = 0x1020;
  for (u64 i = 0; i < 4; ++i) {
    memory.store<u64>(0x1020 + 8 * i, 0x2001);
  }
  return s;
}

inline EntryState virtual_8086_state(SmallMemory& memory) {
  using enum cpu::SegmentRegister;
  EntryState s = pae_state(memory);
  s.v.guest_rflags |= cpu::rflags::vm;
  for (const cpu::SegmentRegister r : {cs, ss, ds, es, fs, gs}) {
    s.segment(r) = {0x1234, 0, 0xffff, 0xf3, 0, 0x12340};
  }
  return s;
}

// Real mode, by "unrestricted guest".
inline EntryState real_mode_state(SmallMemory& memory) {
  using enum cpu::SegmentRegister;
  EntryState s = pae_state(memory);
  s.v.proc2_controls |= cpu::vmx::proc2::unrestricted_guest;
  s.v.guest_cr0 = cpu::cr0::ne | cpu::cr0::et;
  s.v.guest_cr4 = cpu::cr4::vmxe;
  for (const cpu::SegmentRegister r : {cs, ss, ds, es, fs, gs}) {
    s.segment(r) = {0x1234, 0, 0xffff, 0x93, 0, 0x12340};
  }
  s.segment(cs).access_rights = 0x9b;
  return s;
}

// An L1 outside IA-32e mode with a guest like itself.
inline EntryState host_32_state(SmallMemory& memory) {
  EntryState s = pae_state(memory);
  s.l1_long_mode = false;
  s.v.exit_controls &= ~cpu::vmx::exit::host_64;
  s.v.host_rip = 0x10'0000;
  s.v.host_efer = 0;
  return s;
}

}  // namespace aerie::nested::vmx::test
