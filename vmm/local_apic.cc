#include "vmm/local_apic.h"

#include "vmm/ipi.h"

namespace aerie::vmm {
namespace {

using apic::DeliveryMode;
namespace base_bits = cpu::msr::apic_base_bits;
namespace error_status = apic::error_status;

constexpr auto relaxed = std::memory_order_relaxed;

}  // namespace

// ---- Power-up, INIT, modes ----

void LocalApic::power_up(const Identity& identity, TimerRatio ratio) {
  identity_ = identity;
  apic_base_.store(
      apic::kDefaultBase | base_bits::enable | (identity.bootstrap ? base_bits::bsp : 0), relaxed);
  mode_.store(Mode::xapic, relaxed);
  id_.store(identity.apic_id, relaxed);
  timer_.set_ratio(ratio);
  physical_.bring_up();
  tpr_.store(0, relaxed);
  reset_registers();
  bus_.attach(*this);
}

LocalApic::FirmwareState LocalApic::firmware_state(HostApic& host) {
  return {.svr = host.read(apic::svr),
          .lint0 = host.read(apic::lvt_lint0),
          .lint1 = host.read(apic::lvt_lint1),
          .ldr = host.read(apic::ldr),
          .dfr = host.read(apic::dfr)};
}

void LocalApic::adopt(const FirmwareState& state) {
  svr_.store(state.svr & apic::svr_writable, relaxed);
  const u32 forced = software_enabled() ? 0 : apic::lvt_masked;
  lvt_[apic::lint0] = (state.lint0 & apic::lvt_writable[apic::lint0]) | forced;
  lvt_[apic::lint1] = (state.lint1 & apic::lvt_writable[apic::lint1]) | forced;
  ldr_.store(state.ldr & 0xff00'0000, relaxed);
  dfr_.store(state.dfr | 0x0fff'ffff, relaxed);
  mirror();
}

void LocalApic::init_reset() {
  tpr_.store(0, relaxed);
  reset_registers();
}

// SDM vol. 3, 11.4.7.1, but for TPR, which is CR8 with the APIC disabled too.
void LocalApic::reset_registers() {
  timer_.disarm(host_);
  timer_.reset();
  irr_.clear_all();
  isr_.clear_all();
  tmr_.clear_all();
  extint_.reset();
  svr_.store(0xff, relaxed);
  esr_ = 0;
  errors_.store(0, relaxed);
  icr_low_ = icr_high_ = 0;
  lvt_.fill(apic::lvt_masked);
  lvt_error_.store(apic::lvt_masked, relaxed);
  dfr_.store(~u32{0}, relaxed);
  ldr_.store(mode() == Mode::x2apic ? apic::x2apic_ldr(identity_.apic_id) : 0, relaxed);
  mirror();
  physical_.drain(irr_, isr_);
}

// SDM vol. 3, 11.12.5. The address may change in any transition.
bool LocalApic::write_apic_base(u64 value) {
  const u64 x2apic_bit = identity_.x2apic ? base_bits::x2apic : 0;
  if ((value & ~(address_mask() | base_bits::bsp | base_bits::enable | x2apic_bit)) != 0) {
    return false;
  }
  Mode wanted = Mode::disabled;
  switch (value & (base_bits::enable | base_bits::x2apic)) {
    case 0:
      break;
    case base_bits::enable:
      wanted = Mode::xapic;
      break;
    case base_bits::enable | base_bits::x2apic:
      wanted = Mode::x2apic;
      break;
    default:
      return false;
  }
  const bool invalid = (mode() == Mode::x2apic && wanted == Mode::xapic) ||
                       (mode() == Mode::disabled && wanted == Mode::x2apic);
  if (invalid) {
    return false;
  }
  apic_base_.store((value & ~base_bits::bsp) | (identity_.bootstrap ? base_bits::bsp : 0), relaxed);
  if (wanted != mode()) {
    change_mode(wanted);
  }
  return true;
}

void LocalApic::change_mode(Mode wanted) {
  mode_.store(wanted, relaxed);
  id_.store(identity_.apic_id, relaxed);
  if (wanted == Mode::x2apic) {
    // All else is kept (SDM vol. 3, 11.12.5.1).
    ldr_.store(apic::x2apic_ldr(identity_.apic_id), relaxed);
    icr_high_ = 0;
    mirror();
    return;
  }
  reset_registers();
}

void LocalApic::mirror() {
  // Messages of devices name logical IDs with 8 bits: an x2APIC's of cluster 0, which are those of
  // the flat model.
  const bool x2apic = mode() == Mode::x2apic;
  physical_.mirror_logical(x2apic ? ldr_.load(relaxed) << 24 : ldr_.load(relaxed),
                           x2apic ? ~u32{0} : dfr_.load(relaxed));
  physical_.mirror_lint(lvt_[apic::lint0], lvt_[apic::lint1], mode() == Mode::disabled);
}

// ---- Registers ----

u64 LocalApic::mmio_read(u32 offset, unsigned size) {
  const unsigned byte = offset & 0xf;
  if (byte + size > 4) {
    return 0;
  }
  const u32 value = read_register(offset & 0xff0) >> (8 * byte);
  return size == 4 ? value : value & ((u64{1} << (8 * size)) - 1);
}

void LocalApic::mmio_write(u32 offset, unsigned size, u64 value) {
  if (size != 4 || (offset & 0xf) != 0) [[unlikely]] {
    return;
  }
  if (offset == apic::eoi) {
    eoi();
    return;
  }
  write_register(offset, static_cast<u32>(value));
}

u32 LocalApic::read_register(u32 offset) {
  switch (offset) {
    case apic::id:
      return mode() == Mode::x2apic ? id_.load(relaxed) : id_.load(relaxed) << 24;
    case apic::version:
      return apic::kVersion;
    case apic::tpr:
      return tpr_.load(relaxed);
    case apic::ppr:
      return priority();
    case apic::apr:
    case apic::rrr:
    case apic::eoi:
      return 0;
    case apic::ldr:
      return ldr_.load(relaxed);
    case apic::dfr:
      return dfr_.load(relaxed);
    case apic::svr:
      return svr_.load(relaxed);
    case apic::esr:
      return esr_;
    case apic::icr_low:
      return icr_low_;
    case apic::icr_high:
      return icr_high_;
    case apic::initial_count:
      return timer_.initial_count();
    case apic::current_count:
      return timer_.current_count(host_.tsc());
    case apic::divide:
      return timer_.divide();
    default:
      break;
  }
  const u32 index = (offset >> 4) & 7;
  if (offset >= apic::isr && offset < apic::tmr) {
    return isr_.word32(index);
  }
  if (offset >= apic::tmr && offset < apic::irr) {
    return tmr_.word32(index);
  }
  if (offset >= apic::irr && offset < apic::esr) {
    // What a deferred EOI holds back in the physical APIC is pending too.
    return irr_.word32(index) |
           (physical_.any_deferred() && software_enabled() ? host_.read(offset) : 0);
  }
  if (offset >= apic::lvt_timer && offset <= apic::lvt_error) {
    return lvt_register(static_cast<apic::Lvt>((offset - apic::lvt_timer) >> 4));
  }
  raise_error(error_status::illegal_register, *this);
  return 0;
}

u32 LocalApic::lvt_register(apic::Lvt entry) const {
  u32 value = lvt_[entry];
  if ((entry == apic::lint0 || entry == apic::lint1) && (value & apic::lvt_level) != 0 &&
      apic::delivery_mode(value) == DeliveryMode::fixed &&
      physical_.deferred(static_cast<u8>(value))) {
    value |= apic::lvt_remote_irr;
  }
  return value;
}

void LocalApic::write_register(u32 offset, u32 value) {
  switch (offset) {
    case apic::id:  // not in x2APIC mode
      // IPIs honour it; the physical ID stays, and with it where devices reach this processor.
      id_.store(value >> 24, relaxed);
      return;
    case apic::tpr:
      tpr_.store(static_cast<u8>(value), relaxed);
      return;
    case apic::ldr:
      ldr_.store(value & 0xff00'0000, relaxed);
      mirror();
      return;
    case apic::dfr:
      dfr_.store(value | 0x0fff'ffff, relaxed);
      mirror();
      return;
    case apic::svr:
      write_svr(value);
      return;
    case apic::esr:
      esr_ = errors_.exchange(0);
      return;
    case apic::icr_low:
      write_icr(value, icr_high_ >> 24);
      return;
    case apic::icr_high:
      icr_high_ = value & 0xff00'0000;
      return;
    case apic::initial_count: {
      const u64 now = host_.tsc();
      settle_timer(now);
      timer_.write_initial_count(value, now);
      timer_.program(host_, now);
      return;
    }
    case apic::divide: {
      const u64 now = host_.tsc();
      settle_timer(now);
      timer_.write_divide(value, now);
      timer_.program(host_, now);
      return;
    }
    case apic::version:
    case apic::apr:
    case apic::ppr:
    case apic::rrr:
    case apic::current_count:
      return;  // read-only
    default:
      break;
  }
  if (offset >= apic::lvt_timer && offset <= apic::lvt_error) {
    write_lvt(static_cast<apic::Lvt>((offset - apic::lvt_timer) >> 4), value);
  } else if (offset < apic::isr || offset >= apic::esr) {
    raise_error(error_status::illegal_register, *this);
  }
}

void LocalApic::write_svr(u32 value) {
  const bool was_enabled = software_enabled();
  svr_.store(value & apic::svr_writable, relaxed);
  if (was_enabled && !software_enabled()) {
    // SDM vol. 3, 11.4.7.2: IRR and ISR are held, all LVT entries are masked.
    const u64 now = host_.tsc();
    settle_timer(now);
    for (u32& entry : lvt_) {
      entry |= apic::lvt_masked;
    }
    lvt_error_.store(lvt_[apic::error], relaxed);
    timer_.write_lvt(lvt_[apic::timer]);
    timer_.program(host_, now);
    mirror();
  } else if (!was_enabled && software_enabled()) {
    // Level interrupts that came meanwhile were not accepted; their lines may ask again.
    physical_.drain(irr_, isr_);
  }
}

void LocalApic::write_lvt(apic::Lvt entry, u32 value) {
  value &= apic::lvt_writable[entry];
  if (!software_enabled()) {
    value |= apic::lvt_masked;
  }
  switch (entry) {
    case apic::timer: {
      if (!identity_.tsc_deadline) {
        value &= ~apic::lvt_tsc_deadline;
      }
      const u64 now = host_.tsc();
      settle_timer(now);
      lvt_[entry] = value;
      timer_.write_lvt(value);
      timer_.program(host_, now);
      return;
    }
    case apic::lint0:
    case apic::lint1:
      lvt_[entry] = value;
      mirror();
      return;
    case apic::error:
      lvt_error_.store(value, relaxed);
      break;
    default:
      break;
  }
  lvt_[entry] = value;
}

void LocalApic::write_icr(u32 low, u32 destination) {
  icr_low_ = low & apic::icr::writable;
  const auto vector = static_cast<u8>(low);
  const DeliveryMode delivery = apic::delivery_mode(low);
  if (apic::icr::shorthand(low) == apic::icr::Shorthand::self && delivery == DeliveryMode::fixed) {
    self_ipi(vector);
    return;
  }
  if ((delivery == DeliveryMode::fixed || delivery == DeliveryMode::lowest_priority) &&
      !apic::is_legal_vector(vector)) [[unlikely]] {
    raise_error(error_status::send_illegal_vector, *this);
    return;
  }
  bus_.send(*this, low, destination);
}

void LocalApic::self_ipi(u8 vector) {
  if (!apic::is_legal_vector(vector)) [[unlikely]] {
    raise_error(error_status::send_illegal_vector, *this);
  }
  post_self(vector);
}

void LocalApic::write_deadline(u64 value) {
  const u64 now = host_.tsc();
  settle_timer(now);
  timer_.write_deadline(value);
  settle_timer(now);  // one that has passed already
  timer_.program(host_, now);
}

std::optional<u64> LocalApic::read_msr(u32 index) {
  if (index == cpu::msr::apic_base) {
    return apic_base();
  }
  if (index == cpu::msr::tsc_deadline) {
    if (!identity_.tsc_deadline) {
      return std::nullopt;
    }
    return timer_.deadline(host_.tsc());
  }
  const u32 number = index - apic::kMsrFirst;
  if (mode() != Mode::x2apic || number >= apic::kX2ApicAccess.size() ||
      !apic::kX2ApicAccess[number].readable) {
    return std::nullopt;
  }
  const u32 offset = number << 4;
  const u64 high = offset == apic::icr_low ? u64{icr_high_} << 32 : 0;
  return high | read_register(offset);
}

bool LocalApic::write_msr(u32 index, u64 value) {
  const u32 number = index - apic::kMsrFirst;
  if (number < apic::kX2ApicAccess.size()) {
    const apic::X2ApicAccess& access = apic::kX2ApicAccess[number];
    if (mode() != Mode::x2apic || !access.writable || (value & ~access.allowed) != 0) {
      return false;
    }
    const u32 offset = number << 4;
    switch (offset) {
      case apic::eoi:
        eoi();
        return true;
      case apic::icr_low:
        icr_high_ = static_cast<u32>(value >> 32);
        write_icr(static_cast<u32>(value), icr_high_);
        return true;
      case apic::self_ipi:
        self_ipi(static_cast<u8>(value));
        return true;
      case apic::lvt_timer:
        if (apic::timer_mode(static_cast<u32>(value)) == apic::TimerMode::reserved ||
            ((value & apic::lvt_tsc_deadline) != 0 && !identity_.tsc_deadline)) {
          return false;
        }
        break;
      default:
        break;
    }
    write_register(offset, static_cast<u32>(value));
    return true;
  }
  if (index == cpu::msr::tsc_deadline) {
    if (!identity_.tsc_deadline) {
      return false;
    }
    write_deadline(value);
    return true;
  }
  return index == cpu::msr::apic_base && write_apic_base(value);
}

void LocalApic::set_tsc_offset(u64 offset) {
  const u64 now = host_.tsc();
  settle_timer(now);
  timer_.set_tsc_offset(offset);
  settle_timer(now);
  timer_.program(host_, now);
}

// ---- Interrupts in ----

bool LocalApic::blocked_by_tpr() const {
  const int vector = irr_.highest();
  if (vector < 0 || !software_enabled()) {
    return false;
  }
  const int in_service = isr_.highest();
  return (vector & 0xf0) <= (tpr_.load(relaxed) & 0xf0) &&
         (in_service < 0 || (vector & 0xf0) > (in_service & 0xf0));
}

void LocalApic::post_self(u8 vector, bool level) {
  if (!apic::is_legal_vector(vector)) [[unlikely]] {
    raise_error(error_status::receive_illegal_vector, *this);
    return;
  }
  if (!software_enabled()) [[unlikely]] {
    return;
  }
  if (level != tmr_.test(vector)) [[unlikely]] {
    level ? tmr_.set(vector) : tmr_.clear(vector);
  }
  irr_.set(vector);
}

void LocalApic::post(u8 vector, LocalApic& sender) {
  if (&sender == this) {
    post_self(vector);
    return;
  }
  if (!apic::is_legal_vector(vector)) [[unlikely]] {
    raise_error(error_status::receive_illegal_vector, sender);
    return;
  }
  if (!software_enabled()) {
    return;
  }
  if (tmr_.test(vector)) [[unlikely]] {
    tmr_.clear(vector);
  }
  // Where the bit was set already, its sender has kicked or is about to.
  if (!irr_.set(vector)) {
    kick(mailbox_.post(request::interrupt), sender);
  }
}

void LocalApic::post_nmi(LocalApic& sender) {
  if (&sender == this) {
    mailbox_.post_self_nmi();
  } else {
    kick(mailbox_.post_nmi(), sender);
  }
}

void LocalApic::post_init(LocalApic& sender) {
  if (&sender == this) {
    mailbox_.post_self_init();
  } else {
    kick(mailbox_.post_init(), sender);
  }
}

void LocalApic::post_startup(u8 vector, LocalApic& sender) {
  // To itself: a processor that runs is not waiting for it.
  if (&sender != this) {
    kick(mailbox_.post_sipi(vector), sender);
  }
}

void LocalApic::post_request(u32 requests, LocalApic& sender) {
  if (&sender == this) {
    mailbox_.post_self(requests);
  } else {
    kick(mailbox_.post(requests), sender);
  }
}

void LocalApic::raise_error(u32 errors, LocalApic& sender) {
  if (errors_.fetch_or(errors) != 0) {
    return;
  }
  const u32 entry = lvt_error_.load(relaxed);
  if ((entry & apic::lvt_masked) == 0 && apic::is_legal_vector(static_cast<u8>(entry))) {
    post(static_cast<u8>(entry), sender);
  }
}

void LocalApic::physical_interrupt(u8 vector) {
  switch (physical_.classify(vector)) {
    case PhysicalInterrupts::Kind::spurious:
      return;
    case PhysicalInterrupts::Kind::extint:
      extint_ = vector;
      return;
    case PhysicalInterrupts::Kind::level:
      post_self(vector, true);
      return;
    case PhysicalInterrupts::Kind::edge:
      break;
  }
  if (timer_.armed_vector() == vector) {
    const u64 now = host_.tsc();
    if (timer_.expired(now)) {
      timer_.consume(now);
      timer_.program(host_, now);
    } else if (host_.read(apic::current_count) == 0) {
      // Early: a rounding, or a wait that takes several pieces.
      timer_.program(host_, now);
      return;
    }
  }
  post_self(vector);
}

void LocalApic::settle_timer(u64 now) {
  if (!timer_.expired(now)) [[likely]] {
    return;
  }
  bool fire = (lvt_[apic::timer] & apic::lvt_masked) == 0;
  if (const std::optional<u8> armed = timer_.armed_vector()) {
    // Either the physical timer is stopped in time, or its interrupt is on its way and will do.
    timer_.disarm(host_);
    fire = fire && !host_.test(apic::irr, *armed);
  }
  timer_.consume(now);
  if (fire) {
    post_self(static_cast<u8>(lvt_[apic::timer]));
  }
}

bool LocalApic::matches(u32 destination, bool logical, bool wide) const {
  const Mode own = mode();
  if (own == Mode::disabled) {
    return false;
  }
  if (destination == (wide ? ~u32{0} : 0xff)) {
    return true;
  }
  if (!logical) {
    return destination == id_.load(relaxed);
  }
  const u32 ldr = ldr_.load(relaxed);
  if (own == Mode::x2apic) {
    return (destination >> 16) == (ldr >> 16) && (destination & ldr & 0xffff) != 0;
  }
  if (destination > 0xff) {
    return false;
  }
  const u32 own_bits = ldr >> 24;
  switch (dfr_.load(relaxed) >> 28) {
    case 0xf:  // flat
      return (destination & own_bits) != 0;
    case 0:  // clusters; 15 is all of them
      return ((destination >> 4) == (own_bits >> 4) || (destination >> 4) == 0xf) &&
             (destination & own_bits & 0xf) != 0;
    default:
      return false;
  }
}

}  // namespace aerie::vmm
