#include "tests/guests/runtime/cpus.h"

#include <cstring>

#include "cpu/arch/instructions.h"
#include "cpu/arch/msr.h"
#include "tests/guests/runtime/acpi.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/exceptions.h"
#include "tests/guests/runtime/time.h"

extern "C" {
extern aerie::u64 gdt[];
extern aerie::u8 ap_trampoline[];
extern aerie::u8 ap_trampoline_end[];
aerie::u8 cpu_of_apic_id[256];
[[noreturn]] void guest_ap_start(aerie::u32 index);
}

namespace aerie::guest {
namespace {

constexpr u64 kTrampoline = 0x8000;  // also in boot.S
constexpr u64 kIstSize = 4096;

PerCpu per_cpu[kMaxCpus];
Tss tss_of[kMaxCpus];
alignas(16) u8 ist_stacks[kMaxCpus][2][kIstSize];
unsigned count = 0;
bool started = false;

void find_cpus() {
  if (count != 0) {
    return;
  }
  // The boot processor is 0, whatever ACPI's order.
  const u32 boot_id = apic_id();
  per_cpu[0].apic_id = boot_id;
  cpu_of_apic_id[boot_id & 0xff] = 0;
  count = 1;
  for (const u8 id : acpi().apic_ids()) {
    if (id != boot_id && count < kMaxCpus) {
      per_cpu[count].apic_id = id;
      cpu_of_apic_id[id] = static_cast<u8>(count);
      ++count;
    }
  }
}

void put_trampoline() {
  std::memcpy(reinterpret_cast<void*>(kTrampoline), ap_trampoline,
              static_cast<usize>(ap_trampoline_end - ap_trampoline));
}

}  // namespace

PerCpu& cpu(unsigned index) { return per_cpu[index]; }
Tss& tss(unsigned index) { return tss_of[index]; }
u64* gdt_entries() { return gdt; }

unsigned cpu_count() {
  find_cpus();
  return count;
}

DescriptorTablePointer read_gdtr() {
  DescriptorTablePointer pointer{};
  asm volatile("sgdt %0" : "=m"(pointer));
  return pointer;
}
DescriptorTablePointer read_idtr() {
  DescriptorTablePointer pointer{};
  asm volatile("sidt %0" : "=m"(pointer));
  return pointer;
}
void load_idtr(const DescriptorTablePointer& pointer) { asm volatile("lidt %0" ::"m"(pointer)); }

void init_this_cpu(unsigned index) {
  PerCpu& self = per_cpu[index];
  self.self = &self;
  self.index = index;
  self.catch_slot = 0;
  cpu::wrmsr(cpu::msr::gs_base, reinterpret_cast<u64>(&self));

  // TSS: interrupt stacks for NMI (1) and #DF (2), so that they work whatever RSP is.
  Tss& t = tss_of[index];
  t.ist[0] = reinterpret_cast<u64>(&ist_stacks[index][0][kIstSize]);
  t.ist[1] = reinterpret_cast<u64>(&ist_stacks[index][1][kIstSize]);
  t.io_map_base = sizeof(Tss);
  const u64 base = reinterpret_cast<u64>(&t);
  u64* descriptor = &gdt[kTss0 / 8 + 2 * index];
  descriptor[0] = (sizeof(Tss) - 1) | ((base & 0xff'ffff) << 16) | (u64{0x89} << 40) |
                  ((base >> 24 & 0xff) << 56);
  descriptor[1] = base >> 32;
  asm volatile("ltr %w0" ::"r"(kTss0 + 16 * index));

  load_interrupt_table();
}

const volatile ApStartState& ap_start_state() {
  return *reinterpret_cast<const volatile ApStartState*>(kTrampoline + 0xf00);
}

bool restart_cpu(unsigned index, unsigned sipis) {
  PerCpu& target = per_cpu[index];
  put_trampoline();
  const u32 before = target.starts;
  send_ipi(target.apic_id, icr::init | icr::assert_level);
  spin_microseconds(200);
  for (unsigned i = 0; i < sipis; ++i) {
    send_ipi(target.apic_id, icr::startup | icr::assert_level | (kTrampoline >> 12));
    spin_microseconds(50);
  }
  return spin_until([&] { return target.starts != before; });
}

bool start_cpus() {
  find_cpus();
  if (started) {
    return true;
  }
  started = true;
  bool all = true;
  for (unsigned i = 1; i < count; ++i) {
    all = restart_cpu(i) && all;
  }
  return all;
}

void start_on(unsigned index, void (*function)(u64), u64 argument) {
  PerCpu& target = per_cpu[index];
  target.work_argument = argument;
  target.work.store(function, std::memory_order_release);
}

bool wait_for(unsigned index) {
  PerCpu& target = per_cpu[index];
  return spin_until([&] { return target.work.load(std::memory_order_acquire) == nullptr; });
}

void run_on(unsigned index, void (*function)(u64), u64 argument) {
  start_on(index, function, argument);
  wait_for(index);
}

}  // namespace aerie::guest

extern "C" void guest_ap_start(aerie::u32 index) {
  using namespace aerie::guest;
  init_this_cpu(index);
  init_apic();
  PerCpu& self = this_cpu();
  self.work.store(nullptr, std::memory_order_relaxed);
  self.starts = self.starts + 1;
  for (;;) {
    if (auto* work = self.work.load(std::memory_order_acquire); work != nullptr) {
      work(self.work_argument);
      self.work.store(nullptr, std::memory_order_release);
    }
    aerie::cpu::pause();
  }
}
