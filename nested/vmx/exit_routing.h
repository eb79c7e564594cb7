// An exit of L2 on its way: exit_routing_table.h says who wants it; what that table calls "closer"
// is decided here, one short handler each.
#pragma once

#include "nested/vmx/engine.h"
#include "nested/vmx/exit_routing_table.h"

namespace aerie::nested::vmx {

template <L1Context C>
void Vmx<C>::handle_exit(const cpu::Exit& e) {
  if (stepping_) [[unlikely]] {
    if (end_step(e)) {
      return;
    }
  }
  note_interrupted_event();
  const Route& route = kRoutes[static_cast<u8>(e.reason)];
  if (route.wants == Wants::l1 ||
      (route.wants == Wants::control &&
       ((route.word == Word::proc2 ? proc2() : c_.proc_controls) & route.bit) != 0)) {
    reflect(e, route.basic);
  } else {
    handle_special(e);
  }
  if (interrupted_.valid) [[unlikely]] {
    // L0 dealt with it: the event is delivered again at the next run.
    if (mode_ == Mode::non_root && !inject_.valid) {
      inject_ = interrupted_;
      recompute_attention();
    }
    interrupted_ = {};
  }
}

// An instruction that L1 wants to hear of.
template <L1Context C>
[[gnu::always_inline]] inline void Vmx<C>::reflect(const cpu::Exit& e, cpu::vmx::BasicExit basic) {
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) [[unlikely]] {
    return;
  }
  // MWAIT's bit 0, "the monitor is armed", stays 0: L0 never arms it for an L2.
  const u64 qualification = e.reason == cpu::ExitReason::invlpg ? invlpg_address(*i) : 0;
  exit_on_instruction(basic, *i, qualification);
}

