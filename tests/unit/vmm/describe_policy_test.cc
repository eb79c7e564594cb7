#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "nested/vmx/capabilities.h"
#include "vmm/policy/describe.h"
#include "vmm/policy/feature.h"

namespace aerie::vmm::policy {
namespace {

TEST(DescribePolicy, ThePageIsWhatTheTablesSay) {
  std::ifstream file{AERIE_SOURCE_DIR "/docs/what_l1_sees.md"};
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), describe())
      << "run: build/hosted/vmm/policy/describe_policy > docs/what_l1_sees.md";
}

TEST(DescribePolicy, VmxFeaturesAreNamedAsTheCapabilityTableNamesThem) {
  for (const FeatureRow& row : feature_table::kRows) {
    if (row.bit.leaf == kNoLeaf) {
      EXPECT_TRUE(nested::vmx::feature_named(row.name).has_value()) << row.name;
    }
  }
}

}  // namespace
}  // namespace aerie::vmm::policy
