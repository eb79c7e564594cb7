#include "vmm/interrupts.h"

namespace aerie::vmm {
namespace {

using apic::DeliveryMode;

constexpr u32 kExtInt = static_cast<u32>(DeliveryMode::extint) << 8;
constexpr u32 kNmi = static_cast<u32>(DeliveryMode::nmi) << 8;
constexpr u32 kLintBits = 0xa7ff;  // vector, delivery mode, polarity, trigger mode

bool is_open_extint(u32 lint) {
  return (lint & apic::lvt_masked) == 0 && apic::delivery_mode(lint) == DeliveryMode::extint;
}

// The physical entry for L1's: what would reset or enter SMM behind L0's back, and what would be no
// interrupt, stays masked.
u32 physical_lint(u32 entry, bool extint_allowed) {
  if ((entry & apic::lvt_masked) != 0) {
    return apic::lvt_masked;
  }
  switch (apic::delivery_mode(entry)) {
    case DeliveryMode::fixed:
      return apic::is_legal_vector(static_cast<u8>(entry)) ? entry & kLintBits : apic::lvt_masked;
    case DeliveryMode::nmi:
      return entry & kLintBits;
    case DeliveryMode::extint:
      return extint_allowed ? entry & kLintBits : apic::lvt_masked;
    default:
      return apic::lvt_masked;
  }
}

}  // namespace

void PhysicalInterrupts::bring_up() {
  host_.write(apic::svr, apic::svr_enabled | kSpuriousVector);
  host_.write(apic::lvt_timer, apic::lvt_masked);
  host_.write(apic::initial_count, 0);
  host_.write(apic::lvt_performance, apic::lvt_masked);
  host_.write(apic::lvt_error, apic::lvt_masked);
  host_.write(apic::tpr, 0);
}

PhysicalInterrupts::Kind PhysicalInterrupts::classify(u8 vector) {
  // A vector in service is not delivered a second time: that is the 8259's, by chance the same.
  if (in_service_.test(vector) || !host_.test(apic::isr, vector)) {
    const bool from_8259 = is_open_extint(lint0_) && !held_ && vector != kSpuriousVector;
    return from_8259 ? Kind::extint : Kind::spurious;
  }
  if (host_.test(apic::tmr, vector)) {
    in_service_.set(vector);
    return Kind::level;
  }
  host_.give_eoi();
  return Kind::edge;
}

void PhysicalInterrupts::end_deferred(u8 vector) {
  owed_.set(vector);
  for (int top = in_service_.highest(); top >= 0 && owed_.test(static_cast<u8>(top));
       top = in_service_.highest()) {
    in_service_.clear(static_cast<u8>(top));
    owed_.clear(static_cast<u8>(top));
    host_.give_eoi();
  }
}

void PhysicalInterrupts::drain(const AtomicVectorSet& virtual_irr, const VectorSet& virtual_isr) {
  VectorSet left = in_service_;
  for (int v = left.highest(); v >= 0; v = left.highest()) {
    const auto vector = static_cast<u8>(v);
    left.clear(vector);
    if (!virtual_irr.test(vector) && !virtual_isr.test(vector)) {
      end_deferred(vector);
    }
  }
}

bool PhysicalInterrupts::prepare_window(bool l1_accepts) {
  if (!is_open_extint(lint0_) || (l1_accepts && !held_)) [[likely]] {
    return true;
  }
  if (!held_) {
    held_ = true;
    write_lint0();
  }
  const int ppr_class = static_cast<int>(host_.read(apic::ppr) & 0xf0);
  for (u32 i = 8; i-- > 0;) {
    if (const u32 word = host_.read(apic::irr + 16 * i); word != 0) {
      const int vector = static_cast<int>(i * 32) + 31 - std::countl_zero(word);
      return (vector & 0xf0) > ppr_class;
    }
  }
  return false;
}

void PhysicalInterrupts::release_extint() {
  held_ = false;
  write_lint0();
}

void PhysicalInterrupts::write_lint0() {
  host_.write(apic::lvt_lint0, held_ ? lint0_ | apic::lvt_masked : lint0_);
  // Masking the entry does not make QEMU take back an INTR that the 8259 has raised through it; a
  // write of TPR makes it look again.
  host_.write(apic::tpr, 0);
}

void PhysicalInterrupts::mirror_logical(u32 ldr, u32 dfr) {
  host_.write(apic::dfr, dfr);
  host_.write(apic::ldr, ldr);
}

void PhysicalInterrupts::mirror_lint(u32 lint0, u32 lint1, bool wired) {
  lint0_ = wired ? kExtInt : physical_lint(lint0, true);
  held_ = held_ && is_open_extint(lint0_);
  write_lint0();
  host_.write(apic::lvt_lint1, wired ? kNmi : physical_lint(lint1, false));
}

}  // namespace aerie::vmm
