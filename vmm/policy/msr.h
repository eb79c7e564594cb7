// RDMSR and WRMSR of L1, by the table in msr_table.h.
//
//   MsrPolicy policy;  policy.init(cpuid_policy, host);        once
//   VcpuMsrs msrs;     msrs.power_up(policy);                  one a vCPU
//   std::optional<u64> value = msrs.read(context, index);      in the exit handlers; nothing:
//   #GP(0) bool legal = msrs.write(context, index, value);            false: #GP(0)
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <span>

#include "base/address.h"
#include "base/types.h"
#include "cpu/arch/msr.h"
#include "vmm/policy/cpuid.h"
#include "vmm/policy/msr_table.h"

namespace aerie::vmm::policy {

// What an access needs of its vCPU.
template <class C>
concept MsrContext = requires(C c, u32 index, u64 value, bool on) {
  // L1's value in the processor, of `hardware` rows. Those that VMLOAD moves (FS_BASE, GS_BASE,
  // KERNEL_GS_BASE, STAR, LSTAR, CSTAR, FMASK, SYSENTER) are in the processor between exits
  // (cpu/backend.h).
  { c.hardware_read(index) } -> std::same_as<u64>;
  c.hardware_write(index, value);
  // IA32_APIC_BASE, IA32_TSC_DEADLINE, 0x800-0x8ff: vmm/local_apic.h. Nothing, false: #GP.
  { c.apic_read(index) } -> std::same_as<std::optional<u64>>;
  { c.apic_write(index, value) } -> std::same_as<bool>;
  // L1's TSC: the processor's plus an offset.
  { c.tsc() } -> std::same_as<u64>;
  { c.tsc_offset() } -> std::same_as<u64>;
  c.set_tsc_offset(value);
  // As L1 sees it; a write is judged by CrPolicy::write_efer. False: #GP.
  { c.efer() } -> std::same_as<u64>;
  { c.write_efer(value) } -> std::same_as<bool>;
  { c.pat() } -> std::same_as<u64>;
  c.set_pat(value);
  c.set_debugctl(value);
  // RDMSR of `index` needs no exit from now on, or does again.
  c.set_direct_read(index, on);
  // VMX capability MSRs, SVM's VM_CR, VM_HSAVE_PA, TSC_RATIO: nested/. Nothing, false: #GP.
  { c.virtualization_read(index) } -> std::same_as<std::optional<u64>>;
  { c.virtualization_write(index, value) } -> std::same_as<bool>;
};

// What the processor underneath does, as far as MSRs are concerned.
struct MsrHost {
  // RDMSR of an MSR the host is known to have, on the bootstrap processor.
  u64 (*read)(u32 index) = nullptr;
  // WRMSR of a value that MsrCheck refuses is #GP there too. TCG checks nothing: then such writes
  // exit.
  bool checks_values = false;
};

class MsrPolicy {
 public:
  static constexpr u8 kNone = 0xff;

  void init(const CpuidPolicy& cpuid, const MsrHost& host);

  // The row that L1's processor has for `index`, or kNone. Linear: VcpuMsrs remembers.
  u8 find(u32 index) const;
  // Power-up value, or the constant. Where firmware has set it up, what it left on the bootstrap
  // processor, for all: a processor may forget its own when Aerie starts it (QEMU's INIT clears
  // MTRRs).
  u64 initial(usize row, u32 index) const {
    const MsrRow& r = msr_table::kRows[row];
    return r.from_host ? firmware_[firmware_slot(row) + (index - r.first)] : initial_[row];
  }
  Vendor vendor() const { return vendor_; }
  unsigned physical_bits() const { return physical_bits_; }
  unsigned linear_bits() const { return linear_bits_; }

  // The MSR permission map of an SVM host (APM vol. 2, 15.11): two bits an MSR, read and write, set
  // where the access exits.
  static constexpr usize kSvmMapSize = 8192;
  void fill_svm_map(std::span<u8, kSvmMapSize> map) const;
  // The bit in it for a read of `index`; the write's is the next. Nothing for MSRs the map doesn't
  // have.
  static std::optional<u32> svm_map_bit(u32 index);

 private:
  struct Bounds {
    u32 first, last;
  };
  static constexpr usize firmware_slot(usize row) { return msr_table::kHostSlots[row]; }

  std::array<Bounds, msr_table::kCount> bounds_{};  // of a row L1 lacks: none
  std::array<u64, msr_table::kCount> initial_{};
  std::array<u64, msr_table::kFromHost> firmware_{};
  MsrHost host_{};
  Vendor vendor_ = Vendor::intel;
  unsigned physical_bits_ = 36;
  unsigned linear_bits_ = 48;
};

class VcpuMsrs {
 public:
  // Before the vCPU runs.
  void power_up(const MsrPolicy& policy);

  template <MsrContext C>
  std::optional<u64> read(C& context, u32 index);
  template <MsrContext C>
  [[nodiscard]] bool write(C& context, u32 index, u64 value);

  // The value of a `stored` row, for code that acts on it:
  // msrs.stored<cpu::msr::feature_control>().
  template <u32 Index>
  u64& stored() {
    constexpr usize row = msr_table::row_number(Index);
    static_assert(msr_table::kRows[row].home == MsrHome::stored);
    return values_[msr_table::kSlots[row] + (Index - msr_table::kRows[row].first)];
  }
  u64 tsc_adjust() const { return tsc_adjust_; }

