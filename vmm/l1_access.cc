#include "vmm/l1_access.h"

#include <algorithm>
#include <cstring>

namespace aerie::vmm {

using cpu::SegmentRegister;

cpu::AddressingMode L1Access::addressing_mode() const {
  auto& b = v_.block_l1();
  const bool real = (b.cr0() & cpu::cr0::pe) == 0 || (b.rflags() & cpu::rflags::vm) != 0;
  return {.code = cpu::code_mode(b.segment(SegmentRegister::cs), b.efer()),
          .protected_mode = !real,
          .linear_bits = static_cast<u8>((b.cr4() & cpu::cr4::la57) != 0 ? 57 : 48)};
}

bool L1Access::translate(u64 linear, u32 access_bits, Gpa& gpa) {
  auto& b = v_.block_l1();
  const mmu::GuestPaging paging = v_.guest_paging();
  if (b.cpl() == 3) {
    access_bits |= mmu::access::user;
  } else if ((b.rflags() & cpu::rflags::ac) != 0) {
    access_bits |= mmu::access::smap_exempt;
  }
  constexpr unsigned kAttempts = 8;
  for (unsigned i = 0; i < kAttempts; ++i) {
    const mmu::GuestWalk walk = mmu::walk_l1(machine.l1_memory, paging, linear, access_bits);
    if (walk.status == mmu::GuestWalk::Status::ok) {
      gpa = Gpa{walk.address};
      return true;
    }
    if (walk.status == mmu::GuestWalk::Status::page_fault) {
      fault_ = {cpu::Event::exception(cpu::Exception::pf, walk.pfec), linear};
      return false;
    }
  }
  // Other processors keep changing the entry: as good as a fault on what it was.
  fault_ = {cpu::Event::exception(cpu::Exception::pf, access_bits & mmu::access::in_error_code),
            linear};
  return false;
}

bool L1Access::read(u64 linear, unsigned size, u64& value, cpu::MemoryIntent intent) {
  value = 0;
  const u32 access = intent == cpu::MemoryIntent::modify ? mmu::access::write : mmu::access::read;
  const u64 in_page = kPageSize - (linear & kPageMask);
  if (size > in_page) [[unlikely]] {
    return read_bytes(linear, &value, size);
  }
  Gpa gpa;
  if (!translate(linear, access, gpa)) {
    return false;
  }
  if (!machine.l1_memory.read(gpa, &value, size)) {
    value = device_read(v_, gpa, size);
  }
  return true;
}

bool L1Access::write(u64 linear, unsigned size, u64 value) {
  const u64 in_page = kPageSize - (linear & kPageMask);
  if (size > in_page) [[unlikely]] {
    return write_bytes(linear, &value, size);
  }
  Gpa gpa;
  if (!translate(linear, mmu::access::write, gpa)) {
    return false;
  }
  if (!machine.l1_memory.write(gpa, &value, size)) {
    device_write(v_, gpa, size, value);
  }
  return true;
}

cpu::CompareExchange L1Access::compare_exchange(u64 linear, unsigned size, u128 expected,
                                                u128 desired, u128& found) {
  Gpa gpa;
  if (!translate(linear, mmu::access::write, gpa)) {
    return cpu::CompareExchange::fault;
  }
  const bool one_page = gpa.offset() + size <= kPageSize;
  u8* memory = machine.l1_memory.writable(gpa, size) && one_page
                   ? machine.l1_memory.pointer<u8>(gpa, size)
                   : nullptr;
  if (memory == nullptr) {
    if (size <= 8) {
      write(linear, size, static_cast<u64>(desired));
    }
    return cpu::CompareExchange::done;
  }
  const auto exchange = [&]<class T>(T wanted, T replacement) {
    const bool done =
        __atomic_compare_exchange_n(reinterpret_cast<T*>(memory), &wanted, replacement, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    found = wanted;
    return done ? cpu::CompareExchange::done : cpu::CompareExchange::differs;
  };
  switch (size) {
    case 1:
      return exchange(static_cast<u8>(expected), static_cast<u8>(desired));
    case 2:
      return exchange(static_cast<u16>(expected), static_cast<u16>(desired));
    case 4:
      return exchange(static_cast<u32>(expected), static_cast<u32>(desired));
    case 8:
      return exchange(static_cast<u64>(expected), static_cast<u64>(desired));
    default:
      break;
  }
  u64 low = static_cast<u64>(expected), high = static_cast<u64>(expected >> 64);
  bool done;
  asm volatile("lock cmpxchg16b %1"
               : "=@ccz"(done), "+m"(*reinterpret_cast<u128*>(memory)), "+a"(low), "+d"(high)
               : "b"(static_cast<u64>(desired)), "c"(static_cast<u64>(desired >> 64))
               : "memory");
  found = (static_cast<u128>(high) << 64) | low;
  return done ? cpu::CompareExchange::done : cpu::CompareExchange::differs;
}

const cpu::Segment& L1Access::segment(SegmentRegister name) {
  auto& b = v_.block_l1();
  const bool in_processor = name == SegmentRegister::fs || name == SegmentRegister::gs ||
                            name == SegmentRegister::ldtr || name == SegmentRegister::tr;
  if (in_processor && !syscall_state_stored_) {
    b.store_syscall_state();
    syscall_state_stored_ = true;
  }
  return b.segment(name);
}

bool L1Access::read_bytes(u64 linear, void* to, usize size) {
  auto* out = static_cast<u8*>(to);
  while (size > 0) {
    const usize part = std::min<usize>(size, kPageSize - (linear & kPageMask));
    Gpa gpa;
    if (!translate(linear, mmu::access::read, gpa)) {
      return false;
    }
    if (!machine.l1_memory.read(gpa, out, part)) {
      for (usize i = 0; i < part; ++i) {
        out[i] = static_cast<u8>(device_read(v_, gpa + i, 1));
      }
    }
    linear += part;
    out += part;
    size -= part;
  }
  return true;
}

// Both pages are translated before either is written: a fault leaves nothing half done.
bool L1Access::write_bytes(u64 linear, const void* from, usize size) {
  const auto* in = static_cast<const u8*>(from);
  Gpa gpa;
  // The first page that faults is the one to report.
  if (!translate(linear, mmu::access::write, gpa) ||
      !translate(linear + size - 1, mmu::access::write, gpa)) {
    return false;
  }
  while (size > 0) {
    const usize part = std::min<usize>(size, kPageSize - (linear & kPageMask));
    if (!translate(linear, mmu::access::write, gpa)) {
      return false;
    }
    if (!machine.l1_memory.write(gpa, in, part)) {
      for (usize i = 0; i < part; ++i) {
        device_write(v_, gpa + i, 1, in[i]);
      }
    }
    linear += part;
    in += part;
    size -= part;
  }
  return true;
}

bool L1Access::operand(const cpu::Instruction& i, unsigned size, cpu::MemoryAccess access,
                       u64& linear) {
  auto& b = v_.block_l1();
  const cpu::AddressingMode mode = addressing_mode();
  const cpu::LinearAddress at = cpu::memory_operand_address(
      i, mode, v_.registers(), cpu::next_rip(i, b.rip(), mode.code), size, access,
      [this](SegmentRegister name) -> const cpu::Segment& { return segment(name); });
  linear = at.value;
  fault_ = {at.fault, 0};
  return !at.fault.valid;
}

// A 2-byte operand in a register or in memory (LMSW). The fault, if any, has been raised.
bool Vcpu::read_operand(const cpu::Instruction& i, unsigned size, u64& value) {
  if (!i.has_memory()) {
    value = cpu::read_register(registers_, i.rm, size);
    return true;
  }
  L1Access access{*this};
  u64 linear = 0;
  if (access.operand(i, size, cpu::MemoryAccess::read, linear) &&
      access.read(linear, size, value, cpu::MemoryIntent::read)) {
    return true;
  }
  raise_fault(access.fault());
  return false;
}

void Vcpu::raise_fault(const cpu::EmulationFault& fault) {
  if (fault.event.vector == static_cast<u8>(cpu::Exception::pf)) {
    block_l1_.set_cr2(fault.cr2);
  }
  raise(fault.event);
}

}  // namespace aerie::vmm
