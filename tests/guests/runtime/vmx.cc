#include "tests/guests/runtime/vmx.h"

#include <initializer_list>

#include "cpu/arch/msr.h"
#include "cpu/arch/segment.h"

extern "C" {
aerie::u64 guest_vmx_enter(aerie::cpu::GuestRegisters* registers, bool launch);
extern aerie::u8 guest_l2_return[];
}

namespace aerie::guest {
namespace {

using cpu::vmx::ControlWord;
namespace msr = cpu::msr;

alignas(4096) u8 vmxon_page[4096];
bool on = false;

// VMCS regions of the case at hand. A processor may write an active VMCS back at any time
// (25.11.1), so they are cleared before their memory is used for something else.
u64 regions[160];
unsigned region_count = 0;
void clear_regions() {
  vmx_on();
  for (unsigned i = 0; i < region_count; ++i) {
    vmclear(regions[i]);
  }
  region_count = 0;
}

struct ControlMsrs {
  u32 plain, true_value;
};
ControlMsrs msrs_of(ControlWord word) {
  switch (word) {
    case ControlWord::pin:
      return {msr::vmx_pinbased, msr::vmx_true_pinbased};
    case ControlWord::proc:
      return {msr::vmx_procbased, msr::vmx_true_procbased};
    case ControlWord::exit:
      return {msr::vmx_exit, msr::vmx_true_exit};
    case ControlWord::entry:
      return {msr::vmx_entry, msr::vmx_true_entry};
    default:
      return {msr::vmx_procbased2, msr::vmx_procbased2};
  }
}
u64 capability(ControlWord word) {
  const ControlMsrs msrs = msrs_of(word);
  const bool has_true = (cpu::rdmsr(msr::vmx_basic) & bit(55)) != 0;
  return cpu::rdmsr(has_true ? msrs.true_value : msrs.plain);
}

// Segment access rights (table 25-2).
constexpr u32 kCode64Rights = 0xa09b, kDataRights = 0xc093, kBusyTssRights = 0x8b;

}  // namespace

u64 vmread(Field field) {
  u64 value = 0;
  if (vmread(static_cast<u32>(field), value) != VmStatus::succeed) {
    print("VMREAD of {} failed\n", field);
    fail("VMREAD");
  }
  return value;
}
void vmwrite(Field field, u64 value) {
  if (vmwrite(static_cast<u32>(field), value) != VmStatus::succeed) {
    print("VMWRITE of {} failed\n", field);
    fail("VMWRITE");
  }
}

u64 vmxon_region() { return reinterpret_cast<u64>(vmxon_page); }

bool vmx_on() {
  if (on) {
    return true;
  }
  const u64 control = cpu::rdmsr(msr::feature_control);
  if ((control & msr::feature_control_bits::locked) == 0) {
    cpu::wrmsr(msr::feature_control, control | msr::feature_control_bits::locked |
                                         msr::feature_control_bits::vmx_outside_smx);
  }
  cpu::write_cr0((cpu::read_cr0() | cpu::rdmsr(msr::vmx_cr0_fixed0)) &
                 cpu::rdmsr(msr::vmx_cr0_fixed1));
  cpu::write_cr4((cpu::read_cr4() | cpu::cr4::vmxe | cpu::rdmsr(msr::vmx_cr4_fixed0)) &
                 cpu::rdmsr(msr::vmx_cr4_fixed1));
  *page_pointer<u32>(vmxon_region()) = static_cast<u32>(cpu::rdmsr(msr::vmx_basic)) & 0x7fff'ffff;
  on = vmxon(vmxon_region()) == VmStatus::succeed;
  return on;
}

void vmx_off() {
  if (on) {
    vmxoff();
    on = false;
  }
}

u64 alloc_vmcs() {
  const u64 page = alloc_page();
  *page_pointer<u32>(page) = static_cast<u32>(cpu::rdmsr(msr::vmx_basic)) & 0x7fff'ffff;
  if (region_count < 160) {
    regions[region_count++] = page;
  } else {
    fail("a case with more than 160 VMCSs");
  }
  return page;
}

bool allows(ControlWord word, u32 bits) { return (capability(word) >> 32 & bits) == bits; }
u32 adjust_controls(ControlWord word, u32 wanted) {
  const u64 allowed = capability(word);
  return (wanted | static_cast<u32>(allowed)) & static_cast<u32>(allowed >> 32);
}
u64 ept_vpid_capability() {
  return allows(ControlWord::proc, cpu::vmx::proc::secondary) &&
                 (allows(ControlWord::proc2, cpu::vmx::proc2::ept) ||
                  allows(ControlWord::proc2, cpu::vmx::proc2::vpid))
             ? cpu::rdmsr(msr::vmx_ept_vpid_cap)
             : 0;
}

void write_host_state() {
  vmwrite(Field::host_cr0, cpu::read_cr0());
  vmwrite(Field::host_cr3, cpu::read_cr3());
  vmwrite(Field::host_cr4, cpu::read_cr4());
  for (const Field field :
       {Field::host_es_selector, Field::host_ss_selector, Field::host_ds_selector}) {
    vmwrite(field, kData);
  }
  vmwrite(Field::host_cs_selector, kCode64);
  vmwrite(Field::host_fs_selector, 0);
  vmwrite(Field::host_gs_selector, 0);
  vmwrite(Field::host_tr_selector, kTss0 + 16 * this_cpu().index);
  vmwrite(Field::host_fs_base, cpu::rdmsr(msr::fs_base));
  vmwrite(Field::host_gs_base, cpu::rdmsr(msr::gs_base));
  vmwrite(Field::host_tr_base, reinterpret_cast<u64>(&tss(this_cpu().index)));
  vmwrite(Field::host_gdtr_base, read_gdtr().base);
  vmwrite(Field::host_idtr_base, read_idtr().base);
  vmwrite(Field::host_sysenter_cs, 0);
  vmwrite(Field::host_sysenter_esp, 0);
  vmwrite(Field::host_sysenter_eip, 0);
  vmwrite(Field::host_efer, cpu::rdmsr(msr::efer));
  vmwrite(Field::host_pat, cpu::rdmsr(msr::pat));
}

void write_guest_state(u64 gs_base) {
  vmwrite(Field::guest_cr0, cpu::read_cr0());
  vmwrite(Field::guest_cr3, cpu::read_cr3());
  vmwrite(Field::guest_cr4, cpu::read_cr4());
  vmwrite(Field::cr0_mask, 0);
  vmwrite(Field::cr4_mask, 0);
  vmwrite(Field::cr0_read_shadow, 0);
  vmwrite(Field::cr4_read_shadow, 0);
  vmwrite(Field::guest_dr7, cpu::dr7::initial);
  vmwrite(Field::guest_rflags, cpu::rflags::fixed);
  struct Row {
    Field selector, base, limit, rights;
    u64 selector_value, base_value, limit_value, rights_value;
  };
  const u64 tss_base = reinterpret_cast<u64>(&tss(this_cpu().index));
  const Row rows[] = {
      {Field::guest_es_selector, Field::guest_es_base, Field::guest_es_limit,
       Field::guest_es_access_rights, kData, 0, 0xffff'ffff, kDataRights},
      {Field::guest_cs_selector, Field::guest_cs_base, Field::guest_cs_limit,
       Field::guest_cs_access_rights, kCode64, 0, 0xffff'ffff, kCode64Rights},
      {Field::guest_ss_selector, Field::guest_ss_base, Field::guest_ss_limit,
       Field::guest_ss_access_rights, kData, 0, 0xffff'ffff, kDataRights},
      {Field::guest_ds_selector, Field::guest_ds_base, Field::guest_ds_limit,
       Field::guest_ds_access_rights, kData, 0, 0xffff'ffff, kDataRights},
      {Field::guest_fs_selector, Field::guest_fs_base, Field::guest_fs_limit,
       Field::guest_fs_access_rights, kData, 0, 0xffff'ffff, kDataRights},
      {Field::guest_gs_selector, Field::guest_gs_base, Field::guest_gs_limit,
       Field::guest_gs_access_rights, kData, gs_base, 0xffff'ffff, kDataRights},
      {Field::guest_ldtr_selector, Field::guest_ldtr_base, Field::guest_ldtr_limit,
       Field::guest_ldtr_access_rights, 0, 0, 0, cpu::kVmxSegmentUnusable},
      {Field::guest_tr_selector, Field::guest_tr_base, Field::guest_tr_limit,
       Field::guest_tr_access_rights, kTss0 + 16 * this_cpu().index, tss_base, sizeof(Tss) - 1,
       kBusyTssRights},
  };
  for (const Row& row : rows) {
    vmwrite(row.selector, row.selector_value);
    vmwrite(row.base, row.base_value);
    vmwrite(row.limit, row.limit_value);
    vmwrite(row.rights, row.rights_value);
  }
  vmwrite(Field::guest_gdtr_base, read_gdtr().base);
  vmwrite(Field::guest_gdtr_limit, 0xffff);
  vmwrite(Field::guest_idtr_base, read_idtr().base);
  vmwrite(Field::guest_idtr_limit, 0xfff);
  vmwrite(Field::guest_interruptibility, 0);
  vmwrite(Field::guest_activity, 0);
  vmwrite(Field::guest_pending_debug, 0);
  vmwrite(Field::guest_debugctl, 0);
  vmwrite(Field::vmcs_link_pointer, ~u64{0});
  vmwrite(Field::guest_sysenter_cs, 0);
  vmwrite(Field::guest_sysenter_esp, 0);
  vmwrite(Field::guest_sysenter_eip, 0);
  vmwrite(Field::guest_efer, cpu::rdmsr(msr::efer));
  vmwrite(Field::guest_pat, cpu::rdmsr(msr::pat));
}

L2::L2()
    : region_{alloc_vmcs()},
      stack_{alloc_pages(kStackPages)},
      msr_bitmap_{alloc_page()},
      per_cpu_{page_pointer<PerCpu>(alloc_pages(2))} {
  static_assert(sizeof(PerCpu) <= 2 * kPageSize);
  per_cpu_->self = per_cpu_;
  per_cpu_->is_l2 = true;
  per_cpu_->index = this_cpu().index;
  per_cpu_->apic_id = this_cpu().apic_id;
  vmclear(region_);
  vmptrld(region_);
  namespace v = cpu::vmx;
  vmwrite(Field::pin_controls, adjust_controls(ControlWord::pin, 0));
  vmwrite(Field::proc_controls,
          adjust_controls(ControlWord::proc, v::proc::secondary | v::proc::msr_bitmaps));
  vmwrite(Field::proc2_controls, 0);
  vmwrite(Field::exit_controls,
          adjust_controls(ControlWord::exit, v::exit::host_64 | v::exit::save_efer |
                                                 v::exit::load_efer | v::exit::save_pat |
                                                 v::exit::load_pat));
  vmwrite(Field::entry_controls,
          adjust_controls(ControlWord::entry,
                          v::entry::ia32e_guest | v::entry::load_efer | v::entry::load_pat));
  vmwrite(Field::msr_bitmap, msr_bitmap_);
  for (const Field field :
       {Field::exception_bitmap, Field::page_fault_error_mask, Field::page_fault_error_match,
        Field::cr3_target_count, Field::exit_msr_store_count, Field::exit_msr_load_count,
        Field::entry_msr_load_count, Field::entry_interruption_info, Field::tsc_offset}) {
    vmwrite(field, 0);
  }
  write_host_state();
  write_guest_state(reinterpret_cast<u64>(per_cpu_));
  if (option("ept", 0) != 0) {
    expect(Ept{}.install(*this), "EPT");
  }
}

void L2::start(void (*function)(u64), u64 argument) {
  // As after a CALL: RSP is 8 below a multiple of 16.
  const u64 rsp = stack_top() - 16 - 8;
  *page_pointer(rsp) = reinterpret_cast<u64>(guest_l2_return);
  vmwrite(Field::guest_rsp, rsp);
  vmwrite(Field::guest_rip, reinterpret_cast<u64>(function));
  vmwrite(Field::guest_rflags, cpu::rflags::fixed);
  registers = {};
  registers[cpu::Gpr::rdi] = argument;
}

bool L2::enter() {
  const u64 flags = guest_vmx_enter(&registers, !launched);
  status = vm_status((flags & 1) != 0, (flags & 0x40) != 0);
  if (flags == 0) {
    launched = launched || (reason() & cpu::vmx::kExitEntryFailure) == 0;
    return true;
  }
  return false;
}

void L2::skip_instruction() { vmwrite(Field::guest_rip, vmread(Field::guest_rip) + length()); }

bool L2::expect_exit(std::string_view what, BasicExit wanted) {
  if (!enter()) {
    fail(what);
    print("  VMfail, error {}\n", status == VmStatus::fail_valid ? error() : 0);
    return false;
  }
  if (!expect_equal(what, reason(), static_cast<u32>(wanted))) {
    print("  qualification {x} rip {x} interruption {x} error {x} guest-physical {x} rax {x}\n",
          qualification(), vmread(Field::guest_rip), vmread(Field::exit_interruption_info),
          vmread(Field::exit_interruption_error), vmread(Field::guest_physical_address),
          registers[cpu::Gpr::rax]);
    return false;
  }
  return true;
}

bool L2::expect_exit_and_skip(std::string_view what, BasicExit wanted) {
  if (!expect_exit(what, wanted)) {
    return false;
  }
  skip_instruction();
  return true;
}

bool L2::expect_return(std::string_view what) {
  return expect_exit(what, BasicExit::vmcall) &&
         expect_equal(what, registers[cpu::Gpr::rax], kReturned);
}

bool L2::expect_fail(std::string_view what, InstructionError wanted) {
  if (enter()) {
    fail(what);
    print("  expected VMfail, got exit {x} qualification {x}\n", reason(), qualification());
    return false;
  }
  return expect(status == VmStatus::fail_valid, "VMfailValid") &&
         expect_equal(what, error(), static_cast<u32>(wanted));
}

bool L2::expect_failed_entry(std::string_view what, BasicExit basic, u64 wanted) {
  if (!enter()) {
    fail(what);
    print("  expected a failed entry, got VMfail, error {}\n", error());
    return false;
  }
  return expect_equal(what, reason(), cpu::vmx::failed_entry_reason(basic)) &&
         expect_equal(what, qualification(), wanted);
}

bool L2::change(Field field, ControlWord word, u32 set, u32 clear) {
  if (!allows(word, set)) {
    return false;
  }
  vmwrite(field, adjust_controls(word, (static_cast<u32>(vmread(field)) | set) & ~clear));
  return true;
}
bool L2::pin(u32 set, u32 clear) {
  return change(Field::pin_controls, ControlWord::pin, set, clear);
}
bool L2::proc(u32 set, u32 clear) {
  return change(Field::proc_controls, ControlWord::proc, set, clear);
}
bool L2::proc2(u32 set, u32 clear) {
  return change(Field::proc2_controls, ControlWord::proc2, set, clear);
}
bool L2::exit(u32 set, u32 clear) {
  return change(Field::exit_controls, ControlWord::exit, set, clear);
}
bool L2::entry(u32 set, u32 clear) {
  return change(Field::entry_controls, ControlWord::entry, set, clear);
}

void L2::intercept_msr(u32 index, bool read, bool write, bool intercept) {
  // Read bits of low and high MSRs, then write bits (25.6.9).
  const u32 offset = index >= 0xc000'0000 ? 1024 : 0;
  const u32 number = index & 0x1fff;
  const auto set = [&](u32 base) {
    u8& byte = msr_bitmap()[base + offset + number / 8];
    const auto mask = static_cast<u8>(1u << (number % 8));
    byte = static_cast<u8>(intercept ? byte | mask : byte & ~mask);
  };
  if (read) {
    set(0);
  }
  if (write) {
    set(2048);
  }
}

Ept::Ept() : root_{alloc_page()} {
  const u64 directory_pointers = alloc_page();
  page_pointer(root_)[0] = directory_pointers | ept::rwx;
  for (u64 i = 0; i < 4; ++i) {
    const u64 directory = alloc_page();
    page_pointer(directory_pointers)[i] = directory | ept::rwx;
    for (u64 j = 0; j < 512; ++j) {
      const u64 address = (i * 512 + j) << 21;
      page_pointer(directory)[j] =
          address | ept::large | ept::rwx | (address < 0xfe00'0000 ? ept::wb : ept::uc);
    }
  }
  // Its pages may have been another case's tables, of which translations may be cached.
  const bool all_contexts = (ept_vpid_capability() & bit(26)) != 0;
  if (all_contexts) {
    invept(2, {0, 0});
  } else {
    invept(1, {eptp(), 0});
  }
}

u64& Ept::entry(u64 address, unsigned level) {
  u64* table = page_pointer(root_);
  for (unsigned at = 4; at > level; --at) {
    u64& e = table[(address >> (12 + 9 * (at - 1))) & 511];
    if ((e & ept::rwx) == 0) {
      e = alloc_page() | ept::rwx;
    } else if ((e & ept::large) != 0) {
      const u64 split = alloc_page();
      const u64 flags = e & (ept::rwx | bit_mask(6, 3) | (at == 2 ? 0 : ept::large));
      const u64 step = u64{1} << (12 + 9 * (at - 2));
      const u64 base = e & bit_mask(51, 12 + 9 * (at - 1));
      for (u64 i = 0; i < 512; ++i) {
        page_pointer(split)[i] = (base + i * step) | flags;
      }
      e = split | ept::rwx;
    }
    table = page_pointer(e & ept::address);
  }
  return table[(address >> (12 + 9 * (level - 1))) & 511];
}

bool Ept::install(L2& l2, bool unrestricted) const {
  vmwrite(Field::eptp, eptp());
  return l2.proc2(cpu::vmx::proc2::ept | (unrestricted ? cpu::vmx::proc2::unrestricted_guest : 0));
}

u8 run_vmx_cases(std::span<const Case> cases) {
  if ((cpu::cpuid(1).ecx & bit(5)) == 0) {
    return run_cases(cases, vmx);  // each says that it needs VMX
  }
  if (!vmx_on()) {
    print("VMXON failed\n");
    return 2;
  }
  set_case_end(clear_regions);
  const u8 result = run_cases(cases, vmx);
  vmx_off();
  return result;
}

}  // namespace aerie::guest
