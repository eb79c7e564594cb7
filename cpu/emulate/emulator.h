// Executes, in software, the instructions with which guests touch trapped pages: moves, string
// moves, arithmetic, bit tests, exchanges. What it does not know is `unsupported`, for the caller
// to log.
//
// Nothing of the guest changes unless the instruction completes; of a repeated string instruction,
// the iterations done stay done, and RIP stays at it (SDM vol. 2, REP).
#pragma once

#include <concepts>

#include "cpu/arch/exception.h"
#include "cpu/decode/instruction.h"
#include "cpu/decode/memory_operand.h"
#include "cpu/emulate/arithmetic.h"

namespace aerie::cpu {

using u128 = unsigned __int128;

// `modify`: the read half of a read-modify-write, which faults as the write does.
enum class MemoryIntent : u8 { read, modify };

enum class CompareExchange : u8 { done, differs, fault };

struct EmulationFault {
  Event event{};
  u64 cr2 = 0;  // with #PF
};

// What the emulator asks of its caller. Linear addresses have passed segmentation's checks;
// translating them, with the guest's CPL and paging, is the environment's part, as is an access
// that crosses a page. `size` is 1, 2, 4 or 8; values are cut to it. Where false (or `fault`) is
// returned, fault() says why; nothing may have been changed then.
template <class E>
concept EmulationEnvironment = requires(E e, u64 linear, unsigned size, u64& value,
                                        MemoryIntent intent, u128 wide, u128& found,
                                        SegmentRegister name) {
  { e.read(linear, size, value, intent) } -> std::same_as<bool>;
  { e.write(linear, size, u64{}) } -> std::same_as<bool>;
  // Replaces `expected` by `desired` at once as other processors see it, where memory is plain RAM;
  // on `differs` `found` is what was there. On a device: writes `desired`. Size may be 16, aligned.
  { e.compare_exchange(linear, size, wide, wide, found) } -> std::same_as<CompareExchange>;
  { e.segment(name) } -> std::convertible_to<Segment>;
  { e.fault() } -> std::convertible_to<EmulationFault>;
};

// The guest state that instructions of this kind read and write.
struct EmulatedState {
  GuestRegisters& registers;
  u64 rip;
  u64 rflags;
  AddressingMode mode;
};

enum class Emulated : u8 {
  done,         // the state's RIP is past the instruction, RF cleared
  again,        // some iterations done, or memory was contended: run the instruction again
  fault,        // `fault` is to be injected
  unsupported,  // not one of this emulator's instructions; nothing changed
};

struct EmulationResult {
  Emulated outcome;
  EmulationFault fault{};
  // TF was set and an instruction or iteration ended: a single-step #DB is due (SDM vol. 3,
  // 17.3.1.4).
  bool single_step = false;
};

template <EmulationEnvironment E>
class Emulator {
 public:
  // Iterations of a string instruction before the guest runs again, so that interrupts are looked
  // at.
  static constexpr unsigned kMaxIterations = 128;
  // Attempts at a locked operation on memory that others keep changing.
  static constexpr unsigned kMaxAttempts = 64;

  Emulator(E& environment, EmulatedState& state, const Instruction& instruction)
      : env_{environment}, state_{state}, i_{instruction}, registers_{state.registers} {}

  EmulationResult run() {
    const bool trap = (state_.rflags & rflags::tf) != 0;
    next_ = next_rip(i_, state_.rip, state_.mode.code);
    const Emulated outcome = execute();
    if (outcome == Emulated::done) {
      state_.rip = next_;
      state_.rflags &= ~rflags::rf;
    }
    return {.outcome = outcome,
            .fault = fault_,
            .single_step = trap && (outcome == Emulated::done || iterations_ != 0)};
  }

 private:
  // -- operands
  // ------------------------------------------------------------------------------------

  Emulated raise(const EmulationFault& fault) {
    fault_ = fault;
    return Emulated::fault;
  }
  Emulated memory_fault() { return raise(env_.fault()); }