 private:
  // An MSR that was found: one compare and one switch next time.
  struct Found {
    u32 index;
    u16 slot;  // of a `stored` one
    u8 row;
    MsrHome home;
    bool readable;
    MsrCheck check;
  };
  static constexpr usize kFound = 256;
  static constexpr usize hash(u32 index) { return (index ^ (index >> 16) * 0x35) % kFound; }
  // Null: L1's processor has no such MSR.
  const Found* find(u32 index) {
    Found& f = found_[hash(index)];
    if (f.index != index) [[unlikely]] {
      return search(f, index);
    }
    return &f;
  }
  const Found* search(Found& found, u32 index);
  u64& value_at(u8 row, u32 index) {
    return values_[msr_table::kSlots[row] + (index - msr_table::kRows[row].first)];
  }
  bool check(u8 row, u32 index, u64 value) const;

  template <MsrContext C>
  std::optional<u64> read_by_code(C& context, u32 index);
  template <MsrContext C>
  bool write_by_code(C& context, u8 row, u32 index, u64 value);

  std::array<Found, kFound> found_{};
  std::array<u64, msr_table::kStored> values_{};
  u64 tsc_adjust_ = 0;
  u64 debugctl_ = 0;
  const MsrPolicy* policy_ = nullptr;
};

template <MsrContext C>
std::optional<u64> VcpuMsrs::read(C& context, u32 index) {
  if (index - cpu::msr::x2apic_first <= cpu::msr::x2apic_last - cpu::msr::x2apic_first) {
    return context.apic_read(
        index);  // the hottest; where x2APIC is not offered the APIC refuses all
  }
  const Found* const found = find(index);
  if (found == nullptr || !found->readable) [[unlikely]] {
    return std::nullopt;
  }
  switch (found->home) {
    case MsrHome::code:
      return read_by_code(context, index);
    case MsrHome::hardware:
      return context.hardware_read(index);
    case MsrHome::stored:
      return values_[found->slot];
    case MsrHome::constant:
      return policy_->initial(found->row, index);
  }
  return std::nullopt;
}

template <MsrContext C>
std::optional<u64> VcpuMsrs::read_by_code(C& context, u32 index) {
  namespace m = cpu::msr;
  switch (index) {
    case m::tsc_adjust:
      return tsc_adjust_;
    case m::tsc:
      return context.tsc();
    case m::tsc_deadline:
    case m::apic_base:
      return context.apic_read(index);
    case m::debugctl:
      return debugctl_;
    case m::efer:
      return context.efer();
    case m::pat:
      return context.pat();
    default:
      return context.virtualization_read(index);
  }
}

template <MsrContext C>
bool VcpuMsrs::write(C& context, u32 index, u64 value) {
  if (index - cpu::msr::x2apic_first <= cpu::msr::x2apic_last - cpu::msr::x2apic_first) {
    return context.apic_write(index, value);
  }
  const Found* const found = find(index);
  if (found == nullptr) [[unlikely]] {
    return false;
  }
  if (found->check == MsrCheck::by_code) {
    return write_by_code(context, found->row, index, value);
  }
  if (found->check != MsrCheck::any && !check(found->row, index, value)) {
    return false;
  }
  if (found->check == MsrCheck::ignored) {
    return true;
  }
  if (found->home == MsrHome::hardware) {
    context.hardware_write(index, value);
  } else {
    values_[found->slot] = value;
  }
  return true;
}

template <MsrContext C>
bool VcpuMsrs::write_by_code(C& context, u8 row, u32 index, u64 value) {
  namespace m = cpu::msr;
  switch (index) {
    case m::tsc_deadline:
    case m::apic_base:
      return context.apic_write(index, value);
    // SDM vol. 3, 18.17.3: a write to either of the two moves the other by the same amount.
    case m::tsc_adjust:
      context.set_tsc_offset(context.tsc_offset() + (value - tsc_adjust_));
      tsc_adjust_ = value;
      return true;
    case m::tsc: {
      const u64 change = value - context.tsc();
      context.set_tsc_offset(context.tsc_offset() + change);
      tsc_adjust_ += change;
      return true;
    }
    case m::debugctl: {
      if ((value & ~msr_table::kDebugctlWritable) != 0) {
        return false;
      }
      if ((value == 0) != (debugctl_ == 0)) {
        context.set_direct_read(index, value == 0);
      }
      debugctl_ = value;
      context.set_debugctl(value);
      return true;
    }
    case m::efer:
      return context.write_efer(value);
    case m::pat:
      if (!m::is_valid_pat(value)) {
        return false;
      }
      context.set_pat(value);
      return true;
    case m::feature_control: {
      u64& now = value_at(row, index);
      constexpr u64 writable =
          m::feature_control_bits::locked | m::feature_control_bits::vmx_outside_smx;
      if ((now & m::feature_control_bits::locked) != 0 || (value & ~writable) != 0) {
        return false;
      }
      now = value;
      return true;
    }
    case m::misc_enable: {
      u64& now = value_at(row, index);
      constexpr u64 read_only = msr_table::kMiscEnableReadOnly;
      if ((value & ~(msr_table::kMiscEnableWritable | read_only)) != 0) {
        return false;
      }
      now = (value & ~read_only) | (now & read_only);
      return true;
    }
    default:
      return context.virtualization_write(index, value);
  }
}

}  // namespace aerie::vmm::policy
