// An L1 as a test's words: VMX instructions executed through the engine, and a vmcs12 that enters.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

#include "tests/unit/nested/fake_vcpu.h"

namespace aerie::nested::vmx::test {

using cpu::Op;
using cpu::vmx::BasicExit;
using cpu::vmx::Field;
using cpu::vmx::InstructionError;

inline constexpr cpu::Instruction instruction(Op op, u8 length = 3) {
  cpu::Instruction i{};
  i.op = op;
  i.length = length;
  i.operand_size = 8;
  i.source_size = 8;
  i.address_size = 8;
  i.form = cpu::Form::none;
  i.reg = i.rm = i.base = i.index = cpu::kNoRegister;
  i.segment = cpu::SegmentRegister::ds;
  return i;
}

// Operand at an absolute address.
inline constexpr cpu::Instruction memory_instruction(Op op, u64 address, u8 reg = 0) {
  cpu::Instruction i = instruction(op, 7);
  i.form = cpu::Form::rm;
  i.flags = cpu::Instruction::kMemory;
  i.displacement = static_cast<i64>(address);
  i.reg = reg;
  return i;
}

inline constexpr cpu::Instruction register_instruction(Op op, u8 rm, u8 reg) {
  cpu::Instruction i = instruction(op, 3);
  i.form = cpu::Form::rm_reg;
  i.rm = rm;
  i.reg = reg;
  return i;
}

enum class Outcome { undefined, raised, succeeded, failed_invalid, failed_valid, silent };

struct Machine {
  static constexpr u64 kVmxon = 0x2000, kVmcs = 0x3000, kOther = 0x4000, kOperand = 0x8000,
                       kMsrBitmap = 0x9000, kIoA = 0xa000, kIoB = 0xb000, kEptp = 0xc000 | 0x1e,
                       kLists = 0xd000, kHostRip = 0x20'0000, kGuestRip = 0x30'0000;

  explicit Machine(const CapabilityConfig& config = FakeVcpu::default_config())
      : v{config}, vmx{v} {}

  template <class T>
  T& at(u64 address) {
    return *reinterpret_cast<T*>(v.ram + address);
  }

  // What an instruction of L1 did. `silent`: no flags changed and no exception (an entry, say).
  Outcome run(const cpu::Instruction& i) {
    v.raised.clear();
    const u64 rip = v.block_l1().rip();
    if (!vmx.execute(i)) {
      EXPECT_EQ(v.block_l1().rip(), rip);
      return Outcome::undefined;
    }
    if (!v.raised.empty()) {
      EXPECT_EQ(v.block_l1().rip(), rip);
      return Outcome::raised;
    }
    if (v.running_l2 || v.block_l1().rip() == kHostRip) {
      return Outcome::silent;
    }
    EXPECT_EQ(v.block_l1().rip(), rip + i.length);
    switch (v.block_l1().rflags() & cpu::rflags::arithmetic) {
      case 0:
        return Outcome::succeeded;
      case cpu::rflags::cf:
        return Outcome::failed_invalid;
      case cpu::rflags::zf:
        return Outcome::failed_valid;
      default:
        ADD_FAILURE() << "flags";
        return Outcome::silent;
    }
  }
  // With a 64-bit memory operand of this value.
  Outcome run(Op op, u64 operand, u8 reg = 0) {
    at<u64>(kOperand) = operand;
    return run(memory_instruction(op, kOperand, reg));
  }

  Outcome vmxon(u64 region = kVmxon) {
    at<u32>(kVmxon) = kRevisionId;
    return run(Op::vmxon, region);
  }
  u64 read(Field field) {
    v.registers()[cpu::Gpr::rcx] = static_cast<u64>(field);
    EXPECT_EQ(run(register_instruction(Op::vmread, 0, 1)), Outcome::succeeded)
        << std::hex << static_cast<u32>(field);
    return v.registers()[cpu::Gpr::rax];
  }
  Outcome try_write(u64 encoding, u64 value) {
    v.registers()[cpu::Gpr::rax] = value;
    v.registers()[cpu::Gpr::rcx] = encoding;
    return run(register_instruction(Op::vmwrite, 0, 1));
  }
  void write(Field field, u64 value) {
    EXPECT_EQ(try_write(static_cast<u64>(field), value), Outcome::succeeded)
        << std::hex << static_cast<u32>(field);
  }
  // For tests that do not care whether the field, or a VMCS, is there.
  u64 read_if(Field field) {
    v.registers()[cpu::Gpr::rcx] = static_cast<u64>(field);
    (void)run(register_instruction(Op::vmread, 0, 1));
    return v.registers()[cpu::Gpr::rax];
  }
  void fill_if_current() {
    if (vmx.current_address() != Gpa{~u64{0}}) {
      fill_vmcs();
    }
  }
  void set_bits(Field field, u64 bits) { write(field, read(field) | bits); }
  void clear_bits(Field field, u64 bits) { write(field, read(field) & ~bits); }

