#include "tools/run/bochs.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

TEST(Bochs, TheModelFollowsTheVendor) {
  MachineSpec spec;
  EXPECT_NE(bochs_configuration(spec, "i", "c", "l").find("model=corei7_icelake_u"),
            std::string::npos);
  spec.cpu = CpuVendor::amd;
  EXPECT_NE(bochs_configuration(spec, "i", "c", "l").find("model=ryzen"), std::string::npos);
  spec.bochs_cpu = "tigerlake";
  EXPECT_NE(bochs_configuration(spec, "i", "c", "l").find("model=tigerlake"), std::string::npos);
}

TEST(Bochs, GrubGetsArgumentsQuotedAndModules) {
  MachineSpec spec;
  spec.append = "a;b  c$d";
  spec.modules = {"/x/env"};
  const std::string menu = grub_configuration(spec);
  EXPECT_NE(menu.find("multiboot /boot/payload 'a;b' 'c$d'\n"), std::string::npos) << menu;
  EXPECT_NE(menu.find("module /boot/module0 "), std::string::npos) << menu;
}

}  // namespace
}  // namespace aerie::tools
