// L1's VMX instructions: when they are #UD, #GP, VMfailInvalid, VMfailValid(n), in the order of SDM
// vol. 3, 31.3.
#include "tests/unit/nested/l1_program.h"

namespace aerie::nested::vmx::test {
namespace {

constexpr Op kAllOps[] = {Op::vmxoff, Op::vmclear, Op::vmptrld,  Op::vmptrst,
                          Op::vmread, Op::vmwrite, Op::vmlaunch, Op::vmresume,
                          Op::vmcall, Op::invept,  Op::invvpid};

cpu::Instruction any(Op op) {
  switch (op) {
    case Op::vmread:
    case Op::vmwrite:
      return register_instruction(op, 0, 1);
    case Op::vmxoff:
    case Op::vmlaunch:
    case Op::vmresume:
    case Op::vmcall:
      return instruction(op);
    default:
      return memory_instruction(op, Machine::kOperand, 1);
  }
}
u64 error(Machine& m) { return m.read(Field::instruction_error); }

TEST(VmxInstructions, AreUndefinedOutsideVmxOperation) {
  Machine m;
  for (const Op op : kAllOps) {
    EXPECT_EQ(m.run(any(op)), Outcome::undefined) << static_cast<int>(op);
  }
}

TEST(VmxInstructions, AreUndefinedInCompatibilityAndVirtual8086Mode) {
  Machine m;
  m.prepare();
  m.v.block_l1().set_segment(cpu::SegmentRegister::cs, {0x10, 0xc9b, 0xffff'ffff, 0});
  for (const Op op : kAllOps) {
    EXPECT_EQ(m.run(any(op)), Outcome::undefined) << static_cast<int>(op);
  }
  m.v.block_l1().set_efer(0);
  m.v.block_l1().set_rflags(2 | cpu::rflags::vm);
  for (const Op op : kAllOps) {
    EXPECT_EQ(m.run(any(op)), Outcome::undefined) << static_cast<int>(op);
  }
}

TEST(VmxInstructions, AreGeneralProtectionAboveCpl0) {
  Machine m;
  m.prepare();
  m.v.block_l1().set_segment(cpu::SegmentRegister::ss, {0x1b, 0xcf3, 0xffff'ffff, 0});
  for (const Op op : kAllOps) {
    ASSERT_EQ(m.run(any(op)), Outcome::raised) << static_cast<int>(op);
    EXPECT_EQ(m.v.raised[0].vector, 13);
    EXPECT_TRUE(m.v.raised[0].has_error);
  }
  EXPECT_EQ(m.run(Op::vmxon, Machine::kVmxon), Outcome::raised);
}

TEST(VmxInstructions, VmxonChecks) {
  Machine m;
  m.v.cr4 &= ~cpu::cr4::vmxe;
  EXPECT_EQ(m.vmxon(), Outcome::undefined);
  m.v.cr4 |= cpu::cr4::vmxe;
  m.v.cr0 &= ~cpu::cr0::ne;
  EXPECT_EQ(m.vmxon(), Outcome::raised);
  m.v.cr0 |= cpu::cr0::ne;
  m.v.msrs[cpu::msr::feature_control] = 0;
  EXPECT_EQ(m.vmxon(), Outcome::raised) << "unlocked";
  m.v.msrs[cpu::msr::feature_control] = 1;
  EXPECT_EQ(m.vmxon(), Outcome::raised) << "locked without VMX";
  m.v.msrs[cpu::msr::feature_control] = 5;
  EXPECT_EQ(m.vmxon(0x2008), Outcome::failed_invalid) << "alignment";
  EXPECT_EQ(m.vmxon(u64{1} << 40), Outcome::failed_invalid) << "MAXPHYADDR";
  EXPECT_EQ(m.vmxon(u64{1} << 39), Outcome::failed_invalid) << "no memory there";
  m.at<u32>(Machine::kVmxon) = kRevisionId | 1u << 31;
  EXPECT_EQ(m.run(Op::vmxon, Machine::kVmxon), Outcome::failed_invalid) << "bit 31";
  m.at<u32>(Machine::kVmxon) = kRevisionId ^ 1;
  EXPECT_EQ(m.run(Op::vmxon, Machine::kVmxon), Outcome::failed_invalid) << "revision";
  EXPECT_EQ(m.vmxon(), Outcome::succeeded);
  EXPECT_TRUE(m.vmx.in_operation());
  EXPECT_EQ(m.vmxon(), Outcome::failed_invalid) << "in root operation with no current VMCS";
  m.at<u32>(Machine::kVmcs) = kRevisionId;
  EXPECT_EQ(m.run(Op::vmptrld, Machine::kVmcs), Outcome::succeeded);
  EXPECT_EQ(m.vmxon(), Outcome::failed_valid);
  EXPECT_EQ(error(m), 15u);
  EXPECT_EQ(m.run(instruction(Op::vmxoff)), Outcome::succeeded);
  EXPECT_FALSE(m.vmx.in_operation());
}

TEST(VmxInstructions, VmptrldAndVmclearChecks) {
  Machine m;
  ASSERT_EQ(m.vmxon(), Outcome::succeeded);
  EXPECT_EQ(m.run(Op::vmptrld, 0x3001), Outcome::failed_invalid);
  EXPECT_EQ(m.run(Op::vmclear, 0x3001), Outcome::failed_invalid);
  m.at<u32>(Machine::kVmcs) = kRevisionId;
  ASSERT_EQ(m.run(Op::vmptrld, Machine::kVmcs), Outcome::succeeded);
  struct Case {
    Op op;
    u64 operand;
    u64 error;
  };
  for (const Case c :
       {Case{Op::vmclear, 0x3001, 2}, Case{Op::vmclear, u64{1} << 40, 2},
        Case{Op::vmclear, Machine::kVmxon, 3}, Case{Op::vmptrld, 0x3001, 9},
        Case{Op::vmptrld, u64{1} << 40, 9}, Case{Op::vmptrld, Machine::kVmxon, 10},
        Case{Op::vmptrld, Machine::kOther, 11}, Case{Op::vmptrld, u64{1} << 39, 11}}) {
    EXPECT_EQ(m.run(c.op, c.operand), Outcome::failed_valid) << c.operand;
    EXPECT_EQ(error(m), c.error) << c.operand;
  }
  m.at<u32>(Machine::kOther) = kRevisionId | 1u << 31;
  EXPECT_EQ(m.run(Op::vmptrld, Machine::kOther), Outcome::failed_valid) << "a shadow VMCS";
  EXPECT_EQ(error(m), 11u);
  EXPECT_EQ(m.run(Op::vmclear, u64{1} << 39), Outcome::succeeded) << "no memory: nothing to write";
  EXPECT_EQ(m.run(memory_instruction(Op::vmptrst, 0x8100)), Outcome::succeeded);
  EXPECT_EQ(m.at<u64>(0x8100), Machine::kVmcs);
  EXPECT_EQ(m.run(Op::vmclear, Machine::kVmcs), Outcome::succeeded);
  EXPECT_EQ(m.run(memory_instruction(Op::vmptrst, 0x8100)), Outcome::succeeded);
  EXPECT_EQ(m.at<u64>(0x8100), ~u64{0});
}

TEST(VmxInstructions, OperandFaultsAreL1s) {
  Machine m;
  ASSERT_EQ(m.vmxon(), Outcome::succeeded);
  EXPECT_EQ(m.run(memory_instruction(Op::vmptrld, 0x1234'5678'9000)), Outcome::raised);
  EXPECT_EQ(m.v.raised[0].vector, 14);
  EXPECT_EQ(m.run(memory_instruction(Op::vmptrld, 0x1'0000'0000'0000)), Outcome::raised);
  EXPECT_EQ(m.v.raised[0].vector, 13) << "not canonical";
}

TEST(VmxInstructions, VmreadAndVmwriteErrors) {
  Machine m;
  ASSERT_EQ(m.vmxon(), Outcome::succeeded);
  EXPECT_EQ(m.run(register_instruction(Op::vmread, 0, 1)), Outcome::failed_invalid);
  EXPECT_EQ(m.try_write(0x681e, 1), Outcome::failed_invalid);
  m.prepare_vmcs();
  EXPECT_EQ(m.try_write(0x6fff, 1), Outcome::failed_valid);
  EXPECT_EQ(error(m), 12u);
  EXPECT_EQ(m.try_write(u64{1} << 32 | 0x681e, 1), Outcome::failed_valid)
      << "bits 63:32 of the encoding";
  m.v.registers()[cpu::Gpr::rcx] = 0x1fff;
  EXPECT_EQ(m.run(register_instruction(Op::vmread, 0, 1)), Outcome::failed_valid);
  EXPECT_EQ(error(m), 12u);
  if (!m.v.capabilities().vmwrite_any()) {
    EXPECT_EQ(m.try_write(static_cast<u64>(Field::exit_reason), 1), Outcome::failed_valid);
    EXPECT_EQ(error(m), 13u);
  }
}

TEST(VmxInstructions, VmreadAndVmwriteWidths) {
  Machine m;
  ASSERT_EQ(m.vmxon(), Outcome::succeeded);
  m.prepare_vmcs();
  m.write(Field::guest_es_selector, 0xffff'1234);
  EXPECT_EQ(m.read(Field::guest_es_selector), 0x1234u);
  m.write(Field::msr_bitmap, 0x1122'3344'5566'7788);
  m.v.registers()[cpu::Gpr::rcx] = static_cast<u64>(Field::msr_bitmap) + 1;
  EXPECT_EQ(m.run(register_instruction(Op::vmread, 0, 1)), Outcome::succeeded);
  EXPECT_EQ(m.v.registers()[cpu::Gpr::rax], 0x1122'3344u);
  EXPECT_EQ(m.try_write(static_cast<u64>(Field::msr_bitmap) + 1, 0xaa), Outcome::succeeded);
  EXPECT_EQ(m.read(Field::msr_bitmap), 0xaa'5566'7788u);
  // To memory and from it.
  m.v.registers()[cpu::Gpr::rcx] = static_cast<u64>(Field::msr_bitmap);
  EXPECT_EQ(m.run(memory_instruction(Op::vmread, 0x8200, 1)), Outcome::succeeded);
  EXPECT_EQ(m.at<u64>(0x8200), 0xaa'5566'7788u);
  m.at<u64>(0x8200) = 0x42;
  EXPECT_EQ(m.run(memory_instruction(Op::vmwrite, 0x8200, 1)), Outcome::succeeded);
  EXPECT_EQ(m.read(Field::msr_bitmap), 0x42u);
}

TEST(VmxInstructions, LaunchStateAndMovSsBlocking) {
  Machine m;
  ASSERT_EQ(m.vmxon(), Outcome::succeeded);
  EXPECT_EQ(m.launch(), Outcome::failed_invalid);
  m.vmx.reset();
  m.prepare();
  EXPECT_EQ(m.resume(), Outcome::failed_valid);
  EXPECT_EQ(error(m), 5u);
  m.v.block_l1().set_interrupt_shadow(true);
  EXPECT_EQ(m.resume(), Outcome::failed_valid);
  EXPECT_EQ(error(m), 26u) << "before the launch state (31.3)";
  m.v.block_l1().set_interrupt_shadow(false);
  m.enter();
  EXPECT_TRUE(m.exit(cpu::ExitReason::cpuid));
  EXPECT_EQ(m.launch(), Outcome::failed_valid);
  EXPECT_EQ(error(m), 4u);
}

TEST(VmxInstructions, StiDoesNotBlockEntries) {
  Machine m;
  m.prepare();
  m.v.block_l1().set_interrupt_shadow(true);
  m.v.block_l1().set_rflags(2 | cpu::rflags::interrupt);
  m.at<u8>(m.v.block_l1().rip() - 1) = 0xfb;
  EXPECT_EQ(m.launch(), Outcome::silent);
  EXPECT_TRUE(m.vmx.in_l2());
}

TEST(VmxInstructions, VmcallInRootFails) {
  Machine m;
  m.prepare();
  EXPECT_EQ(m.run(instruction(Op::vmcall)), Outcome::failed_valid);
  EXPECT_EQ(error(m), 1u);
}

TEST(VmxInstructions, InveptChecksTypeAndEptp) {
  Machine m;
  m.prepare();
  const auto invept = [&](u64 type, u64 eptp) {
    m.at<u64>(Machine::kOperand + 8) = 0;
    m.v.registers()[cpu::Gpr::rdx] = type;
    return m.run(Op::invept, eptp, 2);
  };
  for (const u64 type : {u64{0}, u64{3}, u64{4}, ~u64{0}}) {
    EXPECT_EQ(invept(type, Machine::kEptp), Outcome::failed_valid) << type;
    EXPECT_EQ(error(m), 28u);
  }
  EXPECT_EQ(invept(1, 0xc01a), Outcome::failed_valid) << "memory type";
  EXPECT_EQ(invept(1, 0xc01e | bit(11)), Outcome::failed_valid) << "reserved";
  EXPECT_EQ(invept(1, Machine::kEptp), Outcome::succeeded);
  EXPECT_EQ(invept(2, ~u64{0}), Outcome::succeeded) << "the EPTP does not matter";
  ASSERT_EQ(m.v.invepts.size(), 2u);
  EXPECT_EQ(m.v.invepts[0].type, InveptType::single_context);
  EXPECT_EQ(m.v.invepts[0].eptp, Machine::kEptp);
  EXPECT_EQ(m.v.invepts[1].type, InveptType::all_contexts);
}

TEST(VmxInstructions, InvvpidChecksTypeVpidAndAddress) {
  Machine m;
  m.prepare();
  const auto invvpid = [&](u64 type, u64 vpid, u64 linear) {
    m.at<u64>(Machine::kOperand + 8) = linear;
    m.v.registers()[cpu::Gpr::rdx] = type;
    return m.run(Op::invvpid, vpid, 2);
  };
  EXPECT_EQ(invvpid(4, 1, 0), Outcome::failed_valid);
  EXPECT_EQ(error(m), 28u);
  for (const u64 type : {0, 1, 3}) {
    EXPECT_EQ(invvpid(type, 0, 0), Outcome::failed_valid) << type;
    EXPECT_EQ(invvpid(type, 1, 0), Outcome::succeeded) << type;
  }
  EXPECT_EQ(invvpid(2, 0, 0), Outcome::succeeded);
  EXPECT_EQ(invvpid(2, bit(16), 0), Outcome::failed_valid) << "bits 63:16";
  EXPECT_EQ(invvpid(0, 1, u64{1} << 47), Outcome::failed_valid) << "not canonical";
  EXPECT_EQ(invvpid(1, 1, u64{1} << 47), Outcome::succeeded) << "not looked at";
}

}  // namespace
}  // namespace aerie::nested::vmx::test
