// What CPUID tells L1: a whole processor of the vendor asked for, made of what the processor
// underneath has and what Aerie provides. Which bits, and why, is feature.h's table; the other
// leaves (identity, topology, caches, clocks) are cpuid.cc's.
//
//   CpuidPolicy policy;  policy.init(config);              once, before the vCPUs
//   VcpuCpuid cpuid;     cpuid.init(policy, vcpu_number);  one each
//   cpuid.execute(registers);                              in the exit handler
//   cpuid.set_state(state);                                whenever CR4, XCR0, XSS or APIC base
//   changed
#pragma once

#include <array>

#include "base/types.h"
#include "cpu/arch/instructions.h"
#include "cpu/arch/registers.h"
#include "vmm/policy/feature.h"

namespace aerie::vmm::policy {

// Who is announced in leaves 0x40000000 and up, each interface in its own block of 0x100 leaves.
enum class HypervisorInterface : u8 {
  none,
  aerie,
  kvm,  // the signature alone, no paravirtual feature: Linux then uses x2APIC without interrupt
        // remapping
};
inline constexpr usize kHypervisorInterfaces = 2;

struct CpuidConfig {
  Vendor vendor = Vendor::intel;
  FeatureSet hidden;  // by the user
  // Of Show::engine rows: what nested/ implements on this host. Of Show::host rows: what L0
  // provides where the processor does not have it.
  FeatureSet engine;
  unsigned cpus = 1;  // vCPUs; 1 to kMaxCpus
  std::array<u8, kMaxCpus> apic_ids{0, 1, 2, 3, 4, 5, 6, 7};
  // L1's TSC and its APIC timer with divisor 1, which is the crystal of leaf 0x15. To be given only
  // where known within 100 ppm, since Linux then believes them and doesn't calibrate; 0: no clock
  // leaves.
  u64 tsc_hz = 0;
  u64 apic_hz = 0;
  unsigned physical_bits = 0;  // 0: the host's; never more than the host's
  std::array<HypervisorInterface, kHypervisorInterfaces> interfaces{HypervisorInterface::aerie};
  // The processor underneath; tests put a table here.
  cpu::CpuidResult (*host)(u32 leaf, u32 subleaf) = [](u32 leaf, u32 subleaf) {
    return cpu::cpuid(leaf, subleaf);
  };
};

// The part of a vCPU's state that shows in CPUID.
struct CpuidState {
  bool osxsave = false;      // CR4.OSXSAVE
  bool pke = false;          // CR4.PKE
  bool apic_enabled = true;  // IA32_APIC_BASE.EN
  u64 xcr0 = 1;
  u64 xss = 0;
  constexpr bool operator==(const CpuidState&) const = default;
};

class CpuidPolicy {
 public:
  void init(const CpuidConfig& config);

  const CpuidConfig& config() const { return config_; }
  Vendor vendor() const { return config_.vendor; }
  // Whether L1 has the feature: for a `dynamic` one, whether its bit can ever be set.
  bool has(Feature f) const { return features_.has(f); }
  const FeatureSet& features() const { return features_; }
  // The processor underneath is an emulator: it has none of the faults that mitigations are for.
  bool host_is_emulator() const { return host_is_emulator_; }
  unsigned physical_bits() const { return physical_bits_; }
  unsigned linear_bits() const { return has(feature("la57")) ? 57 : 48; }
  // Bits L1 may set in XCR0 and IA32_XSS.
  u64 xcr0() const { return xcr0_; }
  u64 xss() const { return xss_; }

  // What vCPU `cpu` is told. A few thousand instructions: VcpuCpuid remembers the answer.
  cpu::CpuidResult compute(u32 leaf, u32 subleaf, unsigned cpu, const CpuidState& state) const;

 private:
  struct Leaves;  // cpuid.cc: one function for a leaf that is more than feature bits

  void find_features();
  void find_state_components();
  void add_feature_bits(u32 leaf, u32 subleaf, const CpuidState& state,
                        cpu::CpuidResult& result) const;
  bool host_has(const CpuidBit& bit) const;
  u32 xsave_size(u64 components, bool compacted) const;

  struct StateComponent {
    u32 size, offset, flags;
  };

  CpuidConfig config_{};
  FeatureSet features_{};
  bool host_is_emulator_ = false;
  unsigned physical_bits_ = 36;
  u64 xcr0_ = 1;
  u64 xss_ = 0;
  std::array<StateComponent, 32> components_{};
};

// One vCPU's CPUID: a direct-mapped table of answers, filled at first use.
class VcpuCpuid {
 public:
  void init(const CpuidPolicy& policy, unsigned cpu) {
    policy_ = &policy;
    cpu_ = cpu;
    forget();
  }

  const CpuidState& state() const { return state_; }
  // Cheap where nothing that CPUID shows has changed.
  void set_state(const CpuidState& state) {
    if (!(state == state_)) {
      state_ = state;
      forget();
    }
  }

  // CPUID's effect on RAX, RBX, RCX and RDX. False, and nothing done, where the answer is not at
  // hand.
  [[gnu::always_inline]] bool execute_known(cpu::GuestRegisters& registers) const {
    const auto leaf = static_cast<u32>(registers[cpu::Gpr::rax]);
    const auto subleaf = static_cast<u32>(registers[cpu::Gpr::rcx]);
    const Entry& entry = entries_[index_of(leaf, subleaf)];
    if (entry.leaf != leaf || entry.subleaf != subleaf) [[unlikely]] {
      return false;
    }
    registers[cpu::Gpr::rax] = entry.result.eax;
    registers[cpu::Gpr::rbx] = entry.result.ebx;
    registers[cpu::Gpr::rcx] = entry.result.ecx;
    registers[cpu::Gpr::rdx] = entry.result.edx;
    return true;
  }
  void execute(cpu::GuestRegisters& registers) {
    if (!execute_known(registers)) {
      const auto leaf = static_cast<u32>(registers[cpu::Gpr::rax]);
      const auto subleaf = static_cast<u32>(registers[cpu::Gpr::rcx]);
      fill(entries_[index_of(leaf, subleaf)], leaf, subleaf);
      execute_known(registers);
    }
  }

 private:
  static constexpr usize kEntries = 64;
  struct Entry {
    u32 leaf, subleaf;
    cpu::CpuidResult result;
  };
  // Basic leaves, 0x4000'00xx and 0x8000'00xx fall into different quarters.
  static constexpr usize index_of(u32 leaf, u32 subleaf) {
    return (leaf + (leaf >> 26) + subleaf * 5) % kEntries;
  }
  // An entry that holds nothing carries a key that belongs to another entry: it never compares
  // equal.
  void forget() {
    for (usize i = 0; i < kEntries; ++i) {
      entries_[i] = {static_cast<u32>(i ^ 1), 0, {}};
    }
  }
  [[gnu::noinline, gnu::cold]] void fill(Entry& entry, u32 leaf, u32 subleaf) {
    entry = {leaf, subleaf, policy_->compute(leaf, subleaf, cpu_, state_)};
  }

  std::array<Entry, kEntries> entries_{};
  const CpuidPolicy* policy_ = nullptr;
  unsigned cpu_ = 0;
  CpuidState state_{};
};

}  // namespace aerie::vmm::policy