  // Linear address of the memory operand, with segmentation's checks; false: fault_ is set.
  bool locate(unsigned size, MemoryAccess access, i64 delta = 0) {
    return locate_at(i_.segment, effective_offset(i_, registers_, next_, delta), size, access,
                     linear_);
  }
  bool locate_at(SegmentRegister name, u64 offset, unsigned size, MemoryAccess access,
                 u64& linear) {
    const LinearAddress at = linearize(state_.mode, name, segment(name), offset, size, access);
    fault_ = {.event = at.fault};
    linear = at.value;
    return !at.fault.valid;
  }
  Segment segment(SegmentRegister name) {
    if (state_.mode.code == CodeMode::bits64 && name < SegmentRegister::fs) {
      return {};
    }
    return env_.segment(name);
  }

  u64 immediate(unsigned size) const { return static_cast<u64>(i_.immediate) & size_mask(size); }

  void set_flags(u64 mask, u64 flags) { state_.rflags = (state_.rflags & ~mask) | (flags & mask); }

  // Reads the r/m operand without meaning to write it.
  Emulated read_rm(unsigned size, u64& value) {
    if (!i_.has_memory()) {
      value = read_register(registers_, i_.rm, size);
      return Emulated::done;
    }
    if (!locate(size, MemoryAccess::read)) {
      return Emulated::fault;
    }
    return env_.read(linear_, size, value, MemoryIntent::read) ? Emulated::done : memory_fault();
  }
  Emulated write_rm(unsigned size, u64 value) {
    if (!i_.has_memory()) {
      write_register(registers_, i_.rm, size, value);
      return Emulated::done;
    }
    if (!locate(size, MemoryAccess::write)) {
      return Emulated::fault;
    }
    return env_.write(linear_, size, value) ? Emulated::done : memory_fault();
  }

  // Replaces the r/m operand by function(old). The memory operand is at linear_ when `located`.
  // Flags and other registers are the caller's to change afterwards, with what `function` last
  // computed.
  template <class F>
  Emulated modify_rm(unsigned size, bool locked, F&& function, bool located = false) {
    if (!i_.has_memory()) {
      write_register(registers_, i_.rm, size, function(read_register(registers_, i_.rm, size)));
      return Emulated::done;
    }
    if (!located && !locate(size, MemoryAccess::write)) {
      return Emulated::fault;
    }
    u64 old = 0;
    if (!env_.read(linear_, size, old, MemoryIntent::modify)) {
      return memory_fault();
    }
    if (!locked) {
      return env_.write(linear_, size, function(old)) ? Emulated::done : memory_fault();
    }
    for (unsigned attempt = 0; attempt < kMaxAttempts; ++attempt) {
      u128 found = 0;
      switch (env_.compare_exchange(linear_, size, old, function(old), found)) {
        case CompareExchange::done:
          return Emulated::done;
        case CompareExchange::fault:
          return memory_fault();
        case CompareExchange::differs:
          old = static_cast<u64>(found);
          break;
      }
    }
    return Emulated::again;
  }

  // -- instructions
  // --------------------------------------------------------------------------------

  Emulated execute() {
    switch (i_.op) {
      case Op::mov:
        return move();
      case Op::movzx:
      case Op::movsx:
        return move_extended();
      case Op::stos:
      case Op::lods:
      case Op::movs:
        return string();
      case Op::add:
      case Op::adc:
      case Op::sub:
      case Op::sbb:
      case Op::bit_and:
      case Op::bit_or:
      case Op::bit_xor:
      case Op::cmp:
      case Op::test:
        return binary();
      case Op::bit_not:
      case Op::neg:
      case Op::inc:
      case Op::dec:
        return unary();
      case Op::bt:
      case Op::bts:
      case Op::btr:
      case Op::btc:
        return bit_test();
      case Op::xchg:
        return exchange();
      case Op::xadd:
        return exchange_add();
      case Op::cmpxchg:
        return compare_exchange();
      case Op::cmpxchg8b:
        return compare_exchange_pair<4>();
      case Op::cmpxchg16b:
        return compare_exchange_pair<8>();
      default:
        return Emulated::unsupported;
    }
  }

