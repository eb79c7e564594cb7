#include "vmm/ipi.h"

#include "base/log.h"
#include "base/panic.h"
#include "vmm/local_apic.h"

namespace aerie::vmm {

using apic::DeliveryMode;
using apic::icr::Shorthand;

void ApicBus::attach(LocalApic& apic) {
  AERIE_CHECK(count_ < kMaxCpus);
  apic.bus_index_ = count_;
  apics_[count_++] = &apic;
}

void ApicBus::send(LocalApic& from, u32 icr_low, u32 destination) {
  const Shorthand shorthand = apic::icr::shorthand(icr_low);
  const DeliveryMode mode = apic::delivery_mode(icr_low);
  const auto vector = static_cast<u8>(icr_low);

  u32 targets = 0;
  for (unsigned i = 0; i < count_; ++i) {
    LocalApic& apic = *apics_[i];
    bool wanted = false;
    switch (shorthand) {
      case Shorthand::none:
        wanted = apic.matches(destination, (icr_low & apic::icr::logical) != 0,
                              from.mode() == LocalApic::Mode::x2apic);
        break;
      case Shorthand::self:
        wanted = &apic == &from;
        break;
      case Shorthand::all:
        wanted = apic.hardware_enabled();
        break;
      case Shorthand::others:
        wanted = &apic != &from && apic.hardware_enabled();
        break;
    }
    targets |= static_cast<u32>(wanted) << i;
  }
  const auto each = [&](auto action) {
    for (unsigned i = 0; i < count_; ++i) {
      if (((targets >> i) & 1) != 0) {
        action(*apics_[i]);
      }
    }
  };

  switch (mode) {
    case DeliveryMode::fixed:
      each([&](LocalApic& to) { to.post(vector, from); });
      return;
    case DeliveryMode::lowest_priority:
      deliver_lowest_priority(from, targets, vector);
      return;
    case DeliveryMode::nmi:
      each([&](LocalApic& to) { to.post_nmi(from); });
      return;
    case DeliveryMode::init:
      // The de-assert only set arbitration IDs, on processors that had them (SDM vol. 3, 11.6.1).
      // The self shorthand goes with fixed delivery alone.
      if (shorthand != Shorthand::self &&
          ((icr_low & apic::icr::assert_level) != 0 || (icr_low & apic::icr::level_trigger) == 0)) {
        each([&](LocalApic& to) { to.post_init(from); });
      }
      return;
    case DeliveryMode::startup:
      if (shorthand != Shorthand::self) {
        each([&](LocalApic& to) { to.post_startup(vector, from); });
      }
      return;
    case DeliveryMode::smi:
      log_debug("apic: SMI of processor {} not sent: there is no SMM", from.initial_id());
      return;
    case DeliveryMode::extint:
    case DeliveryMode::reserved:
      return;
  }
}

// The processor of the lowest task priority among those that accept interrupts; in turns where
// several have it. (Focus processors are a matter of older APICs than version 0x14.)
void ApicBus::deliver_lowest_priority(LocalApic& from, u32 targets, u8 vector) {
  const unsigned first = rotation_.fetch_add(1, std::memory_order_relaxed) % count_;
  LocalApic* best = nullptr;
  for (unsigned n = 0; n < count_; ++n) {
    const unsigned i = (first + n) % count_;
    if (((targets >> i) & 1) == 0 || !apics_[i]->software_enabled()) {
      continue;
    }
    if (best == nullptr || apics_[i]->task_priority() < best->task_priority()) {
      best = apics_[i];
    }
  }
  if (best != nullptr) {
    best->post(vector, from);
  }
}

}  // namespace aerie::vmm
