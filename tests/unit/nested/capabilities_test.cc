#include "nested/vmx/capabilities.h"

#include <gtest/gtest.h>

#include <set>

#include "cpu/arch/msr.h"
#include "nested/vmx/vmcs12.h"
#include "nested/vmx/vmcs12_fields.h"

namespace aerie::nested::vmx {
namespace {

namespace entry = cpu::vmx::entry;
namespace exit = cpu::vmx::exit;
namespace msr = cpu::msr;
namespace pin = cpu::vmx::pin;
namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;

u32 low(u64 value) { return static_cast<u32>(value); }
u32 high(u64 value) { return static_cast<u32>(value >> 32); }

Capabilities without(std::initializer_list<Feature> hidden) {
  CapabilityConfig config;
  for (const Feature f : hidden) {
    config.hidden.add(f);
  }
  return Capabilities{config};
}

void check_consistent(const Capabilities& c) {
  struct Quad {
    u32 plain;
    u32 exact;
    u32 default1;  // SDM vol. 3, A.2-A.5
  };
  const Quad kQuads[] = {
      {msr::vmx_pinbased, msr::vmx_true_pinbased, 0x0000'0016},
      {msr::vmx_procbased, msr::vmx_true_procbased, 0x0401'e172},
      {msr::vmx_exit, msr::vmx_true_exit, 0x0003'6dff},
      {msr::vmx_entry, msr::vmx_true_entry, 0x0000'11ff},
  };
  for (const Quad& q : kQuads) {
    const u64 plain = *c.msr(q.plain);
    const u64 exact = *c.msr(q.exact);
    EXPECT_EQ(low(plain) & q.default1, q.default1) << std::hex << q.plain;
    EXPECT_EQ(low(plain) & ~high(plain), 0u) << std::hex << q.plain;
    EXPECT_EQ(high(plain), high(exact)) << std::hex << q.plain;
    EXPECT_EQ(low(plain), low(exact) | q.default1) << std::hex << q.plain;
  }
  // Pairs that Linux's kvm_intel compares.
  const u32 exits = high(*c.msr(msr::vmx_true_exit));
  const u32 entries = high(*c.msr(msr::vmx_true_entry));
  EXPECT_EQ((exits & exit::load_perf_global_ctrl) != 0,
            (entries & entry::load_perf_global_ctrl) != 0);
  EXPECT_EQ((exits & exit::load_efer) != 0, (entries & entry::load_efer) != 0);
  EXPECT_EQ((exits & exit::save_efer) != 0, (entries & entry::load_efer) != 0);
  EXPECT_EQ((exits & exit::load_pat) != 0, (entries & entry::load_pat) != 0);
  EXPECT_EQ((exits & exit::save_pat) != 0, (entries & entry::load_pat) != 0);
  EXPECT_EQ((exits & exit::clear_bndcfgs) != 0, (entries & entry::load_bndcfgs) != 0);
  EXPECT_EQ((exits & exit::clear_rtit_ctl) != 0, (entries & entry::load_rtit_ctl) != 0);
  const u32 pins = high(*c.msr(msr::vmx_true_pinbased));
  EXPECT_EQ((exits & exit::save_preemption_timer) != 0, (pins & pin::preemption_timer) != 0);
  const u32 procs = high(*c.msr(msr::vmx_true_procbased));
  EXPECT_EQ((procs & proc::nmi_window) != 0, (pins & pin::virtual_nmis) != 0);
  EXPECT_EQ((procs & proc::secondary) != 0, c.msr(msr::vmx_procbased2).has_value());
  if (const auto secondary = c.msr(msr::vmx_procbased2)) {
    EXPECT_EQ(low(*secondary), 0u);  // A.3.3: no bit must be 1
    if ((high(*secondary) & proc2::unrestricted_guest) != 0) {
      EXPECT_NE(high(*secondary) & proc2::ept, 0u);
      EXPECT_NE(*c.msr(msr::vmx_misc) & bit(5), 0u);
    }
    EXPECT_EQ((high(*secondary) & (proc2::ept | proc2::vpid)) != 0,
              c.msr(msr::vmx_ept_vpid_cap).has_value());
    EXPECT_EQ((high(*secondary) & proc2::vmfunc) != 0, c.msr(msr::vmx_vmfunc).has_value());
  } else {
    EXPECT_FALSE(c.msr(msr::vmx_ept_vpid_cap));
    EXPECT_FALSE(c.msr(msr::vmx_vmfunc));
  }
  EXPECT_EQ((procs & proc::tertiary) != 0, c.msr(msr::vmx_procbased3).has_value());
}

TEST(Capabilities, MsrsAgreeWithEachOther) { check_consistent(without({})); }

TEST(Capabilities, MsrsAgreeWithAnyOneFeatureHidden) {
  for (const FeatureRow& row : features()) {
    SCOPED_TRACE(row.name);
    check_consistent(without({row.feature}));
  }
}

TEST(Capabilities, MsrsAgreeWithAnyOneMissingFeatureImplemented) {
  for (const FeatureRow& row : features()) {
    SCOPED_TRACE(row.name);
    CapabilityConfig config;
    config.anyway.add(row.feature);
    check_consistent(Capabilities{config});
  }
}

TEST(Capabilities, BasicTellsRevisionSizeAndMemoryType) {
  const u64 basic = *without({}).msr(msr::vmx_basic);
  EXPECT_EQ(low(basic), kRevisionId);
  EXPECT_EQ(basic >> 31 & 1, 0u);
  EXPECT_EQ((basic >> 32) & 0x1fff, 4096u);
  EXPECT_EQ(basic >> 48 & 1, 0u);     // addresses are not limited to 32 bits
  EXPECT_EQ(basic >> 49 & 1, 0u);     // no dual-monitor treatment
  EXPECT_EQ((basic >> 50) & 15, 6u);  // write-back
  EXPECT_EQ((basic >> 54) & 3, 3u);   // INS/OUTS information, TRUE controls
  EXPECT_EQ(basic >> 56, 0u);
}

// What Linux 6.1's kvm_intel needs to load (setup_vmcs_config), and what it uses if it is there.
TEST(Capabilities, SatisfyLinuxKvm) {
  const Capabilities c = without({});
  const u32 pins = high(*c.msr(msr::vmx_true_pinbased));
  EXPECT_EQ(~pins & (pin::external_interrupt | pin::nmi | pin::virtual_nmis), 0u);
  const u32 procs = high(*c.msr(msr::vmx_true_procbased));
  EXPECT_EQ(
      ~procs & (proc::hlt | proc::cr8_load | proc::cr8_store | proc::cr3_load | proc::cr3_store |
                proc::unconditional_io | proc::mov_dr | proc::tsc_offsetting | proc::mwait |
                proc::monitor | proc::invlpg | proc::rdpmc | proc::interrupt_window |
                proc::nmi_window | proc::msr_bitmaps | proc::secondary | proc::pause),
      0u);
  const u32 secondary = high(*c.msr(msr::vmx_procbased2));
  EXPECT_EQ(~secondary & (proc2::ept | proc2::vpid | proc2::unrestricted_guest | proc2::rdtscp |
                          proc2::wbinvd | proc2::descriptor_table),
            0u);
  const u32 exits = high(*c.msr(msr::vmx_true_exit));
  EXPECT_EQ(~exits & (exit::save_debug | exit::acknowledge_interrupt | exit::host_64 |
                      exit::load_pat | exit::save_pat | exit::load_efer | exit::save_efer),
            0u);
  const u32 entries = high(*c.msr(msr::vmx_true_entry));
  EXPECT_EQ(
      ~entries & (entry::load_debug | entry::ia32e_guest | entry::load_pat | entry::load_efer), 0u);
  // It keeps CR3 exits off with EPT: the TRUE MSRs let it.
  EXPECT_EQ(low(*c.msr(msr::vmx_true_procbased)) & (proc::cr3_load | proc::cr3_store), 0u);
  using namespace ept_vpid_cap;
  EXPECT_EQ(
      ~*c.msr(msr::vmx_ept_vpid_cap) &
          (levels_4 | write_back | pages_2m | pages_1g | invept | accessed_dirty | invept_single |
           invept_all | invvpid | invvpid_address | invvpid_single | invvpid_all),
      0u);
}

TEST(Capabilities, DoNotOfferWhatThisHostCannotDo) {
  const Capabilities c = without({});
  const u32 secondary = high(*c.msr(msr::vmx_procbased2));
  EXPECT_EQ(secondary & (proc2::rdrand | proc2::rdseed | proc2::vmcs_shadowing | proc2::pml |
                         proc2::vmfunc | proc2::virtualize_apic | proc2::virtual_interrupts),
            0u);
  EXPECT_EQ(*c.msr(msr::vmx_ept_vpid_cap) & ept_vpid_cap::execute_only, 0u);
  EXPECT_EQ(high(*c.msr(msr::vmx_true_pinbased)) & (pin::preemption_timer | pin::posted_interrupts),
            0u);
}

TEST(Capabilities, MiscHasOnlyDefinedBits) {
  const u64 misc = *without({}).msr(msr::vmx_misc);
  EXPECT_EQ(misc & 0x8000'7e00, 0u);
  EXPECT_EQ((misc >> 6) & 7, 7u);       // HLT, shutdown, wait-for-SIPI
  EXPECT_EQ((misc >> 16) & 0x1ff, 4u);  // CR3 targets
  EXPECT_EQ(512 * (((misc >> 25) & 7) + 1), kMaxMsrListEntries);
  EXPECT_EQ(misc >> 32, 0u);  // no MSEG
}

TEST(Capabilities, Cr4FollowsL1) {
  CapabilityConfig config;
  config.cr4_allowed = cpu::cr4::pae | cpu::cr4::smep;
  const Capabilities c{config};
  EXPECT_EQ(*c.msr(msr::vmx_cr4_fixed1), cpu::cr4::pae | cpu::cr4::smep | cpu::cr4::vmxe);
  EXPECT_EQ(*c.msr(msr::vmx_cr4_fixed0), cpu::cr4::vmxe);
  EXPECT_EQ(*c.msr(msr::vmx_cr0_fixed0), cpu::cr0::pe | cpu::cr0::ne | cpu::cr0::pg);
}

TEST(Capabilities, VmcsEnumIsTheHighestIndexThatExists) {
  for (const bool all : {false, true}) {
    CapabilityConfig config;
    if (all) {
      for (const FeatureRow& row : features()) {
        config.anyway.add(row.feature);
      }
    }
    const Capabilities c{config};
    FieldIndex index;
    index.build(c);
    unsigned highest = 0;
    for (u32 e = 0; e < 0x8000; e += 2) {
      if (index.find(e).present()) {
        highest = std::max(highest, cpu::vmx::FieldEncoding{e}.index());
      }
    }
    EXPECT_EQ(*c.msr(msr::vmx_vmcs_enum), u64{highest} << 1);
  }
}

TEST(Capabilities, HidingAFeatureTakesWhatNeedsItAlong) {
  const Capabilities c = without({Feature::ept});
  EXPECT_FALSE(c.has(Feature::unrestricted_guest));
  EXPECT_FALSE(c.has(Feature::ept_1g_pages));
  EXPECT_TRUE(c.has(Feature::vpid));
  EXPECT_EQ(*c.msr(msr::vmx_ept_vpid_cap) & 0xffff'ffff, 0u);
  EXPECT_NE(*c.msr(msr::vmx_ept_vpid_cap) >> 32, 0u);

  const Capabilities none = without({Feature::ept, Feature::vpid});
  EXPECT_FALSE(none.msr(msr::vmx_ept_vpid_cap));

  const Capabilities plain = without({Feature::secondary_controls});
  EXPECT_FALSE(plain.has(Feature::ept));
  EXPECT_FALSE(plain.msr(msr::vmx_procbased2));
}

TEST(Capabilities, MsrsOutsideTheRangeDoNotExist) {
  const Capabilities c = without({});
  EXPECT_FALSE(c.msr(0x47f));
  EXPECT_FALSE(c.msr(0x493));
  EXPECT_FALSE(c.msr(msr::vmx_vmfunc));
  EXPECT_FALSE(c.msr(msr::vmx_procbased3));
}

TEST(FeatureTable, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const FeatureRow& row : features()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(feature_named(row.name), row.feature);
    EXPECT_TRUE(row.implemented || !row.why.empty()) << row.name << ": say why it is not offered";
  }
  EXPECT_FALSE(feature_named("no-such-thing"));
}

TEST(ControlTable, NamesEachBitOnce) {
  std::set<std::pair<u8, u8>> seen;
  for (const ControlRow& row : controls()) {
    EXPECT_TRUE(seen.insert({static_cast<u8>(row.word), row.position}).second)
        << row.name << " " << int{row.position};
  }
}

}  // namespace
}  // namespace aerie::nested::vmx
