#include "vmm/policy/cpuid.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

namespace aerie::vmm::policy {
namespace {

using cpu::CpuidResult;

constexpr u32 kExtended = 0x80000000;
constexpr u32 kHypervisor = 0x40000000;

// Twelve characters in EBX, EDX, ECX for a vendor, in EBX, ECX, EDX for a hypervisor.
constexpr u32 word(std::string_view text, usize at) {
  u32 value = 0;
  for (usize i = 0; i < 4 && at + i < text.size(); ++i) {
    value |= u32{static_cast<u8>(text[at + i])} << (8 * i);
  }
  return value;
}

// One processor that exists, of each vendor, whose features are the nearest to what is shown: PKS
// and LA57 are Sapphire Rapids', LA57 and PKU without PKS are Genoa's.
struct Identity {
  std::string_view vendor;
  std::string_view brand;
  u32 signature;  // leaf 1, EAX: family, model, stepping
  u32 max_basic;
  u32 max_extended;
};
constexpr Identity kIdentities[] = {
    {"GenuineIntel", "Intel Xeon processor, as shown by Aerie", 0x000806f8, 0x1f, 0x80000008},
    {"AuthenticAMD", "AMD EPYC processor, as shown by Aerie", 0x00a10f11, 0x0d, 0x80000021},
};
constexpr usize kBrandSize = 48;

// Caches of the two, for leaf 4 and its AMD twin.
struct Cache {
  u8 type;  // 1 data, 2 instructions, 3 unified
  u8 level;
  u32 ways;
  u32 sets;
  bool shared;  // by all processors
};
constexpr Cache kIntelCaches[] = {
    {1, 1, 12, 64, false}, {2, 1, 8, 64, false}, {3, 2, 16, 2048, false}, {3, 3, 15, 32768, true}};
constexpr Cache kAmdCaches[] = {
    {1, 1, 8, 64, false}, {2, 1, 8, 64, false}, {3, 2, 8, 2048, false}, {3, 3, 16, 32768, true}};
constexpr u32 kCacheLine = 64;

// The bits of leaf 1, EDX, that AMD repeats in 0x80000001, EDX (APM vol. 3, E.4.2).
constexpr u32 kAmdRepeatedBits = 0x0183f3ff;

// XCR0's bits, and the feature that brings each (SDM vol. 1, 13.3).
struct StateRule {
  u64 bits;
  Feature needs;
};
constexpr StateRule kStateRules[] = {
    {0x003, feature("xsave")},  // x87 and SSE
    {0x004, feature("avx")},
    {0x0e0, feature("avx512f")},
    {0x200, feature("pku")},
};

constexpr u32 kLegacyXsaveArea = 576;  // legacy region and header

// a/b nearest to numerator/denominator with a * scale below 2^32, so that who multiplies first does
// not overflow: the last convergent of the continued fraction for which that holds.
struct Ratio {
  u32 numerator = 0;
  u32 denominator = 0;
};
Ratio approximate(u64 numerator, u64 denominator, u64 scale) {
  const u64 limit = std::numeric_limits<u32>::max() / std::max<u64>(scale, 1);
  u64 a0 = 0, b0 = 1, a1 = 1, b1 = 0;
  while (denominator != 0) {
    const u64 quotient = numerator / denominator;
    const u64 a2 = quotient * a1 + a0;
    const u64 b2 = quotient * b1 + b0;
    if (quotient > limit || a2 > limit || b2 > limit) {
      break;
    }
    a0 = a1;
    a1 = a2;
    b0 = b1;
    b1 = b2;
    const u64 remainder = numerator % denominator;
    numerator = denominator;
    denominator = remainder;
  }
  return {static_cast<u32>(a1), static_cast<u32>(b1)};
}

}  // namespace

// --- What L1 has
// --------------------------------------------------------------------------------------

void CpuidPolicy::init(const CpuidConfig& config) {
  config_ = config;
  config_.cpus = std::clamp(config.cpus, 1u, kMaxCpus);
  const CpuidResult leaf1 = config_.host(1, 0);
  host_is_emulator_ = false;
  if ((leaf1.ecx & bit(31)) != 0) {
    const CpuidResult who = config_.host(kHypervisor, 0);
    constexpr std::string_view tcg = "TCGTCGTCGTCG";
    host_is_emulator_ =
        who.ebx == word(tcg, 0) && who.ecx == word(tcg, 4) && who.edx == word(tcg, 8);
  }
  const unsigned host_bits = config_.host(kExtended, 0).eax >= kExtended + 8
                                 ? config_.host(kExtended + 8, 0).eax & 0xff
                                 : 36;
  physical_bits_ =
      config_.physical_bits == 0 ? host_bits : std::min(config_.physical_bits, host_bits);
  find_features();
  find_state_components();
}

bool CpuidPolicy::host_has(const CpuidBit& b) const {
  if (b.leaf == kNoLeaf || config_.host(b.leaf & kExtended, 0).eax < b.leaf) {
    return false;
  }
  // Leaf 7 tells how many subleaves it has; the others used here always have those that are asked
  // for.
  if (b.leaf == 7 && config_.host(7, 0).eax < b.subleaf) {
    return false;
  }
  const CpuidResult r = config_.host(b.leaf, b.subleaf);
  const u32 registers[] = {r.eax, r.ebx, r.ecx, r.edx};
  return ((registers[static_cast<u8>(b.reg)] >> b.position) & 1) != 0;
}

void CpuidPolicy::find_features() {
  features_ = {};
  for (usize i = 0; i < kFeatures; ++i) {
    const Feature f{static_cast<u8>(i)};
    const FeatureRow& row = row_of(f);
    if (!includes(row.who, config_.vendor) || config_.hidden.has(f)) {
      continue;
    }
    bool shown = false;
    switch (row.show) {
      case Show::host:
        shown = host_has(row.bit) || host_has(row.host_alternative) || config_.engine.has(f);
        break;
      case Show::immune:
        shown = host_is_emulator_ || host_has(row.bit);
        break;
      case Show::engine:
        shown = config_.engine.has(f);
        break;
      case Show::always:
      case Show::dynamic:
        shown = true;
        break;
      case Show::never:
        break;
    }
    if (shown) {
      features_.add(f);
    }
  }
  features_.drop_orphans();
}

void CpuidPolicy::find_state_components() {
  xcr0_ = 1;
  xss_ = 0;  // no supervisor state is shown: XSAVES serves user components alone
  components_ = {};
  if (!has(feature("xsave"))) {
    return;
  }
  const CpuidResult host = config_.host(0xd, 0);
  const u64 host_xcr0 = (u64{host.edx} << 32) | host.eax;
  for (const StateRule& rule : kStateRules) {
    if (has(rule.needs) && (host_xcr0 & rule.bits) == rule.bits) {
      xcr0_ |= rule.bits;
    }
  }
  for (unsigned i = 2; i < components_.size(); ++i) {
    if ((xcr0_ & bit(i)) != 0) {
      const CpuidResult r = config_.host(0xd, i);
      components_[i] = {.size = r.eax, .offset = r.ebx, .flags = r.ecx};
    }
  }
}

// SDM vol. 1, 13.4.3.
u32 CpuidPolicy::xsave_size(u64 components, bool compacted) const {
  u32 size = kLegacyXsaveArea;
  for (unsigned i = 2; i < components_.size(); ++i) {
    if ((components & bit(i)) == 0) {
      continue;
    }
    const StateComponent& c = components_[i];
    if (compacted) {
      size = ((c.flags & 2) != 0 ? align_up(size, 64) : size) + c.size;
    } else {
      size = std::max(size, c.offset + c.size);
    }
  }
  return size;
}

// --- The leaves
// ---------------------------------------------------------------------------------------

struct CpuidPolicy::Leaves {
  const CpuidPolicy& policy;
  unsigned cpu;
  const CpuidState& state;
  u32 leaf;
  u32 subleaf;

