// Entry and exit: what a VM entry gives L2 and what an exit gives back to L1. SDM vol. 3, 27.3
// and 28.
#include "tests/unit/nested/l1_program.h"

namespace aerie::nested::vmx::test {
namespace {

TEST(VmxRoundTrip, EntryLoadsGuestStateAndCpuidExitsToTheHost) {
  Machine m;
  m.prepare();
  m.enter();
  const auto& b2 = m.v.block_l2();
  EXPECT_EQ(b2.rip(), Machine::kGuestRip);
  EXPECT_EQ(b2.rflags(), 2u);
  EXPECT_EQ(b2.cr3(), 0x5000u);
  EXPECT_EQ(m.v.registers()[cpu::Gpr::rsp], 0x7777u);
  EXPECT_EQ(b2.cr4() & cpu::cr4::vmxe, 0u);
  EXPECT_TRUE(m.v.running_l2);
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);

  m.v.registers()[cpu::Gpr::rsp] = 0x7700;
  m.v.block_l2().set_rip(Machine::kGuestRip + 16);
  EXPECT_TRUE(m.exit(cpu::ExitReason::cpuid));
  const auto& b1 = m.v.block_l1();
  EXPECT_EQ(b1.rip(), Machine::kHostRip);
  EXPECT_EQ(m.v.registers()[cpu::Gpr::rsp], 0x6666u);
  EXPECT_EQ(b1.rflags(), 2u);
  EXPECT_EQ(b1.dr7(), 0x400u);
  EXPECT_EQ(b1.segment(cpu::SegmentRegister::cs).attributes, 0xa9b);
  EXPECT_EQ(b1.segment(cpu::SegmentRegister::fs).base, 0xf5'0000u);
  EXPECT_EQ(m.v.syscall_state.gs.base, 0x65'0000u);
  EXPECT_EQ(b1.segment(cpu::SegmentRegister::gdtr).limit, 0xffffu);
  EXPECT_FALSE(m.v.running_l2);
  EXPECT_EQ(m.v.paging_loads, 0u);
  EXPECT_EQ(m.reason(), 10u);
  EXPECT_EQ(m.read(Field::exit_instruction_length), 2u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0u);
  EXPECT_EQ(m.read(Field::guest_rip), Machine::kGuestRip + 16);
  EXPECT_EQ(m.read(Field::guest_rsp), 0x7700u);
  EXPECT_EQ(m.read(Field::guest_cs_access_rights), 0xa09bu);
}

TEST(VmxRoundTrip, ResumeWithoutChangesRunsL2WhereItStopped) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.block_l2().set_cr3(0x6000);
  m.v.block_l2().set_rip(0x40'0000);
  EXPECT_TRUE(m.exit(cpu::ExitReason::cpuid));
  EXPECT_EQ(m.resume(), Outcome::silent);
  EXPECT_TRUE(m.vmx.in_l2());
  EXPECT_EQ(m.v.block_l2().cr3(), 0x6000u);
  EXPECT_EQ(m.v.block_l2().rip(), 0x40'0000u);
}

TEST(VmxRoundTrip, LazyStateIsReadWhenL1AsksAndSurvivesPartialWrites) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.block_l2().set_cr3(0x6000);
  m.v.block_l2().set_segment(cpu::SegmentRegister::ds, {0x28, 0xc93, 0xfffff, 0x1234});
  m.v.syscall_state.fs = {0x30, 0xc93, 0xffff'ffff, 0x77'7000};
  EXPECT_TRUE(m.exit(cpu::ExitReason::cpuid));
  EXPECT_EQ(m.read(Field::guest_cr3), 0x6000u);
  m.write(Field::guest_ds_selector, 0x38);
  EXPECT_EQ(m.read(Field::guest_ds_base), 0x1234u);
  EXPECT_EQ(m.read(Field::guest_fs_base), 0x77'7000u);
  EXPECT_EQ(m.resume(), Outcome::silent);
  ASSERT_TRUE(m.vmx.in_l2());
  EXPECT_EQ(m.v.block_l2().segment(cpu::SegmentRegister::ds).selector, 0x38);
  EXPECT_EQ(m.v.block_l2().segment(cpu::SegmentRegister::ds).base, 0x1234u);
  EXPECT_EQ(m.v.syscall_state.fs.base, 0x77'7000u);
}

TEST(VmxRoundTrip, UnswitchedStateIsOneRegisterBetweenL1AndL2) {
  Machine m;
  m.prepare();
  m.v.syscall_state.lstar = 0x1111;
  m.v.syscall_state.kernel_gs_base = 0x2222;
  m.v.block_l1().set_cr2(0x3333);
  m.v.block_l1().set_dr6(0xffff0ff1);
  m.enter();
  EXPECT_EQ(m.v.syscall_state.lstar, 0x1111u);
  EXPECT_EQ(m.v.syscall_state.kernel_gs_base, 0x2222u);
  EXPECT_EQ(m.v.block_l2().cr2(), 0x3333u);
  EXPECT_EQ(m.v.block_l2().dr6(), 0xffff0ff1u);
  m.v.syscall_state.star = 0x4444;
  m.v.block_l2().set_cr2(0x5555);
  EXPECT_TRUE(m.exit(cpu::ExitReason::cpuid));
  EXPECT_EQ(m.v.syscall_state.star, 0x4444u);
  EXPECT_EQ(m.v.block_l1().cr2(), 0x5555u);
}

TEST(VmxRoundTrip, VmclearWritesTheRegionAndVmptrldReadsIt) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.block_l2().set_cr3(0x6000);
  EXPECT_TRUE(m.exit(cpu::ExitReason::cpuid));
  EXPECT_EQ(m.run(Op::vmclear, Machine::kVmcs), Outcome::succeeded);
  EXPECT_EQ(m.at<Vmcs12>(Machine::kVmcs).guest_cr3, 0x6000u);
  EXPECT_EQ(m.at<Vmcs12>(Machine::kVmcs).launched, 0u);
  EXPECT_EQ(m.run(Op::vmptrld, Machine::kVmcs), Outcome::succeeded);
  EXPECT_EQ(m.read(Field::guest_cr3), 0x6000u);
  EXPECT_EQ(m.resume(), Outcome::failed_valid);
  EXPECT_EQ(m.read(Field::instruction_error), 5u);
  m.enter();
  EXPECT_EQ(m.v.block_l2().cr3(), 0x6000u);
}

TEST(VmxRoundTrip, GuestStateFailureLoadsHostStateAndLeavesTheVmcsAlone) {
  Machine m;
  m.prepare();
  m.write(Field::guest_rflags, 0);
  m.write(Field::entry_interruption_info, 0x8000'0300);
  m.write(Field::exit_interruption_info, 0);
  EXPECT_EQ(m.launch(), Outcome::silent);
  EXPECT_FALSE(m.vmx.in_l2());
  EXPECT_EQ(m.v.block_l1().rip(), Machine::kHostRip);
  EXPECT_EQ(m.reason(), 0x8000'0021u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0u);
  EXPECT_EQ(m.read(Field::entry_interruption_info), 0x8000'0300u);
  EXPECT_EQ(m.read(Field::guest_rflags), 0u);
  m.write(Field::guest_rflags, 2);
  m.write(Field::entry_interruption_info, 0);
  EXPECT_EQ(m.resume(), Outcome::failed_valid) << "the launch state must still be clear";
  m.enter();
}

TEST(VmxRoundTrip, ControlFailureIsVmfailOnly) {
  Machine m;
  m.prepare();
  m.write(Field::pin_controls, 0);
  EXPECT_EQ(m.launch(), Outcome::failed_valid);
  EXPECT_EQ(m.read(Field::instruction_error), 7u);
  EXPECT_FALSE(m.v.running_l2);
}

}  // namespace
}  // namespace aerie::nested::vmx::test
