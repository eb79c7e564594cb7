// Some processors with their virtual and physical local APICs on one bus, for tests.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "tests/unit/vmm/apic_model.h"
#include "vmm/ipi.h"
#include "vmm/local_apic.h"

namespace aerie::vmm {

struct ApicMachine {
  struct Cpu {
    Cpu(ApicBus& bus) : apic{bus, host} {}
    ModelApic host;
    LocalApic apic;
  };

  explicit ApicMachine(unsigned count = 1, bool enabled = true, bool x2apic = true) {
    for (unsigned i = 0; i < count; ++i) {
      cpus.push_back(std::make_unique<Cpu>(bus));
      cpus[i]->apic.power_up({.apic_id = i, .bootstrap = i == 0, .x2apic = x2apic}, TimerRatio{});
      if (enabled) {
        cpus[i]->apic.mmio_write(apic::svr, 4, 0x1ff);
      }
    }
  }
  LocalApic& operator[](unsigned i) { return cpus[i]->apic; }
  ModelApic& host(unsigned i) { return cpus[i]->host; }

  // As L0's loop does on external-interrupt exits.
  void take_physical(unsigned i = 0) {
    while (const auto vector = host(i).acknowledge()) {
      (*this)[i].physical_interrupt(*vector);
    }
  }
  // L1 takes all it can without ending any; the vectors in order.
  std::vector<int> accept_all(unsigned i = 0) {
    std::vector<int> taken;
    while (const auto vector = (*this)[i].deliverable()) {
      (*this)[i].accept(*vector);
      taken.push_back(*vector);
    }
    return taken;
  }
  // One interrupt taken and ended, or -1.
  int serve(unsigned i = 0) {
    const auto vector = (*this)[i].deliverable();
    if (!vector) return -1;
    (*this)[i].accept(*vector);
    (*this)[i].eoi();
    return *vector;
  }
  u32 read(u32 offset, unsigned i = 0) { return static_cast<u32>((*this)[i].mmio_read(offset, 4)); }
  void write(u32 offset, u32 value, unsigned i = 0) { (*this)[i].mmio_write(offset, 4, value); }
  void enter_x2apic(unsigned i = 0) {
    const u64 base = (*this)[i].apic_base();
    if (!(*this)[i].write_msr(cpu::msr::apic_base, base | cpu::msr::apic_base_bits::x2apic)) {
      std::abort();
    }
  }
  // Processors that have an interrupt to serve; serves it.
  std::set<unsigned> receivers(int vector) {
    std::set<unsigned> got;
    for (unsigned i = 0; i < cpus.size(); ++i) {
      if (serve(i) == vector) got.insert(i);
    }
    return got;
  }

  ApicBus bus;
  std::vector<std::unique_ptr<Cpu>> cpus;
};

}  // namespace aerie::vmm
