// State across entries and exits: MSR lists, EFER and PAT, XCR0 and vector registers, and L2s in
// other modes than 64-bit: real mode, PAE, protected mode without paging. SDM vol.
// 3, 27.3, 27.4, 28.3-28.6.
#include <cstring>
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/apic.h"
#include "tests/guests/runtime/time.h"
#include "tests/guests/runtime/vmx.h"

namespace aerie::guest {
namespace {

using cpu::Exception;
using cpu::Gpr;
namespace msr = cpu::msr;
namespace v = cpu::vmx;

// --- MSR lists. 27.4, 28.4, 28.6, table 25-15.

struct alignas(16) MsrEntry {
  u32 index;
  u32 reserved;
  u64 value;
};
MsrEntry* make_list(Field count, Field address, std::initializer_list<MsrEntry> entries) {
  auto* list = page_pointer<MsrEntry>(alloc_page());
  usize n = 0;
  for (const MsrEntry& entry : entries) {
    list[n++] = entry;
  }
  vmwrite(count, n);
  vmwrite(address, reinterpret_cast<u64>(list));
  return list;
}

void msr_lists() {
  L2 l2;
  cpu::wrmsr(msr::lstar, 0x1000);
  cpu::wrmsr(msr::cstar, 0x2000);
  cpu::wrmsr(msr::sfmask, 0x300);
  make_list(Field::entry_msr_load_count, Field::entry_msr_load_address,
            {{msr::lstar, 0, 0x1111}, {msr::cstar, 0, 0x2222}, {msr::kernel_gs_base, 0, 0x3333}});
  MsrEntry* const stored =
      make_list(Field::exit_msr_store_count, Field::exit_msr_store_address,
                {{msr::lstar, 0, 0}, {msr::cstar, 0, 0}, {msr::sfmask, 0, 0}, {msr::efer, 0, 0}});
  make_list(Field::exit_msr_load_count, Field::exit_msr_load_address,
            {{msr::lstar, 0, 0x5555}, {msr::kernel_gs_base, 0, 0}});
  static u64 lstar, cstar, gs;
  const auto body = [] {
    lstar = cpu::rdmsr(msr::lstar);
    cstar = cpu::rdmsr(msr::cstar);
    gs = cpu::rdmsr(msr::kernel_gs_base);
    cpu::wrmsr(msr::cstar, 0x7777);
  };
  l2.start(body);
  l2.expect_return("L2");
  expect_equal("LSTAR in L2", lstar, 0x1111);
  expect_equal("CSTAR in L2", cstar, 0x2222);
  expect_equal("KERNEL_GS_BASE in L2", gs, 0x3333);
  expect_equal("LSTAR stored", stored[0].value, 0x1111);
  expect_equal("CSTAR stored", stored[1].value, 0x7777);
  expect_equal("SFMASK stored", stored[2].value, 0x300);
  expect_equal("LSTAR loaded at the exit", cpu::rdmsr(msr::lstar), 0x5555);
  expect_equal("CSTAR left as L2 had it", cpu::rdmsr(msr::cstar), 0x7777);
  expect_equal("KERNEL_GS_BASE loaded at the exit", cpu::rdmsr(msr::kernel_gs_base), 0);
  for (const u32 index : {msr::lstar, msr::cstar, msr::sfmask}) {
    cpu::wrmsr(index, 0);
  }
}

// The lists are read at each entry and exit: an edit between them counts.
void msr_list_edits() {
  L2 l2;
  MsrEntry* const list =
      make_list(Field::entry_msr_load_count, Field::entry_msr_load_address, {{msr::lstar, 0, 1}});
  l2.start([](u64) {
    for (;;) {
      asm volatile("vmcall" ::"b"(cpu::rdmsr(msr::lstar)) : "memory");
    }
  });
  for (u64 value = 0x100; value < 0x110; ++value) {
    list->value = value;
    l2.expect_exit_and_skip("VMCALL", BasicExit::vmcall);
    expect_equal("LSTAR in L2", l2.registers[Gpr::rbx], value);
  }
  vmwrite(Field::entry_msr_load_count, 0);
  cpu::wrmsr(msr::lstar, 0x42);
  l2.expect_exit_and_skip("VMCALL", BasicExit::vmcall);
  expect_equal("LSTAR without the list", l2.registers[Gpr::rbx], 0x42);
  cpu::wrmsr(msr::lstar, 0);
}

void tsc_stored() {
  L2 l2;
  MsrEntry* const stored =
      make_list(Field::exit_msr_store_count, Field::exit_msr_store_address, {{msr::tsc, 0, 0}});
  l2.start([](u64) {});
  const u64 before = cpu::rdtsc();
  l2.expect_return("L2");
  const u64 after = cpu::rdtsc();
  expect(stored->value >= before && stored->value <= after, "the TSC of the exit");
}

// A failing entry of the entry list: exit 34, its number, and the host's state as after an exit.
void msr_load_failures() {
  struct Row {
    std::string_view name;
    MsrEntry entry;
  };
  const Row rows[] = {
      {"FS base", {msr::fs_base, 0, 0}},
      {"GS base", {msr::gs_base, 0, 0}},
      {"an x2APIC MSR", {0x808, 0, 0}},
      {"reserved bits", {msr::cstar, 1, 0}},
      {"a value that faults", {msr::lstar, 0, non_canonical()}},
      {"a read-only MSR", {msr::vmx_basic, 0, 0}},
  };
  for (const Row& row : rows) {
    L2 l2;
    make_list(Field::entry_msr_load_count, Field::entry_msr_load_address,
              {{msr::sfmask, 0, 0x100}, row.entry, {msr::sfmask, 0, 0x200}});
    make_list(Field::exit_msr_load_count, Field::exit_msr_load_address, {{msr::cstar, 0, 0x9999}});
    cpu::wrmsr(msr::cstar, 0);
    l2.start([](u64) {});
    l2.expect_failed_entry(row.name, BasicExit::entry_msr_loading, 2);
    expect_equal("the exit's list is loaded", cpu::rdmsr(msr::cstar), 0x9999);
    expect(!l2.launched, "still clear");
    vmwrite(Field::entry_msr_load_count, 0);
    l2.expect_return(row.name);
  }
  cpu::wrmsr(msr::cstar, 0);
  cpu::wrmsr(msr::sfmask, 0);
}

// --- EFER, PAT

void efer_of_l2() {
  L2 l2;
  if (!l2.entry(v::entry::load_efer) || !l2.exit(v::exit::load_efer | v::exit::save_efer)) {
    skip("EFER is not switched");
    return;
  }
  const u64 efer = cpu::rdmsr(msr::efer);
  vmwrite(Field::guest_efer, efer | cpu::efer::sce);
  static u64 seen;
  l2.start([](u64) {
    seen = cpu::rdmsr(msr::efer);
    cpu::wrmsr(msr::efer, seen & ~cpu::efer::nxe);
  });
  l2.expect_return("L2");
  expect_equal("EFER in L2", seen, efer | cpu::efer::sce);
  expect_equal("EFER saved", vmread(Field::guest_efer), (efer | cpu::efer::sce) & ~cpu::efer::nxe);
  expect_equal("EFER of L1", cpu::rdmsr(msr::efer), efer);
}

// NXE is L2's own: the same entry is a reserved-bit fault with it clear.
void nxe_of_l2() {
  L2 l2;
  if (!l2.entry(v::entry::load_efer)) {
    skip("EFER is not switched");
    return;
  }
  constexpr u64 kLinear = 0x6'0000'0000;
  map_page(kLinear, alloc_page(), pte::present | pte::writable | pte::no_execute);
  const auto body = [] {
    const Fault fault = catch_fault([] {
      asm volatile("mov (%0), %%rax" ::"r"(kLinear) : "rax", "memory");
    });
    if ((cpu::rdmsr(msr::efer) & cpu::efer::nxe) != 0) {
      expect_no_fault("NXE set: a read", fault);
      const Fault fetch = catch_fault([] { asm volatile("call *%0" ::"r"(kLinear) : "memory"); });
      expect_fault("NXE set: a fetch", fetch, Exception::pf, 0x11);
    } else {
      expect_fault("NXE clear: a read", fault, Exception::pf);
      expect((fault.error & 8) != 0, "a reserved-bit fault");
    }
  };
  l2.start(body);
  l2.expect_return("NXE set");
  vmwrite(Field::guest_efer, vmread(Field::guest_efer) & ~cpu::efer::nxe);
  l2.start(body);
  l2.expect_return("NXE clear");
  map_page(kLinear, 0, 0);
}

void pat_of_l2() {
  L2 l2;
  if (!l2.entry(v::entry::load_pat) || !l2.exit(v::exit::load_pat | v::exit::save_pat)) {
    skip("PAT is not switched");
    return;
  }
  const u64 pat = cpu::rdmsr(msr::pat);
  constexpr u64 kOther = 0x0007'0406'0007'0406;
  vmwrite(Field::guest_pat, kOther);
  static u64 seen;
  l2.start([](u64) {
    seen = cpu::rdmsr(msr::pat);
    cpu::wrmsr(msr::pat, kOther ^ 7);
  });
  l2.expect_return("L2");
  expect_equal("PAT in L2", seen, kOther);
  expect_equal("PAT saved", vmread(Field::guest_pat), kOther ^ 7);
  expect_equal("PAT of L1", cpu::rdmsr(msr::pat), pat);
}

// Two L2s taking turns, each with registers, MSRs and tables of its own.
void two_l2s_take_turns() {
  const auto body = [](u64 seed) {
    u64 value = seed;
    for (;;) {
      asm volatile("vmcall" : "+b"(value) : "c"(cpu::rdmsr(msr::sysenter_eip)) : "memory");
      value += seed;
    }
  };
  L2 a;
  a.start(body, 1);
  vmwrite(Field::guest_sysenter_eip, 0xaaaa);
  L2 b;
  b.start(body, 1000);
  vmwrite(Field::guest_sysenter_eip, 0xbbbb);
  for (u64 round = 1; round <= 50; ++round) {
    vmptrld(a.region());
    if (!a.expect_exit_and_skip("A", BasicExit::vmcall) ||
        !expect_equal("A's RBX", a.registers[Gpr::rbx], round) ||
        !expect_equal("A's SYSENTER_EIP", a.registers[Gpr::rcx], 0xaaaa)) {
      return;
    }
    vmptrld(b.region());
    if (!b.expect_exit_and_skip("B", BasicExit::vmcall) ||
        !expect_equal("B's RBX", b.registers[Gpr::rbx], round * 1000) ||
        !expect_equal("B's SYSENTER_EIP", b.registers[Gpr::rcx], 0xbbbb)) {
      return;
    }
  }
}

// --- XCR0 and vector registers. 26.1.2: XSETBV always exits.

struct Osxsave {
  Osxsave() : cr4{cpu::read_cr4()} {
    cpu::write_cr4(cr4 | cpu::cr4::osxsave | cpu::cr4::osfxsr);
    xcr0 = cpu::xgetbv(0);
  }
  ~Osxsave() {
    cpu::xsetbv(0, xcr0);
    cpu::write_cr4(cr4);
  }
  Osxsave(const Osxsave&) = delete;
  Osxsave& operator=(const Osxsave&) = delete;
  u64 cr4, xcr0;
};

void xsetbv_exits() {
  const Osxsave on;
  L2 l2;
  static volatile u64 seen;
  l2.start([](u64) {
    seen = cpu::xgetbv(0);
    cpu::xsetbv(0, 3);
    seen = cpu::xgetbv(0);
  });
  cpu::xsetbv(0, 1);
  if (l2.expect_exit("XSETBV", BasicExit::xsetbv)) {
    expect_equal("length", l2.length(), 3);
    expect_equal("XCR0 as L1 had it", seen, 1);
    expect_equal("XCR0 not written", cpu::xgetbv(0), 1);
    expect_equal("EAX", l2.registers[Gpr::rax] & 0xffff'ffff, 3);
    expect_equal("ECX", l2.registers[Gpr::rcx] & 0xffff'ffff, 0);
    cpu::xsetbv(0, l2.registers[Gpr::rax] & 0xffff'ffff);
    l2.skip_instruction();
  }
  l2.expect_return("the rest");
  expect_equal("XCR0 as L1 then set it", seen, 3);
}

// XSETBV without CR4.OSXSAVE is #UD in L2, not an exit.
void xsetbv_without_osxsave() {
  L2 l2;
  vmwrite(Field::guest_cr4, vmread(Field::guest_cr4) & ~cpu::cr4::osxsave);
  l2.start(
      [](u64) { expect_fault("XSETBV", catch_fault([] { cpu::xsetbv(0, 1); }), Exception::ud); });
  l2.expect_return("the end");
}

// An L2 with AVX: YMM registers survive exits in both directions (VMX does not touch them), and
// L2's XCR0 is what counts for it.
void avx_in_l2() {
  const Osxsave on;
  cpu::xsetbv(0, 7);
  alignas(32) static u64 loaded[4] = {1, 2, 3, 4};
  alignas(32) static u64 stored[4];
  L2 l2;
  l2.start([](u64) {
    cpu::xsetbv(0, 7);
    asm volatile("vmovdqu %0, %%ymm3" ::"m"(loaded));
    vmcall();
    asm volatile("vpaddq %%ymm3, %%ymm3, %%ymm3; vmovdqu %%ymm3, %0" : "=m"(stored));
  });
  if (l2.expect_exit("XSETBV", BasicExit::xsetbv)) {
    cpu::xsetbv(0, 7);
    l2.skip_instruction();
  }
  l2.expect_exit_and_skip("VMCALL", BasicExit::vmcall);
  alignas(32) static u64 seen_by_l1[4];
  asm volatile("vmovdqu %%ymm3, %0" : "=m"(seen_by_l1));
  for (unsigned i = 0; i < 4; ++i) {
    expect_equal("YMM3 in L1", seen_by_l1[i], i + 1);
  }
  l2.expect_return("the rest");
  for (unsigned i = 0; i < 4; ++i) {
    expect_equal("YMM3 stored by L2", stored[i], 2 * (i + 1));
  }
}

// --- Real mode: unrestricted guest. 27.3.1.2, 26.3.

constexpr u64 kRealCode = 0x1'0000;

bool start_real_mode(L2& l2, const Ept& tables, const u8* code, usize size) {
  if (!tables.install(l2, true)) {
    skip("no unrestricted guest");
    return false;
  }
  std::memcpy(page_pointer<u8>(kRealCode), code, size);
  vmwrite(Field::guest_cr0,
          (cpu::rdmsr(msr::vmx_cr0_fixed0) & ~(cpu::cr0::pe | cpu::cr0::pg)) | cpu::cr0::et);
  vmwrite(Field::guest_cr4, cpu::rdmsr(msr::vmx_cr4_fixed0));
  vmwrite(Field::guest_efer, 0);
  l2.entry(0, v::entry::ia32e_guest);
  struct Row {
    Field selector, base, limit, rights;
  };
  constexpr Row kRows[] = {
      {Field::guest_es_selector, Field::guest_es_base, Field::guest_es_limit,
       Field::guest_es_access_rights},
      {Field::guest_ss_selector, Field::guest_ss_base, Field::guest_ss_limit,
       Field::guest_ss_access_rights},
      {Field::guest_ds_selector, Field::guest_ds_base, Field::guest_ds_limit,
       Field::guest_ds_access_rights},
      {Field::guest_fs_selector, Field::guest_fs_base, Field::guest_fs_limit,
       Field::guest_fs_access_rights},
      {Field::guest_gs_selector, Field::guest_gs_base, Field::guest_gs_limit,
       Field::guest_gs_access_rights},
  };
  for (const Row& row : kRows) {
    vmwrite(row.selector, kRealCode >> 4);
    vmwrite(row.base, kRealCode);
    vmwrite(row.limit, 0xffff);
    vmwrite(row.rights, 0x93);
  }
  vmwrite(Field::guest_cs_selector, kRealCode >> 4);
  vmwrite(Field::guest_cs_base, kRealCode);
  vmwrite(Field::guest_cs_limit, 0xffff);
  vmwrite(Field::guest_cs_access_rights, 0x9b);
  vmwrite(Field::guest_idtr_base, kRealCode + 0x800);
  vmwrite(Field::guest_idtr_limit, 0x3ff);
  vmwrite(Field::guest_rip, 0);
  vmwrite(Field::guest_rsp, 0x700);
  vmwrite(Field::guest_rflags, cpu::rflags::fixed);
  return true;
}

void real_mode() {
  L2 l2;
  const Ept tables;
  // mov $0x1234, %ax; mov %ax, 0x600; cpuid; int $0x21; vmcall
  constexpr u8 kCode[] = {0xb8, 0x34, 0x12, 0xa3, 0x00, 0x06, 0x0f,
                          0xa2, 0xcd, 0x21, 0x0f, 0x01, 0xc1};
  if (!start_real_mode(l2, tables, kCode, sizeof kCode)) {
    return;
  }
  // The vector table's entry 0x21, and its handler: mov $0x77, %bx; iret
  constexpr u8 kHandler[] = {0xbb, 0x77, 0x00, 0xcf};
  std::memcpy(page_pointer<u8>(kRealCode + 0x400), kHandler, sizeof kHandler);
  auto* table = page_pointer<u16>(kRealCode + 0x800);
  table[0x21 * 2] = 0x400;
  table[0x21 * 2 + 1] = kRealCode >> 4;
  *page_pointer<u16>(kRealCode + 0x600) = 0;
  if (l2.expect_exit("CPUID", BasicExit::cpuid)) {
    expect_equal("RIP", vmread(Field::guest_rip), 6);
    expect_equal("a store through DS", *page_pointer<u16>(kRealCode + 0x600), 0x1234);
    expect_equal("AX", l2.registers[Gpr::rax] & 0xffff, 0x1234);
    l2.skip_instruction();
  }
  if (l2.expect_exit("VMCALL after INT", BasicExit::vmcall)) {
    expect_equal("RIP", vmread(Field::guest_rip), 10);
    expect_equal("BX, by the handler", l2.registers[Gpr::rbx] & 0xffff, 0x77);
    expect_equal("CS", vmread(Field::guest_cs_selector), kRealCode >> 4);
    expect_equal("SP", vmread(Field::guest_rsp), 0x700);
  }
}

void real_mode_injection() {
  L2 l2;
  const Ept tables;
  constexpr u8 kCode[] = {0x0f, 0x01, 0xc1};
  if (!start_real_mode(l2, tables, kCode, sizeof kCode)) {
    return;
  }
  constexpr u8 kHandler[] = {0xbb, 0x55, 0x00, 0xcf};
  std::memcpy(page_pointer<u8>(kRealCode + 0x400), kHandler, sizeof kHandler);
  auto* table = page_pointer<u16>(kRealCode + 0x800);
  table[0x30 * 2] = 0x400;
  table[0x30 * 2 + 1] = kRealCode >> 4;
  vmwrite(Field::guest_rflags, cpu::rflags::fixed | cpu::rflags::interrupt);
  vmwrite(Field::entry_interruption_info, v::interruption_info::valid | 0x30);
  if (l2.expect_exit("VMCALL", BasicExit::vmcall)) {
    expect_equal("BX, by the handler", l2.registers[Gpr::rbx] & 0xffff, 0x55);
    expect_equal("RIP", vmread(Field::guest_rip), 0);
  }
}

void real_mode_exits() {
  L2 l2;
  const Ept tables;
  // in $0x61, %al; mov %cr0, %eax; hlt; vmcall
  constexpr u8 kCode[] = {0xe4, 0x61, 0x0f, 0x20, 0xc0, 0xf4, 0x0f, 0x01, 0xc1};
  if (!start_real_mode(l2, tables, kCode, sizeof kCode)) {
    return;
  }
  l2.proc(v::proc::unconditional_io | v::proc::hlt);
  vmwrite(Field::cr0_mask, ~u64{0});
  vmwrite(Field::cr0_read_shadow, 0x10);
  if (l2.expect_exit("IN", BasicExit::io)) {
    expect_equal("length", l2.length(), 2);
    l2.skip_instruction();
  }
  if (l2.expect_exit("HLT", BasicExit::hlt)) {
    expect_equal("CR0 by the shadow", l2.registers[Gpr::rax] & 0xffff'ffff, 0x10);
    l2.skip_instruction();
  }
  l2.expect_exit("VMCALL", BasicExit::vmcall);
}

// The switch from real to protected mode by L2 itself, as a boot loader does it.
void real_to_protected() {
  L2 l2;
  const Ept tables;
  constexpr u8 kCode[] = {
      0x66, 0x0f, 0x01, 0x16, 0x00, 0x06,              // lgdtl 0x600
      0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0,  // mov %cr0, %eax; or $1, %al; mov %eax, %cr0
      0x66, 0xea, 0x00, 0x05, 0x01, 0x00, 0x08, 0x00,  // ljmpl $8, $0x10500
  };
  if (!start_real_mode(l2, tables, kCode, sizeof kCode)) {
    return;
  }
  // 32-bit: mov $0x10, %eax; mov %eax, %ds; mov 0x10600, %ecx (the table pointer's first word);
  // vmcall
  constexpr u8 kCode32[] = {0xb8, 0x10, 0x00, 0x00, 0x00, 0x8e, 0xd8, 0x8b,
                            0x0d, 0x00, 0x06, 0x01, 0x00, 0x0f, 0x01, 0xc1};
  std::memcpy(page_pointer<u8>(kRealCode + 0x500), kCode32, sizeof kCode32);
  const u64 table[] = {0, 0x00cf'9b00'0000'ffff, 0x00cf'9300'0000'ffff};
  std::memcpy(page_pointer<u8>(kRealCode + 0x620), table, sizeof table);
  *page_pointer<u16>(kRealCode + 0x600) = sizeof table - 1;
  const u32 base = kRealCode + 0x620;
  std::memcpy(page_pointer<u8>(kRealCode + 0x602), &base, 4);
  if (l2.expect_exit("VMCALL in 32-bit code", BasicExit::vmcall)) {
    expect_equal("RIP", vmread(Field::guest_rip), kRealCode + 0x500 + 13);
    expect_equal("CR0.PE", vmread(Field::guest_cr0) & cpu::cr0::pe, cpu::cr0::pe);
    expect_equal("CS", vmread(Field::guest_cs_selector), 8);
    expect_equal("CS rights", vmread(Field::guest_cs_access_rights), 0xc09b);
    expect_equal("DS base", vmread(Field::guest_ds_base), 0);
    expect_equal("the word read through DS", l2.registers[Gpr::rcx] & 0xffff, sizeof table - 1);
    expect_equal("GDTR base", vmread(Field::guest_gdtr_base), base);
  }
}

// --- PAE. 27.3.1.6, 27.3.2.4, 28.3.1.

// A 32-bit L2 with PAE paging at kRealCode: linear 0-1 GiB by 2 MiB pages, one to one.
struct PaeTables {
  u64 pointers;  // the PDPT
  u64 directory;
};
PaeTables pae_tables() {
  PaeTables tables{alloc_page(), alloc_page()};
  page_pointer(tables.pointers)[0] = tables.directory | 1;
  for (u64 i = 0; i < 512; ++i) {
    page_pointer(tables.directory)[i] = i << 21 | 0x83;
  }
  return tables;
}

void start_pae(L2& l2, const PaeTables& tables, const u8* code, usize size) {
  std::memcpy(page_pointer<u8>(kRealCode), code, size);
  vmwrite(Field::guest_cr3, tables.pointers);
  vmwrite(Field::guest_cr4, cpu::rdmsr(msr::vmx_cr4_fixed0) | cpu::cr4::pae);
  vmwrite(Field::guest_efer, 0);
  l2.entry(0, v::entry::ia32e_guest);
  vmwrite(Field::guest_cs_access_rights, 0xc09b);
  vmwrite(Field::guest_gs_base, 0);
  vmwrite(Field::guest_rip, kRealCode);
  vmwrite(Field::guest_rsp, kRealCode + 0x700);
  vmwrite(Field::guest_rflags, cpu::rflags::fixed);
  // With EPT they are the VMCS's, without it they are read from memory.
  vmwrite(Field::guest_pdpte0, page_pointer(tables.pointers)[0]);
  for (const Field field : {Field::guest_pdpte1, Field::guest_pdpte2, Field::guest_pdpte3}) {
    vmwrite(field, 0);
  }
}

// mov $0x10800, %eax; mov (%eax), %ebx; vmcall
constexpr u8 kPaeRead[] = {0xb8, 0x00, 0x08, 0x01, 0x00, 0x8b, 0x18, 0x0f, 0x01, 0xc1};

void pae_guest() {
  const Ept tables;
  for (const bool with_ept : {false, true}) {
    L2 l2;
    if (with_ept && !tables.install(l2)) {
      continue;
    }
    const PaeTables pae = pae_tables();
    start_pae(l2, pae, kPaeRead, sizeof kPaeRead);
    *page_pointer<u32>(kRealCode + 0x800) = 0xabcd'ef01;
    if (l2.expect_exit("VMCALL", BasicExit::vmcall)) {
      expect_equal("RBX", l2.registers[Gpr::rbx], 0xabcd'ef01);
      expect_equal("RIP", vmread(Field::guest_rip), kRealCode + 7);
      if (with_ept) {
        expect_equal("PDPTE 0 saved", vmread(Field::guest_pdpte0) & ~u64{0x20},
                     page_pointer(pae.pointers)[0] & ~u64{0x20});  // TCG sets A in memory
      }
    }
  }
}

// With EPT the entries come from the VMCS: what memory says then does not matter.
void pae_pdptes_from_vmcs() {
  L2 l2;
  const Ept tables;
  if (!tables.install(l2)) {
    skip("no EPT");
    return;
  }
  const PaeTables pae = pae_tables();
  start_pae(l2, pae, kPaeRead, sizeof kPaeRead);
  page_pointer(pae.pointers)[0] = 0;
  *page_pointer<u32>(kRealCode + 0x800) = 0x1357;
  if (l2.expect_exit("VMCALL", BasicExit::vmcall)) {
    expect_equal("RBX", l2.registers[Gpr::rbx], 0x1357);
  }
}

// PITFALLS: reserved bits of a PDPTE fail the entry, qualification 2.
void pae_pdpte_reserved_bits() {
  const Ept tables;
  {
    L2 l2;
    if (tables.install(l2)) {
      const PaeTables pae = pae_tables();
      start_pae(l2, pae, kPaeRead, sizeof kPaeRead);
      vmwrite(Field::guest_pdpte2, pae.directory | 1 | bit(1));
      l2.expect_failed_entry("with EPT, from the VMCS", BasicExit::entry_guest_state, 2);
    }
  }
  if (option("ept", 0) != 0) {
    return;
  }
  L2 l2;
  const PaeTables pae = pae_tables();
  start_pae(l2, pae, kPaeRead, sizeof kPaeRead);
  page_pointer(pae.pointers)[3] = pae.directory | 1 | bit(7);
  l2.expect_failed_entry("without EPT, from memory", BasicExit::entry_guest_state, 2);
}

// MOV CR3 in L2 loads the entries from memory, and an exit saves them.
void pae_mov_cr3() {
  L2 l2;
  const Ept tables;
  if (!tables.install(l2)) {
    skip("no EPT");
    return;
  }
  const PaeTables first = pae_tables();
  const PaeTables second = pae_tables();
  // Linear 0x200000 is another page in the second.
  const u64 other = alloc_pages(512, 0x20'0000);
  page_pointer(second.directory)[1] = other | 0x83;
  page_pointer<u32>(other)[0] = 0x2222;
  // mov %eax, %cr3; mov 0x200000, %ebx; vmcall
  constexpr u8 kCode[] = {0x0f, 0x22, 0xd8, 0x8b, 0x1d, 0x00, 0x00, 0x20, 0x00, 0x0f, 0x01, 0xc1};
  start_pae(l2, first, kCode, sizeof kCode);
  l2.proc(0, v::proc::cr3_load);
  l2.registers[Gpr::rax] = second.pointers;
  if (l2.expect_exit("VMCALL", BasicExit::vmcall)) {
    expect_equal("RBX", l2.registers[Gpr::rbx], 0x2222);
    expect_equal("CR3 saved", vmread(Field::guest_cr3), second.pointers);
    expect_equal("PDPTE 0 saved", vmread(Field::guest_pdpte0) & ~u64{0x20},
                 page_pointer(second.pointers)[0] & ~u64{0x20});
  }
}

// --- 32-bit paging of an L2. 4.3.
void legacy_paging() {
  const Ept tables;
  for (const bool with_ept : {false, true}) {
    L2 l2;
    if (with_ept && !tables.install(l2)) {
      continue;
    }
    const u64 directory = alloc_page();
    for (u32 i = 0; i < 64; ++i) {
      page_pointer<u32>(directory)[i] = i << 22 | 0x83;
    }
    start_pae(l2, pae_tables(), kPaeRead, sizeof kPaeRead);
    vmwrite(Field::guest_cr3, directory);
    vmwrite(Field::guest_cr4, cpu::rdmsr(msr::vmx_cr4_fixed0) | cpu::cr4::pse);
    *page_pointer<u32>(kRealCode + 0x800) = 0x2468'ace0;
    if (l2.expect_exit("VMCALL", BasicExit::vmcall)) {
      expect_equal("RBX", l2.registers[Gpr::rbx], 0x2468'ace0);
    }
  }
}

// Compatibility mode: a 32-bit code segment of an IA-32e L2.
void compatibility_mode() {
  L2 l2;
  std::memcpy(page_pointer<u8>(kRealCode), kPaeRead, sizeof kPaeRead);
  *page_pointer<u32>(kRealCode + 0x800) = 0x9999'8888;
  l2.start([](u64) {});
  vmwrite(Field::guest_cs_access_rights, 0xc09b);
  vmwrite(Field::guest_rip, kRealCode);
  l2.registers[Gpr::rbx] = ~u64{0};
  if (l2.expect_exit("VMCALL", BasicExit::vmcall)) {
    expect_equal("EBX", l2.registers[Gpr::rbx] & 0xffff'ffff, 0x9999'8888);
    expect_equal("RIP", vmread(Field::guest_rip), kRealCode + 7);
  }
}

// A task switch in L2 exits, always. 26.1.2, 26.4.2, table 28-2. From 32-bit code: JMP to a TSS.
void task_switch_exits() {
  L2 l2;
  start_pae(l2, pae_tables(), nullptr, 0);
  // ljmp $0xc8:0; a TSS descriptor in the first free slot of the GDT (0xc0), the second for the
  // target.
  constexpr u8 kCode[] = {0xea, 0x00, 0x00, 0x00, 0x00, 0xc0, 0x00};
  std::memcpy(page_pointer<u8>(kRealCode), kCode, sizeof kCode);
  const u64 base = alloc_page();
  gdt_entries()[kFreeDescriptor / 8] =
      0x67 | (base & 0xff'ffff) << 16 | u64{0x89} << 40 | (base >> 24 & 0xff) << 56;
  if (l2.expect_exit("JMP to a TSS", BasicExit::task_switch)) {
    const auto t = v::TaskSwitch::decode(l2.qualification());
    expect_equal("selector", t.selector, kFreeDescriptor);
    expect_equal("source", static_cast<u64>(t.source),
                 static_cast<u64>(v::TaskSwitch::Source::jmp));
    expect_equal("length", l2.length(), 7);
  }
  gdt_entries()[kFreeDescriptor / 8] = 0;
}

constexpr Case kCases[] = {
    {"msr_lists", "SDM vol. 3, 27.4, 28.4, 28.6", msr_lists},
    {"msr_list_edits", "SDM vol. 3, 27.4", msr_list_edits},
    {"tsc_stored", "SDM vol. 3, 28.4", tsc_stored},
    {"msr_load_failures", "SDM vol. 3, 27.4, 27.8", msr_load_failures},
    {"efer_of_l2", "SDM vol. 3, 27.3.2.1, 28.3.1", efer_of_l2},
    {"nxe_of_l2", "SDM vol. 3, 4.6, 27.3.2.1", nxe_of_l2},
    {"pat_of_l2", "SDM vol. 3, 27.3.2.1, 28.3.1", pat_of_l2},
    {"two_l2s_take_turns", "SDM vol. 3, 25.1", two_l2s_take_turns},
    {"xsetbv_exits", "SDM vol. 3, 26.1.2", xsetbv_exits, avx},
    {"xsetbv_without_osxsave", "SDM vol. 3, 26.1.1", xsetbv_without_osxsave, avx},
    {"avx_in_l2", "SDM vol. 1, 13.3; vol. 3, 26.1.2", avx_in_l2, avx},
    {"real_mode", "SDM vol. 3, 26.3, 27.3.1.2", real_mode},
    {"real_mode_injection", "SDM vol. 3, 27.6.1", real_mode_injection},
    {"real_mode_exits", "SDM vol. 3, 26.1.3", real_mode_exits},
    {"real_to_protected", "SDM vol. 3, 9.9.1", real_to_protected},
    {"pae_guest", "SDM vol. 3, 27.3.2.4", pae_guest},
    {"pae_pdptes_from_vmcs", "SDM vol. 3, 27.3.2.4", pae_pdptes_from_vmcs, 0, under_aerie,
     "NPT reads PDPTEs from memory (docs/status.md)"},
    {"pae_pdpte_reserved_bits", "SDM vol. 3, 27.3.1.6, 27.8", pae_pdpte_reserved_bits},
    {"pae_mov_cr3", "SDM vol. 3, 4.4.1, 28.3.1", pae_mov_cr3},
    {"legacy_paging", "SDM vol. 3, 4.3", legacy_paging},
    {"compatibility_mode", "SDM vol. 3, 27.3.1.4", compatibility_mode},
    {"task_switch_exits", "SDM vol. 3, 26.4.2, table 28-2", task_switch_exits, 0, under_aerie,
     "TCG never raises the task-switch exit"},
};

}  // namespace

u8 guest_main() { return run_vmx_cases(kCases); }

}  // namespace aerie::guest
