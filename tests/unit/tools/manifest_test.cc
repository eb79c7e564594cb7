#include "tools/guests/manifest.h"

#include <gtest/gtest.h>

namespace aerie::tools {
namespace {

TEST(Manifest, OneLineGivesOneRunForEachPlace) {
  const auto runs = parse_manifest(
      "# head\n"
      "timer  2 intel,amd,none,bochs icount args=x=1,y memory=1024 status=3 "
      "qemu=-device,edu;a=b\n");
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 4u);
  const GuestRun& intel = (*runs)[0];
  EXPECT_EQ(intel.guest, "timer");
  EXPECT_EQ(intel.spec.host, Host::aerie);
  EXPECT_EQ(intel.spec.cpu, CpuVendor::intel);
  EXPECT_EQ(intel.spec.cpus, 2u);
  EXPECT_GE(intel.spec.memory, (std::uint64_t{1024} << 20) + intel.spec.block);
  EXPECT_TRUE(intel.spec.icount);
  EXPECT_EQ(intel.spec.append, "x=1 y");
  EXPECT_EQ(intel.spec.qemu_options, (std::vector<std::string>{"-device", "edu,a=b"}));
  EXPECT_EQ(intel.status, 3);
  EXPECT_EQ(intel.timeout_seconds, 30);
  EXPECT_EQ((*runs)[1].spec.cpu, CpuVendor::amd);
  EXPECT_EQ((*runs)[2].spec.host, Host::none);
  EXPECT_EQ((*runs)[2].spec.memory, std::uint64_t{1024} << 20);
  EXPECT_EQ((*runs)[3].spec.host, Host::bochs);
  EXPECT_EQ((*runs)[3].timeout_seconds, 120);
}

TEST(Manifest, ErrorsNameTheLine) {
  for (const char* text : {"\ntimer\n", "\ntimer x intel\n", "\ntimer 1 moon\n",
                           "\ntimer 1 intel colour=red\n", "\ntimer 1 intel timeout=x\n"}) {
    const auto runs = parse_manifest(text);
    ASSERT_FALSE(runs.ok()) << text;
    EXPECT_NE(runs.status().message().find("line 2"), absl::string_view::npos) << runs.status();
  }
}

}  // namespace
}  // namespace aerie::tools