  Emulated move() {
    const unsigned size = i_.operand_size;
    switch (i_.form) {
      case Form::rm_reg:
        return write_rm(size, read_register(registers_, i_.reg, size));
      case Form::rm_imm:
        return write_rm(size, immediate(size));
      case Form::reg_rm: {
        u64 value = 0;
        const Emulated outcome = read_rm(size, value);
        if (outcome == Emulated::done) {
          write_register(registers_, i_.reg, size, value);
        }
        return outcome;
      }
      default:
        return Emulated::unsupported;
    }
  }

  Emulated move_extended() {
    u64 value = 0;
    const Emulated outcome = read_rm(i_.source_size, value);
    if (outcome == Emulated::done) {
      write_register(registers_, i_.reg, i_.operand_size,
                     i_.op == Op::movsx ? sign_extend(value, i_.source_size) : value);
    }
    return outcome;
  }

  Arithmetic compute(u64 a, u64 b, unsigned size) const {
    const bool carry = (state_.rflags & rflags::cf) != 0;
    switch (i_.op) {
      case Op::add:
        return add(a, b, false, size);
      case Op::adc:
        return add(a, b, carry, size);
      case Op::sub:
      case Op::cmp:
        return subtract(a, b, false, size);
      case Op::sbb:
        return subtract(a, b, carry, size);
      case Op::bit_or:
        return logic(a | b, size);
      case Op::bit_xor:
        return logic(a ^ b, size);
      default:
        return logic(a & b, size);  // AND, TEST
    }
  }

  Emulated binary() {
    const unsigned size = i_.operand_size;
    const bool compares = i_.op == Op::cmp || i_.op == Op::test;
    Arithmetic result{};
    Emulated outcome = Emulated::unsupported;
    if (i_.form == Form::reg_rm) {
      u64 source = 0;
      outcome = read_rm(size, source);
      if (outcome == Emulated::done) {
        result = compute(read_register(registers_, i_.reg, size), source, size);
        if (!compares) {
          write_register(registers_, i_.reg, size, result.value);
        }
      }
    } else if (i_.form == Form::rm_reg || i_.form == Form::rm_imm) {
      const u64 source =
          i_.form == Form::rm_imm ? immediate(size) : read_register(registers_, i_.reg, size);
      if (compares) {
        u64 value = 0;
        outcome = read_rm(size, value);
        result = compute(value, source, size);
      } else {
        outcome = modify_rm(size, i_.lock(), [&](u64 old) {
          result = compute(old, source, size);
          return result.value;
        });
      }
    }
    if (outcome == Emulated::done) {
      set_flags(rflags::arithmetic, result.flags);
    }
    return outcome;
  }

  Emulated unary() {
    const unsigned size = i_.operand_size;
    Arithmetic result{};
    const Emulated outcome = modify_rm(size, i_.lock(), [&](u64 old) {
      switch (i_.op) {
        case Op::bit_not:
          result = {~old & size_mask(size), 0};
          break;
        case Op::neg:
          result = subtract(0, old, false, size);
          break;
        case Op::inc:
          result = add(old, 1, false, size);
          break;
        default:
          result = subtract(old, 1, false, size);
          break;
      }
      return result.value;
    });
    if (outcome == Emulated::done && i_.op != Op::bit_not) {
      // INC and DEC leave CF alone.
      set_flags(i_.op == Op::neg ? rflags::arithmetic : rflags::arithmetic & ~rflags::cf,
                result.flags);
    }
    return outcome;
  }

