#include "vmm/policy/msr.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "policy_host.h"
#include "vmm/policy/cr.h"

namespace aerie::vmm::policy {
namespace {

namespace m = cpu::msr;
constexpr u64 kNonCanonical = 0x8000'0000'0000'0000 >> 1;

// What QEMU's firmware leaves.
u64 host_read(u32 index) {
  switch (index) {
    case m::mcg_cap:
      return 0x0100010a;
    case m::mtrr_cap:
      return 0x508;
    case m::mtrr_phys_base0:
      return 0x80000000;
    case m::mtrr_phys_base0 + 1:
      return 0xff'8000'0800;
    case m::mtrr_def_type:
      return 0xc06;
    case 0x250:
      return 0x0606060606060606;
    default:
      return 0;
  }
}

struct FakeVcpu {
  std::map<u32, u64> hardware;
  u64 host_tsc = 1000;
  u64 offset = 0;
  u64 efer_value = 0x500;
  u64 pat_value = 0x0007040600070406;
  u64 debugctl = 0;
  std::vector<std::pair<u32, bool>> direct;
  CrPolicy cr{};

  u64 hardware_read(u32 index) { return hardware[index]; }
  void hardware_write(u32 index, u64 value) { hardware[index] = value; }
  std::optional<u64> apic_read(u32 index) {
    return index == 0x80a ? std::nullopt : std::optional<u64>{index * 2};
  }
  bool apic_write(u32 index, u64) { return index != 0x80a; }
  u64 tsc() { return host_tsc + offset; }
  u64 tsc_offset() { return offset; }
  void set_tsc_offset(u64 value) { offset = value; }
  u64 efer() { return efer_value; }
  bool write_efer(u64 value) {
    const ControlWrite w = cr.write_efer({.cr0 = cpu::cr0::pg, .efer = efer_value}, value);
    if (w.legal) efer_value = w.value;
    return w.legal;
  }
  u64 pat() { return pat_value; }
  void set_pat(u64 value) { pat_value = value; }
  void set_debugctl(u64 value) { debugctl = value; }
  void set_direct_read(u32 index, bool on) { direct.emplace_back(index, on); }
  std::optional<u64> virtualization_read(u32 index) {
    return index == m::vmx_procbased3 ? std::nullopt : std::optional<u64>{index + 1};
  }
  bool virtualization_write(u32, u64) { return true; }
};
static_assert(MsrContext<FakeVcpu>);

class Msr : public ::testing::Test {
 protected:
  Msr() { set_up(Vendor::intel, {}); }

  void set_up(Vendor vendor, std::string_view hide, bool host_checks = false) {
    CpuidConfig c;
    c.vendor = vendor;
    c.host = testing::tcg_host;
    c.engine.add(feature("vmx")).add(feature("svm"));
    c.tsc_hz = 2'400'000'000;
    EXPECT_EQ(parse_feature_list(hide, c.hidden), "");
    cpuid_.init(c);
    policy_.init(cpuid_, {.read = host_read, .checks_values = host_checks});
    msrs_.power_up(policy_);
    vcpu_.cr.init(cpuid_);
  }
  std::optional<u64> read(u32 index) { return msrs_.read(vcpu_, index); }
  bool write(u32 index, u64 value) { return msrs_.write(vcpu_, index, value); }
  void expect_absent(u32 index) {
    EXPECT_FALSE(read(index).has_value()) << std::hex << index;
    EXPECT_FALSE(write(index, 0)) << std::hex << index;
  }
  void expect_holds(u32 index, u64 value) {
    EXPECT_TRUE(write(index, value)) << std::hex << index;
    EXPECT_EQ(read(index), value) << std::hex << index;
  }

