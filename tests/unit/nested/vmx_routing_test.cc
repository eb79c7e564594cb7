// Who gets an exit of L2, by the controls of vmcs12, and what L1 is told. SDM vol. 3, 26.1-26.3
// and 28.2.
#include "tests/unit/nested/l1_program.h"

namespace aerie::nested::vmx::test {
namespace {

namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;
using cpu::ExitReason;

cpu::Exit io_exit(u16 port, unsigned size, bool in, bool string = false) {
  return {ExitReason::io,
          0,
          0,
          0,
          (u64{port} << 16) | (u64{size} << 4) | (in ? 1u : 0u) | (string ? 4u : 0u),
          0};
}

TEST(VmxRouting, UnconditionalExits) {
  Machine m;
  m.prepare();
  m.enter();
  struct Case {
    ExitReason reason;
    Op op;
    u32 basic;
  };
  for (const Case c : {Case{ExitReason::cpuid, Op::cpuid, 10}, Case{ExitReason::invd, Op::invd, 13},
                       Case{ExitReason::xsetbv, Op::xsetbv, 55}}) {
    EXPECT_TRUE(m.v.block_l2().intercepts.has(c.reason));
    ASSERT_TRUE(m.exit(c.reason, instruction(c.op, 2)));
    EXPECT_EQ(m.reason(), c.basic);
    EXPECT_EQ(m.read(Field::exit_instruction_length), 2u);
    ASSERT_EQ(m.resume(), Outcome::silent);
  }
  ASSERT_TRUE(m.exit(ExitReason::shutdown));
  EXPECT_EQ(m.reason(), 2u);
}

TEST(VmxRouting, ControlledInstructionsExitWhereTheirBitIsSetAndNotElsewhere) {
  struct Case {
    ExitReason reason;
    Op op;
    Field word;
    u32 bit;
    u32 basic;
  };
  constexpr Case kCases[] = {
      {ExitReason::hlt, Op::hlt, Field::proc_controls, proc::hlt, 12},
      {ExitReason::invlpg, Op::invlpg, Field::proc_controls, proc::invlpg, 14},
      {ExitReason::mwait, Op::mwait, Field::proc_controls, proc::mwait, 36},
      {ExitReason::monitor, Op::monitor, Field::proc_controls, proc::monitor, 39},
      {ExitReason::rdpmc, Op::rdpmc, Field::proc_controls, proc::rdpmc, 15},
      {ExitReason::rdtsc, Op::rdtsc, Field::proc_controls, proc::rdtsc, 16},
      {ExitReason::pause, Op::pause, Field::proc_controls, proc::pause, 40},
      {ExitReason::wbinvd, Op::wbinvd, Field::proc2_controls, proc2::wbinvd, 54},
  };
  for (const Case& c : kCases) {
    Machine m;
    m.prepare();
    if ((m.v.capabilities().allowed1(c.word == Field::proc_controls
                                         ? cpu::vmx::ControlWord::proc
                                         : cpu::vmx::ControlWord::proc2) &
         c.bit) == 0) {
      continue;
    }
    m.clear_bits(c.word, c.bit);
    m.enter();
    EXPECT_FALSE(m.exit(c.reason, instruction(c.op))) << c.basic;
    ASSERT_TRUE(m.exit(ExitReason::cpuid));
    m.set_bits(c.word, c.bit);
    m.write(Field::guest_activity, 0);
    ASSERT_EQ(m.resume(), Outcome::silent);
    ASSERT_TRUE(m.vmx.in_l2());
    EXPECT_TRUE(m.v.block_l2().intercepts.has(c.reason)) << c.basic;
    ASSERT_TRUE(m.exit(c.reason, instruction(c.op))) << c.basic;
    EXPECT_EQ(m.reason(), c.basic);
  }
}

TEST(VmxRouting, InvlpgReportsTheLinearAddress) {
  Machine m;
  m.prepare();
  m.set_bits(Field::proc_controls, proc::invlpg);
  m.enter();
  ASSERT_TRUE(m.exit(ExitReason::invlpg, memory_instruction(Op::invlpg, 0x1234'5678)));
  EXPECT_EQ(m.read(Field::exit_qualification), 0x1234'5678u);
}

TEST(VmxRouting, RdtscpIsUndefinedWhereNotEnabled) {
  Machine m;
  m.prepare();
  m.clear_bits(Field::proc2_controls, proc2::rdtscp);
  m.enter();
  EXPECT_TRUE(m.v.block_l2().intercepts.has(ExitReason::rdtscp));
  EXPECT_FALSE(m.exit(ExitReason::rdtscp, instruction(Op::rdtscp)));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_EQ(m.v.block_l2().injected.vector, 6);
}

TEST(VmxRouting, PortsFollowTheBitmapsAsTheyAreWhenTheExitComes) {
  Machine m;
  m.prepare();
  m.enter();
  const cpu::Instruction out = instruction(Op::out, 1);
  EXPECT_FALSE(m.exit(io_exit(0x80, 1, false), out));
  EXPECT_EQ(m.v.ios, 1u);
  m.at<u8>(Machine::kIoA + 0x80 / 8) = 1;
  ASSERT_TRUE(m.exit(io_exit(0x80, 1, false), out));
  EXPECT_EQ(m.reason(), 30u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0x80'0000u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  // A wider access that touches the port; bitmap B; and one that wraps around.
  ASSERT_TRUE(m.exit(io_exit(0x7e, 4, true), out));
  EXPECT_EQ(m.read(Field::exit_qualification), 0x7e'000bu);
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_FALSE(m.exit(io_exit(0x8001, 1, false), out));
  m.at<u8>(Machine::kIoB) = 2;
  EXPECT_TRUE(m.exit(io_exit(0x8001, 1, false), out));
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_TRUE(m.exit(io_exit(0xffff, 2, false), out));
}

TEST(VmxRouting, MsrsFollowTheFourBitmaps) {
  Machine m;
  m.prepare();
  m.v.msrs[0x2ff] = 0x55;
  m.enter();
  auto& r = m.v.registers();
  const cpu::Instruction rd = instruction(Op::rdmsr, 2);
  r[cpu::Gpr::rcx] = 0x2ff;
  EXPECT_FALSE(m.exit(ExitReason::rdmsr, rd));
  EXPECT_EQ(r[cpu::Gpr::rax], 0x55u);
  m.at<u8>(Machine::kMsrBitmap + 0x2ff / 8) = 1u << 7;
  EXPECT_FALSE(m.exit(ExitReason::wrmsr, instruction(Op::wrmsr, 2))) << "reads only";
  ASSERT_TRUE(m.exit(ExitReason::rdmsr, rd));
  EXPECT_EQ(m.reason(), 31u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  m.at<u8>(Machine::kMsrBitmap + 3072 + 0x80 / 8) = 1;
  r[cpu::Gpr::rcx] = 0xc000'0080;
  r[cpu::Gpr::rax] = 0x501;
  r[cpu::Gpr::rdx] = 0;
  ASSERT_TRUE(m.exit(ExitReason::wrmsr, instruction(Op::wrmsr, 2)));
  EXPECT_EQ(m.reason(), 32u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  r[cpu::Gpr::rcx] = 0x4000'0000;
  EXPECT_TRUE(m.exit(ExitReason::rdmsr, rd)) << "outside both ranges";
}

TEST(VmxRouting, ANewBitmapAddressCountsAtTheNextEntry) {
  Machine m;
  m.prepare();
  m.v.msrs[0x2ff] = 0;
  m.enter();
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  m.at<u8>(0xe000 + 0x2ff / 8) = 1u << 7;
  m.write(Field::msr_bitmap, 0xe000);
  ASSERT_EQ(m.resume(), Outcome::silent);
  m.v.registers()[cpu::Gpr::rcx] = 0x2ff;
  EXPECT_TRUE(m.exit(ExitReason::rdmsr, instruction(Op::rdmsr, 2)));
}

TEST(VmxRouting, UnknownMsrPassedThroughIsGeneralProtection) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.registers()[cpu::Gpr::rcx] = 0x1f00;
  EXPECT_FALSE(m.exit(ExitReason::rdmsr, instruction(Op::rdmsr, 2)));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_EQ(m.v.block_l2().injected.vector, 13);
  EXPECT_EQ(m.v.block_l2().rip(), Machine::kGuestRip) << "a fault does not advance RIP";
}

TEST(VmxRouting, EferOfL2IsItsOwn) {
  Machine m;
  m.prepare();
  m.enter();
  auto& r = m.v.registers();
  r[cpu::Gpr::rcx] = cpu::msr::efer;
  r[cpu::Gpr::rax] = 0x500;  // NXE and SCE off
  r[cpu::Gpr::rdx] = 0;
  EXPECT_FALSE(m.exit(ExitReason::wrmsr, instruction(Op::wrmsr, 2)));
  EXPECT_EQ(m.v.block_l2().efer(), 0x500u);
  EXPECT_NE(m.v.efer, 0x500u);
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  EXPECT_EQ(m.read(Field::guest_efer), 0x500u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  r[cpu::Gpr::rcx] = cpu::msr::efer;
  r[cpu::Gpr::rax] = 0x400;  // LME off under paging
  EXPECT_FALSE(m.exit(ExitReason::wrmsr, instruction(Op::wrmsr, 2)));
  (void)m.vmx.before_run();
  EXPECT_EQ(m.v.block_l2().injected.vector, 13);
}

TEST(VmxRouting, ExceptionsFollowTheBitmap) {
  Machine m;
  m.prepare();
  m.write(Field::exception_bitmap, 1u << 13);
  m.enter();
  EXPECT_TRUE((m.v.block_l2().intercepts.exceptions >> 13) & 1);
  ASSERT_TRUE(m.exit(cpu::Exit{ExitReason::exception, 13, 0, 0x18, 0, 0}));
  EXPECT_EQ(m.reason(), 0u);
  EXPECT_EQ(m.read(Field::exit_interruption_info), 0x8000'0b0du);
  EXPECT_EQ(m.read(Field::exit_interruption_error), 0x18u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_FALSE(m.exit(cpu::Exit{ExitReason::exception, 6, 0, 0, 0, 0}, instruction(Op::ud2, 2)));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_EQ(m.v.block_l2().injected.vector, 6) << "a genuine #UD that L1 does not want";
}

TEST(VmxRouting, PageFaultsFollowMaskAndMatchToo) {
  struct Case {
    u32 bitmap, mask, match, error;
    bool exits;
  };
  for (const Case c :
       {Case{1u << 14, 0, 0, 2, true}, Case{0, 0, 0, 2, false}, Case{1u << 14, 2, 2, 2, true},
        Case{1u << 14, 2, 2, 4, false}, Case{0, 2, 2, 4, true}, Case{0, 2, 2, 2, false},
        Case{0, 0, 1, 0, true}, Case{1u << 14, 0, 1, 0, false}}) {
    Machine m;
    m.prepare();
    m.write(Field::exception_bitmap, c.bitmap);
    m.write(Field::page_fault_error_mask, c.mask);
    m.write(Field::page_fault_error_match, c.match);
    m.v.block_l1().set_cr2(0x1111);
    m.enter();
    const cpu::Exit fault{ExitReason::exception, 14, 0, c.error, 0, 0xabc000};
    ASSERT_EQ(m.exit(fault), c.exits);
    if (c.exits) {
      EXPECT_EQ(m.read(Field::exit_qualification), 0xabc000u);
      EXPECT_EQ(m.v.block_l1().cr2(), 0x1111u) << "an intercepted #PF leaves CR2";
    } else {
      EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
      EXPECT_EQ(m.v.block_l2().cr2(), 0xabc000u);
      EXPECT_EQ(m.v.block_l2().injected.vector, 14);
      EXPECT_EQ(m.v.block_l2().injected.error, c.error);
    }
  }
}

TEST(VmxRouting, AnInterceptedDebugExceptionLeavesDr6) {
  Machine m;
  m.prepare();
  m.write(Field::exception_bitmap, 1u << 1);
  m.v.block_l1().set_dr6(0xffff'0ff2);
  m.enter();
  m.v.block_l2().set_dr6(m.v.block_l2().dr6() | cpu::dr6::bs);  // as the host does before it exits
  ASSERT_TRUE(m.exit(cpu::Exit{ExitReason::exception, 1, 0, 0, 0, 0}));
  EXPECT_EQ(m.read(Field::exit_qualification), cpu::dr6::bs) << "B1 was there before";
  EXPECT_EQ(m.v.block_l1().dr6(), 0xffff'0ff2u);
  EXPECT_EQ(m.read(Field::guest_pending_debug), 0u);
}

TEST(VmxRouting, VmxInstructionsOfL2ExitWithTheirOwnReasons) {
  Machine m;
  m.prepare();
  m.enter();
  struct Case {
    cpu::Instruction i;
    u32 basic;
  };
  for (const Case& c :
       {Case{instruction(Op::vmcall), 18}, Case{memory_instruction(Op::vmclear, 0x10), 19},
        Case{instruction(Op::vmlaunch), 20}, Case{memory_instruction(Op::vmptrld, 0x10), 21},
        Case{memory_instruction(Op::vmptrst, 0x10), 22},
        Case{register_instruction(Op::vmread, 3, 5), 23}, Case{instruction(Op::vmresume), 24},
        Case{register_instruction(Op::vmwrite, 3, 5), 25}, Case{instruction(Op::vmxoff), 26},
        Case{memory_instruction(Op::vmxon, 0x10), 27},
        Case{memory_instruction(Op::invept, 0x10, 2), 50},
        Case{memory_instruction(Op::invvpid, 0x10, 2), 53}}) {
    ASSERT_TRUE(m.undefined(c.i)) << c.basic;
    EXPECT_EQ(m.reason(), c.basic);
    EXPECT_EQ(m.read(Field::exit_instruction_length), c.i.length);
    if (c.i.has_memory()) {
      EXPECT_EQ(m.read(Field::exit_qualification), 0x10u);
    }
    ASSERT_EQ(m.resume(), Outcome::silent);
  }
  ASSERT_TRUE(m.undefined(register_instruction(Op::vmread, 3, 5)));
  // Table 28-14: register operand (bit 10), register 1 = RBX in 6:3, register 2 = RBP in 31:28.
  EXPECT_EQ(m.read(Field::exit_instruction_info), (5u << 28) | (1u << 10) | (3u << 3));
}

TEST(VmxRouting, Cr0WritesExitOnlyWhereAnOwnedBitDiffersFromTheShadow) {
  Machine m;
  m.prepare();
  m.write(Field::cr0_mask, cpu::cr0::ts | cpu::cr0::ne);
  m.write(Field::cr0_read_shadow, 0);
  m.enter();
  auto& r = m.v.registers();
  cpu::Instruction mov = register_instruction(Op::mov_to_cr, 1, 0);
  // WP is L2's own; NE stays what vmcs12 has although L2 writes (and sees) 0.
  r[cpu::Gpr::rcx] = cpu::cr0::pe | cpu::cr0::pg | cpu::cr0::wp;
  EXPECT_FALSE(m.exit(ExitReason::cr_write, mov));
  EXPECT_EQ(m.v.block_l2().cr0(),
            cpu::cr0::pe | cpu::cr0::pg | cpu::cr0::wp | cpu::cr0::ne | cpu::cr0::et);
  EXPECT_EQ(m.v.block_l2().rip(), Machine::kGuestRip + 3);
  EXPECT_TRUE(m.v.block_l2().intercepts.cr_reads & 1) << "L2 must not read NE";
  EXPECT_FALSE(m.exit(ExitReason::cr_read, register_instruction(Op::mov_from_cr, 2, 0)));
  EXPECT_EQ(r[cpu::Gpr::rdx], cpu::cr0::pe | cpu::cr0::pg | cpu::cr0::wp | cpu::cr0::et);
  r[cpu::Gpr::rcx] |= cpu::cr0::ts;
  ASSERT_TRUE(m.exit(ExitReason::cr_write, mov));
  EXPECT_EQ(m.reason(), 28u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0x100u);
}

TEST(VmxRouting, Cr0WritesThatVmxForbidsAreGeneralProtection) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.registers()[cpu::Gpr::rcx] = cpu::cr0::pe | cpu::cr0::pg;  // NE clear
  EXPECT_FALSE(m.exit(ExitReason::cr_write, register_instruction(Op::mov_to_cr, 1, 0)));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_EQ(m.v.block_l2().injected.vector, 13);
}

TEST(VmxRouting, CltsAndLmswRules) {
  Machine m;
  m.prepare();
  m.write(Field::cr0_mask, cpu::cr0::ts);
  m.write(Field::cr0_read_shadow, cpu::cr0::ts);
  m.enter();
  ASSERT_TRUE(m.exit(ExitReason::cr_write, instruction(Op::clts, 2)));
  EXPECT_EQ(m.read(Field::exit_qualification), 0x20u);
  m.write(Field::cr0_read_shadow, 0);
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_FALSE(m.exit(ExitReason::cr_write, instruction(Op::clts, 2)));
  m.v.registers()[cpu::Gpr::rcx] = 0x9;  // LMSW: TS and PE
  ASSERT_TRUE(m.exit(ExitReason::cr_write, register_instruction(Op::lmsw, 1, 6)));
  EXPECT_EQ(m.read(Field::exit_qualification), (0x9u << 16) | 0x30u);
}

TEST(VmxRouting, Cr3TargetsDoNotExit) {
  Machine m;
  m.prepare();
  m.set_bits(Field::proc_controls, proc::cr3_load | proc::cr3_store);
  m.write(Field::cr3_target_count, 2);
  m.write(Field::cr3_target1, 0x7000);
  m.write(Field::cr3_target2, 0x8000);
  m.enter();
  EXPECT_TRUE(m.v.block_l2().intercepts.cr_writes & 8);
  cpu::Instruction mov = register_instruction(Op::mov_to_cr, 1, 3);
  m.v.registers()[cpu::Gpr::rcx] = 0x7000;
  EXPECT_FALSE(m.exit(ExitReason::cr_write, mov));
  EXPECT_EQ(m.v.block_l2().cr3(), 0x7000u);
  m.v.registers()[cpu::Gpr::rcx] = 0x8000;  // the third target, of which the count knows nothing
  ASSERT_TRUE(m.exit(ExitReason::cr_write, mov));
  EXPECT_EQ(m.read(Field::exit_qualification), 0x103u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  ASSERT_TRUE(m.exit(ExitReason::cr_read, register_instruction(Op::mov_from_cr, 2, 3)));
  EXPECT_EQ(m.read(Field::exit_qualification), 0x213u);
}

TEST(VmxRouting, Cr4ShadowHidesVmxe) {
  Machine m;
  m.prepare();
  m.enter();
  EXPECT_FALSE(m.v.block_l2().intercepts.cr_reads & 0x10)
      << "what L2 sees is what the processor has";
  m.v.registers()[cpu::Gpr::rcx] = cpu::cr4::pae | cpu::cr4::pge;
  EXPECT_FALSE(m.exit(ExitReason::cr_write, register_instruction(Op::mov_to_cr, 1, 4)));
  EXPECT_EQ(m.v.block_l2().cr4(), cpu::cr4::pae | cpu::cr4::pge);
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  EXPECT_EQ(m.read(Field::guest_cr4), cpu::cr4::pae | cpu::cr4::pge | cpu::cr4::vmxe);
}

TEST(VmxRouting, TdpFaultsAreL1sOrL0s) {
  Machine m;
  m.prepare();
  m.enter();
  const cpu::Exit fault{ExitReason::tdp_fault, 0, 0, 4, 0, 0x12'3000};
  EXPECT_FALSE(m.exit(fault));
  m.v.tdp_outcome = {
      .kind = TdpOutcome::Kind::violation, .qualification = 0x181, .linear_address = 0x99};
  ASSERT_TRUE(m.exit(fault));
  EXPECT_EQ(m.reason(), 48u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0x181u);
  EXPECT_EQ(m.read(Field::guest_physical_address), 0x12'3000u);
  EXPECT_EQ(m.read(Field::guest_linear_address), 0x99u);
  m.v.tdp_outcome = {.kind = TdpOutcome::Kind::misconfiguration};
  ASSERT_EQ(m.resume(), Outcome::silent);
  ASSERT_TRUE(m.exit(fault));
  EXPECT_EQ(m.reason(), 49u);
  m.v.tdp_outcome = {.kind = TdpOutcome::Kind::emulate};
  ASSERT_EQ(m.resume(), Outcome::silent);
  const u64 rip = m.v.block_l2().rip();
  EXPECT_FALSE(m.exit(fault));
  EXPECT_EQ(m.v.block_l2().rip(), rip + 3);
}

TEST(VmxRouting, XsetbvIsSeenAsUndefinedOpcodeWhereItCannotBeIntercepted) {
  Machine m;
  m.v.xsetbv_intercept = false;
  m.prepare();
  m.set_bits(Field::guest_cr4, cpu::cr4::osxsave);
  m.enter();
  EXPECT_EQ(m.v.block_l2().cr4() & cpu::cr4::osxsave, 0u);
  EXPECT_TRUE(m.v.block_l2().intercepts.cr_reads & 0x10);
  ASSERT_TRUE(m.undefined(instruction(Op::xsetbv)));
  EXPECT_EQ(m.reason(), 55u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_NE(m.v.block_l2().cr4() & cpu::cr4::osxsave, 0u);
  // L2 changes XCR0 unseen: L1 gets its own back, L2 keeps its.
  m.v.processor_xcr0 = 7;
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  EXPECT_EQ(m.v.processor_xcr0, 1u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_EQ(m.v.processor_xcr0, 7u);
}

TEST(VmxRouting, DescriptorTableExits) {
  Machine m;
  m.prepare();
  m.set_bits(Field::proc2_controls, proc2::descriptor_table);
  m.enter();
  ASSERT_TRUE(m.exit(ExitReason::descriptor_table, memory_instruction(Op::lidt, 0x40)));
  EXPECT_EQ(m.reason(), 46u);
  EXPECT_EQ(m.read(Field::exit_instruction_info) >> 28, 3u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0x40u);
  ASSERT_EQ(m.resume(), Outcome::silent);
  ASSERT_TRUE(m.exit(ExitReason::descriptor_table, register_instruction(Op::str, 3, 0)));
  EXPECT_EQ(m.reason(), 47u);
  EXPECT_EQ(m.read(Field::exit_instruction_info), (1u << 28) | (1u << 10) | (3u << 3));
}

}  // namespace
}  // namespace aerie::nested::vmx::test
