#include "tools/kut/cpu_model.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/report/text.h"
#include "vmm/policy/feature.h"

namespace aerie::tools {
namespace {

namespace policy = vmm::policy;

struct Model {
  absl::string_view name;
  std::optional<CpuVendor> vendor;
  // Features the model has, of those Aerie may show; `all`: whatever there is.
  bool all;
  absl::string_view has;
};

// What QEMU's models have. Upstream's runner gives qemu64 the vendor of the host, so it names none.
constexpr absl::string_view kQemu64 =
    "fpu de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 "
    "sse3 "
    "cx16 lm syscall nx lahf-lm hypervisor x2apic";
constexpr absl::string_view kOpteronG1 =
    "vme fpu de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse "
    "sse2 "
    "sse3 lm syscall nx hypervisor x2apic";
constexpr absl::string_view kIvyBridge =
    "vme fpu de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse "
    "sse2 "
    "sse3 pclmulqdq ssse3 cx16 sse4.1 sse4.2 x2apic popcnt tsc-deadline aes xsave avx f16c rdrand "
    "fsgsbase smep erms lm syscall nx rdtscp lahf-lm xsaveopt arat hypervisor vmx";

constexpr std::array kModels = {
    Model{"max", std::nullopt, true, ""},
    Model{"host", std::nullopt, true, ""},
    Model{"qemu64", std::nullopt, false, kQemu64},
    Model{"kvm64", std::nullopt, false, kQemu64},
    Model{"Opteron_G1", CpuVendor::amd, false, kOpteronG1},
    Model{"IvyBridge", CpuVendor::intel, false, kIvyBridge},
    // Newer than anything Aerie shows on a software processor: all there is.
    Model{"Skylake-Server", CpuVendor::intel, true, ""},
    Model{"Haswell", CpuVendor::intel, true, ""},
    Model{"Broadwell", CpuVendor::intel, true, ""},
    Model{"EPYC", CpuVendor::amd, true, ""},
};

// Words in -cpu that say nothing about what is shown.
constexpr std::array<absl::string_view, 7> kIgnored = {
    "host-phys-bits", "migratable", "check", "enforce", "pmu", "l3-cache", "x-intel-pt-auto-level"};

const policy::FeatureRow* find_feature(absl::string_view name) {
  for (const policy::feature_table::Alias& alias : policy::feature_table::kAliases) {
    if (absl_view(alias.alias) == name) {
      name = absl_view(alias.name);
      break;
    }
  }
  for (const policy::FeatureRow& row : policy::feature_table::kRows) {
    if (absl_view(row.name) == name) {
      return &row;
    }
  }
  return nullptr;
}

bool contains(const std::vector<std::string>& list, absl::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_vmx(const policy::FeatureRow& row) {
  return row.who == policy::Vendors::intel && row.show == policy::Show::engine;
}
bool is_svm(const policy::FeatureRow& row) {
  return row.who == policy::Vendors::amd && row.show == policy::Show::engine;
}

// Why a feature that the entry asks for cannot be shown; empty if it can.
std::string why_not(absl::string_view name, const policy::FeatureRow* row,
                    const std::vector<absl::string_view>& host_lacks) {
  if (row == nullptr) {
    return absl::StrCat("Aerie knows no feature \"", name, "\"");
  }
  if (row->show == policy::Show::never) {
    return absl::StrCat("Aerie does not show ", name, ": ", absl_view(row->why));
  }
  const bool from_host = row->show == policy::Show::host;
  if (from_host &&
      std::find(host_lacks.begin(), host_lacks.end(), absl_view(row->name)) != host_lacks.end()) {
    return absl::StrCat("the processor under Aerie has no ", name);
  }
  return {};
}

}  // namespace

const std::vector<absl::string_view>& tcg_lacks() {
  static const std::vector<absl::string_view> lacks = {"pcid", "invpcid", "rdseed", "xsaves",
                                                       "xsavec"};
  return lacks;
}

ShownCpu translate_cpu(absl::string_view argument,
                       const std::vector<absl::string_view>& host_lacks) {
  ShownCpu shown;
  const std::vector<absl::string_view> words = absl::StrSplit(argument, ',', absl::SkipEmpty());
  if (words.empty()) {
    shown.cannot_show = "-cpu names no model";
    return shown;
  }
  const auto* model = std::find_if(kModels.begin(), kModels.end(),
                                   [&](const Model& m) { return m.name == words[0]; });
  if (model == kModels.end()) {
    shown.cannot_show = absl::StrCat("Aerie knows no processor model ", words[0]);
    return shown;
  }
  shown.vendor = model->vendor;

  std::vector<std::string> added;
  const auto demand = [&](absl::string_view name) {
    const policy::FeatureRow* row = find_feature(name);
    if (std::string why = why_not(name, row, host_lacks); !why.empty()) {
      shown.cannot_show = std::move(why);
      return;
    }
    if (is_vmx(*row) || is_svm(*row)) {
      shown.vendor = is_vmx(*row) ? CpuVendor::intel : CpuVendor::amd;
    }
    added.emplace_back(row->name);
    shown.hide.erase(std::remove(shown.hide.begin(), shown.hide.end(), row->name),
                     shown.hide.end());
  };
  const auto take_away = [&](absl::string_view name) {
    const policy::FeatureRow* row = find_feature(name);
    // What is never shown need not be hidden.
    if (row != nullptr && row->show != policy::Show::never &&
        !contains(shown.hide, absl_view(row->name))) {
      shown.hide.emplace_back(row->name);
    }
  };

  for (std::size_t i = 1; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (absl::ConsumePrefix(&word, "+")) {
      demand(word);
      continue;
    }
    if (absl::ConsumePrefix(&word, "-")) {
      take_away(word);
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> key =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (key.first == "vendor") {
      if (key.second != "GenuineIntel" && key.second != "AuthenticAMD") {
        shown.cannot_show = absl::StrCat("Aerie shows no processor of vendor ", key.second);
      }
      shown.vendor = key.second == "AuthenticAMD" ? CpuVendor::amd : CpuVendor::intel;
    } else if (key.first == "phys-bits") {
      shown.cannot_show =
          absl::StrCat("Aerie does not change the width of physical addresses (", word, ")");
    } else if (absl::StartsWith(key.first, "hv_") || absl::StartsWith(key.first, "hv-")) {
      shown.cannot_show = absl::StrCat("Aerie shows no Hyper-V interface (", key.first, ")");
    } else if (std::find(kIgnored.begin(), kIgnored.end(), key.first) != kIgnored.end()) {
      continue;
    } else if (key.second == "off" || key.second == "no") {
      take_away(key.first);
    } else {
      demand(key.first);
    }
  }

  if (!model->all) {
    const std::vector<std::string> has = absl::StrSplit(model->has, ' ');
    for (const policy::FeatureRow& row : policy::feature_table::kRows) {
      const bool optional = row.show == policy::Show::host || row.show == policy::Show::always;
      const absl::string_view name = absl_view(row.name);
      if (optional && !contains(has, name) && !contains(added, name) &&
          !contains(shown.hide, name)) {
        shown.hide.emplace_back(name);
      }
    }
  }
  return shown;
}

}  // namespace aerie::tools