  // BT, BTS, BTR, BTC. A register bit offset into memory is signed and reaches beyond the operand
  // (SDM vol. 2, BT). Flags but CF are undefined or unaffected: left as they are.
  Emulated bit_test() {
    const unsigned size = i_.operand_size;
    const unsigned bits = 8 * size;
    const u64 offset = i_.form == Form::rm_imm ? static_cast<u64>(i_.immediate) & (bits - 1)
                                               : read_register(registers_, i_.reg, size);
    i64 delta = 0;
    if (i_.has_memory()) {
      if (i_.form == Form::rm_reg) {
        delta = (static_cast<i64>(sign_extend(offset, size)) >> 3) & ~static_cast<i64>(size - 1);
      }
      if (!locate(size, i_.op == Op::bt ? MemoryAccess::read : MemoryAccess::write, delta)) {
        return Emulated::fault;
      }
    }
    const u64 mask = u64{1} << (offset & (bits - 1));
    bool was_set = false;
    Emulated outcome = Emulated::done;
    if (i_.op == Op::bt) {
      u64 value = 0;
      if (!i_.has_memory()) {
        value = read_register(registers_, i_.rm, size);
      } else if (!env_.read(linear_, size, value, MemoryIntent::read)) {
        return memory_fault();
      }
      was_set = (value & mask) != 0;
    } else {
      outcome = modify_rm(
          size, i_.lock(),
          [&](u64 old) {
            was_set = (old & mask) != 0;
            return i_.op == Op::bts ? old | mask : i_.op == Op::btr ? old & ~mask : old ^ mask;
          },
          true);
    }
    if (outcome == Emulated::done) {
      set_flags(rflags::cf, was_set ? rflags::cf : 0);
    }
    return outcome;
  }

  // XCHG with memory is locked whether or not it says so (SDM vol. 3, 9.1.2.1).
  Emulated exchange() {
    const unsigned size = i_.operand_size;
    const u64 source = read_register(registers_, i_.reg, size);
    u64 old = 0;
    const Emulated outcome = modify_rm(size, true, [&](u64 value) {
      old = value;
      return source;
    });
    if (outcome == Emulated::done) {
      write_register(registers_, i_.reg, size, old);
    }
    return outcome;
  }

  Emulated exchange_add() {
    const unsigned size = i_.operand_size;
    const u64 source = read_register(registers_, i_.reg, size);
    u64 old = 0;
    Arithmetic result{};
    const Emulated outcome = modify_rm(size, i_.lock(), [&](u64 value) {
      old = value;
      result = add(value, source, false, size);
      return result.value;
    });
    if (outcome == Emulated::done) {
      write_register(registers_, i_.reg, size, old);
      if (!i_.has_memory()) {
        // The sum stays where both are one register.
        write_register(registers_, i_.rm, size, result.value);
      }
      set_flags(rflags::arithmetic, result.flags);
    }
    return outcome;
  }

  // The destination is written in either case, with its own value where they differ (SDM vol. 2,
  // CMPXCHG).
  Emulated compare_exchange() {
    constexpr u8 rax = static_cast<u8>(Gpr::rax);
    const unsigned size = i_.operand_size;
    const u64 accumulator = read_register(registers_, rax, size);
    const u64 source = read_register(registers_, i_.reg, size);
    u64 old = 0;
    const Emulated outcome = modify_rm(size, i_.lock(), [&](u64 value) {
      old = value;
      return value == accumulator ? source : value;
    });
    if (outcome == Emulated::done) {
      if (old != accumulator) {
        write_register(registers_, rax, size, old);
      }
      set_flags(rflags::arithmetic, subtract(accumulator, old, false, size).flags);
    }
    return outcome;
  }

  // CMPXCHG8B and CMPXCHG16B, always done as if locked.
  template <unsigned Half>
  Emulated compare_exchange_pair() {
    constexpr unsigned size = 2 * Half;
    constexpr u8 rax = static_cast<u8>(Gpr::rax), rcx = static_cast<u8>(Gpr::rcx),
                 rdx = static_cast<u8>(Gpr::rdx), rbx = static_cast<u8>(Gpr::rbx);
    const auto pair = [&](u8 high, u8 low) {
      return (u128{read_register(registers_, high, Half)} << (8 * Half)) |
             read_register(registers_, low, Half);
    };
    if (!i_.has_memory()) {
      return Emulated::unsupported;
    }
    if (!locate(size, MemoryAccess::write)) {
      return Emulated::fault;
    }
    if (size == 16 && linear_ % 16 != 0) {
      return raise({.event = Event::exception(Exception::gp, 0)});
    }
    u128 old = 0;
    for (unsigned at = 0; at < size; at += 8) {
      u64 part = 0;
      if (!env_.read(linear_ + at, 8, part, MemoryIntent::modify)) {
        return memory_fault();
      }
      old |= u128{part} << (8 * at);
    }
    const u128 expected = pair(rdx, rax);
    const u128 desired = pair(rcx, rbx);
    for (unsigned attempt = 0; attempt < kMaxAttempts; ++attempt) {
      u128 found = 0;
      switch (env_.compare_exchange(linear_, size, old, old == expected ? desired : old, found)) {
        case CompareExchange::fault:
          return memory_fault();
        case CompareExchange::differs:
          old = found;
          continue;
        case CompareExchange::done:
          break;
      }
      if (old != expected) {
        write_register(registers_, rax, Half, static_cast<u64>(old));
        write_register(registers_, rdx, Half, static_cast<u64>(old >> (8 * Half)));
      }
      set_flags(rflags::zf, old == expected ? rflags::zf : 0);
      return Emulated::done;
    }
    return Emulated::again;
  }