  // VMX on, and a current VMCS that passes all checks: a 64-bit L2 without EPT, everything minimal.
  void prepare() {
    ASSERT_EQ(vmxon(), Outcome::succeeded);
    prepare_vmcs();
    fill_vmcs();
  }
  void prepare_vmcs() {
    at<u32>(kVmcs) = kRevisionId;
    ASSERT_EQ(run(Op::vmclear, kVmcs), Outcome::succeeded);
    ASSERT_EQ(run(Op::vmptrld, kVmcs), Outcome::succeeded);
  }
  void fill_vmcs() {
    using cpu::vmx::ControlWord;
    const Capabilities& caps = v.capabilities();
    write(Field::pin_controls, caps.required1(ControlWord::pin));
    write(Field::proc_controls, caps.required1(ControlWord::proc) | cpu::vmx::proc::secondary |
                                    cpu::vmx::proc::msr_bitmaps | cpu::vmx::proc::io_bitmaps);
    write(Field::proc2_controls, cpu::vmx::proc2::vpid);
    write(Field::exit_controls, caps.required1(ControlWord::exit) | cpu::vmx::exit::host_64 |
                                    cpu::vmx::exit::save_efer | cpu::vmx::exit::load_efer |
                                    cpu::vmx::exit::save_debug);
    write(Field::entry_controls, caps.required1(ControlWord::entry) | cpu::vmx::entry::ia32e_guest |
                                     cpu::vmx::entry::load_efer | cpu::vmx::entry::load_debug);
    write(Field::vpid, 1);
    write(Field::msr_bitmap, kMsrBitmap);
    write(Field::io_bitmap_a, kIoA);
    write(Field::io_bitmap_b, kIoB);
    write(Field::vmcs_link_pointer, ~u64{0});
    constexpr u64 kCr0 = cpu::cr0::pe | cpu::cr0::ne | cpu::cr0::et | cpu::cr0::pg;
    constexpr u64 kCr4 = cpu::cr4::pae | cpu::cr4::vmxe;
    constexpr u64 kEfer = cpu::efer::lme | cpu::efer::lma | cpu::efer::nxe | cpu::efer::sce;
    write(Field::guest_cr0, kCr0);
    write(Field::guest_cr4, kCr4);
    write(Field::guest_cr3, 0x5000);
    write(Field::cr4_mask, cpu::cr4::vmxe);
    write(Field::guest_efer, kEfer);
    write(Field::guest_dr7, 0x400);
    write(Field::guest_rip, kGuestRip);
    write(Field::guest_rsp, 0x7777);
    write(Field::guest_rflags, 2);
    struct Row {
      unsigned index;
      u16 selector;
      u32 rights;
    };
    for (const Row r : {Row{0, 0x18, 0xc093}, Row{1, 0x10, 0xa09b}, Row{2, 0x18, 0xc093},
                        Row{3, 0x18, 0xc093}, Row{4, 0x18, 0xc093}, Row{5, 0x18, 0xc093}}) {
      const u32 step = 2 * r.index;
      write(static_cast<Field>(0x0800 + step), r.selector);
      write(static_cast<Field>(0x4800 + step), 0xffff'ffff);
      write(static_cast<Field>(0x4814 + step), r.rights);
      write(static_cast<Field>(0x6806 + step), 0);
    }
    write(Field::guest_ldtr_access_rights, 0x10000);
    write(Field::guest_tr_selector, 0x40);
    write(Field::guest_tr_access_rights, 0x8b);
    write(Field::guest_tr_limit, 0x67);
    write(Field::host_rip, kHostRip);
    write(Field::host_rsp, 0x6666);
    write(Field::host_cr0, v.cr0);
    write(Field::host_cr3, v.cr3);
    write(Field::host_cr4, v.cr4);
    write(Field::host_efer, v.efer);
    write(Field::host_cs_selector, 0x10);
    write(Field::host_ss_selector, 0x18);
    write(Field::host_ds_selector, 0x18);
    write(Field::host_es_selector, 0x18);
    write(Field::host_tr_selector, 0x40);
    write(Field::host_fs_base, 0xf5'0000);
    write(Field::host_gs_base, 0x65'0000);
    write(Field::host_tr_base, 0x7000);
  }
  Outcome launch() { return run(instruction(Op::vmlaunch)); }
  Outcome resume() { return run(instruction(Op::vmresume)); }
  // VMLAUNCH that succeeds; L2 runs.
  void enter() {
    const Outcome o = launch();
    ASSERT_EQ(o, Outcome::silent) << (v.failed_rule != nullptr ? v.failed_rule->name : "");
    ASSERT_TRUE(vmx.in_l2()) << (v.failed_rule != nullptr ? v.failed_rule->name : "");
  }

  // L2 exits with this; true where the engine reflected it to L1.
  bool exit(const cpu::Exit& e, const cpu::Instruction& i = instruction(Op::cpuid, 2)) {
    current = i;
    v.l2_instruction = &current;
    v.block_l1().set_rip(0xdead);
    vmx.handle_exit(e);
    return !vmx.in_l2();
  }
  bool exit(cpu::ExitReason reason, const cpu::Instruction& i = instruction(Op::cpuid, 2)) {
    return exit(cpu::Exit{reason, 0, 0, 0, 0, 0}, i);
  }
  bool undefined(const cpu::Instruction& i) {
    return exit(cpu::Exit{cpu::ExitReason::exception, 6, 0, 0, 0, 0}, i);
  }
  u32 reason() { return static_cast<u32>(read(Field::exit_reason)); }

  FakeVcpu v;
  Vmx<FakeVcpu> vmx;
  cpu::Instruction current{};
};

}  // namespace aerie::nested::vmx::test
