// Which event L2 meets next, and the MSR lists. SDM vol.
// 3, 26.2, 26.7, 27.4, 27.6, 27.7, 28.4, 28.6.
#include <random>

#include "nested/vmx/msr_lists.h"
#include "tests/unit/nested/l1_program.h"

namespace aerie::nested::vmx::test {
namespace {

namespace pin = cpu::vmx::pin;
namespace proc = cpu::vmx::proc;
using cpu::ExitReason;

constexpr u64 kIf = cpu::rflags::interrupt | 2;

TEST(VmxEvents, EntryInjectsAndTheValidBitIsClearedByTheExit) {
  Machine m;
  m.prepare();
  m.write(Field::entry_interruption_info, 0x8000'0b0e);
  m.write(Field::entry_exception_error, 5);
  m.enter();
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_TRUE(m.v.block_l2().injected.valid);
  EXPECT_EQ(m.v.block_l2().injected.vector, 14);
  EXPECT_EQ(m.v.block_l2().injected.error, 5u);
  m.v.block_l2().clear_injection();
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  EXPECT_EQ(m.read(Field::entry_interruption_info), 0xb0eu);
  EXPECT_EQ(m.read(Field::idt_vectoring_info), 0u);
}

TEST(VmxEvents, AnInterruptedDeliveryIsReportedAsVectoringInformation) {
  Machine m;
  m.prepare();
  m.write(Field::entry_interruption_info, 0x8000'0041);
  m.write(Field::guest_rflags, kIf);
  m.enter();
  (void)m.vmx.before_run();
  m.v.block_l2().interrupted = cpu::Event::interrupt(0x41);
  m.v.tdp_outcome = {.kind = TdpOutcome::Kind::violation, .qualification = 2};
  ASSERT_TRUE(m.exit(ExitReason::tdp_fault));
  EXPECT_EQ(m.read(Field::idt_vectoring_info), 0x8000'0041u);
}

TEST(VmxEvents, AnInterruptedDeliveryThatL0DealsWithIsDeliveredAgain) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.block_l2().interrupted = cpu::Event::exception(cpu::Exception::gp, 8);
  EXPECT_FALSE(m.exit(ExitReason::tdp_fault));
  m.v.block_l2().interrupted = {};
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_EQ(m.v.block_l2().injected.vector, 13);
  EXPECT_EQ(m.v.block_l2().injected.error, 8u);
}

TEST(VmxEvents, ATripleFaultHasNoVectoringInformation) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.block_l2().interrupted = cpu::Event::exception(cpu::Exception::gp, 8);
  ASSERT_TRUE(m.exit(ExitReason::shutdown));
  EXPECT_EQ(m.reason(), 2u);
  EXPECT_EQ(m.read(Field::idt_vectoring_info), 0u);
}

TEST(VmxEvents, ExternalInterruptsExitWhateverIfIs) {
  for (const bool acknowledge : {false, true}) {
    Machine m;
    m.prepare();
    m.set_bits(Field::pin_controls, pin::external_interrupt);
    if (acknowledge) {
      m.set_bits(Field::exit_controls, cpu::vmx::exit::acknowledge_interrupt);
    }
    m.enter();
    m.v.waiting = pending::interrupt;
    EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
    EXPECT_EQ(m.reason(), 1u);
    EXPECT_EQ(m.read(Field::exit_interruption_info), acknowledge ? 0x8000'0031u : 0u);
    EXPECT_EQ(m.v.waiting, acknowledge ? 0u : pending::interrupt);
  }
}

TEST(VmxEvents, WithoutExitingTheyWaitForIfAndGoThroughL2sIdt) {
  Machine m;
  m.prepare();
  m.enter();
  m.v.waiting = pending::interrupt;
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_FALSE(m.v.block_l2().injected.valid);
  EXPECT_TRUE(m.v.block_l2().interrupt_window);
  m.v.block_l2().set_rflags(kIf);
  EXPECT_FALSE(m.exit(ExitReason::interrupt_window));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_EQ(m.v.block_l2().injected.vector, 0x31);
  EXPECT_EQ(m.v.waiting, 0u);
}

TEST(VmxEvents, PriorityIsInitThenNmiThenWindowThenInterrupt) {
  Machine m;
  m.prepare();
  m.set_bits(Field::pin_controls, pin::external_interrupt | pin::nmi);
  m.set_bits(Field::proc_controls, proc::interrupt_window);
  m.write(Field::guest_rflags, kIf);
  m.enter();
  m.v.waiting = pending::interrupt | pending::nmi | pending::init;
  for (const u32 expected : {3u, 0u, 7u}) {
    EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
    EXPECT_EQ(m.reason(), expected);
    ASSERT_EQ(m.resume(), Outcome::silent);
  }
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  m.clear_bits(Field::proc_controls, proc::interrupt_window);
  ASSERT_EQ(m.resume(), Outcome::silent);
  EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
  EXPECT_EQ(m.reason(), 1u);
}

TEST(VmxEvents, NmiExitsBlockFurtherNmis) {
  Machine m;
  m.prepare();
  m.set_bits(Field::pin_controls, pin::nmi);
  m.enter();
  m.v.waiting = pending::nmi;
  EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
  EXPECT_EQ(m.read(Field::exit_interruption_info), 0x8000'0202u);
  EXPECT_TRUE(m.v.nmis_blocked);
}

TEST(VmxEvents, NmiWindowOpensWhenVirtualNmisAreNotBlocked) {
  Machine m;
  m.prepare();
  m.set_bits(Field::pin_controls, pin::nmi | pin::virtual_nmis);
  m.set_bits(Field::proc_controls, proc::nmi_window);
  m.write(Field::guest_interruptibility, cpu::vmx::interruptibility::nmi);
  m.enter();
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_TRUE(m.v.block_l2().intercepts.has(ExitReason::iret));
  EXPECT_FALSE(m.exit(ExitReason::iret));
  EXPECT_FALSE(m.v.block_l2().intercepts.has(ExitReason::iret));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2) << "the IRET comes first, alone";
  EXPECT_TRUE(m.v.block_l2().rflags() & cpu::rflags::tf);
  m.v.block_l2().set_dr6(cpu::dr6::initial | cpu::dr6::bs);
  m.v.block_l2().set_interrupt_shadow(false);
  EXPECT_FALSE(m.exit(cpu::Exit{ExitReason::exception, 1, 0, 0, 0, 0}));
  EXPECT_FALSE(m.v.block_l2().rflags() & cpu::rflags::tf);
  EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
  EXPECT_EQ(m.reason(), 8u);
  EXPECT_EQ(m.read(Field::guest_interruptibility), 0u);
}

TEST(VmxEvents, HltWaitsAndAnInterruptExitsFromItInHltState) {
  Machine m;
  m.prepare();
  m.clear_bits(Field::proc_controls, proc::hlt);
  m.set_bits(Field::pin_controls, pin::external_interrupt);
  m.enter();
  EXPECT_FALSE(m.exit(ExitReason::hlt, instruction(Op::hlt, 1)));
  EXPECT_EQ(m.vmx.before_run(), Next::halt);
  EXPECT_TRUE(m.vmx.accepts_interrupt());
  m.v.waiting = pending::interrupt;
  EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
  EXPECT_EQ(m.read(Field::guest_activity), 1u);
  EXPECT_EQ(m.read(Field::guest_rip), Machine::kGuestRip + 1);
}

TEST(VmxEvents, WaitForSipiTakesASipiOnly) {
  Machine m;
  m.prepare();
  m.write(Field::guest_activity, 3);
  m.enter();
  m.v.waiting = pending::init | pending::interrupt;
  EXPECT_EQ(m.vmx.before_run(), Next::halt);
  m.v.waiting |= pending::sipi;
  EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
  EXPECT_EQ(m.reason(), 4u);
  EXPECT_EQ(m.read(Field::exit_qualification), 0x9au);
  EXPECT_EQ(m.read(Field::guest_activity), 3u);
}

TEST(VmxEvents, PendingDebugExceptionsComeAfterTheEntry) {
  Machine m;
  m.prepare();
  m.write(Field::exception_bitmap, 1u << 1);
  m.write(Field::guest_rflags, 2 | cpu::rflags::tf);
  m.write(Field::guest_pending_debug, cpu::vmx::pending_debug::bs);
  m.write(Field::guest_interruptibility, cpu::vmx::interruptibility::mov_ss);
  m.enter();
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2) << "held back by MOV SS";
  m.v.block_l2().set_interrupt_shadow(false);
  m.v.block_l2().set_dr6(cpu::dr6::initial | cpu::dr6::bs);
  ASSERT_TRUE(m.exit(cpu::Exit{ExitReason::exception, 1, 0, 0, 0, 0}));
  EXPECT_EQ(m.read(Field::exit_qualification), cpu::dr6::bs);
}

TEST(VmxEvents, MonitorTrapExitsAfterOneInstruction) {
  Machine m;
  m.prepare();
  m.set_bits(Field::proc_controls, proc::monitor_trap);
  m.enter();
  EXPECT_EQ(m.vmx.before_run(), Next::run_l2);
  EXPECT_TRUE(m.v.block_l2().rflags() & cpu::rflags::tf);
  m.v.block_l2().set_dr6(cpu::dr6::initial | cpu::dr6::bs);
  m.v.block_l2().set_rip(Machine::kGuestRip + 1);
  EXPECT_FALSE(m.exit(cpu::Exit{ExitReason::exception, 1, 0, 0, 0, 0}));
  EXPECT_EQ(m.vmx.before_run(), Next::run_l1);
  EXPECT_EQ(m.reason(), 37u);
  EXPECT_EQ(m.read(Field::guest_rflags), 2u);
}

// --- MSR lists

void entry(Machine& m, u64 list, unsigned n, u32 index, u64 value, u32 reserved = 0) {
  m.at<MsrAreaEntry>(list + n * sizeof(MsrAreaEntry)) = {index, reserved, value};
}

TEST(VmxMsrLists, EntryLoadsExitStoresAndLoads) {
  Machine m;
  m.prepare();
  m.v.msrs[cpu::msr::kernel_gs_base] = 0x11;
  m.v.msrs[0x2ff] = 0x22;
  constexpr u64 kLoad = Machine::kLists, kStore = kLoad + 0x100, kExitLoad = kLoad + 0x200;
  entry(m, kLoad, 0, cpu::msr::kernel_gs_base, 0x7777);
  entry(m, kStore, 0, cpu::msr::kernel_gs_base, 0);
  entry(m, kStore, 1, cpu::msr::tsc, 0);
  entry(m, kExitLoad, 0, cpu::msr::kernel_gs_base, 0x9999);
  m.write(Field::entry_msr_load_address, kLoad);
  m.write(Field::entry_msr_load_count, 1);
  m.write(Field::exit_msr_store_address, kStore);
  m.write(Field::exit_msr_store_count, 2);
  m.write(Field::exit_msr_load_address, kExitLoad);
  m.write(Field::exit_msr_load_count, 1);
  m.enter();
  EXPECT_EQ(m.v.msrs[cpu::msr::kernel_gs_base], 0x7777u);
  m.v.msrs[cpu::msr::kernel_gs_base] = 0x8888;
  m.v.tsc = 0x1234;
  ASSERT_TRUE(m.exit(ExitReason::cpuid));
  EXPECT_EQ(m.at<MsrAreaEntry>(kStore).value, 0x8888u);
  EXPECT_EQ(m.at<MsrAreaEntry>(kStore + 16).value, 0x1234u);
  EXPECT_EQ(m.v.msrs[cpu::msr::kernel_gs_base], 0x9999u);
}

TEST(VmxMsrLists, ABadEntryFailsTheVmEntryWithItsNumber) {
  struct Case {
    u32 index, reserved;
    u64 value;
  };
  for (const Case c :
       {Case{cpu::msr::fs_base, 0, 0}, Case{cpu::msr::gs_base, 0, 0}, Case{0x808, 0, 0},
        Case{0x2ff, 1, 0}, Case{0x1f00, 0, 0}, Case{cpu::msr::pat, 0, 2}}) {
    Machine m;
    m.prepare();
    m.v.msrs[0x2ff] = 0;
    entry(m, Machine::kLists, 0, 0x2ff, 1);
    entry(m, Machine::kLists, 1, c.index, c.value, c.reserved);
    m.write(Field::entry_msr_load_address, Machine::kLists);
    m.write(Field::entry_msr_load_count, 2);
    EXPECT_EQ(m.launch(), Outcome::silent);
    EXPECT_FALSE(m.vmx.in_l2());
    EXPECT_EQ(m.reason(), 0x8000'0022u) << c.index;
    EXPECT_EQ(m.read(Field::exit_qualification), 2u);
    m.write(Field::entry_msr_load_count, 0);
    m.enter();  // still clear, and nothing of L2 harmed
    EXPECT_EQ(m.v.block_l2().rip(), Machine::kGuestRip);
  }
}

TEST(VmxMsrLists, ABadExitListAbortsIntoShutdown) {
  Machine m;
  m.prepare();
  entry(m, Machine::kLists, 0, 0x1f00, 0);
  m.write(Field::exit_msr_store_address, Machine::kLists);
  m.write(Field::exit_msr_store_count, 1);
  m.enter();
  m.v.l2_instruction = &m.current;
  m.current = instruction(Op::cpuid, 2);
  m.vmx.handle_exit(cpu::Exit{ExitReason::cpuid, 0, 0, 0, 0, 0});
  EXPECT_TRUE(m.v.shut_down);
  EXPECT_EQ(m.at<u32>(Machine::kVmcs + 4), 1u);
}

// --- Hostile L1s

// Regions, fields, operands and exits at random: nothing may crash, overrun or lose the engine's
// own idea of who runs. Sanitizers watch.
TEST(VmxHostile, RandomVmcsContentsAndExits) {
  set_log_level(LogLevel::error);
  std::mt19937_64 random{1};
  for (unsigned round = 0; round < 400; ++round) {
    Machine m;
    if (round % 2 == 0) {
      m.prepare();
    } else {
      ASSERT_EQ(m.vmxon(), Outcome::succeeded);
      for (u64 a = Machine::kVmcs; a < Machine::kVmcs + kPageSize; a += 8) {
        m.at<u64>(a) = random();
      }
      m.at<u32>(Machine::kVmcs) = kRevisionId;
      ASSERT_EQ(m.run(Op::vmptrld, Machine::kVmcs), Outcome::succeeded);
      m.fill_vmcs();
    }
    m.v.xsetbv_intercept = (round & 4) != 0;
    const auto fields = vmcs12_fields();
    for (unsigned step = 0; step < 200 && !m.v.shut_down; ++step) {
      auto& r = m.v.registers();
      if (!m.vmx.in_l2()) {
        m.v.block_l1().set_rip(0x10'0000);
        switch (random() % 8) {
          case 0:
          case 1:
          case 2: {
            const auto& row = fields[random() % fields.size()];
            const u64 value = random() >> (random() % 64);
            (void)m.try_write(
                static_cast<u64>(row.field),
                random() % 3 == 0 ? m.read_if(row.field) ^ bit(random() % 64) : value);
            break;
          }
          case 3:
            (void)m.run(Op::vmptrld, (random() % 8) << 12);
            break;
          case 4:
            (void)m.run(Op::vmclear, (random() % 8) << 12);
            break;
          case 5:
            m.fill_if_current();
            break;
          default:
            m.v.raised.clear();
            if (!m.vmx.execute(instruction(random() % 2 ? Op::vmlaunch : Op::vmresume))) {
              ADD_FAILURE();
            }
            break;
        }
        continue;
      }
      m.v.waiting = static_cast<u32>(random() % 5 == 0 ? random() & 15 : 0);
      switch (m.vmx.before_run()) {
        case Next::run_l1:
          ASSERT_FALSE(m.vmx.in_l2());
          continue;
        case Next::halt:
          m.v.waiting = pending::nmi | pending::init | pending::sipi;
          continue;
        case Next::run_l2:
          break;
      }
      m.v.block_l2().clear_injection();
      for (u64& g : r.gpr) {
        g = random() >> (random() % 64);
      }
      cpu::Instruction i = instruction(static_cast<Op>(random() % static_cast<unsigned>(Op::count)),
                                       static_cast<u8>(1 + random() % 15));
      i.reg = static_cast<u8>(random() % 16);
      i.rm = static_cast<u8>(random() % 16);
      if (random() % 2) {
        i.flags = cpu::Instruction::kMemory;
        i.rm = cpu::kNoRegister;
        i.displacement = static_cast<i64>(random() >> 20);
      }
      m.current = i;
      m.v.l2_instruction = random() % 16 == 0 ? nullptr : &m.current;
      if (random() % 16 == 0) {
        m.v.block_l2().interrupted = {.valid = true,
                                      .type = static_cast<cpu::EventType>(random() % 7),
                                      .vector = static_cast<u8>(random()),
                                      .has_error = false,
                                      .error = 0,
                                      .instruction_length = 0};
      }
      m.v.tdp_outcome = {.kind = static_cast<TdpOutcome::Kind>(random() % 4),
                         .qualification = random()};
      m.vmx.handle_exit(cpu::Exit{static_cast<ExitReason>(random() % cpu::kExitReasons),
                                  static_cast<u8>(random() % 32), 0, random(),
                                  random() % 2 ? random() & 0xffff'ffff : 0x10, random() >> 20});
      m.v.block_l2().interrupted = {};
      ASSERT_EQ(m.vmx.in_l2(), m.v.running_l2);
    }
  }
}

}  // namespace
}  // namespace aerie::nested::vmx::test
