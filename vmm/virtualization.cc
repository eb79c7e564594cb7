#include "vmm/virtualization.h"

#include <cstring>
#include <new>

#include "base/panic.h"
#include "cpu/host/host.h"
#include "vmm/vmx_cpu.h"

namespace aerie::vmm {
namespace {

using nested::vmx::Next;

VmxCpu& vmx_of(Vcpu& v) { return *v.vmx; }

// QEMU's TCG has no XSETBV intercept (FACTS).
bool host_is_tcg() {
  const cpu::CpuidResult r = cpu::cpuid(0x40000000);
  return (cpu::cpuid(1).ecx & bit(31)) != 0 && r.ebx == 0x54474354 && r.ecx == 0x43544743;
}

// What telemetry calls the VMX instructions, from Op::vmcall on.
constexpr telemetry::Event kInstructionEvents[] = {
    telemetry::Event::vmcall,  telemetry::Event::vmlaunch, telemetry::Event::vmresume,
    telemetry::Event::vmxoff,  telemetry::Event::vmxon,    telemetry::Event::vmclear,
    telemetry::Event::vmptrld, telemetry::Event::vmptrst,  telemetry::Event::vmread,
    telemetry::Event::vmwrite, telemetry::Event::invept,   telemetry::Event::invvpid,
    telemetry::Event::vmfunc,
};
constexpr unsigned event_index(cpu::Op op) {
  return static_cast<unsigned>(op) - static_cast<unsigned>(cpu::Op::vmcall);
}
static_assert(kInstructionEvents[event_index(cpu::Op::vmread)] == telemetry::Event::vmread);
static_assert(kInstructionEvents[event_index(cpu::Op::vmfunc)] == telemetry::Event::vmfunc);

}  // namespace

policy::FeatureSet virtualization_features() {
  policy::FeatureSet set;
  if (machine.options.cpu != L1Cpu::intel || !machine.options.tdp) {
    return set;
  }
  set.add(policy::feature("vmx"));
  for (const nested::vmx::FeatureRow& row : nested::vmx::features()) {
    if (const policy::Feature f = policy::find_feature(row.name);
        f != policy::kNoFeature && row.implemented) {
      set.add(f);
    }
  }
  return set;
}

void set_up_virtualization() {
  const policy::CpuidPolicy& cpuid = machine.cpuid_policy;
  if (!cpuid.has(policy::feature("vmx"))) {
    return;
  }
  nested::vmx::CapabilityConfig config;
  for (const nested::vmx::FeatureRow& row : nested::vmx::features()) {
    const policy::Feature f = policy::find_feature(row.name);
    if (f != policy::kNoFeature && !cpuid.has(f)) {
      config.hidden.add(row.feature);
    }
  }
  config.cr4_allowed = machine.cr_policy.cr4_allowed();
  config.physical_bits = static_cast<u8>(cpuid.physical_bits());
  config.linear_bits = cpuid.has(policy::feature("la57")) ? 57 : 48;
  VmxMachine& m = *new (&vmx_machine) VmxMachine;
  m.capabilities = nested::vmx::Capabilities{config};
  m.fields.build(m.capabilities);
  m.ept = {.features = {.maxphyaddr = config.physical_bits,
                        .gib_pages = m.capabilities.has(nested::vmx::Feature::ept_1g_pages)}};
  m.intercepts_xsetbv = !host_is_tcg();
  if (!m.pager.init(machine.pages, machine.l1_memory, machine.host_map, m.ept,
                    {.pages = 4096, .track_writes = false})) {
    panic("no memory for the shadow pager in a block of {} MiB", machine.block.size() / kMiB);
  }
  // Ports and MSRs of L2: L1's bitmaps are looked at when the exit comes.
  machine.l2_io_bitmap = machine.pages.allocate_contiguous(3);
  machine.l2_msr_bitmap = machine.pages.allocate_contiguous(2);
  AERIE_CHECK(machine.l2_io_bitmap != Hpa{} && machine.l2_msr_bitmap != Hpa{});
  std::memset(physical_pointer<u8>(machine.l2_io_bitmap), 0xff, 3 * kPageSize);
  std::memset(physical_pointer<u8>(machine.l2_msr_bitmap), 0xff, 2 * kPageSize);
  m.enabled = true;
  for (unsigned i = 0; i < kMaxCpus; ++i) {
    Vcpu& v = *machine.vcpus[i];
    const Hpa memory =
        machine.pages.allocate_contiguous(align_up(sizeof(VmxCpu), kPageSize) / kPageSize);
    AERIE_CHECK(memory != Hpa{});
    v.vmx = new (physical_pointer<void>(memory)) VmxCpu{v};
    v.block_l2().set_msr_bitmap(machine.l2_msr_bitmap);
    v.block_l2().set_io_bitmap(machine.l2_io_bitmap);
  }
}

std::optional<u64> virtualization_msr_read(Vcpu&, u32 index) {
  return vmx_machine.enabled ? vmx_machine.capabilities.msr(index) : std::nullopt;
}
bool virtualization_msr_write(Vcpu&, u32, u64) { return false; }

bool vmx_instruction(Vcpu& v, const cpu::Instruction& i) {
  if (v.vmx == nullptr) [[unlikely]] {
    return false;
  }
  auto& engine = vmx_of(v).engine;
  if (!engine.execute(i)) [[unlikely]] {
    return false;
  }
  v.telemetry().count(kInstructionEvents[event_index(i.op)]);
  if (i.op >= cpu::Op::vmlaunch && i.op <= cpu::Op::vmxon) {
    v.set_vmx_operation(engine.in_operation());
    if (engine.in_l2()) [[likely]] {
      v.telemetry().count(telemetry::Event::nested_entry);
      if (engine.attention() != 0 || v.block_l1().interrupt_window_requested() ||
          v.nmis.pending()) {
        v.reevaluate();
      }
    }
  }
  return true;
}

void handle_l2_exit(Vcpu& v, const cpu::Exit& exit) {
  VmxCpu& vmx = vmx_of(v);
  if (exit.reason == cpu::ExitReason::external_interrupt) [[unlikely]] {
    v.take_interrupt();
  } else if (exit.reason == cpu::ExitReason::nmi) [[unlikely]] {
    cpu::host_nmi_window();
    v.take_nmis();
  }
  const u32 attention = vmx.engine.attention();
  vmx.engine.handle_exit(exit);
  auto& counter = v.telemetry().exits[2][static_cast<unsigned>(exit.reason)];
  if (vmx.engine.in_l2()) [[unlikely]] {
    ++counter[0];
    vmx.context.before_reentry();
    if (vmx.engine.attention() != 0) {
      v.reevaluate();
    }
  } else {
    ++counter[1];
    if (attention != 0) {
      v.reevaluate();
    }
  }
}

// Returns with L2 or L1 to be run.
bool deliver_events_to_l2(Vcpu& v) {
  VmxCpu& vmx = vmx_of(v);
  if (vmx.engine.accepts_interrupt()) {
    v.apic.release_extint();
  }
  const Next next = vmx.engine.before_run();
  if (next == Next::run_l2) {
    vmx.context.before_reentry();
  }
  return next != Next::halt;
}

bool l2_accepts_interrupt(Vcpu& v) { return vmx_of(v).engine.accepts_interrupt(); }

bool init_is_blocked(const Vcpu& v) { return v.vmx != nullptr && v.vmx->engine.in_operation(); }

void virtualization_reset(Vcpu& v) {
  if (v.vmx != nullptr) {
    v.vmx->engine.reset();
  }
}

}  // namespace aerie::vmm
