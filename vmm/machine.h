// The one machine: its memory, processors and Aerie's own resources, set up at boot and constant
// afterwards but for what says otherwise.
#pragma once

#include <array>
#include <atomic>
#include <string_view>

#include "base/page_allocator.h"
#include "mmu/host_map.h"
#include "mmu/l1_memory.h"
#include "vmm/boot/options.h"
#include "vmm/ioapic.h"
#include "vmm/payload_memory.h"
#include "vmm/policy/cpuid.h"
#include "vmm/policy/cr.h"
#include "vmm/policy/msr.h"
#include "vmm/telemetry_layout.h"

namespace aerie::vmm {

class Vcpu;

struct BootModule {
  u64 begin = 0;
  u64 size = 0;
  std::string_view text{};
};

struct Machine {
  static constexpr usize kMaxModules = 16;

  BootOptions options;
  MemoryMap memory;   // as the loader told it
  MemoryRange block;  // Aerie's own memory
  std::array<BootModule, kMaxModules> modules{};
  usize module_count = 0;
  u64 staging = 0;  // where the modules lie, up to the block's end, until L1 is loaded

  PageAllocator pages;
  telemetry::Block* telemetry = nullptr;
  mmu::L1Memory l1_memory;
  mmu::HostMap host_map;
  policy::CpuidPolicy cpuid_policy;
  policy::MsrPolicy msr_policy;
  policy::CrPolicy cr_policy;
  bool has_xsave = false;  // the processor's; L0 sets CR4.OSXSAVE to read XCR0
  IoApic* ioapic = nullptr;
  Hpa io_bitmap{};     // L1's: nothing trapped
  Hpa l2_io_bitmap{};  // of every L2: everything trapped
  Hpa l2_msr_bitmap{};
  u64 ioapic_page = 0xfec00000;
  unsigned physical_bits = 40;

  unsigned found_cpus = 0;  // as ACPI lists them
  unsigned cpus = 1;        // that run
  std::array<Vcpu*, kMaxCpus> vcpus{};
  std::array<u8, 256> cpu_of_apic_id{};  // 0xff: no such processor

  u64 tsc_hz = 0;
  u64 apic_hz = 0;  // ticks of the APIC timer a second, divider 1
  std::atomic<unsigned> cpus_ready{0};
};

extern Machine machine;

// Records how the run ends in telemetry and on the console, and ends the machine.
[[noreturn]] void end_machine(telemetry::EndState state, std::string_view pattern,
                              std::span<const LogArgument> arguments);
template <class... Args>
[[noreturn, gnu::cold]] void end_run(telemetry::EndState state, std::string_view pattern,
                                     const Args&... args) {
  const LogArgument list[sizeof...(Args) + 1] = {LogArgument{args}..., LogArgument{0}};
  end_machine(state, pattern, std::span{list, sizeof...(Args)});
}

}  // namespace aerie::vmm
