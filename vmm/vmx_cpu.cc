// The parts of VmxContext off the hot path.
#include "vmm/vmx_cpu.h"

#include <algorithm>
#include <optional>

#include "base/panic.h"
#include "cpu/emulate/simple_mmio.h"
#include "vmm/device_map.h"
#include "vmm/l1_access.h"

namespace aerie::vmm {

using cpu::SegmentRegister;
using nested::vmx::TdpOutcome;

VmxMachine vmx_machine;

bool VmxContext::load_l1_paging(u64 cr0, u64 cr3, u64 cr4, u64 efer) {
  auto& b = v_.block_l1();
  b.set_cr0(cr0);
  b.set_cr3(cr3);
  if (cr4 != v_.guest_cr4()) {
    v_.set_guest_cr4(cr4);
  }
  b.set_efer(efer);
  v_.update_paging_mode();
  v_.forget(policy::Forget::everything);
  return !nested::vmx::pae_paging(cr0, cr4, efer) || v_.load_pdptes(cr3);
}

bool VmxContext::read_l1_linear(Gva gva, void* to, u64 size) {
  L1Access access{v_};
  if (!access.read_bytes(gva.value(), to, size)) {
    v_.raise_fault(access.fault());
    return false;
  }
  return true;
}

bool VmxContext::write_l1_linear(Gva gva, const void* from, u64 size) {
  L1Access access{v_};
  if (!access.write_bytes(gva.value(), from, size)) {
    v_.raise_fault(access.fault());
    return false;
  }
  return true;
}

bool VmxContext::peek_l1_linear(Gva gva, void* to, u64 size) {
  return L1Access{v_}.read_bytes(gva.value(), to, size);
}

void VmxContext::shutdown_l1() {
  end_run(telemetry::EndState::l1_triple_fault, "L1 cpu{}: VMX abort", v_.index());
}

bool VmxContext::read_msr(u32 index, u64& value) {
  const std::optional<u64> v = MsrAccess{v_}.read(index);
  value = v.value_or(0);
  return v.has_value();
}

u32 VmxContext::pending() const {
  namespace p = nested::vmx::pending;
  u32 bits = 0;
  if (v_.apic.extint().has_value() || v_.apic.deliverable().has_value()) {
    bits |= p::interrupt;
  }
  if (v_.nmis.pending()) {
    bits |= p::nmi;
  }
  const u32 mail = v_.apic.mailbox().pending();
  if ((mail & request::init) != 0) {
    bits |= p::init;
  }
  if ((mail & request::sipi) != 0) {
    bits |= p::sipi;
  }
  return bits;
}

u8 VmxContext::acknowledge_interrupt() {
  if (const std::optional<u8> extint = v_.apic.extint()) {
    v_.apic.extint_taken();
    return *extint;
  }
  const u8 vector = v_.apic.deliverable().value_or(0xff);
  v_.apic.accept(vector);
  return vector;
}

void VmxContext::request_immediate_exit() {
  // The kick, to itself: its NMI is pending when L2 is entered, and taken once the event is
  // delivered.
  if (v_.apic.mailbox().post(request::quiesce)) {
    v_.apic.host().send_nmi(v_.apic.initial_id());
  }
}

void VmxContext::note_failed_entry(const nested::vmx::EntryRule& rule) {
  v_.telemetry().count(telemetry::Event::nested_entry_failed);
  log_debug("vmx cpu{}: entry refused: {} ({})", v_.index(), rule.name, rule.section);
}

// --- L2's code

namespace {

// The operation that an exit is about, where there is only one.
constexpr std::array<cpu::Op, cpu::kExitReasons> make_operations() {
  std::array<cpu::Op, cpu::kExitReasons> table{};
  table.fill(cpu::Op::count);
  const auto set = [&](cpu::ExitReason reason, cpu::Op op) { table[static_cast<u8>(reason)] = op; };
  set(cpu::ExitReason::cpuid, cpu::Op::cpuid);
  set(cpu::ExitReason::hlt, cpu::Op::hlt);
  set(cpu::ExitReason::rdmsr, cpu::Op::rdmsr);
  set(cpu::ExitReason::wrmsr, cpu::Op::wrmsr);
  set(cpu::ExitReason::rdpmc, cpu::Op::rdpmc);
  set(cpu::ExitReason::invlpg, cpu::Op::invlpg);
  set(cpu::ExitReason::pause, cpu::Op::pause);
  set(cpu::ExitReason::monitor, cpu::Op::monitor);
  set(cpu::ExitReason::mwait, cpu::Op::mwait);
  return table;
}
constexpr auto kOperations = make_operations();

}  // namespace

const cpu::Instruction* VmxContext::decode_l2(const cpu::Exit& exit) {
  const auto& b = v_.block_l2();
  const mmu::ModeBits bits{b.cr0(), b.cr4(), b.efer(), true};
  const u64 generation = root_ != nullptr ? root_generation_ : 0;
  const cpu::Instruction* i = nullptr;
  if (b.segment(SegmentRegister::cs).long_mode()) [[likely]] {
    i = v_.exit_sites.find_nested(b.rip(), b.cr3(), bits, generation);
  }
  if (i == nullptr) [[unlikely]] {
    i = decode_l2_slowly(bits, generation);
  }
  const cpu::Op wanted = kOperations[static_cast<u8>(exit.reason)];
  if (i == nullptr || (wanted != cpu::Op::count && i->op != wanted)) [[unlikely]] {
    return refetch();
  }
  refetches_ = 0;
  return i;
}

const cpu::Instruction* VmxContext::decode_l2_slowly(mmu::ModeBits bits, u64 generation) {
  const auto& b = v_.block_l2();
  const auto& cs = b.segment(SegmentRegister::cs);
  const cpu::CodeMode mode = cpu::code_mode(cs, b.efer());
  const u64 linear = mode == cpu::CodeMode::bits64 ? b.rip() : static_cast<u32>(cs.base + b.rip());
  const auto code_at = [&](u64 at) -> std::span<const u8> {
    const u8* bytes =
        root_ != nullptr
            ? v_.walk_cache.code_bytes(bits, b.cr3(), at, generation, machine.l1_memory,
                                       mmu::Eptp{eptp_}, vmx_machine.ept)
            : v_.walk_cache.code_bytes(bits, b.cr3(), at, machine.l1_memory);
    return bytes == nullptr ? std::span<const u8>{}
                            : std::span<const u8>{bytes, kPageSize - (at & kPageMask)};
  };
  const std::span<const u8> code = code_at(linear);
  const cpu::Instruction* i = v_.decode_cache.find(linear, mode, code.data(), code.size());
  if (i == nullptr) {
    v_.telemetry().count(telemetry::Event::decode_miss);
    i = v_.decode_cache.lookup(linear, mode, code_at).instruction;
  }
  mmu::WalkCache::Path path;
  if (i != nullptr && mode == cpu::CodeMode::bits64 &&
      v_.walk_cache.path(bits, b.cr3(), linear, generation, path)) {
    v_.exit_sites.add(linear, b.cr3(), bits, generation, path, code.data(), *i);
  }
  return i;
}

const cpu::Instruction* VmxContext::refetch() {
  constexpr u8 kPatience = 32;
  if (++refetches_ >= kPatience) {
    refetches_ = 0;
    log_warning("L2 cpu{}: the instruction at rip {x} cannot be read or does not fit its exit; #UD",
                v_.index(), v_.block_l2().rip());
    cpu_.engine.raise_l2(cpu::Event::exception(cpu::Exception::ud));
  }
  return nullptr;
}

// --- L2's memory

mmu::Root* VmxContext::find_root(u64 eptp) {
  for (;;) {
    u32 kick = 0;
    mmu::Root* root = vmx_machine.pager.switch_root(v_.index(), mmu::Eptp{eptp}, kick);
    if (root != nullptr || kick == 0) [[likely]] {
      return root;
    }
    // No page is free before those processors have passed through L0.
    for (unsigned i = 0; i < kMaxCpus; ++i) {
      if ((kick & (1u << i)) != 0) {
        machine.vcpus[i]->apic.post_request(request::quiesce, v_.apic);
      }
    }
    cpu::pause();
  }
}

[[gnu::noinline]] void VmxContext::change_translation(const nested::vmx::L2Translation& t) {
  auto& b = v_.block_l2();
  mmu::Root* root = nullptr;
  u64 generation = 0;
  if (t.ept) [[likely]] {
    root = find_root(t.eptp);
    if (root == nullptr) [[unlikely]] {
      panic("vmx: no root for EPTP {x}", t.eptp);
    }
    generation = root->generation.load(std::memory_order_relaxed);
    b.set_tdp_root(root->table);
  } else {
    b.set_tdp_root(machine.host_map.root());
  }
  // One tag serves all of L1's VPIDs: a change of what it stands for drops it.
  if (t.vpid == 0 || t.vpid != vpid_ || root != root_) {
    b.flush(cpu::TlbFlush::tag);
  }
  root_ = root;
  eptp_ = t.eptp;
  root_generation_ = generation;
  vpid_ = t.vpid;
  before_reentry();
}

// Whether L2's access to `linear` comes upon the second-dimension fault at `ngpa`; `bits`:
// mmu::access. `entry`: where not an entry of EPT12 but this host refused it, the L2 page-table
// entry's own address.
bool VmxContext::faults_at(u64 linear, u32 bits, Ngpa ngpa, bool page_walk,
                           std::optional<Gpa> entry) {
  auto& b = v_.block_l2();
  const mmu::GuestPaging paging =
      mmu::GuestPaging::make(b.cr0(), b.cr3(), b.cr4(), b.efer(),
                             {.maxphyaddr = static_cast<u8>(machine.cpuid_policy.physical_bits())});
  constexpr mmu::WalkOptions kLook{.set_accessed_dirty = false};
  const mmu::GuestWalk walk = mmu::walk_guest(
      machine.l1_memory, paging,
      mmu::EptDimension{machine.l1_memory, mmu::Eptp{eptp_}, vmx_machine.ept, kLook}, linear, bits,
      kLook);
  if (walk.status == mmu::GuestWalk::Status::nested_fault) {
    return walk.nested.page_walk == page_walk && walk.nested.address.frame() == ngpa.frame() &&
           (walk.nested.address.value() & kPageMask & ~u64{7}) <= ngpa.offset();
  }
  if (entry.has_value()) {
    for (unsigned n = 0; n < walk.path.depth; ++n) {
      if (align_down(walk.path.step[n].at.value(), 8) == align_down(entry->value(), 8)) {
        return true;
      }
    }
  }
  return false;
}

// The linear address of L2 whose translation ended in the violation at `ngpa`. SVM does not say it:
// it is looked for among the instruction's own addresses, and each is walked to see that it leads
// there. Nothing where none does: an event's delivery, a descriptor, an operand of an instruction
// not known by name.
std::optional<u64> VmxContext::violating_linear_address(const cpu::Exit& exit,
                                                        std::optional<Gpa> entry) {
  const Ngpa ngpa{exit.info2};
  const bool page_walk = (exit.error_code & cpu::tdp_fault::page_walk) != 0;
  const bool fetch = !page_walk && (exit.error_code & cpu::pfec::fetch) != 0;
  const bool write = !page_walk && (exit.error_code & cpu::pfec::write) != 0;
  auto& b = v_.block_l2();
  if (b.interrupted_event().valid) {
    return std::nullopt;  // the access was the delivery's
  }
  b.store_syscall_state();  // FS and GS
  const cpu::AddressingMode mode = nested::vmx::addressing_mode(b, (b.cr4() & cpu::cr4::la57) != 0);
  const bool wide = mode.code == cpu::CodeMode::bits64;
  u32 who = mmu::access::read;
  if (b.cpl() == 3) {
    who |= mmu::access::user;
  } else if ((b.rflags() & cpu::rflags::ac) != 0) {
    who |= mmu::access::smap_exempt;
  }
  // The first byte that lies on the page in question; an operand may go over to the next page.
  const auto from = [&](u64 linear, u32 bits, unsigned size) -> std::optional<u64> {
    for (const u64 at : {linear, align_down(linear + size - 1, kPageSize)}) {
      const u64 candidate = at < linear ? linear : wide ? at : static_cast<u32>(at);
      if (faults_at(candidate, bits, ngpa, page_walk, entry)) {
        return page_walk ? candidate : (candidate & ~kPageMask) | ngpa.offset();
      }
    }
    return std::nullopt;
  };
  if (fetch || page_walk) {
    const u64 linear =
        wide ? b.rip() : static_cast<u32>(b.segment(SegmentRegister::cs).base + b.rip());
    const auto found = from(linear, (who & mmu::access::user) | mmu::access::fetch, 15);
    if (found.has_value() || fetch) {
      return found;
    }
  }
  const cpu::Instruction* i =
      decode_l2_slowly({b.cr0(), b.cr4(), b.efer(), true}, root_generation_);
  if (i == nullptr) {
    return std::nullopt;
  }
  const auto& r = v_.registers();
  const unsigned size = std::max<unsigned>(i->operand_size, 1);
  const u32 bits = who | (write ? mmu::access::write : 0);
  const auto through = [&](SegmentRegister name, u64 offset) -> std::optional<u64> {
    const cpu::LinearAddress at =
        cpu::linearize(mode, name, b.segment(name), offset, size,
                       write ? cpu::MemoryAccess::write : cpu::MemoryAccess::read);
    return at.fault.valid ? std::nullopt : from(at.value, bits, size);
  };
  const u64 mask = ~u64{0} >> (64 - 8 * i->address_size);
  const bool source = i->op == cpu::Op::movs || i->op == cpu::Op::lods || i->op == cpu::Op::outs;
  const bool destination =
      i->op == cpu::Op::movs || i->op == cpu::Op::stos || i->op == cpu::Op::ins;
  if (source || destination) {
    std::optional<u64> found;
    if (source && !write) {
      found = through(i->segment, r[cpu::Gpr::rsi] & mask);
    }
    if (!found.has_value() && destination && (write || page_walk)) {
      found = through(SegmentRegister::es, r[cpu::Gpr::rdi] & mask);
    }
    return found;
  }
  if (!i->has_memory()) {
    return std::nullopt;
  }
  return through(i->segment, cpu::effective_offset(*i, r, cpu::next_rip(*i, b.rip(), mode.code)));
}

// A violation for L1, with its linear address if that is to be had. Without, bits 7 and 8 are
// clear.
TdpOutcome VmxContext::violation_for_l1(const cpu::Exit& exit, u64 qualification,
                                        std::optional<Gpa> entry) {
  std::optional<u64> linear;
  if ((qualification & bit(7)) != 0) {
    linear = violating_linear_address(exit, entry);
  }
  return {.kind = TdpOutcome::Kind::violation,
          .qualification = linear.has_value() ? qualification : qualification & ~(bit(7) | bit(8)),
          .linear_address = linear.value_or(0)};
}

TdpOutcome VmxContext::handle_l2_tdp_fault(const cpu::Exit& exit) {
  const Ngpa ngpa{exit.info2};
  if (root_ == nullptr) {
    emulate_at_ = Gpa{exit.info2};
    return {.kind = TdpOutcome::Kind::emulate};
  }
  using Kind = mmu::FaultResult::Kind;
  v_.telemetry().count(telemetry::Event::shadow_fault);
  const mmu::FaultResult r =
      vmx_machine.pager.handle_fault(v_.index(), *root_, ngpa, exit.error_code);
  root_generation_ = root_->generation.load(std::memory_order_relaxed);
  switch (r.kind) {
    case Kind::mapped:
      return {};
    case Kind::violation:
      return violation_for_l1(exit, r.qualification, std::nullopt);
    case Kind::misconfiguration:
      return {.kind = TdpOutcome::Kind::misconfiguration};
    case Kind::l0_owned:
      emulate_at_ = r.gpa;
      return {.kind = TdpOutcome::Kind::emulate};
    case Kind::walk_needs_write:
      // This host's walk counts as a write (FACTS); until mode (f) exists L1 hears of a write.
      return violation_for_l1(exit, r.qualification | bit(1), r.gpa);
    case Kind::busy:
      for (unsigned i = 0; i < kMaxCpus; ++i) {
        if ((r.kick & (1u << i)) != 0) {
          machine.vcpus[i]->apic.post_request(request::quiesce, v_.apic);
        }
      }
      return {};
  }
  return {};
}

// The pager compares the tables at the next entry: what L1 edits before that counts as well (SDM
// vol. 3, 29.4.2).
void VmxContext::invept(nested::vmx::InveptType type, u64 eptp) {
  const mmu::GuestFlush flush = type == nested::vmx::InveptType::single_context
                                    ? vmx_machine.pager.invept_single(v_.index(), mmu::Eptp{eptp})
                                    : vmx_machine.pager.invept_all(v_.index());
  if (flush != mmu::GuestFlush::none) {
    v_.block_l2().flush(cpu::TlbFlush::tag);
  }
}

bool VmxContext::read_l2_physical(Ngpa ngpa, void* to, u64 size) {
  auto* out = static_cast<u8*>(to);
  while (size > 0) {
    const u64 part = std::min<u64>(size, kPageSize - ngpa.offset());
    Gpa gpa{ngpa.value()};
    if (root_ != nullptr) {
      const mmu::EptWalk walk =
          mmu::walk_ept(machine.l1_memory, mmu::Eptp{eptp_}, vmx_machine.ept, ngpa,
                        mmu::ept_access::read, {.set_accessed_dirty = false});
      if (walk.status != mmu::EptWalk::Status::ok) {
        return false;
      }
      gpa = walk.gpa;
    }
    if (!machine.l1_memory.read(gpa, out, part)) {
      return false;
    }
    ngpa += part;
    out += part;
    size -= part;
  }
  return true;
}

bool VmxContext::access_l2_linear(u64 linear, void* data, u64 size, bool write) {
  auto& b = v_.block_l2();
  const mmu::GuestPaging paging =
      mmu::GuestPaging::make(b.cr0(), b.cr3(), b.cr4(), b.efer(),
                             {.maxphyaddr = static_cast<u8>(machine.cpuid_policy.physical_bits())});
  u32 bits = write ? mmu::access::write : mmu::access::read;
  if (b.cpl() == 3) {
    bits |= mmu::access::user;
  } else if ((b.rflags() & cpu::rflags::ac) != 0) {
    bits |= mmu::access::smap_exempt;
  }
  auto* bytes = static_cast<u8*>(data);
  while (size > 0) {
    const u64 part = std::min<u64>(size, kPageSize - (linear & kPageMask));
    mmu::GuestWalk walk;
    for (unsigned attempt = 0; attempt < 8; ++attempt) {
      walk = root_ != nullptr
                 ? mmu::walk_guest(
                       machine.l1_memory, paging,
                       mmu::EptDimension{machine.l1_memory, mmu::Eptp{eptp_}, vmx_machine.ept},
                       linear, bits)
                 : mmu::walk_l1(machine.l1_memory, paging, linear, bits);
      if (walk.status != mmu::GuestWalk::Status::retry) {
        break;
      }
    }
    switch (walk.status) {
      case mmu::GuestWalk::Status::ok:
        break;
      case mmu::GuestWalk::Status::nested_fault:
        cpu_.engine.reflect_violation(walk.nested.address, walk.nested.qualification(), linear);
        return false;
      default:
        cpu_.engine.raise_l2(cpu::Event::exception(cpu::Exception::pf, walk.pfec), linear);
        return false;
    }
    const Gpa gpa = root_ != nullptr ? walk.gpa : Gpa{walk.address};
    const bool memory = write ? machine.l1_memory.write(gpa, bytes, part)
                              : machine.l1_memory.read(gpa, bytes, part);
    if (!memory) {
      for (u64 n = 0; n < part; ++n) {
        if (write) {
          device_write(v_, gpa + n, 1, bytes[n]);
        } else {
          bytes[n] = static_cast<u8>(device_read(v_, gpa + n, 1));
        }
      }
    }
    linear += part;
    bytes += part;
    size -= part;
  }
  return true;
}

bool VmxContext::read_l2_linear(Gva gva, void* to, u64 size) {
  return access_l2_linear(gva.value(), to, size, false);
}
bool VmxContext::write_l2_linear(Gva gva, const void* from, u64 size) {
  return access_l2_linear(gva.value(), const_cast<void*>(from), size, true);
}

namespace {

u64 port_in(u16 port, unsigned size) {
  return size == 1 ? cpu::inb(port) : size == 2 ? cpu::inw(port) : cpu::inl(port);
}
void port_out(u16 port, unsigned size, u64 value) {
  switch (size) {
    case 1:
      cpu::outb(port, static_cast<u8>(value));
      break;
    case 2:
      cpu::outw(port, static_cast<u16>(value));
      break;
    default:
      cpu::outl(port, static_cast<u32>(value));
      break;
  }
}

// A register of a device that L2 reaches through L1's map.
struct L2Device {
  Vcpu& v;
  Gpa gpa;
  u64 read(unsigned size) { return device_read(v, gpa, size); }
  void write(unsigned size, u64 value) { device_write(v, gpa, size, value); }
};

}  // namespace

bool VmxContext::perform_l2_io(const cpu::Exit& exit, const cpu::Instruction& i) {
  const cpu::IoInformation io{static_cast<u32>(exit.info1)};
  auto& r = v_.registers();
  const unsigned size = io.size();
  if (!io.string()) {
    if (io.in()) {
      cpu::write_register(r, 0, size, port_in(io.port(), size));
    } else {
      port_out(io.port(), size, cpu::read_register(r, 0, size));
    }
    return true;
  }
  // INS and OUTS, a bounded number of iterations at a time.
  auto& b = v_.block_l2();
  b.store_syscall_state();
  const cpu::AddressingMode mode = nested::vmx::addressing_mode(b, (b.cr4() & cpu::cr4::la57) != 0);
  const unsigned index = static_cast<unsigned>(io.in() ? cpu::Gpr::rdi : cpu::Gpr::rsi);
  const auto name = io.in() ? SegmentRegister::es : i.segment;
  const u64 mask = ~u64{0} >> (64 - 8 * i.address_size);
  const i64 step =
      (b.rflags() & cpu::rflags::df) != 0 ? -static_cast<i64>(size) : static_cast<i64>(size);
  for (unsigned n = 0; n < 64; ++n) {
    if (i.repeated() && (r[cpu::Gpr::rcx] & mask) == 0) {
      return true;
    }
    const cpu::LinearAddress at =
        cpu::linearize(mode, name, b.segment(name), r.gpr[index] & mask, size,
                       io.in() ? cpu::MemoryAccess::write : cpu::MemoryAccess::read);
    if (at.fault.valid) {
      cpu_.engine.raise_l2(at.fault);
      return false;
    }
    u64 value = 0;
    if (io.in()) {
      value = port_in(io.port(), size);
      if (!write_l2_linear(Gva{at.value}, &value, size)) {
        return false;
      }
    } else {
      if (!read_l2_linear(Gva{at.value}, &value, size)) {
        return false;
      }
      port_out(io.port(), size, value);
    }
    cpu::write_register(r, static_cast<u8>(index), i.address_size,
                        r.gpr[index] + static_cast<u64>(step));
    if (!i.repeated()) {
      return true;
    }
    cpu::write_register(r, static_cast<u8>(cpu::Gpr::rcx), i.address_size, r[cpu::Gpr::rcx] - 1);
  }
  return (r[cpu::Gpr::rcx] & mask) == 0;
}

unsigned VmxContext::emulate_l2_access(const cpu::Exit& exit) {
  const cpu::Instruction* i = decode_l2(exit);
  if (i == nullptr) {
    return 0;
  }
  const Gpa gpa = emulate_at_ + (exit.info2 & kPageMask) - emulate_at_.offset();
  if (cpu::emulate_simple_mmio(*i, v_.registers(), L2Device{v_, gpa})) {
    return i->length;
  }
  log_warning(
      "L2 cpu{}: the instruction at rip {x} accesses the trapped page {x} in a way Aerie does not "
      "perform; "
      "#GP",
      v_.index(), v_.block_l2().rip(), gpa);
  cpu_.engine.raise_l2(cpu::Event::exception(cpu::Exception::gp, 0));
  return 0;
}

}  // namespace aerie::vmm