  // -- string instructions
  // -------------------------------------------------------------------------

  // RSI, RDI and RCX count at the address size (SDM vol. 1, 7.3.9.2).
  void advance(u8 number) {
    const u64 step =
        (state_.rflags & rflags::df) != 0 ? -u64{i_.operand_size} : u64{i_.operand_size};
    write_register(registers_, number, i_.address_size,
                   read_register(registers_, number, i_.address_size) + step);
  }

  Emulated string() {
    constexpr u8 rcx = static_cast<u8>(Gpr::rcx);
    if (!i_.repeated()) {
      return string_element();
    }
    const unsigned limit = (state_.rflags & rflags::tf) != 0 ? 1 : kMaxIterations;
    for (;;) {
      const u64 count = read_register(registers_, rcx, i_.address_size);
      if (count == 0) {
        return Emulated::done;
      }
      if (iterations_ == limit) {
        return Emulated::again;
      }
      const Emulated outcome = string_element();
      if (outcome != Emulated::done) {
        return outcome;
      }
      ++iterations_;
      write_register(registers_, rcx, i_.address_size, count - 1);
    }
  }

  // One iteration; registers move only when it is complete.
  Emulated string_element() {
    constexpr u8 rax = static_cast<u8>(Gpr::rax), rsi = static_cast<u8>(Gpr::rsi),
                 rdi = static_cast<u8>(Gpr::rdi);
    const unsigned size = i_.operand_size;
    u64 value = read_register(registers_, rax, size);
    u64 linear = 0;
    if (i_.op != Op::stos) {
      const u64 from = read_register(registers_, rsi, i_.address_size);
      if (!locate_at(i_.segment, from, size, MemoryAccess::read, linear)) {
        return Emulated::fault;
      }
    }
    if (i_.op != Op::lods) {
      // The destination is ES, no prefix changes that.
      const u64 to = read_register(registers_, rdi, i_.address_size);
      if (!locate_at(SegmentRegister::es, to, size, MemoryAccess::write, linear_)) {
        return Emulated::fault;
      }
    }
    if (i_.op != Op::stos && !env_.read(linear, size, value, MemoryIntent::read)) {
      return memory_fault();
    }
    if (i_.op != Op::lods && !env_.write(linear_, size, value)) {
      return memory_fault();
    }
    if (i_.op == Op::lods) {
      write_register(registers_, rax, size, value);
    }
    if (i_.op != Op::stos) {
      advance(rsi);
    }
    if (i_.op != Op::lods) {
      advance(rdi);
    }
    return Emulated::done;
  }

  E& env_;
  EmulatedState& state_;
  const Instruction& i_;
  GuestRegisters& registers_;
  u64 next_ = 0;
  u64 linear_ = 0;
  unsigned iterations_ = 0;
  EmulationFault fault_{};
};

// Executes `instruction`, which the guest has at state.rip. Segment, page and alignment faults come
// back as such; privilege and feature checks have been made by the processor before the access
// faulted.
template <EmulationEnvironment E>
EmulationResult emulate(E& environment, EmulatedState& state, const Instruction& instruction) {
  return Emulator<E>{environment, state, instruction}.run();
}

}  // namespace aerie::cpu
