// L1's local APIC, one per vCPU: xAPIC page, x2APIC MSRs, IA32_APIC_BASE, timer, interrupt command
// register, and the physical interrupts that arrive. SDM vol. 3, chapter 11.
//
// Who may call what: everything belongs to the vCPU's own processor, but for the functions under
// "From any processor" and the relaxed atomics they read. `now` and all times are the physical TSC.
#pragma once

#include <array>
#include <atomic>
#include <optional>

#include "base/address.h"
#include "base/types.h"
#include "cpu/arch/msr.h"
#include "vmm/apic_registers.h"
#include "vmm/host_apic.h"
#include "vmm/interrupts.h"
#include "vmm/requests.h"
#include "vmm/timer.h"
#include "vmm/vector_set.h"

namespace aerie::vmm {

class ApicBus;

class LocalApic {
 public:
  enum class Mode : u8 { disabled, xapic, x2apic };

  // What this processor is; it stays so.
  struct Identity {
    u32 apic_id = 0;  // the initial ID, virtual and physical
    bool bootstrap = false;
    u8 physical_address_bits = 40;
    bool x2apic = true;        // offered to L1
    bool tsc_deadline = true;  // offered to L1
  };

  LocalApic(ApicBus& bus, HostApic& host) : bus_{bus}, host_{host}, physical_{host} {}
  LocalApic(const LocalApic&) = delete;
  LocalApic& operator=(const LocalApic&) = delete;

  // On its own processor, before the vCPU runs: power-up state (xAPIC mode, software-disabled), the
  // physical APIC brought up, and the APIC on its bus.
  void power_up(const Identity& identity, TimerRatio ratio);
  // After power_up(), on the bootstrap processor: what firmware left in the physical APIC becomes
  // L1's, since L1 is what firmware prepared the machine for. Read before power_up().
  struct FirmwareState {
    u32 svr, lint0, lint1, ldr, dfr;
  };
  static FirmwareState firmware_state(HostApic& host);
  void adopt(const FirmwareState& state);

  // INIT: as power-up, but IA32_APIC_BASE and the APIC ID stay (SDM vol. 3, 11.4.7.3).
  void init_reset();

  // ---- Delivery to the processor ----

  // The vector to inject when L1 can take an interrupt: the highest of the IRR, if its class is
  // above the processor's priority. SDM vol. 3, 11.8.3.1.
  std::optional<u8> deliverable() const {
    if (!software_enabled()) [[unlikely]] {
      return std::nullopt;
    }
    const int vector = irr_.highest();
    if (vector < 0 || (vector & 0xf0) <= (priority() & 0xf0)) {
      return std::nullopt;
    }
    return static_cast<u8>(vector);
  }
  // L1 takes `vector`, just found deliverable: from the IRR into the ISR.
  void accept(u8 vector) {
    irr_.clear(vector);
    isr_.set(vector);
  }
  // Only TPR holds the highest pending vector back: L0 has to see it lowered (CR8 writes exit).
  bool blocked_by_tpr() const;

  // An ExtINT that the window took; to be injected before deliverable(), without accept().
  std::optional<u8> extint() const { return extint_; }
  void extint_taken() { extint_.reset(); }
  // An interrupt-window exit is needed when L1 cannot take interrupts now.
  bool wants_window() const {
    return extint_.has_value() || physical_.extint_held() || deliverable().has_value();
  }

  // End of interrupt. The hottest exit of all with the timer's.
  void eoi() {
    const int vector = isr_.highest();
    if (vector >= 0) {
      isr_.clear(static_cast<u8>(vector));
      physical_.end(static_cast<u8>(vector));
    }
  }

  // Processor priority: the higher class of TPR and of the highest vector in service.
  u8 priority() const {
    const int in_service = isr_.highest();
    const u8 service_class = in_service < 0 ? u8{0} : static_cast<u8>(in_service & 0xf0);
    const u8 task = tpr_.load(std::memory_order_relaxed);
    return (task & 0xf0) >= service_class ? task : service_class;
  }

  // CR8 is TPR's class; it works with the APIC disabled too.
  u8 cr8() const { return static_cast<u8>(tpr_.load(std::memory_order_relaxed) >> 4); }
  // No-op where the class is unchanged: for what an SVM processor keeps in V_TPR.
  void set_cr8(u8 value) {
    if (value != cr8()) {
      tpr_.store(static_cast<u8>(value << 4), std::memory_order_relaxed);
    }
  }

  // ---- L1's accesses ----

  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  // Whether the xAPIC page is at `gpa`. Elsewhere (and everywhere in the other modes) the region at
  // 0xfee00000 holds nothing: reads give all ones, writes do nothing.
  bool owns_page(Gpa gpa) const { return mode() == Mode::xapic && gpa.page() == base_page(); }
  Gpa base_page() const { return Gpa{apic_base() & address_mask()}; }