  CpuidPolicy cpuid_;
  MsrPolicy policy_;
  VcpuMsrs msrs_;
  FakeVcpu vcpu_;
};

TEST_F(Msr, AnMsrWithoutARowDoesNotExist) {
  for (u32 index :
       {0x2u, 0x3cu, 0x9eu, 0xc1u, 0x186u, 0x345u, 0x38fu, 0x4a0u, 0x6e2u, 0xd90u, 0xda0u,
        0x40000000u, 0xc0000079u, 0xc0000104u, 0xc0010010u, 0xc0010114u, 0xffffffffu}) {
    expect_absent(index);
  }
}

TEST_F(Msr, EachVendorHasItsOwn) {
  EXPECT_TRUE(read(m::feature_control).has_value());
  EXPECT_TRUE(read(m::misc_enable).has_value());
  EXPECT_TRUE(read(m::arch_capabilities).has_value());
  EXPECT_EQ(read(m::bios_sign_id), u64{0x2b000643} << 32);
  set_up(Vendor::amd, {});
  expect_absent(m::feature_control);
  expect_absent(m::misc_enable);
  expect_absent(m::arch_capabilities);
  expect_absent(m::vmx_basic);
  EXPECT_EQ(read(m::amd_patch_level), 0x0a101154u);
  EXPECT_TRUE(read(m::syscfg).has_value());
  EXPECT_EQ(read(m::de_cfg), 2u);
  EXPECT_EQ(read(m::vm_hsave_pa), u64{m::vm_hsave_pa} + 1);
}

TEST_F(Msr, HiddenFeaturesTakeTheirMsrsAlong) {
  EXPECT_EQ(read(m::vmx_basic), u64{m::vmx_basic} + 1);
  set_up(Vendor::intel, "vmx,rdtscp,tsc-deadline,tsc-adjust,mca,mtrr,pks");
  for (u32 index : {m::vmx_basic, m::feature_control, m::tsc_aux, m::tsc_deadline, m::tsc_adjust,
                    m::mcg_cap, m::mc0_ctl, m::mtrr_cap, m::mtrr_def_type, m::pkrs}) {
    expect_absent(index);
  }
}

TEST_F(Msr, AddressesMustBeCanonicalAndLandInTheProcessor) {
  for (u32 index : {m::fs_base, m::gs_base, m::kernel_gs_base, m::lstar, m::cstar, m::sysenter_esp,
                    m::sysenter_eip}) {
    expect_holds(index, 0x0000'1234'5678'9abc);
    EXPECT_EQ(vcpu_.hardware[index], 0x0000'1234'5678'9abcu);
    EXPECT_FALSE(write(index, kNonCanonical)) << std::hex << index;
    EXPECT_EQ(read(index), 0x0000'1234'5678'9abcu);
    expect_holds(index, ~u64{0});
  }
  // With 5-level paging offered, 57 bits are canonical; without, 48.
  EXPECT_TRUE(write(m::lstar, 0x00ff'0000'0000'0000));
  set_up(Vendor::intel, "la57");
  EXPECT_FALSE(write(m::lstar, 0x00ff'0000'0000'0000));
  set_up(Vendor::amd, {});
  EXPECT_TRUE(write(m::sysenter_eip, kNonCanonical));
}

TEST_F(Msr, ReservedUpperHalves) {
  for (u32 index : {m::sfmask, m::tsc_aux, m::pkrs}) {
    expect_holds(index, 0xffff'ffff);
    EXPECT_FALSE(write(index, u64{1} << 32)) << std::hex << index;
  }
}

// SDM vol. 3, 18.17.3.
TEST_F(Msr, TscAndTscAdjustMoveTogether) {
  EXPECT_EQ(read(m::tsc_adjust), 0u);
  EXPECT_TRUE(write(m::tsc_adjust, 500));
  EXPECT_EQ(read(m::tsc), 1500u);
  EXPECT_TRUE(write(m::tsc, 10'000));
  EXPECT_EQ(read(m::tsc), 10'000u);
  EXPECT_EQ(read(m::tsc_adjust), 9'000u);
  EXPECT_TRUE(write(m::tsc_adjust, 0));
  EXPECT_EQ(read(m::tsc), 1000u);
  EXPECT_TRUE(write(m::tsc, 0));
  EXPECT_EQ(read(m::tsc_adjust), u64{0} - 1000);
}

TEST_F(Msr, TheApicAnswersForItsOwn) {
  EXPECT_EQ(read(m::apic_base), u64{m::apic_base} * 2);
  EXPECT_EQ(read(m::tsc_deadline), u64{m::tsc_deadline} * 2);
  EXPECT_EQ(read(0x8ff), 0x8ffu * 2);
  EXPECT_FALSE(read(0x80a).has_value());
  EXPECT_FALSE(write(0x80a, 0));
  EXPECT_TRUE(write(0x80b, 0));
}

TEST_F(Msr, EferIsJudgedByTheControlRegisterPolicy) {
  EXPECT_TRUE(write(m::efer, 0x501));
  EXPECT_EQ(read(m::efer), 0x501u);
  EXPECT_FALSE(write(m::efer, 0x401));   // LME cannot be cleared while paging is on
  EXPECT_FALSE(write(m::efer, 0x1501));  // no SVME on an Intel processor
  EXPECT_FALSE(write(m::efer, 0x503));
}

TEST_F(Msr, PatTypesAreChecked) {
  expect_holds(m::pat, 0x07070707);
  EXPECT_FALSE(write(m::pat, 0x02));
  EXPECT_FALSE(write(m::pat, u64{0x03} << 56));
  EXPECT_FALSE(write(m::pat, 0x08));
}

TEST_F(Msr, FeatureControlStartsUnlockedAndLocksForGood) {
  EXPECT_EQ(read(m::feature_control), 0u);
  EXPECT_FALSE(write(m::feature_control, 0x2));  // no SMX
  EXPECT_FALSE(write(m::feature_control, u64{1} << 20));
  expect_holds(m::feature_control, 0x4);
  expect_holds(m::feature_control, 0x5);
  EXPECT_FALSE(write(m::feature_control, 0x5));
  EXPECT_FALSE(write(m::feature_control, 0));
  EXPECT_EQ(msrs_.stored<m::feature_control>(), 5u);
}

TEST_F(Msr, MiscEnableKeepsItsReadOnlyBits) {
  EXPECT_EQ(read(m::misc_enable), 0x1801u);
  EXPECT_TRUE(write(m::misc_enable, 0x4'00c5'0809));
  EXPECT_EQ(read(m::misc_enable), 0x4'00c5'1809u);
  EXPECT_FALSE(write(m::misc_enable, 0x2));
}

TEST_F(Msr, DebugctlIsReadDirectlyOnlyWhileZero) {
  EXPECT_FALSE(write(m::debugctl, bit(6)));
  expect_holds(m::debugctl, 2);
  expect_holds(m::debugctl, 3);
  expect_holds(m::debugctl, 0);
  const std::vector<std::pair<u32, bool>> expected = {{m::debugctl, false}, {m::debugctl, true}};
  EXPECT_EQ(vcpu_.direct, expected);
}

TEST_F(Msr, MtrrsStartAsFirmwareLeftThemAndAreChecked) {
  EXPECT_EQ(read(m::mtrr_cap), 0x508u);
  EXPECT_EQ(read(m::mtrr_def_type), 0xc06u);
  EXPECT_EQ(read(m::mtrr_phys_base0 + 1), 0xff'8000'0800u);
  EXPECT_EQ(read(0x250), 0x0606060606060606u);
  EXPECT_FALSE(write(m::mtrr_cap, 0));
  expect_holds(m::mtrr_phys_base0 + 14, 0xff'c000'0006);
  EXPECT_FALSE(write(m::mtrr_phys_base0, 0x2));           // type
  EXPECT_FALSE(write(m::mtrr_phys_base0, 0x106));         // reserved
  EXPECT_FALSE(write(m::mtrr_phys_base0, u64{1} << 40));  // above MAXPHYADDR
  expect_holds(m::mtrr_phys_base0 + 3, 0xff'c000'0800);
  EXPECT_FALSE(write(m::mtrr_phys_base0 + 3, 0x400));
  EXPECT_FALSE(write(0x26f, 0x02));
  expect_holds(0x26f, 0x0101010101010101);
  EXPECT_FALSE(write(m::mtrr_def_type, 0x200));
  EXPECT_FALSE(write(m::mtrr_def_type, 0x3));
  expect_absent(0x210);
}

TEST_F(Msr, MachineCheckBanksAreAsManyAsTheProcessorHas) {
  EXPECT_EQ(read(m::mcg_cap), 0x10au);
  for (u32 bank = 0; bank < 32; ++bank) {
    const u32 index = m::mc0_ctl + 4 * bank;
    if (bank >= 10) {
      for (u32 i = 0; i < 4; ++i) {
        expect_absent(index + i);
      }
      continue;
    }
    expect_holds(index, 0);
    expect_holds(index, ~u64{0});
    EXPECT_FALSE(write(index, kNonCanonical));
    expect_holds(index + 1, 0);
    EXPECT_FALSE(write(index + 1, 1));
    expect_holds(index + 2, ~u64{0});
    expect_holds(index + 2, kNonCanonical);
    expect_holds(index + 3, ~u64{0});
  }
}

TEST_F(Msr, AnAmdProcessorMayBeToldToLetStatusBeWritten) {
  set_up(Vendor::amd, {});
  EXPECT_EQ(read(m::hwcr), bit(24));
  EXPECT_FALSE(write(m::mc0_ctl + 1, 5));
  expect_holds(m::hwcr, bit(24) | bit(18));
  expect_holds(m::mc0_ctl + 1, 5);
  EXPECT_FALSE(write(m::hwcr, bit(40)));
}

TEST_F(Msr, WriteOnlyAndReadOnly) {
  EXPECT_FALSE(read(m::bios_update_trigger).has_value());
  EXPECT_TRUE(write(m::bios_update_trigger, 0x1234));
  EXPECT_FALSE(write(m::arch_capabilities, 0));
  EXPECT_FALSE(write(m::vmx_basic, 0));
  EXPECT_FALSE(read(m::vmx_procbased3).has_value());
  EXPECT_FALSE(read(m::spec_ctrl).has_value());  // TCG has none
  EXPECT_EQ(read(m::platform_info), 24u << 8);
}

TEST_F(Msr, FindingIsTheSameRememberedOrNot) {
  std::vector<std::optional<u64>> first;
  for (u32 index = 0; index < 0x1000; ++index) {
    first.push_back(read(index));
  }
  for (unsigned round = 0; round < 2; ++round) {
    for (u32 index = 0x1000; index-- > 0;) {
      ASSERT_EQ(read(index), first[index]) << std::hex << index;
    }
  }
}

TEST_F(Msr, ThePermissionMapOpensWhatNeedsNoExit) {
  std::vector<u8> map(MsrPolicy::kSvmMapSize);
  const auto exits = [&](u32 index, bool write) {
    const u32 bit = *MsrPolicy::svm_map_bit(index) + (write ? 1 : 0);
    return ((map[bit / 8] >> (bit % 8)) & 1) != 0;
  };
  const auto fill = [&] {
    policy_.fill_svm_map(std::span<u8, MsrPolicy::kSvmMapSize>{map.data(), map.size()});
  };
  // Positions: APM vol. 2, 15.11.
  EXPECT_EQ(MsrPolicy::svm_map_bit(0), 0u);
  EXPECT_EQ(MsrPolicy::svm_map_bit(0x1fff), 0x3ffeu);
  EXPECT_EQ(MsrPolicy::svm_map_bit(0xc0000000), 0x800u * 8);
  EXPECT_EQ(MsrPolicy::svm_map_bit(0xc0011fff), 0x17ffu * 8 + 6);
  EXPECT_FALSE(MsrPolicy::svm_map_bit(0x2000).has_value());
  EXPECT_FALSE(MsrPolicy::svm_map_bit(0xc0012000).has_value());

  fill();  // TCG: checks no value
  for (u32 index : {m::fs_base, m::kernel_gs_base, m::lstar, m::sfmask, m::tsc_aux, m::sysenter_eip,
                    m::debugctl}) {
    EXPECT_FALSE(exits(index, false)) << std::hex << index;
    EXPECT_TRUE(exits(index, true)) << std::hex << index;
  }
  EXPECT_FALSE(exits(m::star, true));
  EXPECT_FALSE(exits(m::sysenter_cs, true));
  for (u32 index : {m::efer, m::pat, m::tsc, m::apic_base, m::tsc_deadline, u32{0x80b},
                    m::spec_ctrl, u32{0x2}, m::vm_cr}) {
    EXPECT_TRUE(exits(index, false)) << std::hex << index;
    EXPECT_TRUE(exits(index, true)) << std::hex << index;
  }
  set_up(Vendor::intel, {}, true);
  fill();
  for (u32 index : {m::fs_base, m::kernel_gs_base, m::lstar, m::sfmask, m::tsc_aux}) {
    EXPECT_FALSE(exits(index, true)) << std::hex << index;
  }
  EXPECT_TRUE(exits(m::debugctl, true));
  EXPECT_TRUE(exits(m::efer, true));
}

}  // namespace
}  // namespace aerie::vmm::policy