// 28.2.1: INVLPG's operand as a linear address, whether canonical or not.
template <L1Context C>
[[gnu::cold]] u64 Vmx<C>::invlpg_address(const cpu::Instruction& i) {
  Block& b = v_.block_l2();
  b.store_syscall_state();
  const u64 offset = cpu::effective_offset(i, v_.registers(), b.rip() + i.length);
  if (l2_code64()) {
    return i.segment >= cpu::SegmentRegister::fs ? offset + b.segment(i.segment).base : offset;
  }
  return static_cast<u32>(offset + b.segment(i.segment).base);
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::handle_special(const cpu::Exit& e) {
  using enum cpu::ExitReason;
  v_.count_handled(e.reason);
  switch (e.reason) {
    case exception:
      return on_exception(e);
    case tdp_fault:
      return on_tdp_fault(e);
    case cr_read:
      return on_cr_read(e);
    case cr_write:
    case cr0_selective:
      return on_cr_write(e);
    case dr_read:
    case dr_write:
      return on_dr(e);
    case io:
      return on_io(e);
    case rdmsr:
    case wrmsr:
      return on_msr(e);
    case rdtsc:
    case rdtscp:
      return on_rdtsc(e);
    case iret:
      return on_iret();
    case shutdown:
      return exit_to_l1(cpu::vmx::BasicExit::triple_fault);
    case interrupt_window:
      v_.block_l2().request_interrupt_window(false);
      window_requested_ = false;
      recompute_attention();
      attention_ |= 1;  // what waited for the window is to be looked at
      return;
    case external_interrupt:
    case nmi:
    case init:
    case smi:
      return;  // vmm took it; before_run() sees what it means for L2
    case task_switch: {
      // Bits as the neutral exit has them: selector in info1, kind in info2.
      const cpu::vmx::TaskSwitch t{
          .selector = static_cast<u16>(e.info1),
          .source = static_cast<cpu::vmx::TaskSwitch::Source>(e.info2 & 3)};
      return exit_to_l1(cpu::vmx::BasicExit::task_switch, t.encode());
    }
    case descriptor_table: {
      const cpu::Instruction* i = v_.decode_l2(e);
      if (i == nullptr) return;
      const bool global = i->op == cpu::Op::sgdt || i->op == cpu::Op::lgdt ||
                          i->op == cpu::Op::sidt || i->op == cpu::Op::lidt;
      return exit_on_instruction(
          global ? cpu::vmx::BasicExit::gdtr_idtr : cpu::vmx::BasicExit::ldtr_tr, *i,
          i->has_memory() ? displacement_qualification(*i, v_.block_l2().rip()) : 0,
          instruction_information(*i));
    }
    case invpcid: {
      if (!has(proc2(), cpu::vmx::proc2::invpcid)) return undefined_in_l2();
      const cpu::Instruction* i = v_.decode_l2(e);
      if (i == nullptr) return;
      return exit_on_instruction(cpu::vmx::BasicExit::invpcid, *i,
                                 displacement_qualification(*i, v_.block_l2().rip()),
                                 instruction_information(*i));
    }
    case hlt: {
      const cpu::Instruction* i = v_.decode_l2(e);
      if (i == nullptr) return;
      advance_l2(i->length);
      activity_ = cpu::vmx::Activity::hlt;
      return recompute_attention();
    }
    case rdpmc:
      return general_protection();
    case wbinvd: {
      const cpu::Instruction* i = v_.decode_l2(e);
      if (i == nullptr) return;
      if (i->op == cpu::Op::invd) return exit_on_instruction(cpu::vmx::BasicExit::invd, *i);
      if (has(proc2(), cpu::vmx::proc2::wbinvd))
        return exit_on_instruction(cpu::vmx::BasicExit::wbinvd, *i);
      return advance_l2(i->length);  // caches are coherent
    }
    case software_interrupt:
      return on_software_interrupt(e);
    case pause:
    case monitor:
    case mwait:
    case invlpg: {
      // L0 asked for it, not L1. Nothing to do: caches are coherent, MWAIT may return at once.
      const cpu::Instruction* i = v_.decode_l2(e);
      if (i == nullptr) return;
      if (e.reason == invlpg) v_.block_l2().flush(cpu::TlbFlush::tag);
      return advance_l2(i->length);
    }
    case vmrun:
    case vmmcall:
    case vmload:
    case vmsave:
    case stgi:
    case clgi:
    case skinit:
    case invlpga:
    case rdpru:
    case rsm:
    case icebp:
      return undefined_in_l2();
    case invalid_state: {
      // FACTS: an unintercepted MOV to a control register with a value the processor refuses.
      const cpu::Instruction* i = v_.decode_l2(e);
      if (i != nullptr && i->op == cpu::Op::mov_to_cr) return general_protection();
      log_error("vmx: the processor refused L2's state, raw code {x}", e.raw_code);
      dirty_ = kAllGroups;
      return exit_to_l1(cpu::vmx::BasicExit::triple_fault);
    }
    default:
      log_warning("vmx: exit {} of L2, raw code {x}, was not asked for", static_cast<u32>(e.reason),
                  e.raw_code);
      return exit_to_l1(cpu::vmx::BasicExit::triple_fault);
  }
}

// L0 found an exception for L2. 26.2: the exception bitmap decides, #PF also by its error code.
template <L1Context C>
void Vmx<C>::raise_l2(const cpu::Event& event, u64 qualification) {
  Block& b = v_.block_l2();
  const bool pf = event.vector == static_cast<u8>(cpu::Exception::pf);
  const bool wanted =
      pf ? page_fault_wanted(event.error) : has(c_.exception_bitmap, u32{1} << (event.vector & 31));
  if (wanted) {
    return exit_to_l1(cpu::vmx::BasicExit::exception_or_nmi, qualification,
                      cpu::vmx::interruption_info::encode(event), event.error,
                      event.instruction_length);
  }
  if (pf) {
    b.set_cr2(qualification);
  } else if (event.vector == static_cast<u8>(cpu::Exception::db)) {
    b.set_dr6((b.dr6() & ~u64{0xf}) | (qualification & (0xf | cpu::dr6::bd | cpu::dr6::bs)));
    b.set_dr7(b.dr7() & ~cpu::dr7::gd);
  } else if (event.type == cpu::EventType::hardware_exception) {
    b.set_rflags(b.rflags() |
                 cpu::rflags::rf);  // faults push it set (17.3.1.1); not every host does so
  }
  interrupted_ = {};
  inject_ = event;
  recompute_attention();
}

template <L1Context C>
bool Vmx<C>::page_fault_wanted(u32 error_code) const {
  const bool match = (error_code & c_.page_fault_error_mask) == c_.page_fault_error_match;
  return match == has(c_.exception_bitmap, exception_bit(cpu::Exception::pf));
}

template <L1Context C>
void Vmx<C>::on_exception(const cpu::Exit& e) {
  const auto vector = static_cast<cpu::Exception>(e.vector);
  switch (vector) {
    case cpu::Exception::ud:
      return on_undefined_opcode(e);
    case cpu::Exception::pf:
      return on_page_fault(e);
    case cpu::Exception::db:
      return on_debug(e);
    default:
      break;
  }
  cpu::Event event = cpu::Event::exception(vector);
  if (vector == cpu::Exception::bp || vector == cpu::Exception::of) {
    event.type = cpu::EventType::software_exception;
    const cpu::Instruction* i = v_.decode_l2(e);
    event.instruction_length = i != nullptr ? i->length : 1;
  } else if (cpu::has_error_code(e.vector) && (c_.guest_cr0 & cpu::cr0::pe) != 0) {
    event.has_error = true;
    event.error = static_cast<u32>(e.error_code);
  }
  raise_l2(event);
}

// INT n, INT3 or INTO, intercepted for the sake of the exception bitmap's bits 3 and 4.
template <L1Context C>
[[gnu::cold]] void Vmx<C>::on_software_interrupt(const cpu::Exit& e) {
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  cpu::Event event{
      .valid = true, .type = cpu::EventType::software_exception, .instruction_length = i->length};
  switch (i->op) {
    case cpu::Op::int3:
      event.vector = static_cast<u8>(cpu::Exception::bp);
      break;
    case cpu::Op::into:
      if ((v_.block_l2().rflags() & cpu::rflags::of) == 0) return advance_l2(i->length);
      event.vector = static_cast<u8>(cpu::Exception::of);
      break;
    case cpu::Op::int_n:
      event.type = cpu::EventType::software_interrupt;
      event.vector = static_cast<u8>(i->immediate);
      inject_ = event;
      return recompute_attention();
    default:
      return;  // rewritten meanwhile: run it again
  }
  raise_l2(event);
}

template <L1Context C>
void Vmx<C>::on_page_fault(const cpu::Exit& e) {
  raise_l2(cpu::Event::exception(cpu::Exception::pf, static_cast<u32>(e.error_code)), e.info2);
}

// The host has updated DR6 before the exit; VMX reports the causes and leaves DR6 alone (28.3.1).
// DR6 was clear at the entry, so that what is set now are the causes.
template <L1Context C>
void Vmx<C>::on_debug(const cpu::Exit&) {
  Block& b = v_.block_l2();
  u64 causes = b.dr6() & (0xf | cpu::dr6::bd | cpu::dr6::bs);
  causes |= pending_debug_ & cpu::vmx::pending_debug::b0_b3;
  pending_debug_ = 0;
  raise_l2(cpu::Event::exception(cpu::Exception::db), causes);
}

// VMX instructions (on a host that has none), XSETBV where it cannot be intercepted, or just #UD.
template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_undefined_opcode(const cpu::Exit& e) {
  using cpu::vmx::BasicExit;
  const Block& b = v_.block_l2();
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return undefined_in_l2();  // its bytes could not be fetched: the fault stands
  }
  const auto operand_exit = [&](BasicExit basic) {
    if (!legal_mode(b) || !i->has_memory()) return undefined_in_l2();
    exit_on_instruction(basic, *i, displacement_qualification(*i, b.rip()),
                        instruction_information(*i));
  };
  const auto plain_exit = [&](BasicExit basic) {
    if (!legal_mode(b)) return undefined_in_l2();
    exit_on_instruction(basic, *i);
  };
  switch (i->op) {
    case cpu::Op::vmcall:
      return exit_on_instruction(BasicExit::vmcall, *i);
    case cpu::Op::vmlaunch:
      return plain_exit(BasicExit::vmlaunch);
    case cpu::Op::vmresume:
      return plain_exit(BasicExit::vmresume);
    case cpu::Op::vmxoff:
      return plain_exit(BasicExit::vmxoff);
    case cpu::Op::vmxon:
      return operand_exit(BasicExit::vmxon);
    case cpu::Op::vmclear:
      return operand_exit(BasicExit::vmclear);
    case cpu::Op::vmptrld:
      return operand_exit(BasicExit::vmptrld);
    case cpu::Op::vmptrst:
      return operand_exit(BasicExit::vmptrst);
    case cpu::Op::vmread:
    case cpu::Op::vmwrite:
      if (!legal_mode(b)) return undefined_in_l2();
      return exit_on_instruction(i->op == cpu::Op::vmread ? BasicExit::vmread : BasicExit::vmwrite,
                                 *i, i->has_memory() ? displacement_qualification(*i, b.rip()) : 0,
                                 instruction_information(*i));
    case cpu::Op::invept:
      if (!v_.capabilities().has(Feature::ept)) break;
      return operand_exit(BasicExit::invept);
    case cpu::Op::invvpid:
      if (!v_.capabilities().has(Feature::vpid)) break;
      return operand_exit(BasicExit::invvpid);
    case cpu::Op::getsec:
      if ((c_.guest_cr4 & cpu::cr4::smxe) == 0) break;
      return exit_on_instruction(BasicExit::getsec, *i);
    case cpu::Op::invd:
      if (b.cpl() != 0) break;
      return exit_on_instruction(BasicExit::invd, *i);
    case cpu::Op::xgetbv:
      if (v_.intercepts_xsetbv() || osxsave_live_ || (c_.guest_cr4 & cpu::cr4::osxsave) == 0) break;
      if (static_cast<u32>(v_.registers()[cpu::Gpr::rcx]) == 0) {
        // Performed here, so that the XSETBV which may follow is still seen.
        const u64 xcr0 = v_.xcr0();
        v_.registers()[cpu::Gpr::rax] = static_cast<u32>(xcr0);
        v_.registers()[cpu::Gpr::rdx] = xcr0 >> 32;
        return advance_l2(i->length);
      }
      break;
    case cpu::Op::xsetbv:
      if (v_.intercepts_xsetbv() || (c_.guest_cr4 & cpu::cr4::osxsave) == 0) break;
      if (b.cpl() != 0) return general_protection();
      // From here on the processor executes L2's XSAVE instructions, XSETBV among them.
      xsetbv_seen_ = true;
      switched_xcr0_ = false;
      l1_xcr0_ = v_.xcr0();
      apply_control_registers();
      update_intercepts();
      return exit_on_instruction(BasicExit::xsetbv, *i);
    default:
      break;
  }
  if (!v_.intercepts_xsetbv() && !osxsave_live_ && (c_.guest_cr4 & cpu::cr4::osxsave) != 0) {
    // Perhaps only for want of OSXSAVE: give L2 the bit it has set and let it try again.
    xsetbv_seen_ = true;
    l1_xcr0_ = v_.xcr0();
    apply_control_registers();
    update_intercepts();
    return;
  }
  undefined_in_l2();
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_cr_read(const cpu::Exit& e) {
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  Block& b = v_.block_l2();
  const u64 cr0 = visible_cr(c_.guest_cr0, c_.cr0_mask, c_.cr0_read_shadow);
  if (i->op == cpu::Op::smsw) {
    if (i->has_memory()) {
      const cpu::LinearAddress at = operand_linear_address(b, *i, v_.registers(), 2, true,
                                                           (c_.guest_cr4 & cpu::cr4::la57) != 0);
      if (at.fault.valid) return raise_l2(at.fault);
      if (!v_.write_l2_linear(Gva{at.value}, &cr0, 2)) return;
    } else {
      cpu::write_register(v_.registers(), i->rm, i->operand_size, cr0);
    }
    return advance_l2(i->length);
  }
  const auto access = [&] {
    return cpu::vmx::CrAccess{.cr = i->reg,
                              .kind = cpu::vmx::CrAccess::Kind::mov_from,
                              .gpr = static_cast<cpu::Gpr>(i->rm & 15)}
        .encode();
  };
  u64 value = 0;
  switch (i->reg) {
    case 0:
      value = cr0;
      break;
    case 2:
      value = b.cr2();
      break;
    case 3:
      if (has(proc(), cpu::vmx::proc::cr3_store)) {
        return exit_on_instruction(cpu::vmx::BasicExit::cr_access, *i, access());
      }
      value = b.cr3();
      break;
    case 4:
      value = visible_cr(c_.guest_cr4, c_.cr4_mask, c_.cr4_read_shadow);
      break;
    case 8:
      if (has(proc(), cpu::vmx::proc::cr8_store)) {
        return exit_on_instruction(cpu::vmx::BasicExit::cr_access, *i, access());
      }
      value = v_.tpr();
      break;
    default:
      return undefined_in_l2();
  }
  const bool code64 = l2_code64();
  v_.registers().gpr[i->rm & 15] = code64 ? value : static_cast<u32>(value);
  advance_l2(i->length);
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_cr_write(const cpu::Exit& e) {
  using cpu::vmx::CrAccess;
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  Block& b = v_.block_l2();
  if (i->op == cpu::Op::clts) {
    // Exits where L1 owns TS and shows it set; does nothing where L1 owns it and shows it clear.
    if ((c_.cr0_mask & cpu::cr0::ts) == 0) {
      return commit_cr0(c_.guest_cr0 & ~cpu::cr0::ts, *i);
    }
    if ((c_.cr0_read_shadow & cpu::cr0::ts) == 0) {
      return advance_l2(i->length);
    }
    return exit_on_instruction(cpu::vmx::BasicExit::cr_access, *i,
                               CrAccess{.cr = 0, .kind = CrAccess::Kind::clts}.encode());
  }
  if (i->op == cpu::Op::lmsw) {
    u16 source = 0;
    u64 linear = 0;
    if (i->has_memory()) {
      const cpu::LinearAddress at = operand_linear_address(b, *i, v_.registers(), 2, false,
                                                           (c_.guest_cr4 & cpu::cr4::la57) != 0);
      if (at.fault.valid) return raise_l2(at.fault);
      if (!v_.read_l2_linear(Gva{at.value}, &source, 2)) return;
      linear = at.value;
    } else {
      source = static_cast<u16>(v_.registers().gpr[i->rm & 15]);
    }
    // MP, EM, TS exit on a difference; PE only when it is being set.
    const u64 differs = (source ^ c_.cr0_read_shadow) & c_.cr0_mask & 0xe;
    const u64 sets_pe = source & ~c_.cr0_read_shadow & c_.cr0_mask & cpu::cr0::pe;
    if ((differs | sets_pe) != 0) {
      exit_on_instruction(cpu::vmx::BasicExit::cr_access, *i,
                          CrAccess{.cr = 0,
                                   .kind = CrAccess::Kind::lmsw,
                                   .lmsw_memory = i->has_memory(),
                                   .lmsw_source = source}
                              .encode());
      c_.guest_linear_address = linear;
      return;
    }
    const u64 settable = ~c_.cr0_mask & 0xf;
    const u64 kept = c_.guest_cr0 & (~settable | cpu::cr0::pe);  // LMSW never clears PE
    return commit_cr0(kept | (source & settable), *i);
  }
  const u64 value = [&] {
    const bool code64 = l2_code64();
    const u64 r = v_.registers().gpr[i->rm & 15];
    return code64 ? r : u64{static_cast<u32>(r)};
  }();
  switch (i->reg) {
    case 0:
      return mov_to_cr0(value, *i);
    case 2:
      b.set_cr2(value);
      return advance_l2(i->length);
    case 3:
      return mov_to_cr3(value, *i);
    case 4:
      return mov_to_cr4(value, *i);
    case 8:
      if (has(proc(), cpu::vmx::proc::cr8_load)) {
        return exit_on_instruction(
            cpu::vmx::BasicExit::cr_access, *i,
            CrAccess{.cr = 8, .gpr = static_cast<cpu::Gpr>(i->rm & 15)}.encode());
      }
      if ((value >> 4) != 0) return general_protection();
      v_.set_tpr(value);
      return advance_l2(i->length);
    default:
      return undefined_in_l2();
  }
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_dr(const cpu::Exit& e) {
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  const bool read = i->op == cpu::Op::mov_from_dr;
  if (has(proc(), cpu::vmx::proc::mov_dr)) {
    return exit_on_instruction(
        cpu::vmx::BasicExit::mov_dr, *i,
        cpu::vmx::DrAccess{.dr = i->reg, .read = read, .gpr = static_cast<cpu::Gpr>(i->rm & 15)}
            .encode());
  }
  // L0's own interest is in DR6 (and DR4, its alias).
  Block& b = v_.block_l2();
  if (i->reg == 4 && (c_.guest_cr4 & cpu::cr4::de) != 0) {
    return undefined_in_l2();
  }
  u64& r = v_.registers().gpr[i->rm & 15];
  if (read) {
    r = hides_dr6_ ? l2_dr6_ : b.dr6();
  } else {
    if ((r >> 32) != 0) return general_protection();
    const u64 value = (r & 0xe00f) | cpu::dr6::initial;
    if (hides_dr6_) {
      l2_dr6_ = value;
    } else {
      b.set_dr6(value);
    }
  }
  advance_l2(i->length);
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_io(const cpu::Exit& e) {
  const cpu::IoInformation io{static_cast<u32>(e.info1)};
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  if (!io_wanted(io.port(), io.size())) {
    if (v_.perform_l2_io(e, *i)) {
      advance_l2(i->length);
    }
    return;
  }
  cpu::vmx::IoAccess access{.size = static_cast<u8>(io.size()),
                            .in = io.in(),
                            .string = io.string(),
                            .rep = io.rep(),
                            .immediate = i->form == cpu::Form::imm,
                            .port = io.port()};
  u64 linear = 0;
  u32 information = 0;
  if (io.string()) {
    // 28.2.1: the linear address of the operand, by RSI or RDI.
    Block& b = v_.block_l2();
    b.store_syscall_state();
    const bool outs = i->op == cpu::Op::outs;
    const auto segment = outs ? i->segment : cpu::SegmentRegister::es;
    u64 offset = v_.registers()[outs ? cpu::Gpr::rsi : cpu::Gpr::rdi];
    if (i->address_size == 4) offset = static_cast<u32>(offset);
    if (i->address_size == 2) offset = static_cast<u16>(offset);
    const bool code64 = l2_code64();
    const u64 base = code64 && segment < cpu::SegmentRegister::fs ? 0 : b.segment(segment).base;
    linear = code64 ? base + offset : static_cast<u32>(base + offset);
    information = string_io_information(*i);
  }
  exit_on_instruction(cpu::vmx::BasicExit::io, *i, access.encode(), information);
  c_.guest_linear_address = linear;
  if (io.string()) {
    c_.io_rcx = v_.registers()[cpu::Gpr::rcx];
    c_.io_rsi = v_.registers()[cpu::Gpr::rsi];
    c_.io_rdi = v_.registers()[cpu::Gpr::rdi];
    c_.io_rip = c_.guest_rip;
  }
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_msr(const cpu::Exit& e) {
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  cpu::GuestRegisters& r = v_.registers();
  const bool write = e.reason == cpu::ExitReason::wrmsr;
  const auto index = static_cast<u32>(r[cpu::Gpr::rcx]);
  if (msr_wanted(index, write)) {
    return exit_on_instruction(write ? cpu::vmx::BasicExit::wrmsr : cpu::vmx::BasicExit::rdmsr, *i);
  }
  if (write) {
    const u64 value = (r[cpu::Gpr::rdx] << 32) | static_cast<u32>(r[cpu::Gpr::rax]);
    if (!write_l2_msr(index, value)) return general_protection();
  } else {
    u64 value = 0;
    if (!read_l2_msr(index, value)) return general_protection();
    r[cpu::Gpr::rax] = static_cast<u32>(value);
    r[cpu::Gpr::rdx] = value >> 32;
  }
  advance_l2(i->length);
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_tdp_fault(const cpu::Exit& e) {
  const TdpOutcome outcome = v_.handle_l2_tdp_fault(e);
  switch (outcome.kind) {
    case TdpOutcome::Kind::retry:
      return;
    case TdpOutcome::Kind::violation:
      return reflect_violation(Ngpa{e.info2}, outcome.qualification, outcome.linear_address);
    case TdpOutcome::Kind::misconfiguration:
      exit_to_l1(cpu::vmx::BasicExit::ept_misconfiguration);
      c_.guest_physical_address = e.info2;
      return;
    case TdpOutcome::Kind::emulate:
      if (const unsigned length = v_.emulate_l2_access(e); length != 0) {
        advance_l2(length);
      }
      return;
  }
}

template <L1Context C>
void Vmx<C>::reflect_violation(Ngpa ngpa, u64 qualification, u64 linear) {
  exit_to_l1(cpu::vmx::BasicExit::ept_violation, qualification);
  c_.guest_physical_address = ngpa.value();
  c_.guest_linear_address = linear;
}

template <L1Context C>
[[gnu::noinline]] void Vmx<C>::on_rdtsc(const cpu::Exit& e) {
  const cpu::Instruction* i = v_.decode_l2(e);
  if (i == nullptr) {
    return;
  }
  const bool rdtscp = i->op == cpu::Op::rdtscp;
  if (rdtscp && !has(proc2(), cpu::vmx::proc2::rdtscp)) {
    return undefined_in_l2();
  }
  if (has(proc(), cpu::vmx::proc::rdtsc)) {
    return exit_on_instruction(rdtscp ? cpu::vmx::BasicExit::rdtscp : cpu::vmx::BasicExit::rdtsc,
                               *i);
  }
  cpu::GuestRegisters& r = v_.registers();
  const u64 now = v_.l1_tsc() + tsc_offset_;
  if (rdtscp) {
    u64 aux = 0;
    (void)v_.read_msr(cpu::msr::tsc_aux, aux);
    r[cpu::Gpr::rcx] = static_cast<u32>(aux);
  }
  r[cpu::Gpr::rax] = static_cast<u32>(now);
  r[cpu::Gpr::rdx] = now >> 32;
  advance_l2(i->length);
}

}  // namespace aerie::nested::vmx
