// The software backend keeps apart what a processor keeps apart.
#include <gtest/gtest.h>

#include "cpu/model/processor.h"

namespace aerie::cpu::model {
namespace {

TEST(ModelControlBlock, SyscallStateIsSeenOnlyAfterAStore) {
  Processor processor;
  ControlBlock l1{&processor.syscall_state};
  processor.syscall_state.lstar = 0x1234;
  processor.syscall_state.fs.base = 0x5000;
  EXPECT_EQ(l1.lstar(), 0u);
  l1.store_syscall_state();
  EXPECT_EQ(l1.lstar(), 0x1234u);
  EXPECT_EQ(l1.segment(SegmentRegister::fs).base, 0x5000u);
}

TEST(ModelControlBlock, SyscallStateReachesTheProcessorOnlyByALoad) {
  Processor processor;
  ControlBlock l2{&processor.syscall_state};
  l2.set_sysenter_eip(7);
  l2.set_segment(SegmentRegister::tr,
                 Segment{.selector = 0x40, .attributes = 0x8b, .limit = 0x67, .base = 9});
  EXPECT_EQ(processor.syscall_state.sysenter_eip, 0u);
  l2.load_syscall_state();
  EXPECT_EQ(processor.syscall_state.sysenter_eip, 7u);
  EXPECT_EQ(processor.syscall_state.tr.selector, 0x40);
}

TEST(ModelProcessor, PlaysItsScriptAndConsumesWhatWasRequested) {
  Processor processor;
  ControlBlock block{&processor.syscall_state};
  GuestRegisters registers{};
  processor.then([](ControlBlock& b, GuestRegisters& r) {
    r[Gpr::rax] = 5;
    b.set_rip(0x1000);
    return exit_for(ExitReason::cpuid);
  });
  block.inject(Event::exception(Exception::gp, 0));
  block.flush(TlbFlush::everything);
  block.flush(TlbFlush::tag);  // the wider one stays
  EXPECT_EQ(processor.run(block, registers).reason, ExitReason::cpuid);
  EXPECT_EQ(registers[Gpr::rax], 5u);
  EXPECT_FALSE(block.injected.valid);
  ASSERT_EQ(processor.entries().size(), 1u);
  EXPECT_EQ(processor.entries()[0].injected.vector, 13);
  EXPECT_EQ(processor.entries()[0].flush, TlbFlush::everything);
  EXPECT_TRUE(processor.done());
  EXPECT_EQ(processor.run(block, registers).reason, ExitReason::shutdown);
}

TEST(ModelControlBlock, CplIsTheDplOfSs) {
  ControlBlock block;
  block.set_segment(SegmentRegister::ss,
                    Segment{.selector = 3, .attributes = 0xcf3, .limit = ~0u, .base = 0});
  EXPECT_EQ(block.cpl(), 3);
}

}  // namespace
}  // namespace aerie::cpu::model
