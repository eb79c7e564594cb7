// VM-entry checks: each rule broken alone, on a VMCS that enters otherwise, and what a failure
// leaves alone. SDM vol. 3, chapter 27. One case a group of rules; a line a broken rule.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "cpu/arch/segment.h"
#include "tests/guests/runtime/vmx.h"

namespace aerie::guest {
namespace {

using cpu::Gpr;
using cpu::vmx::ControlWord;
namespace msr = cpu::msr;
namespace v = cpu::vmx;

unsigned physical_bits() { return cpu::cpuid(0x8000'0008).eax & 0xff; }
u64 too_high() { return bit(physical_bits()); }

// A rule is broken by break_it, which returns false where this processor has no such rule.
struct Rule {
  std::string_view name;
  bool (*break_it)(L2&);
  u32 not_on = 0;  // Hosts that are known to enter all the same (FACTS)
};

void set(Field field, u64 value) { vmwrite(field, value); }
void flip(Field field, u64 bits) { vmwrite(field, vmread(field) ^ bits); }

// Of `word`, a bit that must be 0, or must be 1, on this processor; 0 if there is none.
u32 forbidden(ControlWord word) {
  const u32 may = adjust_controls(word, ~u32{0});
  return ~may & -(~may);
}
u32 required(ControlWord word) {
  const u32 must = adjust_controls(word, 0);
  return must & -must;
}
bool break_control(Field field, ControlWord word, bool set_forbidden) {
  const u32 bits = set_forbidden ? forbidden(word) : required(word);
  flip(field, bits);
  return bits != 0;
}

template <usize N, class Expect>
void break_each(const Rule (&rules)[N], Expect&& expect_failure) {
  for (const Rule& rule : rules) {
    if ((rule.not_on & host()) != 0) {
      continue;
    }
    L2 l2;
    l2.start([](u64) {});
    if (!rule.break_it(l2)) {
      continue;
    }
    expect_failure(l2, rule.name);
  }
}

// --- 27.2.1: control fields. VMfailValid 7.

bool inject(L2&, u32 word, u32 error = 0, u32 length = 0) {
  set(Field::entry_interruption_info, word);
  set(Field::entry_exception_error, error);
  set(Field::entry_instruction_length, length);
  return true;
}
constexpr u32 kValid = v::interruption_info::valid;
constexpr u32 kError = v::interruption_info::error_valid;
bool msr_list(Field count, Field address, u64 where, u64 n = 1) {
  set(count, n);
  set(address, where);
  return true;
}

constexpr Rule kControlRules[] = {
    {"pin-based, a bit that must be 0",
     [](L2&) { return break_control(Field::pin_controls, ControlWord::pin, true); }},
    {"pin-based, a bit that must be 1",
     [](L2&) { return break_control(Field::pin_controls, ControlWord::pin, false); }},
    {"primary processor-based, a bit that must be 0",
     [](L2&) { return break_control(Field::proc_controls, ControlWord::proc, true); }},
    {"primary processor-based, a bit that must be 1",
     [](L2&) { return break_control(Field::proc_controls, ControlWord::proc, false); }},
    {"secondary processor-based, a bit that must be 0",
     [](L2&) { return break_control(Field::proc2_controls, ControlWord::proc2, true); }},
    {"CR3-target count",
     [](L2&) {
       set(Field::cr3_target_count, (cpu::rdmsr(msr::vmx_misc) >> 16 & 0x1ff) + 1);
       return true;
     }},
    {"I/O bitmap A, alignment",
     [](L2& l2) {
       set(Field::io_bitmap_a, 0x1008);
       return l2.proc(v::proc::io_bitmaps);
     }},
    {"I/O bitmap B, beyond MAXPHYADDR",
     [](L2& l2) {
       set(Field::io_bitmap_b, too_high());
       return l2.proc(v::proc::io_bitmaps);
     }},
    {"MSR bitmap, alignment",
     [](L2& l2) {
       flip(Field::msr_bitmap, 0x10);
       return l2.proc(v::proc::msr_bitmaps);
     }},
    {"MSR bitmap, beyond MAXPHYADDR",
     [](L2& l2) {
       flip(Field::msr_bitmap, too_high());
       return l2.proc(v::proc::msr_bitmaps);
     }},
    {"virtual NMIs without NMI exiting", [](L2& l2) { return l2.pin(v::pin::virtual_nmis); }},
    {"NMI window without virtual NMIs", [](L2& l2) { return l2.proc(v::proc::nmi_window); }},
    {"VPID 0",
     [](L2& l2) {
       set(Field::vpid, 0);
       return l2.proc2(v::proc2::vpid);
     }},
    {"EPTP, memory type 5",
     [](L2& l2) {
       const bool has = Ept{}.install(l2);
       flip(Field::eptp, 3);
       return has;
     }},
    {"EPTP, walk length 3",
     [](L2& l2) {
       const bool has = Ept{}.install(l2);
       flip(Field::eptp, 1 << 3);
       return has;
     }},
    {"EPTP, reserved bit 11",
     [](L2& l2) {
       const bool has = Ept{}.install(l2);
       flip(Field::eptp, bit(11));
       return has;
     }},
    {"EPTP, beyond MAXPHYADDR",
     [](L2& l2) {
       const bool has = Ept{}.install(l2);
       flip(Field::eptp, too_high());
       return has;
     }},
    {"EPTP, A/D without the capability",
     [](L2& l2) {
       const bool has = Ept{}.install(l2);
       flip(Field::eptp, bit(6));
       return has && (ept_vpid_capability() & bit(21)) == 0;
     }},
    {"unrestricted guest without EPT",
     [](L2& l2) {
       const bool has = l2.proc2(v::proc2::unrestricted_guest);
       l2.proc2(0, v::proc2::ept);
       return has;
     }},
    {"exit controls, a bit that must be 0",
     [](L2&) { return break_control(Field::exit_controls, ControlWord::exit, true); }},
    {"exit controls, a bit that must be 1",
     [](L2&) { return break_control(Field::exit_controls, ControlWord::exit, false); }},
    {"save preemption timer without the timer",
     [](L2& l2) { return l2.exit(v::exit::save_preemption_timer); }},
    {"exit MSR-store address, alignment",
     [](L2&) {
       return msr_list(Field::exit_msr_store_count, Field::exit_msr_store_address, 0x1008);
     }},
    {"exit MSR-store list ends beyond MAXPHYADDR",
     [](L2&) {
       return msr_list(Field::exit_msr_store_count, Field::exit_msr_store_address, too_high() - 16,
                       2);
     }},
    {"exit MSR-load address, alignment",
     [](L2&) {
       return msr_list(Field::exit_msr_load_count, Field::exit_msr_load_address, 0x1004);
     }},
    {"exit MSR-load address beyond MAXPHYADDR",
     [](L2&) {
       return msr_list(Field::exit_msr_load_count, Field::exit_msr_load_address, too_high());
     }},
    {"entry controls, a bit that must be 0",
     [](L2&) { return break_control(Field::entry_controls, ControlWord::entry, true); }},
    {"entry controls, a bit that must be 1",
     [](L2&) { return break_control(Field::entry_controls, ControlWord::entry, false); }},
    {"entry MSR-load address, alignment",
     [](L2&) {
       return msr_list(Field::entry_msr_load_count, Field::entry_msr_load_address, 0x100f);
     }},
    {"entry MSR-load list ends beyond MAXPHYADDR",
     [](L2&) {
       return msr_list(Field::entry_msr_load_count, Field::entry_msr_load_address, too_high() - 32,
                       3);
     }},
    {"injection of reserved type 1", [](L2& l2) { return inject(l2, kValid | 1 << 8 | 0x20); }},
    {"injection of an NMI with vector 3", [](L2& l2) { return inject(l2, kValid | 2 << 8 | 3); }},
    {"injection of a hardware exception with vector 32",
     [](L2& l2) { return inject(l2, kValid | 3 << 8 | 32); }},
    {"injection of #GP without an error code",
     [](L2& l2) { return inject(l2, kValid | 3 << 8 | 13); }},
    {"injection of #UD with an error code",
     [](L2& l2) { return inject(l2, kValid | kError | 3 << 8 | 6); }},
    {"injection of an interrupt with an error code",
     [](L2& l2) { return inject(l2, kValid | kError | 0x40); }},
    {"injection, reserved bit 12",
     [](L2& l2) { return inject(l2, kValid | 1 << 12 | 3 << 8 | 6); }},
    {"injection, reserved bit 30",
     [](L2& l2) { return inject(l2, kValid | 1 << 30 | 3 << 8 | 6); }},
    {"injection of #GP, error code bit 16",
     [](L2& l2) { return inject(l2, kValid | kError | 3 << 8 | 13, 0x10000); }},
    {"injection of a software interrupt of length 16",
     [](L2& l2) { return inject(l2, kValid | 4 << 8 | 0x40, 0, 16); }},
    {"injection of a software exception of length 0",
     [](L2& l2) {
       return (cpu::rdmsr(msr::vmx_misc) & bit(30)) == 0 && inject(l2, kValid | 6 << 8 | 3, 0, 0);
     }},
    {"injection of type 7 with vector 1", [](L2& l2) { return inject(l2, kValid | 7 << 8 | 1); }},
};

void control_fields() {
  break_each(kControlRules, [](L2& l2, std::string_view name) {
    l2.expect_fail(name, InstructionError::entry_invalid_control);
  });
}

// --- 27.2.2, 27.2.3: host state. VMfailValid 8.

constexpr Rule kHostRules[] = {
    {"CR0, a fixed bit",
     [](L2&) {
       flip(Field::host_cr0, cpu::cr0::ne);
       return true;
     }},
    {"CR4, a fixed bit",
     [](L2&) {
       flip(Field::host_cr4, cpu::cr4::vmxe);
       return true;
     }},
    {"CR4, a bit that must be 0",
     [](L2&) {
       flip(Field::host_cr4, bit(31));
       return true;
     }},
    {"CR3 beyond MAXPHYADDR",
     [](L2&) {
       flip(Field::host_cr3, too_high());
       return true;
     }},
    {"CR4.PAE with a 64-bit host",
     [](L2&) {
       flip(Field::host_cr4, cpu::cr4::pae);
       return true;
     }},
    {"SYSENTER_ESP, canonical",
     [](L2&) {
       set(Field::host_sysenter_esp, non_canonical());
       return true;
     }},
    {"SYSENTER_EIP, canonical",
     [](L2&) {
       set(Field::host_sysenter_eip, non_canonical());
       return true;
     }},
    {"PAT, type 2",
     [](L2& l2) {
       set(Field::host_pat, 2);
       return l2.exit(v::exit::load_pat);
     }},
    {"EFER, reserved bit 9",
     [](L2& l2) {
       flip(Field::host_efer, bit(9));
       return l2.exit(v::exit::load_efer);
     }},
    {"EFER.LMA and LME with a 64-bit host",
     [](L2& l2) {
       flip(Field::host_efer, cpu::efer::lma);
       return l2.exit(v::exit::load_efer);
     }},
    {"CS, RPL",
     [](L2&) {
       flip(Field::host_cs_selector, 1);
       return true;
     }},
    {"DS, TI",
     [](L2&) {
       flip(Field::host_ds_selector, 4);
       return true;
     }},
    {"TR, RPL",
     [](L2&) {
       flip(Field::host_tr_selector, 3);
       return true;
     }},
    {"CS 0",
     [](L2&) {
       set(Field::host_cs_selector, 0);
       return true;
     }},
    {"TR 0",
     [](L2&) {
       set(Field::host_tr_selector, 0);
       return true;
     }},
    {"FS base, canonical",
     [](L2&) {
       set(Field::host_fs_base, non_canonical());
       return true;
     }},
    {"GS base, canonical",
     [](L2&) {
       set(Field::host_gs_base, non_canonical());
       return true;
     }},
    {"TR base, canonical",
     [](L2&) {
       set(Field::host_tr_base, non_canonical());
       return true;
     }},
    {"GDTR base, canonical",
     [](L2&) {
       set(Field::host_gdtr_base, non_canonical());
       return true;
     }},
    {"IDTR base, canonical",
     [](L2&) {
       set(Field::host_idtr_base, non_canonical());
       return true;
     }},
    {"host address-space size 0 in IA-32e mode",
     [](L2& l2) { return l2.exit(0, v::exit::host_64); }},
};

void host_state() {
  break_each(kHostRules, [](L2& l2, std::string_view name) {
    l2.expect_fail(name, InstructionError::entry_invalid_host_state);
  });
}

void control_fields_before_host_state() {
  L2 l2;
  l2.start([](u64) {});
  set(Field::host_cs_selector, 0);
  set(Field::guest_rflags, 0);
  flip(Field::exit_controls, forbidden(ControlWord::exit));
  l2.expect_fail("all three wrong: controls first", InstructionError::entry_invalid_control);
}

// --- 27.3.1: guest state. Exit 33 with bit 31.

constexpr Rule kGuestRules[] = {
    {"CR0, a fixed bit",
     [](L2&) {
       flip(Field::guest_cr0, cpu::cr0::ne);
       return true;
     }},
    {"CR0.PG without PE",
     [](L2&) {
       flip(Field::guest_cr0, cpu::cr0::pe);
       return true;
     }},
    {"CR4, a fixed bit",
     [](L2&) {
       flip(Field::guest_cr4, cpu::cr4::vmxe);
       return true;
     }},
    {"CR4, a bit that must be 0",
     [](L2&) {
       flip(Field::guest_cr4, bit(31));
       return true;
     }},
    // PITFALLS: whatever L0 uses underneath.
    {"CR4.PAE clear for an IA-32e guest",
     [](L2&) {
       flip(Field::guest_cr4, cpu::cr4::pae);
       return true;
     }},
    {"CR0.PG clear for an IA-32e guest",
     [](L2&) {
       flip(Field::guest_cr0, cpu::cr0::pg);
       return true;
     },
     bochs},
    {"CR3 beyond MAXPHYADDR",
     [](L2&) {
       flip(Field::guest_cr3, too_high());
       return true;
     }},
    {"DEBUGCTL, reserved bit",
     [](L2& l2) {
       set(Field::guest_debugctl, bit(20));
       return l2.entry(v::entry::load_debug);
     },
     bochs},
    {"DR7, upper half",
     [](L2& l2) {
       set(Field::guest_dr7, bit(32) | 0x400);
       return l2.entry(v::entry::load_debug);
     }},
    {"SYSENTER_ESP, canonical",
     [](L2&) {
       set(Field::guest_sysenter_esp, non_canonical());
       return true;
     }},
    {"SYSENTER_EIP, canonical",
     [](L2&) {
       set(Field::guest_sysenter_eip, non_canonical());
       return true;
     }},
    {"PAT, type 3",
     [](L2& l2) {
       set(Field::guest_pat, 0x0300);
       return l2.entry(v::entry::load_pat);
     }},
    {"EFER, reserved bit 9",
     [](L2& l2) {
       flip(Field::guest_efer, bit(9));
       return l2.entry(v::entry::load_efer);
     }},
    {"EFER.LMA against IA-32e mode guest",
     [](L2& l2) {
       flip(Field::guest_efer, cpu::efer::lma);
       return l2.entry(v::entry::load_efer);
     }},
    {"EFER.LME against LMA with paging",
     [](L2& l2) {
       flip(Field::guest_efer, cpu::efer::lme);
       return l2.entry(v::entry::load_efer);
     }},
    {"CS, TI of TR",
     [](L2&) {
       flip(Field::guest_tr_selector, 4);
       return true;
     }},
    {"SS, RPL against CS",
     [](L2& l2) {
       flip(Field::guest_ss_selector, 3);
       return !l2.unrestricted();
     }},
    {"TR base, canonical",
     [](L2&) {
       set(Field::guest_tr_base, non_canonical());
       return true;
     }},
    {"FS base, canonical",
     [](L2&) {
       set(Field::guest_fs_base, non_canonical());
       return true;
     }},
    {"GS base, canonical",
     [](L2&) {
       set(Field::guest_gs_base, non_canonical());
       return true;
     }},
    {"CS base, upper half",
     [](L2&) {
       set(Field::guest_cs_base, bit(32));
       return true;
     }},
    {"DS base, upper half",
     [](L2&) {
       set(Field::guest_ds_base, bit(32));
       return true;
     }},
    {"CS, a data type",
     [](L2&) {
       set(Field::guest_cs_access_rights, 0xa093);
       return true;
     }},
    {"CS, not accessed",
     [](L2&) {
       set(Field::guest_cs_access_rights, 0xa09a);
       return true;
     }},
    {"CS, system segment",
     [](L2&) {
       set(Field::guest_cs_access_rights, 0xa08b);
       return true;
     }},
    {"CS, not present",
     [](L2&) {
       set(Field::guest_cs_access_rights, 0xa01b);
       return true;
     }},
    {"CS, L and D",
     [](L2&) {
       set(Field::guest_cs_access_rights, 0xe09b);
       return true;
     }},
    {"CS, reserved bit 8",
     [](L2&) {
       set(Field::guest_cs_access_rights, 0xa19b);
       return true;
     }},
    {"CS, granularity against limit",
     [](L2&) {
       set(Field::guest_cs_limit, 0xffff'fffe);
       return true;
     }},
    {"SS, a read-only type",
     [](L2&) {
       set(Field::guest_ss_access_rights, 0xc091);
       return true;
     }},
    {"SS, DPL 3",
     [](L2&) {
       set(Field::guest_ss_access_rights, 0xc0f3);
       return true;
     }},
    {"SS, reserved bit 17",
     [](L2&) {
       set(Field::guest_ss_access_rights, 0x2c093);
       return true;
     }},
    {"DS, not accessed",
     [](L2&) {
       set(Field::guest_ds_access_rights, 0xc092);
       return true;
     }},
    {"DS, execute-only",
     [](L2&) {
       set(Field::guest_ds_access_rights, 0xa099);
       return true;
     }},
    {"ES, granularity 0 with a limit above 1 MiB",
     [](L2&) {
       set(Field::guest_es_access_rights, 0x4093);
       return true;
     }},
    {"TR, not busy",
     [](L2&) {
       set(Field::guest_tr_access_rights, 0x89);
       return true;
     }},
    {"TR, unusable",
     [](L2&) {
       set(Field::guest_tr_access_rights, 0x1008b);
       return true;
     }},
    {"TR, a 16-bit TSS in IA-32e mode",
     [](L2&) {
       set(Field::guest_tr_access_rights, 0x83);
       return true;
     }},
    {"TR, S",
     [](L2&) {
       set(Field::guest_tr_access_rights, 0x9b);
       return true;
     }},
    {"LDTR usable, wrong type",
     [](L2&) {
       set(Field::guest_ldtr_access_rights, 0x83);
       return true;
     }},
    {"LDTR usable, TI",
     [](L2&) {
       set(Field::guest_ldtr_access_rights, 0x82);
       set(Field::guest_ldtr_selector, 4);
       return true;
     }},
    {"GDTR base, canonical",
     [](L2&) {
       set(Field::guest_gdtr_base, non_canonical());
       return true;
     }},
    {"GDTR limit",
     [](L2&) {
       set(Field::guest_gdtr_limit, 0x10000);
       return true;
     }},
    {"IDTR base, canonical",
     [](L2&) {
       set(Field::guest_idtr_base, non_canonical());
       return true;
     }},
    {"IDTR limit",
     [](L2&) {
       set(Field::guest_idtr_limit, 0x10000);
       return true;
     }},
    {"RIP, canonical",
     [](L2&) {
       set(Field::guest_rip, bit(63));
       return true;
     },
     bochs},
    {"RFLAGS, bit 1",
     [](L2&) {
       set(Field::guest_rflags, 0);
       return true;
     }},
    {"RFLAGS, bit 3",
     [](L2&) {
       set(Field::guest_rflags, 2 | bit(3));
       return true;
     }},
    {"RFLAGS, bit 63",
     [](L2&) {
       set(Field::guest_rflags, 2 | bit(63));
       return true;
     }},
    {"RFLAGS.VM in IA-32e mode",
     [](L2&) {
       set(Field::guest_rflags, 2 | cpu::rflags::vm);
       return true;
     }},
    {"RFLAGS.IF clear with an external interrupt",
     [](L2& l2) { return inject(l2, kValid | 0x40); }},
    {"activity state 4",
     [](L2&) {
       set(Field::guest_activity, 4);
       return true;
     }},
    {"HLT with STI blocking",
     [](L2&) {
       set(Field::guest_activity, 1);
       set(Field::guest_rflags, 2 | cpu::rflags::interrupt);
       set(Field::guest_interruptibility, v::interruptibility::sti);
       return true;
     }},
    {"HLT with MOV-SS blocking",
     [](L2&) {
       set(Field::guest_activity, 1);
       set(Field::guest_interruptibility, v::interruptibility::mov_ss);
       return true;
     }},
    {"HLT with an injected #GP",
     [](L2& l2) {
       set(Field::guest_activity, 1);
       return inject(l2, kValid | kError | 3 << 8 | 13);
     },
     bochs},
    {"interruptibility, reserved bit 5",
     [](L2&) {
       set(Field::guest_interruptibility, bit(5));
       return true;
     }},
    {"STI and MOV-SS blocking",
     [](L2&) {
       set(Field::guest_rflags, 2 | cpu::rflags::interrupt);
       set(Field::guest_interruptibility, 3);
       return true;
     }},
    {"STI blocking with IF clear",
     [](L2&) {
       set(Field::guest_interruptibility, 1);
       return true;
     }},
    {"an external interrupt with STI blocking",
     [](L2& l2) {
       set(Field::guest_rflags, 2 | cpu::rflags::interrupt);
       set(Field::guest_interruptibility, 1);
       return inject(l2, kValid | 0x40);
     }},
    {"an NMI with MOV-SS blocking",
     [](L2& l2) {
       set(Field::guest_interruptibility, 2);
       return inject(l2, kValid | 2 << 8 | 2);
     }},
    {"SMI blocking outside SMM",
     [](L2&) {
       set(Field::guest_interruptibility, 4);
       return true;
     }},
    {"pending debug exceptions, reserved bit 4",
     [](L2&) {
       set(Field::guest_pending_debug, bit(4));
       return true;
     },
     bochs},
    // PITFALLS.
    {"TF with STI blocking and BS clear",
     [](L2&) {
       set(Field::guest_rflags, 2 | cpu::rflags::interrupt | cpu::rflags::tf);
       set(Field::guest_interruptibility, 1);
       return true;
     },
     bochs},
    {"BS set with TF clear and STI blocking",
     [](L2&) {
       set(Field::guest_rflags, 2 | cpu::rflags::interrupt);
       set(Field::guest_interruptibility, 1);
       set(Field::guest_pending_debug, v::pending_debug::bs);
       return true;
     },
     bochs},
};

void guest_state() {
  break_each(kGuestRules, [](L2& l2, std::string_view name) {
    l2.expect_failed_entry(name, BasicExit::entry_guest_state, 0);
    expect(!l2.launched, "the VMCS still clear");
  });
}

// The VMCS link pointer: qualification 4 where its region is not right.
void link_pointer() {
  L2 l2;
  l2.start([](u64) {});
  set(Field::vmcs_link_pointer, 0x1008);
  l2.expect_failed_entry("misaligned", BasicExit::entry_guest_state, 4);
  set(Field::vmcs_link_pointer, too_high());
  l2.expect_failed_entry("beyond MAXPHYADDR", BasicExit::entry_guest_state, 4);
  const u64 region = alloc_page();
  *page_pointer<u32>(region) = 0x7fff'fff0;
  set(Field::vmcs_link_pointer, region);
  l2.expect_failed_entry("wrong revision", BasicExit::entry_guest_state, 4);
  set(Field::vmcs_link_pointer, ~u64{0});
  l2.expect_return("with none");
}

// --- What failures leave alone.

// PITFALLS: a control-field failure is VMfail only; MSR lists are not processed, nothing else
// changes.
void vmfail_touches_nothing() {
  L2 l2;
  l2.start([](u64) {});
  struct alignas(16) Entry {
    u32 index, reserved;
    u64 value;
  };
  auto* list = page_pointer<Entry>(alloc_page());
  *list = {msr::lstar, 0, 0x5555};
  set(Field::entry_msr_load_count, 1);
  set(Field::entry_msr_load_address, reinterpret_cast<u64>(list));
  set(Field::exit_msr_load_count, 1);
  set(Field::exit_msr_load_address, reinterpret_cast<u64>(list));
  const u64 lstar = cpu::rdmsr(msr::lstar);
  inject(l2, kValid | kError | 3 << 8 | 13, 0x77);
  set(Field::host_tr_selector, 0);
  const u32 reason = l2.reason();
  const u64 rip = vmread(Field::guest_rip);
  l2.expect_fail("host TR 0", InstructionError::entry_invalid_host_state);
  expect_equal("LSTAR", cpu::rdmsr(msr::lstar), lstar);
  expect_equal("exit reason", l2.reason(), reason);
  expect_equal("guest RIP", vmread(Field::guest_rip), rip);
  expect_equal("the event to inject", vmread(Field::entry_interruption_info),
               kValid | kError | 3 << 8 | 13);
  expect_equal("DR7", cpu::read_dr<7>(), 0x400);
  write_host_state();
  inject(l2, 0);
  l2.expect_return("after repair");
  expect_equal("LSTAR loaded by the good entry and exit", cpu::rdmsr(msr::lstar), 0x5555);
  cpu::wrmsr(msr::lstar, lstar);
}

// A guest-state failure loads host state as an exit does, the exit MSR-load list included; guest
// state and the event to inject stay. 27.8.
void failed_entry_loads_host_only() {
  L2 l2;
  l2.start([](u64) {});
  struct alignas(16) Entry {
    u32 index, reserved;
    u64 value;
  };
  auto* entry_list = page_pointer<Entry>(alloc_page());
  *entry_list = {msr::cstar, 0, 0x1111};
  set(Field::entry_msr_load_count, 1);
  set(Field::entry_msr_load_address, reinterpret_cast<u64>(entry_list));
  auto* exit_list = page_pointer<Entry>(alloc_page());
  *exit_list = {msr::lstar, 0, 0x6666};
  set(Field::exit_msr_load_count, 1);
  set(Field::exit_msr_load_address, reinterpret_cast<u64>(exit_list));
  auto* store_list = page_pointer<Entry>(alloc_page());
  *store_list = {msr::lstar, 0, 0xdead};
  set(Field::exit_msr_store_count, 1);
  set(Field::exit_msr_store_address, reinterpret_cast<u64>(store_list));
  const u64 lstar = cpu::rdmsr(msr::lstar);
  const u64 cstar = cpu::rdmsr(msr::cstar);
  set(Field::guest_rflags, 0);
  set(Field::guest_gs_base, 0x1234);
  l2.registers[Gpr::rbx] = 0xbbbb;
  l2.expect_failed_entry("RFLAGS 0", BasicExit::entry_guest_state, 0);
  expect_equal("exit MSR-load list processed", cpu::rdmsr(msr::lstar), 0x6666);
  expect_equal("entry MSR-load list not processed", cpu::rdmsr(msr::cstar), cstar);
  expect_equal("exit MSR-store list not processed", store_list->value, 0xdead);
  expect_equal("guest RFLAGS", vmread(Field::guest_rflags), 0);
  expect_equal("guest GS base", vmread(Field::guest_gs_base), 0x1234);
  expect_equal("a general register", l2.registers[Gpr::rbx], 0xbbbb);
  cpu::wrmsr(msr::lstar, lstar);
}

// 27.1: events blocked by MOV SS.
void mov_ss_blocking() {
  L2 l2;
  l2.start([](u64) {});
  bool cf, zf;
  asm volatile("mov %2, %%ss; vmlaunch" : AERIE_VMX_FLAGS : "r"(u64{kData}) : "memory");
  expect_equal("VMLAUNCH after MOV SS", static_cast<u64>(vm_status(cf, zf)),
               static_cast<u64>(VmStatus::fail_valid));
  expect_equal("error", l2.error(), static_cast<u32>(InstructionError::entry_blocked_by_mov_ss));
  asm volatile("mov %2, %%ss; vmresume" : AERIE_VMX_FLAGS : "r"(u64{kData}) : "memory");
  expect_equal("VMRESUME after MOV SS", l2.error(),
               static_cast<u32>(InstructionError::entry_blocked_by_mov_ss));
  l2.expect_return("without it");
}

// A VMCS that failed can be mended field by field, and one that ran can be broken and mended.
void mended_after_failure() {
  L2 l2;
  l2.start([](u64) { vmcall(); });
  flip(Field::guest_cr4, cpu::cr4::pae);
  l2.expect_failed_entry("CR4.PAE clear", BasicExit::entry_guest_state, 0);
  flip(Field::guest_cr4, cpu::cr4::pae);
  l2.expect_exit_and_skip("mended", BasicExit::vmcall);
  set(Field::host_fs_base, non_canonical());
  l2.expect_fail("host FS base", InstructionError::entry_invalid_host_state);
  set(Field::host_fs_base, 0);
  const u64 cs = vmread(Field::guest_cs_access_rights);
  set(Field::guest_cs_access_rights, 0xa093);
  l2.expect_failed_entry("CS of a data type", BasicExit::entry_guest_state, 0);
  set(Field::guest_cs_access_rights, cs);
  l2.expect_return("mended again");
}

constexpr Case kCases[] = {
    {"control_fields", "SDM vol. 3, 27.2.1", control_fields},
    {"host_state", "SDM vol. 3, 27.2.2-27.2.4", host_state},
    {"control_fields_before_host_state", "SDM vol. 3, 27.2", control_fields_before_host_state},
    {"guest_state", "SDM vol. 3, 27.3.1", guest_state},
    {"link_pointer", "SDM vol. 3, 27.3.1.5, 27.8", link_pointer},
    {"vmfail_touches_nothing", "SDM vol. 3, 27, 31.2", vmfail_touches_nothing},
    {"failed_entry_loads_host_only", "SDM vol. 3, 27.8", failed_entry_loads_host_only},
    {"mov_ss_blocking", "SDM vol. 3, 27.1", mov_ss_blocking},
    {"mended_after_failure", "SDM vol. 3, 27.8", mended_after_failure},
};

}  // namespace

u8 guest_main() { return run_vmx_cases(kCases); }

}  // namespace aerie::guest
