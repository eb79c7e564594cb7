// The local APIC's registers: offsets in its page, bits, and which bits may be written. SDM vol. 3,
// table 11-1 (xAPIC) and table 11-6 (x2APIC). Register `offset` is MSR 0x800 + offset / 16.
#pragma once

#include <array>

#include "base/bits.h"
#include "base/types.h"

namespace aerie::vmm::apic {

inline constexpr u64 kDefaultBase = 0xfee0'0000;
inline constexpr u32 kMsrFirst = 0x800, kMsrLast = 0x8ff;

inline constexpr u32 id = 0x020, version = 0x030, tpr = 0x080, apr = 0x090, ppr = 0x0a0,
                     eoi = 0x0b0, rrr = 0x0c0, ldr = 0x0d0, dfr = 0x0e0, svr = 0x0f0, isr = 0x100,
                     tmr = 0x180, irr = 0x200, esr = 0x280, lvt_cmci = 0x2f0, icr_low = 0x300,
                     icr_high = 0x310, lvt_timer = 0x320, lvt_thermal = 0x330,
                     lvt_performance = 0x340, lvt_lint0 = 0x350, lvt_lint1 = 0x360,
                     lvt_error = 0x370, initial_count = 0x380, current_count = 0x390,
                     divide = 0x3e0,
                     self_ipi = 0x3f0;  // x2APIC only

// Version 0x14 (an xAPIC), six LVT entries, no suppression of EOI broadcasts.
inline constexpr u32 kVersion = 0x0005'0014;

enum class DeliveryMode : u8 {
  fixed = 0,
  lowest_priority = 1,
  smi = 2,
  reserved = 3,
  nmi = 4,
  init = 5,
  startup = 6,
  extint = 7,
};
constexpr DeliveryMode delivery_mode(u64 word) {
  return static_cast<DeliveryMode>(Field<10, 8>::get(word));
}

// LVT entries, by their order in the page from lvt_timer on. SDM vol. 3, figure 11-8.
enum Lvt : u8 { timer, thermal, performance, lint0, lint1, error, kLvts };
constexpr u32 lvt_offset(Lvt entry) { return lvt_timer + 16u * entry; }
inline constexpr u32 lvt_masked = 1u << 16;
inline constexpr u32 lvt_level = 1u << 15;
inline constexpr u32 lvt_remote_irr = 1u << 14;
inline constexpr u32 lvt_delivery_status = 1u << 12;
// Bits of each entry that keep what is written; delivery status (12) and remote IRR (14) are
// read-only, all others are reserved. The timer's bit 18 exists with TSC-deadline mode only.
inline constexpr std::array<u32, kLvts> lvt_writable = {0x7'00ff, 0x1'07ff, 0x1'07ff,
                                                        0x1'a7ff, 0x1'a7ff, 0x1'00ff};
inline constexpr u32 lvt_read_only = lvt_delivery_status | lvt_remote_irr;

enum class TimerMode : u8 { one_shot = 0, periodic = 1, tsc_deadline = 2, reserved = 3 };
constexpr TimerMode timer_mode(u32 lvt) { return static_cast<TimerMode>(Field<18, 17>::get(lvt)); }
inline constexpr u32 lvt_tsc_deadline = 1u << 18;

inline constexpr u32 svr_enabled = 1u << 8;
inline constexpr u32 svr_writable = 0x3ff;  // vector, enable, focus checking (kept, without effect)
inline constexpr u32 divide_writable = 0xb;

namespace error_status {
inline constexpr u32 send_illegal_vector = 1u << 5;
inline constexpr u32 receive_illegal_vector = 1u << 6;
inline constexpr u32 illegal_register = 1u << 7;
}  // namespace error_status

// Interrupt command register. SDM vol. 3, figures 11-12 and 11-28.
namespace icr {
inline constexpr u32 logical = 1u << 11, delivery_status = 1u << 12, assert_level = 1u << 14,
                     level_trigger = 1u << 15;
enum class Shorthand : u8 { none = 0, self = 1, all = 2, others = 3 };
constexpr Shorthand shorthand(u32 low) { return static_cast<Shorthand>(Field<19, 18>::get(low)); }
inline constexpr u32 reserved = 0xfff3'2000;
inline constexpr u32 writable = ~(reserved | delivery_status);
}  // namespace icr

// Vectors 0-15 are no interrupt's: the IRR never holds one (SDM vol. 3, 11.5.2).
constexpr bool is_legal_vector(u8 vector) { return vector >= 16; }

// Logical x2APIC ID: cluster in 31:16, one bit of 15:0. SDM vol. 3, 11.12.10.2.
constexpr u32 x2apic_ldr(u32 apic_id) { return ((apic_id >> 4) << 16) | (1u << (apic_id & 0xf)); }

// How a WRMSR or RDMSR of an x2APIC register is judged; what breaks the rules is #GP. SDM vol. 3,
// table 11-6 and 11.12.1.3.
struct X2ApicAccess {
  bool readable = false;
  bool writable = false;
  u64 allowed = 0;  // bits that may be set in what is written
};
inline constexpr std::array<X2ApicAccess, 64> kX2ApicAccess = [] {
  std::array<X2ApicAccess, 64> table{};
  const auto at = [&table](u32 offset) -> X2ApicAccess& { return table[offset >> 4]; };
  at(id) = at(version) = at(ppr) = at(ldr) = at(current_count) = {.readable = true};
  for (u32 i = 0; i < 8; ++i) {
    at(isr + 16 * i) = at(tmr + 16 * i) = at(irr + 16 * i) = {.readable = true};
  }
  at(tpr) = {true, true, 0xff};
  at(eoi) = {false, true, 0};
  at(svr) = {true, true, svr_writable};
  at(esr) = {true, true, 0};
  at(icr_low) = {true, true, ~u64{icr::reserved}};
  for (u32 entry = 0; entry < kLvts; ++entry) {
    at(lvt_timer + 16 * entry) = {true, true, lvt_writable[entry] | lvt_read_only};
  }
  at(initial_count) = {true, true, 0xffff'ffff};
  at(divide) = {true, true, divide_writable};
  at(self_ipi) = {false, true, 0xff};
  return table;
}();

}  // namespace aerie::vmm::apic
