#include "tools/kut/cpu_model.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace aerie::tools {
namespace {

bool hides(const ShownCpu& cpu, absl::string_view feature) {
  return std::find(cpu.hide.begin(), cpu.hide.end(), feature) != cpu.hide.end();
}

ShownCpu on_tcg(absl::string_view argument) { return translate_cpu(argument, tcg_lacks()); }

TEST(CpuModel, MaxAndHostShowAllThereIs) {
  for (const char* argument : {"max", "host", "max,host-phys-bits", "host,migratable=no"}) {
    const ShownCpu cpu = on_tcg(argument);
    EXPECT_EQ(cpu.cannot_show, "") << argument;
    EXPECT_TRUE(cpu.hide.empty()) << argument;
    EXPECT_FALSE(cpu.vendor.has_value()) << argument;
  }
}

TEST(CpuModel, AMinusHidesByThePolicysName) {
  const ShownCpu cpu = on_tcg("max,+vmx,-vmx-mbec,-pku");
  EXPECT_EQ(cpu.vendor, CpuVendor::intel);
  EXPECT_TRUE(hides(cpu, "pku"));
  EXPECT_TRUE(hides(cpu, "mode-based-execute"));
}

TEST(CpuModel, AnOlderModelLacksWhatIsNewer) {
  const ShownCpu cpu = on_tcg("qemu64,+umip");
  EXPECT_EQ(cpu.cannot_show, "");
  EXPECT_FALSE(hides(cpu, "umip"));
  EXPECT_TRUE(hides(cpu, "smap"));
  EXPECT_TRUE(hides(cpu, "xsave"));
  EXPECT_FALSE(hides(cpu, "sse2"));
  EXPECT_FALSE(hides(cpu, "x2apic"));
  EXPECT_TRUE(hides(on_tcg("qemu64,-x2apic"), "x2apic"));
}

TEST(CpuModel, VirtualizationChoosesTheVendor) {
  EXPECT_EQ(on_tcg("max,+svm").vendor, CpuVendor::amd);
  EXPECT_EQ(on_tcg("max,+svm,-npt").vendor, CpuVendor::amd);
  EXPECT_TRUE(hides(on_tcg("max,+svm,-npt"), "npt"));
  EXPECT_EQ(on_tcg("max,vendor=GenuineIntel").vendor, CpuVendor::intel);
  EXPECT_EQ(on_tcg("Opteron_G1,vendor=AuthenticAMD").vendor, CpuVendor::amd);
}

TEST(CpuModel, WhatCannotBeShownHasAReason) {
  EXPECT_NE(on_tcg("qemu64,+pcid").cannot_show.find("pcid"), std::string::npos);
  EXPECT_EQ(translate_cpu("qemu64,+pcid", {}).cannot_show, "");
  EXPECT_NE(on_tcg("IvyBridge,phys-bits=36").cannot_show.find("phys-bits=36"), std::string::npos);
  EXPECT_NE(on_tcg("host,hv_passthrough").cannot_show.find("Hyper-V"), std::string::npos);
  EXPECT_NE(on_tcg("max,+sgx").cannot_show.find("sgx"), std::string::npos);
  EXPECT_NE(on_tcg("max,+warp-drive").cannot_show.find("warp-drive"), std::string::npos);
  EXPECT_NE(on_tcg("Z80").cannot_show.find("Z80"), std::string::npos);
  EXPECT_NE(on_tcg("max,vendor=CyrixInstead").cannot_show.find("Cyrix"), std::string::npos);
}

}  // namespace
}  // namespace aerie::tools
