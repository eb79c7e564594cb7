// L1's resources, its first processor, and those that wait for it.
#include "vmm/boot/start.h"

#include <algorithm>
#include <new>

#include "base/panic.h"
#include "base/physical.h"
#include "cpu/arch/instructions.h"
#include "cpu/host/host.h"
#include "vmm/ipi.h"
#include "vmm/machine.h"
#include "vmm/payload.h"
#include "vmm/vcpu.h"
#include "vmm/virtualization.h"

namespace aerie::vmm {
namespace {

using cpu::SegmentRegister;
using telemetry::EndState;

constinit ApicBus bus;

// vCPUs live in Aerie's block: they are too large for stacks and made once.
Vcpu& make_vcpu() {
  const Hpa memory =
      machine.pages.allocate_contiguous(align_up(sizeof(Vcpu), kPageSize) / kPageSize);
  AERIE_CHECK(memory != Hpa{});
  return *new (physical_pointer<void>(memory)) Vcpu{bus};
}

void build_host_map() {
  constexpr u64 kApicRegion = 0xfee00000;
  const mmu::HostMap::Range excluded[] = {
      {Gpa{machine.block.begin}, Gpa{machine.block.end}},
      {Gpa{machine.ioapic_page}, Gpa{machine.ioapic_page + kPageSize}},
      // QEMU takes a processor's store anywhere in this MiB as an MSI.
      {Gpa{kApicRegion}, Gpa{kApicRegion + kMiB}},
  };
  const bool gib_pages = (cpu::cpuid(0x80000001).edx & bit(26)) != 0;
  if (!machine.host_map.build(machine.pages, machine.physical_bits, excluded, gib_pages)) {
    panic("no memory for L1's map in a block of {} MiB", machine.block.size() / kMiB);
  }
}

void set_up_policies() {
  policy::CpuidConfig config;
  config.vendor = machine.options.cpu == L1Cpu::amd ? policy::Vendor::amd : policy::Vendor::intel;
  config.engine = virtualization_features();
  if (!machine.options.tdp) {
    // Linear addresses are L0's to translate: it keeps PCIDs apart, whatever the processor has.
    config.engine.add(policy::feature("pcid"));
    config.engine.add(policy::feature("invpcid"));
  }
  config.cpus = std::max(1u, machine.found_cpus);
  const std::string_view unknown = policy::parse_feature_list(machine.options.hide, config.hidden);
  if (!unknown.empty()) {
    end_run(EndState::payload_error,
            "Aerie's command line: hide={}: there is no feature of that name", unknown);
  }
  machine.cpuid_policy.init(config);
  machine.msr_policy.init(machine.cpuid_policy, {.read = cpu::rdmsr});
  machine.cr_policy.init(machine.cpuid_policy, machine.options.tdp ? 0 : cpu::cr4::pcide);
}

void set_up_ioapic() {
  static_assert(sizeof(IoApic) + sizeof(HostIoApic) < 2 * kPageSize);
  const Hpa memory = machine.pages.allocate_contiguous(2);
  AERIE_CHECK(memory != Hpa{});
  auto* host = new (physical_pointer<void>(memory)) HostIoApic{Hpa{machine.ioapic_page}};
  machine.ioapic = new (host + 1) IoApic{*host, Gpa{machine.ioapic_page}};
  machine.ioapic->power_up();
}

}  // namespace

void set_up_l1() {
  build_host_map();
  machine.io_bitmap = machine.pages.allocate_contiguous(3);
  machine.has_xsave = (cpu::cpuid(1).ecx & bit(26)) != 0;
  set_up_policies();
  if (!machine.options.tdp) {
    set_up_linear_paging();
  }
  set_up_ioapic();
  for (unsigned i = 0; i < kMaxCpus; ++i) {
    machine.vcpus[i] = &make_vcpu();
    machine.vcpus[i]->set_up(i);
  }
  set_up_virtualization();
}

[[noreturn]] static void enter(u32 number) {
  const Hpa save_area = machine.pages.allocate();
  AERIE_CHECK(save_area != Hpa{});
  cpu::enable_svm(save_area);
  if (machine.has_xsave) {
    cpu::write_cr4(cpu::read_cr4() | cpu::cr4::osxsave);
  }
  if ((cpu::cpuid(7).ecx & bit(3)) != 0) {
    cpu::write_cr4(cpu::read_cr4() | cpu::cr4::pke);  // RDPKRU; L0's own pages are no user's
  }
  Vcpu& v = *machine.vcpus[number];
  auto& self = cpu::this_cpu();
  self.owner = &v;
  v.power_up(self.apic_id, number == 0);
  machine.cpus_ready.fetch_add(1, std::memory_order_release);
  v.run();
}

void start_l1() {
  std::array<PayloadModule, Machine::kMaxModules> modules;
  for (usize i = 0; i < machine.module_count; ++i) {
    const BootModule& m = machine.modules[i];
    modules[i] = {{physical_pointer<u8>(Hpa{m.begin}), m.size}, m.text};
  }
  const PayloadResult loaded =
      load_payload({.payload = modules[0],
                    .modules = std::span{modules}.subspan(1, machine.module_count - 1),
                    .memory_map = machine.memory.ranges(),
                    .aerie = machine.block});
  if (!loaded.ok) {
    end_run(EndState::payload_error, "{}", loaded.error());
  }
  for (u64 page = machine.staging; page < machine.block.end; page += kPageSize) {
    machine.pages.free(Hpa{page});
  }
  machine.telemetry->header.total_pages = machine.pages.total_pages();
  Vcpu& v = *machine.vcpus[0];
  auto& b = v.block_l1();
  constexpr u16 kCode32 = 0xc9b, kData32 = 0xc93;
  const cpu::Segment data{loaded.entry.data_selector, kData32, 0xffffffff, 0};
  for (const SegmentRegister r : {SegmentRegister::es, SegmentRegister::ss, SegmentRegister::ds,
                                  SegmentRegister::fs, SegmentRegister::gs}) {
    b.set_segment(r, data);
  }
  b.set_segment(SegmentRegister::cs, {loaded.entry.code_selector, kCode32, 0xffffffff, 0});
  b.set_segment(SegmentRegister::gdtr, {0, 0, loaded.entry.gdt_limit, loaded.entry.gdt_base});
  b.set_segment(SegmentRegister::idtr, {0, 0, 0, 0});
  b.set_cr0(cpu::cr0::pe | cpu::cr0::et);
  v.update_paging_mode();
  b.set_rip(loaded.entry.eip);
  v.registers() = {};
  v.registers()[cpu::Gpr::rax] = loaded.entry.eax;
  v.registers()[cpu::Gpr::rbx] = loaded.entry.ebx;
  v.registers()[cpu::Gpr::rsi] = loaded.entry.esi;
  v.startup.set_waiting(false);
  log_info("L1: {} at {x}", loaded.kind == PayloadKind::bzimage ? "Linux" : "multiboot program",
           loaded.entry.eip);
  machine.telemetry->header.end_state = EndState::running;
  enter(0);
}

void start_waiting_processor(u32 number) { enter(number); }

}  // namespace aerie::vmm
