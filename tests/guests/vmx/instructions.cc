// The VMX instructions outside of VM entry: their operands, errors and flags. SDM vol. 3,
// chapter 31.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/vmx.h"

namespace aerie::guest {
namespace {

using cpu::Exception;
using cpu::vmx::ControlWord;
namespace msr = cpu::msr;

unsigned physical_bits() { return cpu::cpuid(0x8000'0008).eax & 0xff; }

bool expect_status(std::string_view what, VmStatus got, VmStatus wanted) {
  return expect_equal(what, static_cast<u64>(got), static_cast<u64>(wanted));
}
void expect_error(std::string_view what, VmStatus got, InstructionError error) {
  if (expect_status(what, got, VmStatus::fail_valid)) {
    expect_equal(what, vmread(Field::instruction_error), static_cast<u32>(error));
  }
}
// A current VMCS, so that failures are VMfailValid.
u64 make_current() {
  const u64 region = alloc_vmcs();
  vmclear(region);
  vmptrld(region);
  return region;
}
void make_none_current() { vmclear(make_current()); }

void vmxon_in_root() {
  make_current();
  expect_error("VMXON in VMX operation", vmxon(vmxon_region()), InstructionError::vmxon_in_root);
  make_none_current();
  expect_status("VMXON in VMX operation, no current VMCS", vmxon(vmxon_region()),
                VmStatus::fail_invalid);
}

void vmxon_operand() {
  vmx_off();
  const u64 region = alloc_vmcs();
  expect_status("misaligned", vmxon(region + 8), VmStatus::fail_invalid);
  expect_status("beyond MAXPHYADDR", vmxon(region | bit(physical_bits())), VmStatus::fail_invalid);
  expect_status("bit 63", vmxon(region | bit(63)), VmStatus::fail_invalid);
  *page_pointer<u32>(region) ^= 1;
  expect_status("wrong revision", vmxon(region), VmStatus::fail_invalid);
  *page_pointer<u32>(region) ^= 1;
  *page_pointer<u32>(region) |= 1u << 31;
  expect_status("bit 31 of the revision", vmxon(region), VmStatus::fail_invalid);
  *page_pointer<u32>(region) &= 0x7fff'ffff;
  const Fault fault = catch_fault([] { asm volatile("vmxon (%0)" ::"r"(bit(47))); });
  expect_fault("non-canonical operand", fault, Exception::gp, 0);
  expect_fault("still outside VMX operation", catch_fault([] { vmxoff(); }), Exception::ud);
  expect_status("a good region", vmxon(region), VmStatus::succeed);
  expect_status("VMXOFF", vmxoff(), VmStatus::succeed);
  expect(vmx_on(), "VMXON again");
}

void vmxon_needs_vmxe() {
  vmx_off();
  const u64 cr4 = cpu::read_cr4();
  cpu::write_cr4(cr4 & ~cpu::cr4::vmxe);
  expect_fault("VMXON without CR4.VMXE", catch_fault([] { vmxon(vmxon_region()); }), Exception::ud);
  cpu::write_cr4(cr4);
  const u64 cr0 = cpu::read_cr0();
  cpu::write_cr0(cr0 & ~cpu::cr0::ne);
  expect_fault("VMXON without CR0.NE", catch_fault([] { vmxon(vmxon_region()); }), Exception::gp,
               0);
  cpu::write_cr0(cr0);
  expect(vmx_on(), "VMXON");
}

void feature_control_locks() {
  const u64 value = cpu::rdmsr(msr::feature_control);
  expect((value & msr::feature_control_bits::locked) != 0, "the lock bit");
  const Fault fault = catch_fault([&] { cpu::wrmsr(msr::feature_control, value ^ 4); });
  expect_fault("WRMSR when locked", fault, Exception::gp, 0);
  expect_equal("untouched", cpu::rdmsr(msr::feature_control), value);
}

void outside_vmx_operation() {
  vmx_off();
  u64 value = 0;
  const u64 region = alloc_vmcs();
  const InvalidateDescriptor descriptor{0, 0};
  expect_fault("VMCLEAR", catch_fault([&] { vmclear(region); }), Exception::ud);
  expect_fault("VMPTRLD", catch_fault([&] { vmptrld(region); }), Exception::ud);
  expect_fault("VMPTRST", catch_fault([&] { vmptrst(); }), Exception::ud);
  expect_fault("VMREAD", catch_fault([&] { vmread(0, value); }), Exception::ud);
  expect_fault("VMWRITE", catch_fault([&] { vmwrite(0u, value); }), Exception::ud);
  expect_fault("VMLAUNCH", catch_fault([&] { vmlaunch(); }), Exception::ud);
  expect_fault("VMRESUME", catch_fault([&] { vmresume(); }), Exception::ud);
  expect_fault("VMXOFF", catch_fault([&] { vmxoff(); }), Exception::ud);
  if ((cpu::cpuid(1).ecx & bit(31)) == 0) {  // a hypervisor's own calls otherwise
    expect_fault("VMCALL", catch_fault([&] { vmcall(); }), Exception::ud);
  }
  expect_fault("INVEPT", catch_fault([&] { invept(2, descriptor); }), Exception::ud);
  expect_fault("INVVPID", catch_fault([&] { invvpid(2, descriptor); }), Exception::ud);
  expect(vmx_on(), "VMXON");
}

void control_registers_fixed() {
  const u64 cr0 = cpu::read_cr0();
  const u64 cr4 = cpu::read_cr4();
  expect_fault("CR4.VMXE cleared", catch_fault([&] { cpu::write_cr4(cr4 & ~cpu::cr4::vmxe); }),
               Exception::gp, 0);
  expect_fault("CR0.NE cleared", catch_fault([&] { cpu::write_cr0(cr0 & ~cpu::cr0::ne); }),
               Exception::gp, 0);
  expect_equal("CR0", cpu::read_cr0(), cr0);
  expect_equal("CR4", cpu::read_cr4(), cr4);
}

void vmclear_errors() {
  const u64 region = make_current();
  expect_error("misaligned", vmclear(region + 1), InstructionError::vmclear_invalid_address);
  expect_error("beyond MAXPHYADDR", vmclear(region | bit(physical_bits())),
               InstructionError::vmclear_invalid_address);
  expect_error("the VMXON region", vmclear(vmxon_region()),
               InstructionError::vmclear_vmxon_pointer);
  expect_equal("current VMCS untouched", vmptrst(), region);
  make_none_current();
  expect_status("no current VMCS", vmclear(region + 1), VmStatus::fail_invalid);
}

void vmptrld_errors() {
  const u64 region = make_current();
  const u64 other = alloc_vmcs();
  expect_error("misaligned", vmptrld(other + 0x800), InstructionError::vmptrld_invalid_address);
  expect_error("beyond MAXPHYADDR", vmptrld(other | bit(physical_bits())),
               InstructionError::vmptrld_invalid_address);
  expect_error("the VMXON region", vmptrld(vmxon_region()),
               InstructionError::vmptrld_vmxon_pointer);
  *page_pointer<u32>(other) ^= 2;
  expect_error("wrong revision", vmptrld(other), InstructionError::vmptrld_wrong_revision);
  expect_equal("current VMCS untouched", vmptrst(), region);
  make_none_current();
  expect_status("no current VMCS", vmptrld(other), VmStatus::fail_invalid);
}

// Bit 31 of the revision makes a shadow VMCS, an error without VMCS shadowing.
void vmptrld_shadow() {
  if (allows(ControlWord::proc2, cpu::vmx::proc2::vmcs_shadowing)) {
    skip("the processor has VMCS shadowing");
    return;
  }
  make_current();
  const u64 other = alloc_vmcs();
  *page_pointer<u32>(other) |= 1u << 31;
  expect_error("shadow VMCS", vmptrld(other), InstructionError::vmptrld_wrong_revision);
}

// PITFALLS: a page that is not RAM is an error number, never a crash.
void vmptrld_not_ram() {
  const u64 region = make_current();
  for (const u64 address : {u64{0xf000'0000}, kPageSize << (physical_bits() - 13)}) {
    const VmStatus status = vmptrld(address);
    if (expect_status("VMPTRLD of no memory", status, VmStatus::fail_valid)) {
      const u64 error = vmread(Field::instruction_error);
      expect(error == static_cast<u32>(InstructionError::vmptrld_wrong_revision) ||
                 error == static_cast<u32>(InstructionError::vmptrld_invalid_address),
             "error 9 or 11");
    }
  }
  expect_equal("current VMCS untouched", vmptrst(), region);
}

void vmptrst_tells() {
  const u64 region = make_current();
  expect_equal("current", vmptrst(), region);
  const u64 other = alloc_vmcs();
  vmclear(other);
  expect_equal("VMCLEAR of another leaves it", vmptrst(), region);
  vmptrld(other);
  expect_equal("after VMPTRLD", vmptrst(), other);
  vmclear(other);
  expect_equal("none after VMCLEAR of the current one", vmptrst(), ~u64{0});
}

void two_vmcs_keep_their_own() {
  const u64 a = make_current();
  vmwrite(Field::guest_rip, 0x1111);
  vmwrite(Field::tsc_offset, 0xaaaa'bbbb'cccc'dddd);
  const u64 b = make_current();
  vmwrite(Field::guest_rip, 0x2222);
  vmwrite(Field::tsc_offset, 1);
  vmptrld(a);
  expect_equal("A's RIP", vmread(Field::guest_rip), 0x1111);
  expect_equal("A's TSC offset", vmread(Field::tsc_offset), 0xaaaa'bbbb'cccc'dddd);
  vmptrld(b);
  expect_equal("B's RIP", vmread(Field::guest_rip), 0x2222);
  vmclear(a);
  vmptrld(a);
  expect_equal("A's RIP after VMCLEAR", vmread(Field::guest_rip), 0x1111);
  vmptrld(b);
  expect_equal("B's TSC offset", vmread(Field::tsc_offset), 1);
  // The same one again, with no VMCLEAR between.
  vmptrld(b);
  expect_equal("B again", vmread(Field::guest_rip), 0x2222);
}

// As many as L1 likes may be active.
void many_active_vmcs() {
  constexpr unsigned kCount = 20;
  u64 regions[kCount];
  for (unsigned i = 0; i < kCount; ++i) {
    regions[i] = make_current();
    vmwrite(Field::guest_rsp, 0x1000 + i);
    vmwrite(Field::host_rsp, 0x2000 + i);
  }
  for (unsigned round = 0; round < 2; ++round) {
    for (unsigned i = 0; i < kCount; ++i) {
      vmptrld(regions[i]);
      if (!expect_equal("guest RSP", vmread(Field::guest_rsp), 0x1000 + i) ||
          !expect_equal("host RSP", vmread(Field::host_rsp), 0x2000 + i)) {
        return;
      }
    }
  }
  for (const u64 region : regions) {
    vmclear(region);
  }
}

void field_errors() {
  make_current();
  u64 value = 0x55;
  for (const u32 field : {0x4700u, 0x6fffu, 0x3ffeu, 0x8000u, 0x2801u | 0x1000u}) {
    expect_error("VMREAD of no field", vmread(field, value),
                 InstructionError::unsupported_component);
    expect_error("VMWRITE of no field", vmwrite(field, 0), InstructionError::unsupported_component);
  }
  expect_equal("the destination is untouched", value, 0x55);
  make_none_current();
  expect_status("VMREAD, no current VMCS", vmread(0x6800, value), VmStatus::fail_invalid);
  expect_status("VMWRITE, no current VMCS", vmwrite(0x6800u, value), VmStatus::fail_invalid);
}

// In 64-bit mode bits 63:32 of the encoding have to be 0.
void field_encoding_upper_half() {
  make_current();
  bool cf, zf;
  u64 value = 0;
  asm volatile("vmread %3, %2"
               : AERIE_VMX_FLAGS, "+r"(value)
               : "r"(static_cast<u64>(Field::guest_rip) | bit(32)));
  expect_error("VMREAD", vm_status(cf, zf), InstructionError::unsupported_component);
}

void read_only_fields() {
  make_current();
  if ((cpu::rdmsr(msr::vmx_misc) & bit(29)) != 0) {
    skip("VMX_MISC bit 29: any field may be written");
    return;
  }
  for (const Field field : {Field::exit_reason, Field::instruction_error, Field::exit_qualification,
                            Field::guest_physical_address, Field::idt_vectoring_info}) {
    expect_error("VMWRITE of a read-only field", vmwrite(static_cast<u32>(field), 0),
                 InstructionError::write_to_read_only);
  }
}

void field_widths() {
  make_current();
  vmwrite(Field::guest_cs_selector, 0x1234'5678'9abc'def0);
  expect_equal("16 bits", vmread(Field::guest_cs_selector), 0xdef0);
  vmwrite(Field::guest_cs_limit, 0x1234'5678'9abc'def0);
  expect_equal("32 bits", vmread(Field::guest_cs_limit), 0x9abc'def0);
  vmwrite(Field::tsc_offset, 0x1234'5678'9abc'def0);
  expect_equal("64 bits", vmread(Field::tsc_offset), 0x1234'5678'9abc'def0);
  vmwrite(Field::guest_rip, 0x1234'5678'9abc'def0);
  expect_equal("natural width", vmread(Field::guest_rip), 0x1234'5678'9abc'def0);
  u64 value = 0;
  const u32 high = static_cast<u32>(Field::tsc_offset) | 1;
  expect_status("VMREAD of a high half", vmread(high, value), VmStatus::succeed);
  expect_equal("high half", value, 0x1234'5678);
  expect_status("VMWRITE of a high half", vmwrite(high, 0xffff'ffff'0bad'cafe), VmStatus::succeed);
  expect_equal("after it", vmread(Field::tsc_offset), 0x0bad'cafe'9abc'def0);
}

// Access rights keep their defined bits, all of them readable as written.
void field_access_rights() {
  make_current();
  for (const u32 rights : {0xa09bu, 0xc093u, 0x1'0000u, 0x8bu}) {
    vmwrite(Field::guest_ss_access_rights, rights);
    expect_equal("rights", vmread(Field::guest_ss_access_rights), rights);
  }
}

void vmread_memory_operands() {
  make_current();
  vmwrite(Field::guest_rip, 0x1122'3344'5566'7788);
  u64 memory[3] = {1, 2, 3};
  const u64 field = static_cast<u64>(Field::guest_rip);
  asm volatile("vmread %1, 8(%0)" ::"r"(memory), "r"(field) : "cc", "memory");
  expect_equal("memory operand", memory[1], 0x1122'3344'5566'7788);
  expect_equal("neighbour below", memory[0], 1);
  expect_equal("neighbour above", memory[2], 3);
  memory[2] = 0x99;
  asm volatile("vmwrite (%0,%2,8), %1" ::"r"(memory), "r"(field), "r"(u64{2}) : "cc", "memory");
  expect_equal("VMWRITE from memory with an index", vmread(Field::guest_rip), 0x99);
  // RSP-relative, with REX registers, through GS.
  u64 result = 0;
  asm volatile("mov %1, %%r14; push %%rax; vmread %%r14, (%%rsp); pop %%r13; mov %%r13, %0"
               : "=r"(result)
               : "r"(field)
               : "r13", "r14", "cc", "memory");
  expect_equal("VMREAD to the stack", result, 0x99);
  const u64 gs_offset = reinterpret_cast<u64>(memory) - cpu::rdmsr(msr::gs_base);
  asm volatile("vmread %1, %%gs:(%0)" ::"r"(gs_offset), "r"(field) : "cc", "memory");
  expect_equal("VMREAD through GS", memory[0], 0x99);
  constexpr u64 kUnmapped = 0x3'0000'0000;
  const Fault fault = catch_fault([&] {
    asm volatile("vmread %1, (%0)" ::"r"(kUnmapped), "r"(field) : "cc", "memory");
  });
  if (expect_fault("VMREAD to an unmapped page", fault, Exception::pf, 2)) {
    expect_equal("CR2", fault.cr2, kUnmapped);
  }
  const Fault across = catch_fault([&] {
    asm volatile("vmwrite (%0), %1" ::"r"(bit(47) - 4), "r"(field) : "cc", "memory");
  });
  expect(across.raised, "VMWRITE from a non-canonical address to fault");
}

// VMsucceed clears CF, PF, AF, ZF, SF and OF; failures set one of CF and ZF and clear the rest.
void flags_of_results() {
  make_current();
  u64 flags;
  const u64 field = static_cast<u64>(Field::guest_rip);
  const auto with_all_set = cpu::rflags::arithmetic | cpu::rflags::fixed;
  u64 value = 0;
  asm volatile("push %2; popfq; vmread %3, %1; pushfq; popq %0"
               : "=&r"(flags), "+r"(value)
               : "r"(with_all_set), "r"(field)
               : "cc", "memory");
  expect_equal("VMREAD", flags & cpu::rflags::arithmetic, 0);
  asm volatile("push %1; popfq; vmwrite %2, %3; pushfq; popq %0"
               : "=&r"(flags)
               : "r"(with_all_set), "r"(value), "r"(field)
               : "cc", "memory");
  expect_equal("VMWRITE", flags & cpu::rflags::arithmetic, 0);
  asm volatile("push %1; popfq; vmwrite %2, %3; pushfq; popq %0"
               : "=&r"(flags)
               : "r"(with_all_set), "r"(value), "r"(u64{0x4700})
               : "cc", "memory");
  expect_equal("VMfailValid", flags & cpu::rflags::arithmetic, cpu::rflags::zf);
  make_none_current();
  asm volatile("push %1; popfq; vmwrite %2, %3; pushfq; popq %0"
               : "=&r"(flags)
               : "r"(with_all_set), "r"(value), "r"(field)
               : "cc", "memory");
  expect_equal("VMfailInvalid", flags & cpu::rflags::arithmetic, cpu::rflags::cf);
}

void launch_states() {
  L2 l2;
  const auto nothing = [] {};
  l2.start(nothing);
  l2.launched = true;  // VMRESUME
  l2.expect_fail("VMRESUME of a clear VMCS", InstructionError::vmresume_not_launched);
  l2.launched = false;
  l2.expect_return("VMLAUNCH");
  l2.launched = false;
  l2.start(nothing);
  l2.expect_fail("VMLAUNCH of a launched VMCS", InstructionError::vmlaunch_not_clear);
  l2.launched = true;
  l2.expect_return("VMRESUME");
  vmclear(l2.region());
  vmptrld(l2.region());
  l2.start(nothing);
  l2.expect_fail("VMRESUME after VMCLEAR", InstructionError::vmresume_not_launched);
  l2.launched = false;
  l2.expect_return("VMLAUNCH after VMCLEAR");
  make_none_current();
  expect_status("VMLAUNCH, no current VMCS", vmlaunch(), VmStatus::fail_invalid);
  expect_status("VMRESUME, no current VMCS", vmresume(), VmStatus::fail_invalid);
}

void vmcall_in_root() {
  make_current();
  bool cf, zf;
  asm volatile("vmcall" : AERIE_VMX_FLAGS : : "memory");
  expect_error("VMCALL in VMX root operation", vm_status(cf, zf), InstructionError::vmcall_in_root);
}

void at_user_level() {
  // CPL 3 by IRET, within pages made user accessible for the moment.
  const u64 stack = alloc_page() + kPageSize;
  u64* directory =
      page_pointer(page_pointer(page_pointer(cpu::read_cr3() & pte::address)[0] & pte::address)[0] &
                   pte::address);
  for (unsigned i = 0; i < 32; ++i) {
    directory[i] |= pte::user;
  }
  cpu::write_cr3(cpu::read_cr3());
  tss(0).rsp[0] = alloc_page() + kPageSize;
  const auto attempt = [&](std::string_view what, const void* code) {
    const Fault fault = catch_fault([&] {
      asm volatile("push %0; push %1; pushfq; push %2; push %3; iretq" ::"r"(u64{kUserData}),
                   "r"(stack), "r"(u64{kUserCode}), "r"(code)
                   : "memory");
    });
    expect_fault(what, fault, Exception::gp, 0);
  };
  const void* code;
  asm volatile("lea 1f(%%rip), %0; jmp 2f; 1: vmread %%rax, %%rbx; ud2; 2:" : "=r"(code));
  attempt("VMREAD at CPL 3", code);
  asm volatile("lea 1f(%%rip), %0; jmp 2f; 1: vmlaunch; ud2; 2:" : "=r"(code));
  attempt("VMLAUNCH at CPL 3", code);
  asm volatile("lea 1f(%%rip), %0; jmp 2f; 1: vmxoff; ud2; 2:" : "=r"(code));
  attempt("VMXOFF at CPL 3", code);
  asm volatile("lea 1f(%%rip), %0; jmp 2f; 1: vmptrst (%%rsp); ud2; 2:" : "=r"(code));
  attempt("VMPTRST at CPL 3", code);
  for (unsigned i = 0; i < 32; ++i) {
    directory[i] &= ~pte::user;
  }
  cpu::write_cr3(cpu::read_cr3());
}

void invept_operands() {
  const u64 capability = ept_vpid_capability();
  if ((capability & bit(20)) == 0) {
    skip("no INVEPT");
    return;
  }
  make_current();
  const Ept tables;
  for (const u64 type : {u64{0}, u64{3}, u64{5}}) {
    expect_error("INVEPT, no such type", invept(type, {tables.eptp(), 0}),
                 InstructionError::invalid_operand_to_invalidation);
  }
  if ((capability & bit(25)) != 0) {
    expect_status("single context", invept(1, {tables.eptp(), 0}), VmStatus::succeed);
    expect_error("an EPTP of memory type 7", invept(1, {tables.eptp() | 7, 0}),
                 InstructionError::invalid_operand_to_invalidation);
    expect_error("an EPTP of three levels", invept(1, {tables.eptp() & ~u64{8}, 0}),
                 InstructionError::invalid_operand_to_invalidation);
  }
  if ((capability & bit(26)) != 0) {
    expect_status("global, descriptor ignored", invept(2, {~u64{0}, 0}), VmStatus::succeed);
  }
  const Fault fault = catch_fault([] {
    asm volatile("invept (%0), %1" ::"r"(u64{0x3'0000'0000}), "r"(u64{2}) : "cc", "memory");
  });
  expect_fault("descriptor in an unmapped page", fault, Exception::pf, 0);
}

// The type is the whole 64-bit register.
void invept_type_upper_half() {
  if ((ept_vpid_capability() & bit(20)) == 0) {
    skip("no INVEPT");
    return;
  }
  make_current();
  expect_error("INVEPT, no such type", invept(bit(32) | 2, {0, 0}),
               InstructionError::invalid_operand_to_invalidation);
}

void invvpid_operands() {
  const u64 capability = ept_vpid_capability();
  if ((capability & bit(32)) == 0) {
    skip("no INVVPID");
    return;
  }
  make_current();
  const auto bad = InstructionError::invalid_operand_to_invalidation;
  expect_error("type 4", invvpid(4, {1, 0}), bad);
  expect_error("type -1", invvpid(~u64{0}, {1, 0}), bad);
  if ((capability & bit(40)) != 0) {
    expect_status("individual address", invvpid(0, {1, 0x1000}), VmStatus::succeed);
    expect_error("individual address, VPID 0", invvpid(0, {0, 0x1000}), bad);
    expect_error("individual address, non-canonical", invvpid(0, {1, non_canonical()}), bad);
  }
  if ((capability & bit(41)) != 0) {
    expect_status("single context", invvpid(1, {0xffff, 0}), VmStatus::succeed);
    expect_error("single context, VPID 0", invvpid(1, {0, 0}), bad);
    expect_error("reserved bits of the descriptor", invvpid(1, {0x1'0001, 0}), bad);
  }
  if ((capability & bit(42)) != 0) {
    expect_status("all contexts", invvpid(2, {0, 0}), VmStatus::succeed);
  }
  if ((capability & bit(43)) != 0) {
    expect_status("retaining globals", invvpid(3, {1, 0}), VmStatus::succeed);
    expect_error("retaining globals, VPID 0", invvpid(3, {0, 0}), bad);
  }
}

// Whatever may be 0 or 1 in the capability MSRs agrees with itself. A.2-A.8.
void capabilities_agree() {
  const u64 basic = cpu::rdmsr(msr::vmx_basic);
  expect((basic & bit(31)) == 0, "revision below 2^31");
  const u64 size = basic >> 32 & 0x1fff;
  expect(size > 0 && size <= 4096, "a region size of at most 4096");
  expect((basic >> 50 & 15) == 6, "write-back VMCS accesses");
  struct Row {
    u32 index, true_index;
    u32 default1;
  };
  constexpr Row kRows[] = {{msr::vmx_pinbased, msr::vmx_true_pinbased, 0x16},
                           {msr::vmx_procbased, msr::vmx_true_procbased, 0x0401'e172},
                           {msr::vmx_exit, msr::vmx_true_exit, 0x0003'6dff},
                           {msr::vmx_entry, msr::vmx_true_entry, 0x11ff}};
  for (const Row& row : kRows) {
    const u64 plain = cpu::rdmsr(row.index);
    const u32 must = static_cast<u32>(plain);
    const u32 may = static_cast<u32>(plain >> 32);
    expect_equal("bits that must be 1 and may not", must & ~may, 0);
    expect_equal("default1 bits of the plain MSR", must & row.default1, row.default1);
    if ((basic & bit(55)) != 0) {
      const u64 exact = cpu::rdmsr(row.true_index);
      expect_equal("allowed-1 of both", static_cast<u32>(exact >> 32), may);
      expect_equal("bits that must be 1 by TRUE and not by plain", static_cast<u32>(exact) & ~must,
                   0);
    }
  }
  const u64 fixed0 = cpu::rdmsr(msr::vmx_cr0_fixed0);
  const u64 fixed1 = cpu::rdmsr(msr::vmx_cr0_fixed1);
  expect_equal("CR0 fixed both ways", fixed0 & ~fixed1, 0);
  expect((fixed0 & (cpu::cr0::pe | cpu::cr0::pg | cpu::cr0::ne)) ==
             (cpu::cr0::pe | cpu::cr0::pg | cpu::cr0::ne),
         "PE, PG and NE fixed to 1");
  expect_equal("CR4 fixed both ways",
               cpu::rdmsr(msr::vmx_cr4_fixed0) & ~cpu::rdmsr(msr::vmx_cr4_fixed1), 0);
  using namespace cpu::vmx;
  const auto pairs = [](u32 exit_bit, u32 entry_bit) {
    return allows(ControlWord::exit, exit_bit) == allows(ControlWord::entry, entry_bit);
  };
  expect(pairs(exit::load_perf_global_ctrl, entry::load_perf_global_ctrl),
         "PERF_GLOBAL_CTRL loaded on both or neither");
  expect(pairs(exit::load_pat, entry::load_pat), "PAT loaded on both or neither");
  expect(pairs(exit::load_efer, entry::load_efer), "EFER loaded on both or neither");
  if (allows(ControlWord::proc2, proc2::unrestricted_guest)) {
    expect(allows(ControlWord::proc2, proc2::ept), "EPT with unrestricted guest");
    expect((cpu::rdmsr(msr::vmx_misc) & bit(5)) != 0, "EFER.LMA stored, with unrestricted guest");
  }
}

// The highest index of VMCS_ENUM covers every field that can be read.
void vmcs_enum() {
  make_current();
  unsigned highest = 0;
  for (u32 encoding = 0; encoding < 0x8000; encoding += 2) {
    u64 value = 0;
    if (vmread(encoding, value) == VmStatus::succeed) {
      const unsigned index = (encoding >> 1) & 0x1ff;
      highest = index > highest ? index : highest;
    }
  }
  expect_equal("VMCS_ENUM bits 9:1", cpu::rdmsr(msr::vmx_vmcs_enum) >> 1 & 0x1ff, highest);
}

constexpr Case kCases[] = {
    {"vmxon_in_root", "SDM vol. 3, 31.3, VMXON", vmxon_in_root},
    {"vmxon_operand", "SDM vol. 3, 31.3, VMXON", vmxon_operand},
    {"vmxon_needs_vmxe", "SDM vol. 3, 24.7", vmxon_needs_vmxe},
    {"feature_control_locks", "SDM vol. 3, 24.7", feature_control_locks},
    {"outside_vmx_operation", "SDM vol. 3, 31.3", outside_vmx_operation},
    {"control_registers_fixed", "SDM vol. 3, 24.8", control_registers_fixed},
    {"vmclear_errors", "SDM vol. 3, 31.3, VMCLEAR", vmclear_errors},
    {"vmptrld_errors", "SDM vol. 3, 31.3, VMPTRLD", vmptrld_errors},
    {"vmptrld_shadow", "SDM vol. 3, 25.2", vmptrld_shadow},
    {"vmptrld_not_ram", "SDM vol. 3, 31.3, VMPTRLD", vmptrld_not_ram},
    {"vmptrst_tells", "SDM vol. 3, 31.3, VMPTRST", vmptrst_tells},
    {"two_vmcs_keep_their_own", "SDM vol. 3, 25.1", two_vmcs_keep_their_own},
    {"many_active_vmcs", "SDM vol. 3, 25.1", many_active_vmcs},
    {"field_errors", "SDM vol. 3, 31.3, VMREAD, VMWRITE", field_errors},
    {"field_encoding_upper_half", "SDM vol. 3, 31.3, VMREAD", field_encoding_upper_half},
    {"read_only_fields", "SDM vol. 3, 31.3, VMWRITE", read_only_fields},
    {"field_widths", "SDM vol. 3, 25.11.2", field_widths},
    {"field_access_rights", "SDM vol. 3, 25.4.1", field_access_rights},
    {"vmread_memory_operands", "SDM vol. 3, 31.3, VMREAD", vmread_memory_operands},
    {"flags_of_results", "SDM vol. 3, 31.2", flags_of_results},
    {"launch_states", "SDM vol. 3, 25.1", launch_states},
    {"vmcall_in_root", "SDM vol. 3, 31.3, VMCALL", vmcall_in_root, 0, bochs, "ends the emulator"},
    {"at_user_level", "SDM vol. 3, 31.3", at_user_level},
    {"invept_operands", "SDM vol. 3, 31.3, INVEPT", invept_operands},
    {"invept_type_upper_half", "SDM vol. 3, 31.3, INVEPT", invept_type_upper_half, 0, bochs,
     "Bochs takes the lower half"},
    {"invvpid_operands", "SDM vol. 3, 31.3, INVVPID", invvpid_operands},
    {"capabilities_agree", "SDM vol. 3, A.1-A.8", capabilities_agree},
    {"vmcs_enum", "SDM vol. 3, A.9", vmcs_enum, 0, bochs, "VMCS_ENUM is too low there"},
};

}  // namespace

u8 guest_main() { return run_vmx_cases(kCases); }

}  // namespace aerie::guest
