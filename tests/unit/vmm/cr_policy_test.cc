#include "vmm/policy/cr.h"

#include <gtest/gtest.h>

#include "policy_host.h"

namespace aerie::vmm::policy {
namespace {

using namespace cpu;

CrPolicy policy(std::string_view hide = {}, Vendor vendor = Vendor::intel) {
  CpuidConfig c;
  c.vendor = vendor;
  c.host = testing::tcg_host;
  c.engine.add(feature("vmx")).add(feature("svm"));
  EXPECT_EQ(parse_feature_list(hide, c.hidden), "");
  // Pretend the host had PCID, for its rules.
  c.host = [](u32 leaf, u32 sub) {
    CpuidResult r = testing::tcg_host(leaf, sub);
    if (leaf == 1) r.ecx |= 1u << 17;
    return r;
  };
  CpuidPolicy cpuid;
  cpuid.init(c);
  CrPolicy p;
  p.init(cpuid);
  return p;
}

constexpr u64 kProtected = cr0::pe | cr0::et;
constexpr u64 kPaged = kProtected | cr0::pg;
// 64-bit mode.
constexpr ControlState kLong{
    .cr0 = kPaged, .cr3 = 0x1000, .cr4 = cr4::pae, .efer = efer::lme | efer::lma, .cs_long = true};
constexpr ControlState kPae{.cr0 = kPaged, .cr3 = 0x1000, .cr4 = cr4::pae};

TEST(CrPolicy, Cr4BitsAreThoseOfL1sFeatures) {
  EXPECT_EQ(policy().cr4_allowed() & (cr4::vmxe | cr4::smxe | cr4::vme | cr4::cet | cr4::kl),
            cr4::vmxe);
  EXPECT_EQ(policy("vmx").cr4_allowed() & cr4::vmxe, 0u);
  EXPECT_EQ(policy({}, Vendor::amd).cr4_allowed() & (cr4::vmxe | cr4::pks), 0u);
  const u64 hidden = policy("smep,smap,umip,la57,pku,pks,fsgsbase,xsave,pcid").cr4_allowed();
  EXPECT_EQ(hidden & (cr4::smep | cr4::smap | cr4::umip | cr4::la57 | cr4::pke | cr4::pks |
                      cr4::fsgsbase | cr4::osxsave | cr4::pcide),
            0u);
  EXPECT_EQ(policy().hardware_cr4(cr4::vmxe | cr4::pae), cr4::pae);
}

TEST(CrPolicy, Cr0Rules) {
  const CrPolicy p = policy();
  const ControlState real{};
  EXPECT_TRUE(p.write_cr0(real, kProtected).legal);
  EXPECT_FALSE(p.write_cr0(real, u64{1} << 32).legal);
  EXPECT_FALSE(p.write_cr0(real, cr0::pg).legal);  // PG without PE
  EXPECT_FALSE(p.write_cr0(real, cr0::nw).legal);  // NW without CD
  EXPECT_TRUE(p.write_cr0(real, cr0::nw | cr0::cd).legal);
  EXPECT_EQ(p.write_cr0(real, bit(6) | bit(17)).value,
            cr0::et);  // reserved low bits are ignored; ET is 1
  // LME without PAE, and from 64-bit code.
  EXPECT_FALSE(p.write_cr0({.cr0 = kProtected, .efer = efer::lme}, kPaged).legal);
  EXPECT_FALSE(
      p.write_cr0({.cr0 = kProtected, .cr4 = cr4::pae, .efer = efer::lme, .cs_long = true}, kPaged)
          .legal);
  const ControlWrite enter =
      p.write_cr0({.cr0 = kProtected, .cr4 = cr4::pae, .efer = efer::lme}, kPaged);
  EXPECT_TRUE(enter.legal);
  EXPECT_EQ(enter.efer, efer::lme | efer::lma);
  EXPECT_FALSE(enter.load_pdptes);
  EXPECT_EQ(enter.forget, Forget::everything);
  // Leaving: not from 64-bit mode, not with PCIDE.
  EXPECT_FALSE(p.write_cr0(kLong, kProtected).legal);
  ControlState compat = kLong;
  compat.cs_long = false;
  const ControlWrite leave = p.write_cr0(compat, kProtected);
  EXPECT_TRUE(leave.legal);
  EXPECT_EQ(leave.efer, efer::lme);
  compat.cr4 |= cr4::pcide;
  EXPECT_FALSE(p.write_cr0(compat, kProtected).legal);
}

TEST(CrPolicy, Cr0TellsWhatFollows) {
  const CrPolicy p = policy();
  EXPECT_TRUE(p.write_cr0({.cr0 = kProtected, .cr4 = cr4::pae}, kPaged).load_pdptes);
  EXPECT_FALSE(p.write_cr0({.cr0 = kProtected}, kPaged).load_pdptes);  // 32-bit paging
  EXPECT_TRUE(p.write_cr0(kPae, kPaged | cr0::cd).load_pdptes);
  EXPECT_FALSE(p.write_cr0(kPae, kPaged | cr0::ts).load_pdptes);
  EXPECT_TRUE(p.write_cr0(kPae, kPaged | cr0::wp).paging_changed);
  EXPECT_EQ(p.write_cr0(kPae, kPaged | cr0::wp).forget, Forget::nothing);
  EXPECT_FALSE(p.write_cr0(kPae, kPaged | cr0::ts | cr0::mp).paging_changed);
}

TEST(CrPolicy, FixedBitsHoldInVmxOperation) {
  const CrPolicy p = policy();
  ControlState s = kLong;
  s.cr0 |= cr0::ne;
  s.cr4 |= cr4::vmxe;
  s.vmx_operation = true;
  EXPECT_TRUE(p.write_cr0(s, s.cr0 | cr0::ts).legal);
  EXPECT_FALSE(p.write_cr0(s, s.cr0 & ~cr0::ne).legal);
  EXPECT_FALSE(p.write_cr4(s, s.cr4 & ~cr4::vmxe).legal);
  EXPECT_TRUE(p.write_cr4(s, s.cr4 | cr4::pge).legal);
  s.vmx_operation = false;
  EXPECT_TRUE(p.write_cr0(s, s.cr0 & ~cr0::ne).legal);
  EXPECT_TRUE(p.write_cr4(s, s.cr4 & ~cr4::vmxe).legal);
}

TEST(CrPolicy, Cr3) {
  const CrPolicy p = policy();
  EXPECT_TRUE(p.write_cr3(kLong, 0xff'ffff'ffff).legal);
  EXPECT_FALSE(p.write_cr3(kLong, u64{1} << 40).legal);
  EXPECT_FALSE(p.write_cr3(kLong, bit(63)).legal);  // reserved without PCIDE
  EXPECT_EQ(p.write_cr3(kLong, 0x2000).forget, Forget::current);
  ControlState pcid = kLong;
  pcid.cr4 |= cr4::pcide;
  const ControlWrite keep = p.write_cr3(pcid, bit(63) | 0x2001);
  EXPECT_TRUE(keep.legal);
  EXPECT_EQ(keep.value, 0x2001u);
  EXPECT_EQ(keep.forget, Forget::nothing);
  EXPECT_EQ(p.write_cr3(pcid, 0x2001).forget, Forget::current);
  EXPECT_FALSE(p.write_cr3(pcid, bit(62)).legal);
  EXPECT_TRUE(p.write_cr3(kPae, 0x2020).load_pdptes);
  EXPECT_FALSE(p.write_cr3(kLong, 0x2000).load_pdptes);
}

TEST(CrPolicy, Cr4Rules) {
  const CrPolicy p = policy();
  EXPECT_FALSE(p.write_cr4(kLong, cr4::pae | bit(15)).legal);
  EXPECT_FALSE(p.write_cr4(kLong, cr4::pae | bit(40)).legal);
  EXPECT_FALSE(p.write_cr4(kLong, 0).legal);                     // PAE in IA-32e mode
  EXPECT_FALSE(p.write_cr4(kLong, cr4::pae | cr4::la57).legal);  // LA57 in IA-32e mode
  EXPECT_TRUE(p.write_cr4(kPae, cr4::pae | cr4::la57).legal);
  EXPECT_TRUE(p.write_cr4(kPae, 0).legal);
  EXPECT_TRUE(p.write_cr4(kLong, cr4::pae | cr4::pcide).legal);
  EXPECT_FALSE(p.write_cr4(kPae, cr4::pae | cr4::pcide).legal);  // PCIDE outside IA-32e mode
  ControlState low = kLong;
  low.cr3 = 0x1001;
  EXPECT_FALSE(p.write_cr4(low, cr4::pae | cr4::pcide).legal);  // with a PCID already in CR3
}

TEST(CrPolicy, Cr4TellsWhatFollows) {
  const CrPolicy p = policy();
  EXPECT_EQ(p.write_cr4(kLong, cr4::pae | cr4::pge).forget, Forget::everything);
  ControlState pcid = kLong;
  pcid.cr4 |= cr4::pcide;
  EXPECT_EQ(p.write_cr4(pcid, cr4::pae).forget, Forget::everything);
  EXPECT_EQ(p.write_cr4(kLong, cr4::pae | cr4::smep).forget, Forget::current_global);
  ControlState smep = kLong;
  smep.cr4 |= cr4::smep;
  EXPECT_EQ(p.write_cr4(smep, cr4::pae).forget, Forget::nothing);
  EXPECT_TRUE(p.write_cr4(smep, cr4::pae).paging_changed);
  EXPECT_FALSE(p.write_cr4(kLong, cr4::pae | cr4::osxsave | cr4::vmxe).paging_changed);
  EXPECT_TRUE(p.write_cr4(kPae, cr4::pae | cr4::pge).load_pdptes);
  EXPECT_FALSE(p.write_cr4(kPae, cr4::pae | cr4::umip).load_pdptes);
  EXPECT_TRUE(p.write_cr4({.cr0 = kPaged}, cr4::pae).load_pdptes);
}

TEST(CrPolicy, Efer) {
  const CrPolicy p = policy();
  EXPECT_TRUE(p.write_efer(kLong, efer::lme | efer::lma | efer::sce | efer::nxe).legal);
  EXPECT_EQ(p.write_efer(kLong, efer::lme | efer::sce).value, efer::lme | efer::lma | efer::sce);
  EXPECT_FALSE(p.write_efer(kLong, efer::lma).legal);  // LME changes with paging on
  EXPECT_FALSE(p.write_efer(kLong, efer::lme | bit(1)).legal);
  EXPECT_FALSE(p.write_efer({}, efer::svme).legal);
  EXPECT_TRUE(p.write_efer({}, efer::lme).legal);
  EXPECT_EQ(p.write_efer({}, efer::lme | efer::lma).value, efer::lme);
  EXPECT_TRUE(policy({}, Vendor::amd).write_efer({}, efer::svme).legal);
  EXPECT_FALSE(policy("svm", Vendor::amd).write_efer({}, efer::svme).legal);
  EXPECT_FALSE(policy("nx").write_efer({}, efer::nxe).legal);
  EXPECT_TRUE(p.write_efer(kLong, efer::lme | efer::nxe).paging_changed);
}

TEST(CrPolicy, Xcr0) {
  const CrPolicy p = policy();
  EXPECT_TRUE(p.xcr0_legal(0, 1));
  EXPECT_TRUE(p.xcr0_legal(0, 7));
  EXPECT_TRUE(p.xcr0_legal(0, 0x207));
  EXPECT_FALSE(p.xcr0_legal(1, 1));
  EXPECT_FALSE(p.xcr0_legal(0, 0));
  EXPECT_FALSE(p.xcr0_legal(0, 6));
  EXPECT_FALSE(p.xcr0_legal(0, 5));     // AVX without SSE
  EXPECT_FALSE(p.xcr0_legal(0, 0x1f));  // MPX is not shown
  EXPECT_FALSE(p.xcr0_legal(0, 0xe7));  // nor AVX-512
  EXPECT_FALSE(p.xcr0_legal(0, bit(63) | 1));
}

}  // namespace
}  // namespace aerie::vmm::policy
