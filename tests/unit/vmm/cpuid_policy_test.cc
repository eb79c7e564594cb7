#include "vmm/policy/cpuid.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "policy_host.h"

namespace aerie::vmm::policy {
namespace {

using cpu::CpuidResult;

CpuidConfig config_for(Vendor vendor) {
  CpuidConfig c;
  c.vendor = vendor;
  c.host = testing::tcg_host;
  c.engine.add(feature("vmx")).add(feature("svm")).add(feature("npt"));
  return c;
}
CpuidPolicy policy_of(const CpuidConfig& config) {
  CpuidPolicy p;
  p.init(config);
  return p;
}
CpuidPolicy intel(unsigned cpus = 1) {
  CpuidConfig c = config_for(Vendor::intel);
  c.cpus = cpus;
  return policy_of(c);
}
CpuidPolicy amd(unsigned cpus = 1) {
  CpuidConfig c = config_for(Vendor::amd);
  c.cpus = cpus;
  return policy_of(c);
}
CpuidPolicy hiding(std::string_view names, Vendor vendor = Vendor::intel) {
  CpuidConfig c = config_for(vendor);
  EXPECT_EQ(parse_feature_list(names, c.hidden), "");
  return policy_of(c);
}
std::string name_of(const CpuidResult& r, bool vendor_order) {
  const u32 words[] = {r.ebx, vendor_order ? r.edx : r.ecx, vendor_order ? r.ecx : r.edx};
  std::string s(12, ' ');
  std::memcpy(s.data(), words, 12);
  return s;
}
CpuidResult leaf(const CpuidPolicy& p, u32 n, u32 sub = 0, unsigned cpu = 0,
                 CpuidState state = {}) {
  return p.compute(n, sub, cpu, state);
}

TEST(CpuidPolicy, ANamedFeatureIsFoundUnderItsAliasesToo) {
  FeatureSet set;
  EXPECT_EQ(parse_feature_list("ept,1gb-pages,,tsc_deadline", set), "");
  EXPECT_TRUE(set.has(feature("ept")));
  EXPECT_TRUE(set.has(feature("pdpe1gb")));
  EXPECT_TRUE(set.has(feature("tsc-deadline")));
  EXPECT_EQ(parse_feature_list("vpid,eptt,smap", set), "eptt");
}

TEST(CpuidPolicy, EveryNameOfTheIssueIsKnown) {
  for (const char* name :
       {"npt",   "ept",  "vpid", "pku",      "pks",          "smap",
        "smep",  "umip", "la57", "x2apic",   "tsc-deadline", "rdtscp",
        "xsave", "avx",  "avx2", "fsgsbase", "1gb-pages",    "unrestricted-guest",
        "vmx",   "svm",  "pcid", "invpcid",  "hypervisor"}) {
    EXPECT_NE(find_feature(name), kNoFeature) << name;
  }
}

TEST(CpuidPolicy, TheIntelIdentityIsOneProcessor) {
  const CpuidPolicy p = intel();
  EXPECT_EQ(name_of(leaf(p, 0), true), "GenuineIntel");
  EXPECT_EQ(leaf(p, 1).eax, 0x000806f8u);  // family 6, model 0x8f, stepping 8
  EXPECT_EQ(leaf(p, 0x80000000).eax, 0x80000008u);
  EXPECT_EQ(leaf(p, 0x80000000).ebx, 0u);
  EXPECT_EQ(leaf(p, 0x8000000a).eax,
            leaf(p, 0x1f).eax);  // no SVM leaf: the highest basic one answers
  EXPECT_TRUE(p.has(feature("vmx")));
  EXPECT_FALSE(p.has(feature("svm")));
  EXPECT_EQ(leaf(p, 0x80000001).ecx & ~0x121u, 0u);       // LAHF, LZCNT, PREFETCHW at most
  EXPECT_EQ(leaf(p, 0x80000001).edx & ~0x2c100800u, 0u);  // SYSCALL, NX, 1 GiB, RDTSCP, LM at most
  EXPECT_NE(leaf(p, 1).ecx & (1u << 5), 0u);
}

TEST(CpuidPolicy, TheAmdIdentityIsOneProcessor) {
  const CpuidPolicy p = amd();
  EXPECT_EQ(name_of(leaf(p, 0), true), "AuthenticAMD");
  EXPECT_EQ(name_of(leaf(p, 0x80000000), true), "AuthenticAMD");
  EXPECT_EQ(leaf(p, 1).eax, 0x00a10f11u);  // family 0x19, model 0x11
  EXPECT_FALSE(p.has(feature("vmx")));
  EXPECT_FALSE(p.has(feature("pks")));
  EXPECT_NE(leaf(p, 0x80000001).ecx & (1u << 2), 0u);
  EXPECT_EQ(leaf(p, 0x8000000a).edx, 1u);  // NPT: the engine's, not the host's
  // The bits of leaf 1 that AMD repeats.
  EXPECT_EQ(leaf(p, 0x80000001).edx & 0x0183f3ff, leaf(p, 1).edx & 0x0183f3ff);
  EXPECT_EQ(leaf(p, 0x4).eax, 0u);
  EXPECT_EQ(leaf(p, 0x15).eax, 0u);
  EXPECT_EQ(leaf(p, 0x1234).eax, 0u);
}

TEST(CpuidPolicy, SvmIsHiddenUntilThereIsAnEngine) {
  CpuidConfig c = config_for(Vendor::amd);
  c.engine = {};
  const CpuidPolicy p = policy_of(c);
  EXPECT_EQ(leaf(p, 0x80000001).ecx & (1u << 2), 0u);
  const CpuidResult svm = leaf(p, 0x8000000a);
  EXPECT_EQ(svm.eax | svm.ebx | svm.ecx | svm.edx, 0u);
}

TEST(CpuidPolicy, HostFeaturesAreTheHosts) {
  const CpuidPolicy p = intel();
  EXPECT_FALSE(p.has(feature("pcid")));  // TCG has none
  EXPECT_FALSE(p.has(feature("invpcid")));
  EXPECT_FALSE(p.has(feature("vme")));
  EXPECT_TRUE(p.has(feature("avx2")));
  EXPECT_TRUE(p.has(feature("pks")));
  EXPECT_TRUE(p.has(feature("la57")));
  EXPECT_FALSE(p.has(feature("mpx")));  // the host's, but never shown
  EXPECT_FALSE(p.has(feature("monitor")));
  EXPECT_TRUE(p.has(feature("x2apic")));  // not the host's, but Aerie's
  EXPECT_TRUE(p.has(feature("tsc-deadline")));
  EXPECT_TRUE(p.has(feature("arat")));
  EXPECT_EQ(leaf(p, 6).eax, 4u);
  EXPECT_EQ(leaf(p, 0xa).eax, 0u);  // no performance monitoring
}

TEST(CpuidPolicy, DynamicBitsFollowL1sState) {
  const CpuidPolicy p = intel();
  EXPECT_EQ(leaf(p, 1).ecx & (1u << 27), 0u);
  EXPECT_NE(leaf(p, 1, 0, 0, {.osxsave = true}).ecx & (1u << 27), 0u);
  EXPECT_EQ(leaf(p, 7).ecx & (1u << 4), 0u);
  EXPECT_NE(leaf(p, 7, 0, 0, {.pke = true}).ecx & (1u << 4), 0u);
  EXPECT_NE(leaf(p, 1).edx & (1u << 9), 0u);
  EXPECT_EQ(leaf(p, 1, 0, 0, {.apic_enabled = false}).edx & (1u << 9), 0u);
  // Hidden stays hidden.
  EXPECT_EQ(leaf(hiding("pku"), 7, 0, 0, {.pke = true}).ecx & (3u << 3), 0u);
}

TEST(CpuidPolicy, HidingTakesWhatDependsOnIt) {
  const CpuidPolicy no_avx = hiding("avx");
  for (const char* name : {"avx", "avx2", "fma", "f16c", "vaes"}) {
    EXPECT_FALSE(no_avx.has(find_feature(name))) << name;
  }
  EXPECT_EQ(no_avx.xcr0(), 0x203u);
  const CpuidPolicy no_xsave = hiding("xsave");
  EXPECT_EQ(no_xsave.xcr0(), 1u);
  EXPECT_EQ(leaf(no_xsave, 1, 0, 0, {.osxsave = true}).ecx & (3u << 26), 0u);
  EXPECT_EQ(leaf(no_xsave, 0xd).eax, 0u);
  EXPECT_EQ(leaf(hiding("la57"), 0x80000008).eax, 0x3028u);
  EXPECT_EQ(leaf(intel(), 0x80000008).eax, 0x3928u);
  EXPECT_FALSE(hiding("svm", Vendor::amd).has(feature("npt")));
  EXPECT_FALSE(hiding("vmx").has(feature("ept")));
}

TEST(CpuidPolicy, XsaveSizesFollowXcr0) {
  const CpuidPolicy p = intel();
  EXPECT_EQ(p.xcr0(), 0x207u);  // x87, SSE, AVX, PKRU: MPX is never shown
  EXPECT_EQ(leaf(p, 0xd).eax, 0x207u);
  EXPECT_EQ(leaf(p, 0xd).ebx, 576u);
  EXPECT_EQ(leaf(p, 0xd, 0, 0, {.xcr0 = 7}).ebx, 0x340u);
  EXPECT_EQ(leaf(p, 0xd, 0, 0, {.xcr0 = 0x207}).ebx, 0xa88u);
  EXPECT_EQ(leaf(p, 0xd).ecx, 0xa88u);
  EXPECT_EQ(leaf(p, 0xd, 1).eax, 5u);  // XSAVEOPT, XGETBV of register 1
  EXPECT_EQ(leaf(p, 0xd, 2).ebx, 0x240u);
  EXPECT_EQ(leaf(p, 0xd, 3).eax, 0u);
  EXPECT_EQ(leaf(p, 0xd, 9).ebx, 0xa80u);
  EXPECT_EQ(leaf(p, 0xd, 63).eax, 0u);
}

TEST(CpuidPolicy, TopologyTellsOnePackageOfCores) {
  const CpuidPolicy p = intel(4);
  EXPECT_EQ(leaf(p, 1, 0, 2).ebx, 0x02040800u);
  EXPECT_NE(leaf(p, 1).edx & (1u << 28), 0u);
  EXPECT_EQ(leaf(p, 0xb, 0, 3).eax, 0u);
  EXPECT_EQ(leaf(p, 0xb, 0, 3).ebx, 1u);
  EXPECT_EQ(leaf(p, 0xb, 0, 3).ecx, 0x100u);
  EXPECT_EQ(leaf(p, 0xb, 0, 3).edx, 3u);
  EXPECT_EQ(leaf(p, 0xb, 1, 3).eax, 2u);
  EXPECT_EQ(leaf(p, 0xb, 1, 3).ebx, 4u);
  EXPECT_EQ(leaf(p, 0xb, 1, 3).ecx, 0x201u);
  EXPECT_EQ(leaf(p, 0xb, 2, 3).ecx, 2u);
  EXPECT_EQ(leaf(p, 0xb, 2, 3).edx, 3u);
  EXPECT_EQ(leaf(p, 4, 3).eax >> 14 & 0xfff, 3u);  // the last-level cache is shared by four IDs
  EXPECT_EQ(leaf(p, 4, 4).eax, 0u);
  EXPECT_EQ(leaf(intel(1), 1).edx & (1u << 28), 0u);

  const CpuidPolicy a = amd(3);
  EXPECT_EQ(leaf(a, 0x80000008).ecx, 0x2002u);
  EXPECT_EQ(leaf(a, 0x8000001e, 0, 2).eax, 2u);
  EXPECT_NE(leaf(a, 0x80000001).ecx & 2, 0u);  // CmpLegacy
}

TEST(CpuidPolicy, ClockLeavesGiveTheTscWhenMultipliedIn32Bits) {
  struct {
    u64 tsc, apic;
  } const cases[] = {{1'000'000'000, 1'000'000'000},
                     {2'394'374'000, 1'000'000'000},
                     {3'700'123'456, 25'000'000},
                     {2'000'000'000, 24'000'000}};
  for (const auto& c : cases) {
    CpuidConfig config = config_for(Vendor::intel);
    config.tsc_hz = c.tsc;
    config.apic_hz = c.apic;
    const CpuidResult r = leaf(policy_of(config), 0x15);
    ASSERT_NE(r.eax, 0u);
    EXPECT_EQ(r.ecx, c.apic);
    const u64 product = u64{r.ecx / 1000} * r.ebx;
    EXPECT_LT(product, u64{1} << 32);
    EXPECT_NEAR(static_cast<double>(product) / r.eax, static_cast<double>(c.tsc) / 1000,
                static_cast<double>(c.tsc) / 1000 * 100e-6);  // 100 ppm
  }
  EXPECT_EQ(leaf(intel(), 0x15).ecx, 0u);  // not known: not told
}

TEST(CpuidPolicy, TheHypervisorLeavesAreDispatchedByInterface) {
  EXPECT_EQ(name_of(leaf(intel(), 0x40000000), false), "AerieAerieAe");
  EXPECT_EQ(leaf(intel(), 0x40000000).eax, 0x40000001u);
  EXPECT_EQ(leaf(intel(), 0x40000100).eax, 0u);
  CpuidConfig c = config_for(Vendor::intel);
  c.interfaces = {HypervisorInterface::kvm, HypervisorInterface::aerie};
  const CpuidPolicy both = policy_of(c);
  EXPECT_EQ(name_of(leaf(both, 0x40000000), false), std::string("KVMKVMKVM\0\0\0", 12));
  EXPECT_EQ(leaf(both, 0x40000001).eax, 0u);
  EXPECT_EQ(name_of(leaf(both, 0x40000100), false), "AerieAerieAe");
  EXPECT_EQ(leaf(both, 0x40000100).eax, 0x40000101u);
  // Without the hypervisor bit there are no such leaves: a processor answers for its highest basic
  // one.
  const CpuidPolicy bare = hiding("hypervisor");
  EXPECT_EQ(leaf(bare, 1).ecx >> 31, 0u);
  EXPECT_EQ(leaf(bare, 0x40000000).ecx, leaf(bare, 0x1f).ecx);
}

TEST(CpuidPolicy, AnEmulatorHasNoFaultsToMitigate) {
  EXPECT_TRUE(amd().has(feature("srso-no")));
  CpuidConfig c = config_for(Vendor::amd);
  c.host = [](u32 n, u32 sub) {
    return n == 0x40000000 ? CpuidResult{} : testing::tcg_host(n, sub);
  };
  EXPECT_FALSE(policy_of(c).has(feature("srso-no")));
}

TEST(CpuidPolicy, PhysicalBitsCanBeLoweredNotRaised) {
  CpuidConfig c = config_for(Vendor::intel);
  c.physical_bits = 36;
  EXPECT_EQ(leaf(policy_of(c), 0x80000008).eax & 0xff, 36u);
  c.physical_bits = 52;
  EXPECT_EQ(leaf(policy_of(c), 0x80000008).eax & 0xff, 40u);
}

TEST(VcpuCpuid, ARememberedAnswerFollowsL1sState) {
  const CpuidPolicy p = intel();
  VcpuCpuid cpuid;
  cpuid.init(p, 0);
  const auto osxsave = [&] {
    cpu::GuestRegisters r{};
    r[cpu::Gpr::rax] = 1;
    cpuid.execute(r);
    return (r[cpu::Gpr::rcx] & bit(27)) != 0;
  };
  EXPECT_FALSE(osxsave());
  cpuid.set_state({.osxsave = true});
  EXPECT_TRUE(osxsave());
  cpuid.set_state({});
  EXPECT_FALSE(osxsave());
}

TEST(VcpuCpuid, AnswersAsThePolicyForEveryLeafAndState) {
  const CpuidPolicy p = intel(2);
  VcpuCpuid cpuid;
  cpuid.init(p, 1);
  const CpuidState states[] = {
      {}, {.osxsave = true, .xcr0 = 7}, {.pke = true, .apic_enabled = false}};
  for (unsigned round = 0; round < 2; ++round) {
    for (const CpuidState& state : states) {
      cpuid.set_state(state);
      for (u32 base : {0u, 0x40000000u, 0x80000000u}) {
        for (u32 n = 0; n < 0x110; ++n) {
          for (u32 sub : {0u, 1u, 9u, 0xffffffffu}) {
            cpu::GuestRegisters r{};
            r[cpu::Gpr::rax] = 0xdead'0000'0000'0000 | (base + n);
            r[cpu::Gpr::rcx] = 0xbeef'0000'0000'0000 | sub;
            cpuid.execute(r);
            const CpuidResult want = p.compute(base + n, sub, 1, state);
            ASSERT_EQ(r[cpu::Gpr::rax], want.eax) << std::hex << base + n << "." << sub;
            ASSERT_EQ(r[cpu::Gpr::rbx], want.ebx) << std::hex << base + n << "." << sub;
            ASSERT_EQ(r[cpu::Gpr::rcx], want.ecx) << std::hex << base + n << "." << sub;
            ASSERT_EQ(r[cpu::Gpr::rdx], want.edx) << std::hex << base + n << "." << sub;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace aerie::vmm::policy