  // The xAPIC page. Aligned 4-byte accesses are the architecture's; other reads give the bytes of
  // the register they fall into (0 outside one), other writes do nothing.
  u64 mmio_read(u32 offset, unsigned size);
  void mmio_write(u32 offset, unsigned size, u64 value);

  // IA32_APIC_BASE, IA32_TSC_DEADLINE and 0x800-0x8ff. Nothing or false: the access is #GP.
  std::optional<u64> read_msr(u32 index);
  [[nodiscard]] bool write_msr(u32 index, u64 value);

  u64 apic_base() const { return apic_base_.load(std::memory_order_relaxed); }
  // CPUID.1:EDX.APIC follows it.
  bool hardware_enabled() const { return mode() != Mode::disabled; }
  bool software_enabled() const {
    return (svr_.load(std::memory_order_relaxed) & apic::svr_enabled) != 0;
  }

  // L1's TSC is the physical one plus `offset`.
  void set_tsc_offset(u64 offset);

  // ---- Physical interrupts, on the APIC's own processor ----

  // On an external-interrupt exit: whether to open the window. `l1_accepts`: L1 could take an
  // interrupt as its next step.
  bool prepare_window(bool l1_accepts) {
    return physical_.prepare_window(l1_accepts && !extint_.has_value());
  }
  // What the window took. Any vector, in any number.
  void physical_interrupt(u8 vector);
  // L1 can take interrupts (again): lets a held 8259 through. The next run() exits at once if it
  // still has one.
  void release_extint() {
    if (physical_.extint_held()) [[unlikely]] {
      physical_.release_extint();
    }
  }

  // ---- From any processor; `sender` is the running processor's own ----

  // A fixed interrupt, as an IPI is: edge. Kicks the target if it may not know.
  void post(u8 vector, LocalApic& sender);
  void post_nmi(LocalApic& sender);
  void post_init(LocalApic& sender);
  void post_startup(u8 vector, LocalApic& sender);
  // Any other request bits (vmm/requests.h).
  void post_request(u32 requests, LocalApic& sender);

  ApicBus& bus() { return bus_; }
  Mailbox& mailbox() { return mailbox_; }
  HostApic& host() { return host_; }
  ApicTimer& timer() { return timer_; }
  PhysicalInterrupts& physical() { return physical_; }
  u32 initial_id() const { return identity_.apic_id; }
  u8 task_priority() const { return tpr_.load(std::memory_order_relaxed); }

  // Whether an interrupt message with this destination is for this APIC. SDM vol. 3, 11.6.2.
  // `wide`: the destination has 32 bits, as an x2APIC sends it, not 8.
  bool matches(u32 destination, bool logical, bool wide) const;

 private:
  friend class ApicBus;

  u64 address_mask() const { return bit_mask(identity_.physical_address_bits - 1u, kPageShift); }
  bool write_apic_base(u64 value);
  void reset_registers();
  void change_mode(Mode mode);

  u32 read_register(u32 offset);
  void write_register(u32 offset, u32 value);
  void write_svr(u32 value);
  void write_lvt(apic::Lvt entry, u32 value);
  void write_icr(u32 low, u32 destination);
  void write_deadline(u64 value);
  void self_ipi(u8 vector);
  u32 lvt_register(apic::Lvt entry) const;

  // An interrupt of this processor's own making, or one that arrived for it.
  void post_self(u8 vector, bool level = false);
  void kick(bool needed, LocalApic& sender) {
    if (needed) {
      sender.host_.send_nmi(identity_.apic_id);
    }
  }
  // From any processor: notes errors, and raises the error interrupt for the first since ESR was
  // last written.
  void raise_error(u32 errors, LocalApic& sender);

  // Accounts for an expiry before the timer is changed, so that none is lost or comes twice.
  void settle_timer(u64 now);
  void mirror();

  ApicBus& bus_;
  HostApic& host_;

  // Hot: IRR, ISR, TPR, SVR.
  AtomicVectorSet irr_;
  VectorSet isr_;
  std::atomic<u8> tpr_{0};
  std::atomic<Mode> mode_{Mode::xapic};
  std::atomic<u32> svr_{0xff};
  Mailbox mailbox_;
  PhysicalInterrupts physical_;
  AtomicVectorSet tmr_;
  ApicTimer timer_;
  std::optional<u8> extint_;

  std::atomic<u32> id_{0};  // the xAPIC ID (8 bits) or the x2APIC ID
  std::atomic<u32> ldr_{0};
  std::atomic<u32> dfr_{~u32{0}};
  std::atomic<u32> errors_{0};  // since ESR was written
  u32 esr_ = 0;
  std::array<u32, apic::kLvts> lvt_{};
  std::atomic<u32> lvt_error_{apic::lvt_masked};  // lvt_[error], for other processors
  u32 icr_low_ = 0;
  u32 icr_high_ = 0;  // in x2APIC mode the 32-bit destination
  std::atomic<u64> apic_base_{0};
  Identity identity_{};
  unsigned bus_index_ = 0;
};

}  // namespace aerie::vmm
