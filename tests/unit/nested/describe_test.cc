#include "nested/vmx/describe.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace aerie::nested::vmx {
namespace {

LineSink append_to(std::string& text) {
  return {&text, [](void* context, std::string_view line) {
            static_cast<std::string*>(context)->append(line).append("\n");
          }};
}

TEST(DescribeVmx, IsWhatTheDocsHold) {
  std::ifstream file{AERIE_SOURCE_DIR "/docs/vmx_tables.md"};
  ASSERT_TRUE(file) << "docs/vmx_tables.md";
  std::stringstream docs;
  docs << file.rdbuf();
  std::string now;
  describe_vmx(Capabilities{CapabilityConfig{}}, append_to(now));
  EXPECT_EQ(docs.str(), now) << "run build/hosted/nested/vmx/describe_vmx > docs/vmx_tables.md";
}

TEST(DumpVmcs12, ShowsFieldsThatExistWithTheirValues) {
  Vmcs12 vmcs{};
  vmcs.guest_rip = 0xffff'8000'0000'1000;
  vmcs.vpid = 0xabcd;
  vmcs.posted_interrupt_vector = 0x1234;
  std::string text;
  dump_vmcs12(vmcs, Capabilities{CapabilityConfig{}}, mask(Group::guest_tables), append_to(text));
  EXPECT_NE(text.find("guest_rip = 0xffff800000001000\n"), std::string::npos);
  EXPECT_NE(text.find("vpid = 0xabcd\n"), std::string::npos);
  EXPECT_NE(text.find("guest_gdtr_base = 0x0 (stale)\n"), std::string::npos);
  EXPECT_EQ(text.find("posted_interrupt_vector"), std::string::npos);
}

}  // namespace
}  // namespace aerie::nested::vmx