  const CpuidConfig& config() const { return policy.config_; }
  const Identity& identity() const { return kIdentities[static_cast<u8>(policy.vendor())]; }
  u32 apic_id() const { return config().apic_ids[cpu % kMaxCpus]; }
  // Bits of an APIC ID that tell the processors of the one package apart.
  u32 package_bits() const {
    const auto ids = std::span{config().apic_ids}.first(config().cpus);
    return static_cast<u32>(std::bit_width(unsigned{*std::max_element(ids.begin(), ids.end())}));
  }

  CpuidResult vendor(u32 max_leaf) const {
    const std::string_view name = identity().vendor;
    return {max_leaf, word(name, 0), word(name, 8), word(name, 4)};
  }
  CpuidResult signature() const {
    const u32 logical = config().cpus > 1 ? u32{1} << package_bits() : 0;
    return {identity().signature, (apic_id() << 24) | (logical << 16) | (kCacheLine / 8 << 8), 0,
            0};
  }
  CpuidResult extended_signature() const {
    CpuidResult r{policy.vendor() == Vendor::amd ? identity().signature : 0, 0, 0, 0};
    if (policy.vendor() == Vendor::amd) {
      CpuidResult bits{};
      policy.add_feature_bits(1, 0, state, bits);
      r.edx = bits.edx & kAmdRepeatedBits;
    }
    return r;
  }
  // "Look at leaf 4 for the caches", and 64-byte prefetching.
  CpuidResult descriptors() const { return {0x00ff0001, 0xf0, 0, 0}; }
  CpuidResult cache(std::span<const Cache> caches) const {
    if (subleaf >= caches.size()) {
      return {};
    }
    const Cache& c = caches[subleaf];
    const u32 ids = u32{1} << package_bits();
    const u32 sharing = c.shared ? ids - 1 : 0;
    const u32 cores = policy.vendor() == Vendor::intel ? ids - 1 : 0;
    return {(cores << 26) | (sharing << 14) | (u32{1} << 8) | (u32{c.level} << 5) | c.type,
            ((c.ways - 1) << 22) | (kCacheLine - 1), c.sets - 1, 0};
  }
  CpuidResult extended_features() const {
    CpuidResult one{};
    policy.add_feature_bits(7, 1, state, one);
    return {subleaf == 0 && one.eax != 0 ? u32{1} : u32{0}, 0, 0, 0};
  }
  // One thread a core, all cores in one package.
  CpuidResult topology() const {
    constexpr u32 kThread = 1, kCore = 2;
    if (subleaf == 0) {
      return {0, 1, (kThread << 8) | subleaf, apic_id()};
    }
    if (subleaf == 1) {
      return {package_bits(), config().cpus, (kCore << 8) | subleaf, apic_id()};
    }
    return {0, 0, subleaf & 0xff, apic_id()};
  }
  CpuidResult xsave() const {
    if (!policy.has(feature("xsave"))) {
      return {};
    }
    if (subleaf == 0) {
      return {static_cast<u32>(policy.xcr0_), policy.xsave_size(state.xcr0, false),
              policy.xsave_size(policy.xcr0_, false), static_cast<u32>(policy.xcr0_ >> 32)};
    }
    if (subleaf == 1) {
      const bool compacts = policy.has(feature("xsavec")) || policy.has(feature("xsaves"));
      return {0, compacts ? policy.xsave_size(state.xcr0 | state.xss, true) : 0,
              static_cast<u32>(policy.xss_), static_cast<u32>(policy.xss_ >> 32)};
    }
    if (subleaf < policy.components_.size()) {
      const StateComponent& c = policy.components_[subleaf];
      return {c.size, c.offset, c.flags, 0};
    }
    return {};
  }
  // TSC = crystal * EBX / EAX. Readers multiply the crystal's kHz by EBX in 32 bits.
  CpuidResult clock() const {
    const u64 tsc = config().tsc_hz;
    const u64 crystal = config().apic_hz;
    if (tsc == 0 || crystal == 0 || crystal > std::numeric_limits<u32>::max()) {
      return {};
    }
    const Ratio ratio = approximate(tsc, crystal, crystal / 1000);
    if (ratio.numerator == 0 || ratio.denominator == 0) {
      return {};
    }
    return {ratio.denominator, ratio.numerator, static_cast<u32>(crystal), 0};
  }
  CpuidResult frequency() const {
    const auto mhz = static_cast<u32>((config().tsc_hz + 500'000) / 1'000'000);
    return mhz == 0 ? CpuidResult{} : CpuidResult{mhz, mhz, 100, 0};
  }
  CpuidResult brand() const {
    const usize at = (leaf - (kExtended + 2)) * 16;
    const std::string_view text = identity().brand;
    static_assert(kIdentities[0].brand.size() < kBrandSize &&
                  kIdentities[1].brand.size() < kBrandSize);
    return {word(text, at), word(text, at + 4), word(text, at + 8), word(text, at + 12)};
  }
  CpuidResult address_sizes() const {
    CpuidResult r{policy.physical_bits() | (policy.linear_bits() << 8), 0, 0, 0};
    if (policy.vendor() == Vendor::amd) {
      r.ecx = (package_bits() << 12) | (config().cpus - 1);
    }
    return r;
  }
  CpuidResult svm() const {
    constexpr u32 kRevision = 1, kAsids = 64;  // an L1's ASIDs are not the host's
    return policy.has(feature("svm")) ? CpuidResult{kRevision, kAsids, 0, 0} : CpuidResult{};
  }
  CpuidResult amd_topology() const { return {apic_id(), apic_id() & 0xff, 0, 0}; }

  // Leaves 0x40000000 and up, interface by interface.
  CpuidResult hypervisor() const {
    const usize number = (leaf - kHypervisor) / 0x100;
    if (number >= config().interfaces.size()) {
      return {};
    }
    const u32 base = leaf & ~u32{0xff};
    switch (config().interfaces[number]) {
      case HypervisorInterface::aerie:
        return interface_leaf("AerieAerieAe", base, {1, 0, 0, 0});  // EAX: version of these leaves
      case HypervisorInterface::kvm:
        return interface_leaf({"KVMKVMKVM\0\0\0", 12}, base, {});
      case HypervisorInterface::none:
        break;
    }
    return {};
  }
  CpuidResult interface_leaf(std::string_view name, u32 base, CpuidResult first) const {
    if (leaf == base) {
      return {base + 1, word(name, 0), word(name, 4), word(name, 8)};
    }
    return leaf == base + 1 ? first : CpuidResult{};
  }

  // What a leaf holds besides feature bits.
  CpuidResult basic() const {
    const bool intel = policy.vendor() == Vendor::intel;
    switch (leaf) {
      case 0x00:
        return vendor(identity().max_basic);
      case 0x01:
        return signature();
      case 0x02:
        return intel ? descriptors() : CpuidResult{};
      case 0x04:
        return intel ? cache(kIntelCaches) : CpuidResult{};
      case 0x07:
        return extended_features();
      case 0x0b:
        return topology();
      case 0x0d:
        return xsave();
      case 0x15:
        return clock();
      case 0x16:
        return frequency();
      case 0x1f:
        return topology();
      default:
        return {};
    }
  }
  CpuidResult extended() const {
    const bool intel = policy.vendor() == Vendor::intel;
    switch (leaf) {
      case 0x80000000: {
        const CpuidResult amd = vendor(identity().max_extended);
        return intel ? CpuidResult{identity().max_extended, 0, 0, 0} : amd;
      }
      case 0x80000001:
        return extended_signature();
      case 0x80000002:
      case 0x80000003:
      case 0x80000004:
        return brand();
      // L1 TLBs and caches; L2 TLBs and caches, L3: as Genoa tells them, Intel only its L2.
      case 0x80000005:
        return intel ? CpuidResult{} : CpuidResult{0xff48ff40, 0xff48ff40, 0x20080140, 0x20080140};
      case 0x80000006:
        return intel ? CpuidResult{0, 0, 0x08008040, 0} : CpuidResult{0, 0, 0x04006140, 0x01009140};
      case 0x80000008:
        return address_sizes();
      case 0x8000000a:
        return svm();
      case 0x8000001d:
        return cache(kAmdCaches);
      case 0x8000001e:
        return amd_topology();
      default:
        return {};
    }
  }
};

// Adds the feature bits of one leaf, as the table and L1's state have them.
void CpuidPolicy::add_feature_bits(u32 leaf, u32 subleaf, const CpuidState& state,
                                   cpu::CpuidResult& result) const {
  const bool several = config_.cpus > 1;
  for (usize i = 0; i < kFeatures; ++i) {
    const Feature f{static_cast<u8>(i)};
    const FeatureRow& row = row_of(f);
    if (row.bit.leaf != leaf || row.bit.subleaf != subleaf || !has(f)) {
      continue;
    }
    if (row.show == Show::dynamic) {
      const bool on = f == feature("osxsave") ? state.osxsave
                      : f == feature("ospke") ? state.pke
                      : f == feature("apic")  ? state.apic_enabled
                                              : several;
      if (!on) {
        continue;
      }
    }
    u32* const registers[] = {&result.eax, &result.ebx, &result.ecx, &result.edx};
    *registers[static_cast<u8>(row.bit.reg)] |= u32{1} << row.bit.position;
  }
}

cpu::CpuidResult CpuidPolicy::compute(u32 leaf, u32 subleaf, unsigned cpu,
                                      const CpuidState& state) const {
  const Identity& identity = kIdentities[static_cast<u8>(vendor())];
  if (leaf >= kHypervisor && leaf < kExtended && has(feature("hypervisor"))) {
    return Leaves{*this, cpu, state, leaf, subleaf}.hypervisor();
  }
  const bool basic = leaf <= identity.max_basic;
  const bool extended = leaf >= kExtended && leaf <= identity.max_extended;
  if (!basic && !extended) {
    if (vendor() == Vendor::amd) {
      return {};
    }
    // Intel answers for the highest basic leaf (SDM vol. 2A, CPUID).
    return compute(identity.max_basic, subleaf, cpu, state);
  }
  const Leaves leaves{*this, cpu, state, leaf, subleaf};
  CpuidResult result = basic ? leaves.basic() : leaves.extended();
  // Leaves 7 and 0xd have subleaves; the others of the table ignore ECX.
  const bool indexed = leaf == 7 || leaf == 0xd;
  add_feature_bits(leaf, indexed ? subleaf : 0, state, result);
  return result;
}

}  // namespace aerie::vmm::policy
