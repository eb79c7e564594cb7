#include "tools/kut/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tools/run/staging.h"

namespace aerie::tools {
namespace {

class KutPlan : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(folder_.make().ok());
    std::ofstream{folder_.path() + "/a.flat"} << "x";
    std::ofstream{folder_.path() + "/vmx.flat"} << "x";
    options_.folder = folder_.path();
    options_.timeout_scale = 2;
    entry_.name = "a";
    entry_.file = "a.flat";
  }
  PlannedRun plan() {
    return plan_run({entry_, entry_.name, std::nullopt, false}, options_, real_shell_environment());
  }

  TemporaryFolder folder_;
  KutOptions options_;
  KutEntry entry_;
};

TEST_F(KutPlan, DefaultsAreUpstreams) {
  const PlannedRun run = plan();
  EXPECT_EQ(run.skip, "");
  EXPECT_EQ(run.spec.cpus, 1u);
  EXPECT_EQ(run.spec.append, "");
  EXPECT_EQ(run.timeout_seconds, 180);
  EXPECT_FALSE(run.own_qemu_options);
}

TEST_F(KutPlan, TakesProcessorsMemoryArgumentsAndTimeout) {
  entry_.smp = "4";
  entry_.qemu_params = "-cpu max,-pku -m 4g";
  entry_.test_args = "'a b'";
  entry_.timeout = "1m";
  const PlannedRun run = plan();
  EXPECT_EQ(run.skip, "");
  EXPECT_EQ(run.spec.cpus, 4u);
  EXPECT_EQ(run.spec.memory, (std::uint64_t{4} << 30) + run.spec.block);
  EXPECT_EQ(run.spec.append, "a b");
  EXPECT_EQ(run.spec.hide, std::vector<std::string>{"pku"});
  EXPECT_EQ(run.timeout_seconds, 120);
  EXPECT_TRUE(run.spec.qemu_options.empty()) << "-cpu must not reach QEMU";
}

TEST_F(KutPlan, DevicesAndMachinePropertiesReachQemu) {
  entry_.qemu_params = "-M q35,kernel-irqchip=split -device intel-iommu,intremap=on -enable-kvm";
  const PlannedRun run = plan();
  EXPECT_EQ(run.spec.qemu_options,
            (std::vector<std::string>{"-machine", "q35", "-device", "intel-iommu,intremap=on"}));
  EXPECT_TRUE(run.own_qemu_options);
}

TEST_F(KutPlan, TheEntryChoosesTheVendorUnlessTheUserDid) {
  entry_.qemu_params = "-cpu max,+svm";
  EXPECT_EQ(plan().spec.cpu, CpuVendor::amd);
  options_.machine.cpu = CpuVendor::intel;
  EXPECT_EQ(plan().skip, "wants --cpu amd");
  entry_.qemu_params = "";
  EXPECT_EQ(plan().skip, "");
  EXPECT_EQ(plan().spec.cpu, CpuVendor::intel);
}

TEST_F(KutPlan, SkipsHaveReasons) {
  const auto skip_with = [this](auto&& change) {
    const KutEntry saved = entry_;
    change(entry_);
    const std::string reason = plan().skip;
    entry_ = saved;
    return reason;
  };
  EXPECT_EQ(skip_with([](KutEntry& e) { e.arch = "i386"; }), "i386 only");
  EXPECT_EQ(skip_with([](KutEntry& e) { e.accel = "kvm"; }),
            "kvm only, but the accelerator is tcg");
  EXPECT_EQ(skip_with([](KutEntry& e) { e.groups = {"nodefault"}; }),
            "test marked as manual run only");
  EXPECT_EQ(skip_with([](KutEntry& e) { e.check = "/nonexistent=Y"; }),
            "/nonexistent not equal to Y");
  EXPECT_EQ(skip_with([](KutEntry& e) { e.disabled_if = "[ 1 = 1 ]"; }),
            "disabled because: [ 1 = 1 ]");
  EXPECT_NE(skip_with([](KutEntry& e) { e.file = "b.flat"; }), "");
  EXPECT_NE(skip_with([](KutEntry& e) { e.smp = "99"; }), "");
  EXPECT_NE(skip_with([](KutEntry& e) { e.test_args = "'unclosed"; }), "");
  EXPECT_NE(skip_with([](KutEntry& e) { e.timeout = "soon"; }), "");
}

TEST_F(KutPlan, ACheckThatHoldsIsPassed) {
  std::ofstream{folder_.path() + "/flag"} << "Y\n";
  entry_.check = folder_.path() + "/flag=Y";
  EXPECT_EQ(plan().skip, "");
}

TEST_F(KutPlan, ManualEntriesRunWhenNamedOrInAChosenGroup) {
  entry_.groups = {"nodefault", "vmx"};
  EXPECT_EQ(plan_run({entry_, "a", std::nullopt, true}, options_, real_shell_environment()).skip,
            "");
  options_.group = "vmx";
  EXPECT_EQ(plan().skip, "");
}

TEST(KutSelect, PrefersTheFullNameThenPatternsThenParts) {
  const auto entries =
      parse_kut_config("[vmx]\nfile=vmx.flat\n[vmx_a]\nfile=vmx.flat\n[b]\nfile=b\n");
  const auto names = [&](const std::vector<std::string>& filters) {
    std::vector<std::string> result;
    const auto selected = select_entries(entries, filters, [](const std::string& file) {
      return file == "vmx.flat" ? std::string("..\0control field PAT\0..", 22) : "";
    });
    if (!selected.ok()) {
      return std::vector<std::string>{"error"};
    }
    for (const KutSelection& s : *selected) {
      result.push_back(s.name + (s.arguments.has_value() ? "<" + *s.arguments + ">" : ""));
    }
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({}), (Names{"vmx", "vmx_a", "b"}));
  EXPECT_EQ(names({"vmx"}), Names{"vmx"});
  EXPECT_EQ(names({"vmx*"}), (Names{"vmx", "vmx_a"}));
  EXPECT_EQ(names({"mx"}), (Names{"vmx", "vmx_a"}));
  EXPECT_EQ(names({"b", "vmx_a"}), (Names{"b", "vmx_a"}));
  EXPECT_EQ(names({"vmx:CR shadowing"}), Names{"vmx:CR shadowing<CR_shadowing>"});
  EXPECT_EQ(names({"control field PAT"}), Names{"vmx:control field PAT<control_field_PAT>"});
  EXPECT_EQ(names({"control_field_PAT"}), Names{"vmx:control_field_PAT<control_field_PAT>"});
  EXPECT_EQ(names({"nothing"}), Names{"error"});
}

TEST(KutDuration, AsTimeoutHasIt) {
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("1.5m"), 90);
  EXPECT_EQ(parse_duration(""), std::nullopt);
  EXPECT_EQ(parse_duration("x"), std::nullopt);
}

}  // namespace
}  // namespace aerie::tools
