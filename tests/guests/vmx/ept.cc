// EPT and VPID: violations and what they report, misconfigurations, what may be cached and what
// drops it, accessed and dirty flags. SDM vol. 3, 29.3, 29.4, table 28-7.
#include <initializer_list>

#include "cpu/arch/msr.h"
#include "tests/guests/runtime/vmx.h"

namespace aerie::guest {
namespace {

using cpu::Gpr;
using cpu::vmx::EptViolation;
namespace v = cpu::vmx;

unsigned physical_bits() { return cpu::cpuid(0x8000'0008).eax & 0xff; }
bool execute_only() { return (ept_vpid_capability() & bit(0)) != 0; }

// An L2 on `tables`; false turns the case into a SKIP.
bool install(L2& l2, const Ept& tables) {
  if (!tables.install(l2)) {
    skip("no EPT");
    return false;
  }
  return true;
}

enum class Access : u64 { read, write, fetch };
// The L2 function of most cases: accesses of pages that a VMCALL's registers name. RAX on entry to
// the VMCALL is what was read.
struct Request {
  u64 address;
  Access access;
  u64 value;
};
volatile Request request;
void serve(u64) {
  for (;;) {
    const u64 address = request.address;
    u64 value = 0;
    switch (request.access) {
      case Access::read:
        asm volatile("mov (%1), %0" : "=r"(value) : "r"(address) : "memory");
        break;
      case Access::write:
        asm volatile("mov %0, (%1)" ::"r"(request.value), "r"(address) : "memory");
        break;
      case Access::fetch:
        asm volatile("call *%0" ::"r"(address) : "memory");
        break;
    }
    request.value = value;
    vmcall();
  }
}
void ask(u64 address, Access access, u64 value = 0) {
  request.address = address;
  request.access = access;
  request.value = value;
}
bool done(L2& l2, std::string_view what) {
  return l2.expect_exit_and_skip(what, BasicExit::vmcall);
}
u64 page_with_ret() {
  const u64 page = alloc_page();
  *page_pointer<u8>(page) = 0xc3;
  return page;
}

// Every access against every set of rights. Table 28-7.
void violation_matrix() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = page_with_ret();
  for (u64 rights = 0; rights < 8; ++rights) {
    if ((rights & 3) == 2 || (rights == ept::execute && !execute_only())) {
      continue;  // misconfigurations
    }
    for (const Access access : {Access::read, Access::write, Access::fetch}) {
      tables.entry(page) = page | rights | ept::wb;
      tables.invalidate();
      ask(page, access, 0xc3);
      const bool allowed = (rights >> static_cast<u64>(access) & 1) != 0;
      if (allowed) {
        if (!done(l2, "an allowed access")) {
          print("  rights {x} access {}\n", rights, static_cast<u64>(access));
          return;
        }
        continue;
      }
      if (!l2.expect_exit("a forbidden access", BasicExit::ept_violation)) {
        print("  rights {x} access {}\n", rights, static_cast<u64>(access));
        return;
      }
      const EptViolation wanted{.read = access == Access::read,
                                .write = access == Access::write,
                                .fetch = access == Access::fetch,
                                .readable = (rights & ept::read) != 0,
                                .writable = (rights & ept::write) != 0,
                                .executable = (rights & ept::execute) != 0,
                                .linear_valid = true,
                                .translated = true};
      if (!expect_equal("qualification", l2.qualification() & 0x1bf, wanted.encode())) {
        print("  rights {x} access {}\n", rights, static_cast<u64>(access));
      }
      expect_equal("guest-physical address", vmread(Field::guest_physical_address), page);
      expect_equal("guest-linear address", vmread(Field::guest_linear_address), page);
      tables.entry(page) = page | ept::rwx | ept::wb;
      // No INVEPT: more rights.
      done(l2, "the access again");
    }
  }
}

// Offsets within the page, and a read-modify-write, which is both.
void violation_addresses() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  const u64 page = alloc_page();
  tables.entry(page) = 0;
  l2.start([](u64 address) { asm volatile("orl $1, (%0)" ::"r"(address + 0xabc)
                                          : "memory"); },
           page);
  if (l2.expect_exit("OR to an absent page", BasicExit::ept_violation)) {
    expect_equal("guest-physical address", vmread(Field::guest_physical_address), page + 0xabc);
    expect_equal("guest-linear address", vmread(Field::guest_linear_address), page + 0xabc);
    expect_equal("no rights", l2.qualification() & 0x38, 0);
    expect((l2.qualification() & 3) != 0, "a read or a write");
  }
  tables.map(page, page);
  l2.expect_return("the end");
  expect_equal("done once", *page_pointer(page + 0xabc) & 0xff, 1);
}

// PITFALLS: made more permissive without INVEPT, the retried access succeeds. 29.4.3.1.
void more_permissive_without_invept() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = page_with_ret();
  tables.entry(page) = page | ept::read | ept::wb;
  tables.invalidate();
  ask(page, Access::read);
  done(l2, "a read");
  ask(page, Access::write, 0xc3);
  l2.expect_exit("a write", BasicExit::ept_violation);
  tables.entry(page) |= ept::write;
  done(l2, "the write again: no second violation");
  ask(page, Access::fetch);
  l2.expect_exit("a fetch", BasicExit::ept_violation);
  tables.entry(page) |= ept::execute;
  done(l2, "the fetch again: no second violation");
}

void absent_to_present_without_invept() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  *page_pointer(page) = 0x1234;
  for (unsigned level = 1; level <= 3; ++level) {
    u64& entry = tables.entry(page, level);
    const u64 old = entry;
    entry = 0;
    tables.invalidate();
    ask(page, Access::read);
    if (!l2.expect_exit("a read", BasicExit::ept_violation)) {
      print("  level {}\n", level);
      return;
    }
    entry = old;
    done(l2, "the read again");
    expect_equal("value", request.value, 0x1234);
  }
}

void less_permissive_with_invept() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  tables.map(page, page);
  const u64 capability = ept_vpid_capability();
  for (const u64 type : {u64{1}, u64{2}}) {
    if ((capability >> (24 + type) & 1) == 0) {
      continue;
    }
    ask(page, Access::write, 1);
    done(l2, "a write");
    tables.entry(page) &= ~ept::write;
    invept(type, {tables.eptp(), 0});
    ask(page, Access::write, 2);
    l2.expect_exit("a write after INVEPT", BasicExit::ept_violation);
    tables.entry(page) |= ept::write;
    done(l2, "the write again");
  }
}

void remapped_with_invept() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  const u64 other = alloc_page();
  *page_pointer(page) = 0x1111;
  *page_pointer(other) = 0x2222;
  for (unsigned round = 0; round < 4; ++round) {
    tables.map(page, round % 2 == 0 ? other : page);
    tables.invalidate();
    ask(page, Access::read);
    done(l2, "a read");
    expect_equal("value", request.value, round % 2 == 0 ? 0x2222 : 0x1111);
  }
  tables.map(page, other);
  tables.invalidate();
  ask(page, Access::write, 0x3333);
  done(l2, "a write");
  expect_equal("the page EPT names", *page_pointer(other), 0x3333);
  expect_equal("the page it does not", *page_pointer(page), 0x1111);
}

// INVEPT leaves nothing cached, and nothing is cached again before an entry with that EPTP: what L1
// edits in between needs no second INVEPT (teardown flushes, creation does not).
void edited_between_invept_and_entry() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  const u64 other = alloc_page();
  *page_pointer(page) = 0x1111;
  *page_pointer(other) = 0x2222;
  tables.map(page, page);
  for (unsigned round = 0; round < 3; ++round) {
    ask(page, Access::read);
    done(l2, "a read");
    expect_equal("before", request.value, 0x1111);
    tables.invalidate();
    tables.map(page, other);
    ask(page, Access::read);
    done(l2, "a read after the edit");
    expect_equal("remapped", request.value, 0x2222);
    tables.invalidate();
    tables.entry(page) = 0;
    ask(page, Access::read);
    l2.expect_exit("a read of what was taken away", BasicExit::ept_violation);
    tables.map(page, page);
  }
}

// A whole subtree replaced at each level.
void subtree_replaced_with_invept() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  const u64 other = alloc_page();
  *page_pointer(page) = 0x1111;
  *page_pointer(other) = 0x2222;
  tables.map(page, page);
  for (unsigned level = 2; level <= 3; ++level) {
    u64& entry = tables.entry(page, level);
    const u64 old_table = entry & ept::address;
    ask(page, Access::read);
    done(l2, "a read");
    expect_equal("value", request.value, 0x1111);
    const u64 copy = alloc_page();
    for (unsigned i = 0; i < 512; ++i) {
      page_pointer(copy)[i] = page_pointer(old_table)[i];
    }
    entry = copy | ept::rwx;
    tables.map(page, other);  // in the copy
    tables.invalidate();
    ask(page, Access::read);
    done(l2, "a read through the new subtree");
    expect_equal("value", request.value, 0x2222);
    tables.entry(page, level) = old_table | ept::rwx;
    tables.map(page, page);
    tables.invalidate();
  }
}

// PITFALLS: editing A's tables while B runs, then INVEPT of A, makes A fresh.
void two_eptps() {
  Ept a;
  Ept b;
  L2 l2;
  if (!install(l2, a)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  const u64 other = alloc_page();
  *page_pointer(page) = 0x1111;
  *page_pointer(other) = 0x2222;
  a.map(page, page);
  b.map(page, other);
  const auto read_on = [&](const Ept& tables) {
    vmwrite(Field::eptp, tables.eptp());
    ask(page, Access::read);
    done(l2, "a read");
    return request.value;
  };
  for (unsigned round = 0; round < 5; ++round) {
    expect_equal("on A", read_on(a), 0x1111);
    expect_equal("on B", read_on(b), 0x2222);
  }
  vmwrite(Field::eptp, b.eptp());
  a.map(page, other);
  ask(page, Access::read);
  done(l2, "a read on B");
  a.invalidate();
  expect_equal("on A after its INVEPT", read_on(a), 0x2222);
  b.map(page, page);
  b.invalidate();
  expect_equal("on B after its INVEPT", read_on(b), 0x1111);
  expect_equal("on A, untouched by it", read_on(a), 0x2222);
}

// PITFALLS: one table reached through two parents with different rights.
void shared_table_two_rights() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  constexpr u64 kFirst = 0x20'0000'0000;  // guest-physical and linear, beyond the identity map
  constexpr u64 kSecond = kFirst + 0x20'0000;
  const u64 page = page_with_ret();
  const u64 table = alloc_page();
  page_pointer(table)[0] = page | ept::rwx | ept::wb;
  tables.entry(kFirst, 2) = table | ept::rwx;
  tables.entry(kSecond, 2) = table | ept::read;
  map_page(kFirst, kFirst);
  map_page(kSecond, kSecond);
  ask(kFirst, Access::write, 0xc3);
  done(l2, "a write by the first parent");
  ask(kSecond, Access::read);
  done(l2, "a read by the second");
  expect_equal("the same page", request.value & 0xff, 0xc3);
  ask(kSecond, Access::write, 0xc3);
  if (l2.expect_exit("a write by the second", BasicExit::ept_violation)) {
    expect_equal("qualification: the AND over the path", l2.qualification() & 0x3f, 0x0a);
    expect_equal("guest-physical address", vmread(Field::guest_physical_address), kSecond);
  }
  tables.entry(kSecond, 2) |= ept::write;
  done(l2, "the write again, the parent's right added");
  ask(kSecond, Access::fetch);
  if (l2.expect_exit("a fetch by the second", BasicExit::ept_violation)) {
    expect_equal("qualification", l2.qualification() & 0x3f, 0x1c);
  }
  tables.entry(kSecond, 2) |= ept::execute;
  done(l2, "the fetch again");
  ask(kFirst, Access::fetch);
  done(l2, "a fetch by the first");
  map_page(kFirst, 0, 0);
  map_page(kSecond, 0, 0);
}

// Violations by the walk of L2's own tables: bit 7 set, bit 8 clear, the entry's address.
void violation_by_guest_walk() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kLinear = 0x5'0000'0000;
  const u64 page = alloc_page();
  *page_pointer(page) = 0x1234;
  map_page(kLinear, page);
  u64* const leaf = leaf_entry(kLinear);
  *leaf |= pte::accessed | pte::dirty;
  const u64 table = reinterpret_cast<u64>(leaf) & ~kPageMask;
  tables.entry(table) = 0;
  tables.invalidate();
  l2.start(serve);
  ask(kLinear, Access::read);
  if (l2.expect_exit("a read", BasicExit::ept_violation)) {
    const u64 qualification = l2.qualification();
    expect_equal("linear address valid, not its translation", qualification & 0x180, 0x80);
    expect_equal("a read of the entry", qualification & 5, 1);
    expect_equal("guest-physical address: the entry's", vmread(Field::guest_physical_address),
                 reinterpret_cast<u64>(leaf));
    expect_equal("guest-linear address", vmread(Field::guest_linear_address), kLinear);
  }
  tables.map(table, table);
  done(l2, "the read again");
  expect_equal("value", request.value, 0x1234);
  map_page(kLinear, 0, 0);
}

// L2's page-table pages mapped read-only, its accessed and dirty flags set already: no violation
// with EPT's own A/D flags off.
void read_only_guest_tables() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kLinear = 0x5'4000'0000;
  const u64 page = alloc_page();
  map_page(kLinear, page);
  u64* const leaf = leaf_entry(kLinear);
  *leaf |= pte::accessed | pte::dirty;
  const u64 table = reinterpret_cast<u64>(leaf) & ~kPageMask;
  tables.entry(table) = table | ept::read | ept::wb;
  tables.invalidate();
  l2.start(serve);
  ask(kLinear, Access::write, 0x77);
  done(l2, "a write");
  expect_equal("value", *page_pointer(page), 0x77);
  map_page(kLinear, 0, 0);
}

// ... and with the accessed flag clear: the walk's write of it is a violation.
void read_only_guest_tables_accessed_clear() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kLinear = 0x5'8000'0000;
  const u64 page = alloc_page();
  map_page(kLinear, page);
  u64* const leaf = leaf_entry(kLinear);
  *leaf &= ~(pte::accessed | pte::dirty);
  cpu::invlpg(kLinear);
  const u64 table = reinterpret_cast<u64>(leaf) & ~kPageMask;
  tables.entry(table) = table | ept::read | ept::wb;
  tables.invalidate();
  l2.start(serve);
  ask(kLinear, Access::read);
  if (l2.expect_exit("a read that sets A", BasicExit::ept_violation)) {
    expect_equal("a write", l2.qualification() & 2, 2);
    expect_equal("not the translation", l2.qualification() & 0x180, 0x80);
    expect_equal("guest-physical address", vmread(Field::guest_physical_address),
                 reinterpret_cast<u64>(leaf));
    expect_equal("A still clear", *leaf & pte::accessed, 0);
  }
  tables.map(table, table);
  done(l2, "the read again");
  expect_equal("A set", *leaf & pte::accessed, pte::accessed);
  map_page(kLinear, 0, 0);
}

// L2's own accessed and dirty flags are kept as without EPT.
void guest_accessed_and_dirty() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kLinear = 0x5'c000'0000;
  map_page(kLinear, alloc_page());
  u64* const leaf = leaf_entry(kLinear);
  l2.start(serve);
  ask(kLinear, Access::read);
  done(l2, "a read");
  expect_equal("after the read", *leaf & (pte::accessed | pte::dirty), pte::accessed);
  ask(kLinear, Access::write, 1);
  done(l2, "a write");
  expect_equal("after the write", *leaf & (pte::accessed | pte::dirty), pte::accessed | pte::dirty);
  map_page(kLinear, 0, 0);
}

// --- Misconfigurations. 29.3.3.1.

struct Misconfiguration {
  std::string_view name;
  unsigned level;
  u64 (*entry)(u64 old);
  u32 not_on = 0;
};
constexpr Misconfiguration kMisconfigurations[] = {
    {"write without read", 1, [](u64 old) { return (old & ~u64{7}) | ept::write; }},
    {"write and execute without read", 1,
     [](u64 old) { return (old & ~u64{7}) | ept::write | ept::execute; }},
    {"memory type 2", 1, [](u64 old) { return (old & ~u64{0x38}) | 2 << 3; }},
    {"memory type 3", 1, [](u64 old) { return (old & ~u64{0x38}) | 3 << 3; }},
    {"memory type 7", 1, [](u64 old) { return (old & ~u64{0x38}) | 7 << 3; }},
    {"beyond MAXPHYADDR", 1, [](u64 old) { return old | bit(physical_bits()); }},
    {"write without read in a table entry", 2,
     [](u64 old) { return (old & ~u64{7}) | ept::write; }},
    {"reserved bit 3 of a table entry", 2, [](u64 old) { return old | bit(3); }},
    {"reserved bit 6 of a table entry", 2, [](u64 old) { return old | bit(6); }},
    {"a table entry beyond MAXPHYADDR", 2, [](u64 old) { return old | bit(physical_bits()); }},
    {"reserved bit 4 of a level-3 entry", 3, [](u64 old) { return old | bit(4); }},
    {"reserved bit 7 of a level-4 entry", 4, [](u64 old) { return old | bit(7); }},
};

void misconfigurations() {
  for (const Misconfiguration& row : kMisconfigurations) {
    Ept tables;
    L2 l2;
    if (!install(l2, tables)) {
      return;
    }
    // Far from L2's code, so that only the access meets the entry.
    constexpr u64 kAddress = 0x60'0000'0000;
    const u64 page = alloc_page();
    *page_pointer(page) = 0x99;
    tables.map(kAddress, page);
    map_page(kAddress, kAddress);
    u64& entry = tables.entry(kAddress, row.level);
    const u64 old = entry;
    entry = row.entry(old);
    l2.start(serve);
    ask(kAddress, Access::read);
    // The level-4 entry maps L2's code as well: the fetch finds it first.
    if (l2.expect_exit(row.name, BasicExit::ept_misconfiguration) && row.level < 4) {
      expect_equal(row.name, vmread(Field::guest_physical_address), kAddress);
    }
    // A misconfigured entry is not cached: mended, it works at once. 29.4.2.
    entry = old;
    done(l2, row.name);
    expect_equal(row.name, request.value, 0x99);
    map_page(kAddress, 0, 0);
  }
}

void execute_only_misconfigured() {
  if (execute_only()) {
    skip("execute-only is supported");
    return;
  }
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  const u64 page = page_with_ret();
  tables.entry(page) = page | ept::execute | ept::wb;
  l2.start(serve);
  ask(page, Access::fetch);
  l2.expect_exit("execute-only", BasicExit::ept_misconfiguration);
}

// A large page whose address has low bits set.
void large_page_alignment() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kAddress = 0x60'0000'0000;
  map_page(kAddress, kAddress);
  for (const unsigned n : {13u, 20u}) {
    tables.entry(kAddress, 2) = bit(30) | bit(n) | ept::large | ept::rwx | ept::wb;
    l2.start(serve);
    ask(kAddress, Access::read);
    l2.expect_exit("2 MiB leaf, an address bit too many", BasicExit::ept_misconfiguration);
  }
  map_page(kAddress, 0, 0);
}
void large_page_bit_12() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kAddress = 0x60'0000'0000;
  map_page(kAddress, kAddress);
  tables.entry(kAddress, 2) = bit(30) | bit(12) | ept::large | ept::rwx | ept::wb;
  l2.start(serve);
  ask(kAddress, Access::read);
  l2.expect_exit("2 MiB leaf, bit 12", BasicExit::ept_misconfiguration);
  map_page(kAddress, 0, 0);
}

// Not present is a violation whatever else the entry says.
void absent_with_garbage_is_violation() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  const u64 page = alloc_page();
  tables.entry(page) = ~u64{7} & ~bit(10);
  l2.start(serve);
  ask(page, Access::read);
  l2.expect_exit("a read", BasicExit::ept_violation);
}

// --- Large pages.

void large_pages_translate() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  const u64 capability = ept_vpid_capability();
  const u64 page = alloc_pages(512, 0x20'0000);
  *page_pointer(page + 0x12'3458) = 0x1234;
  *page_pointer(page + 0x1f'fff8) = 0x5678;
  constexpr u64 kAddress = 0x60'0000'0000;
  for (const u64 offset : {u64{0x12'3458}, u64{0x1f'fff8}}) {
    map_page(kAddress + (offset & ~kPageMask), kAddress + (offset & ~kPageMask));
  }
  l2.start(serve);
  if ((capability & bit(16)) != 0) {
    tables.entry(kAddress, 2) = page | ept::large | ept::rwx | ept::wb;
    ask(kAddress + 0x12'3458, Access::read);
    done(l2, "2 MiB");
    expect_equal("value", request.value, 0x1234);
    ask(kAddress + 0x1f'fff8, Access::read);
    done(l2, "2 MiB, last word");
    expect_equal("value", request.value, 0x5678);
  }
  if ((capability & bit(17)) != 0) {
    tables.entry(kAddress, 3) = ept::large | ept::rwx | ept::wb;  // gigabyte 0
    tables.invalidate();
    const u64 offset = page + 0x12'3458;
    map_page(kAddress + (offset & ~kPageMask), kAddress + (offset & ~kPageMask));
    ask(kAddress + offset, Access::read);
    done(l2, "1 GiB");
    expect_equal("value", request.value, 0x1234);
    map_page(kAddress + (offset & ~kPageMask), 0, 0);
  }
  for (const u64 offset : {u64{0x12'3458}, u64{0x1f'fff8}}) {
    map_page(kAddress + (offset & ~kPageMask), 0, 0);
  }
}

// A 2 MiB mapping replaced by 4 KiB ones, one of them different, and back.
void large_page_split_and_joined() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  const u64 pages = alloc_pages(512, 0x20'0000);
  const u64 other = alloc_page();
  *page_pointer(pages + 0x1000) = 0x1111;
  *page_pointer(pages + 0x2000) = 0x1212;
  *page_pointer(other) = 0x2222;
  const u64 large = pages | ept::large | ept::rwx | ept::wb;
  tables.entry(pages, 2) = large;
  tables.invalidate();
  l2.start(serve);
  const auto read = [&](u64 address) {
    ask(address, Access::read);
    done(l2, "a read");
    return request.value;
  };
  for (unsigned round = 0; round < 3; ++round) {
    expect_equal("large", read(pages + 0x1000), 0x1111);
    tables.map(pages + 0x1000, other);  // splits
    tables.invalidate();
    expect_equal("small", read(pages + 0x1000), 0x2222);
    expect_equal("its neighbour", read(pages + 0x2000), 0x1212);
    tables.entry(pages, 2) = large;
    tables.invalidate();
  }
  expect_equal("large again", read(pages + 0x1000), 0x1111);
}

// --- Accessed and dirty flags. 29.3.5.

void accessed_and_dirty() {
  if ((ept_vpid_capability() & bit(21)) == 0) {
    skip("no A/D flags");
    return;
  }
  Ept tables;
  tables.enable_accessed_dirty();
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  u64& leaf = tables.entry(page);
  tables.invalidate();
  ask(page, Access::read);
  done(l2, "a read");
  expect_equal("leaf after a read", leaf & (ept::accessed | ept::dirty), ept::accessed);
  for (unsigned level = 2; level <= 4; ++level) {
    expect_equal("A of a table entry", tables.entry(page, level) & ept::accessed, ept::accessed);
  }
  ask(page, Access::write, 1);
  done(l2, "a write");
  expect_equal("leaf after a write", leaf & (ept::accessed | ept::dirty),
               ept::accessed | ept::dirty);
  // Cleared and invalidated, they are set anew.
  leaf &= ~(ept::accessed | ept::dirty);
  tables.invalidate();
  ask(page, Access::write, 2);
  done(l2, "a write");
  expect_equal("leaf", leaf & (ept::accessed | ept::dirty), ept::accessed | ept::dirty);
  leaf &= ~ept::dirty;
  tables.invalidate();
  ask(page, Access::read);
  done(l2, "a read");
  expect_equal("a read does not set D", leaf & ept::dirty, 0);
  // PITFALLS: the page that holds L2's page tables counts as written.
  const u64 root = cpu::read_cr3() & pte::address;
  expect_equal("the page of L2's PML4", tables.entry(root) & ept::accessed, ept::accessed);
}

void guest_walk_dirties_table_page() {
  if ((ept_vpid_capability() & bit(21)) == 0) {
    skip("no A/D flags");
    return;
  }
  Ept tables;
  tables.enable_accessed_dirty();
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  const u64 root = cpu::read_cr3() & pte::address;
  u64& entry = tables.entry(root);
  tables.invalidate();
  l2.start(serve);
  ask(alloc_page(), Access::read);
  done(l2, "a read");
  expect_equal("D of the page of L2's PML4", entry & ept::dirty, ept::dirty);
}

// PITFALLS: with A/D disabled L1's tables are not written.
void no_flags_when_disabled() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  l2.start(serve);
  const u64 page = alloc_page();
  u64& leaf = tables.entry(page);
  tables.invalidate();
  ask(page, Access::write, 1);
  done(l2, "a write");
  expect_equal("leaf", leaf & (ept::accessed | ept::dirty), 0);
  for (unsigned level = 2; level <= 4; ++level) {
    expect_equal("a table entry", tables.entry(page, level) & ept::accessed, 0);
  }
}

// --- VPID. 29.4.

// L2 page tables of their own: a copy of L1's top level, so that a linear address can differ.
u64 copy_of_tables() {
  const u64 root = alloc_page();
  for (unsigned i = 0; i < 512; ++i) {
    page_pointer(root)[i] = page_pointer(cpu::read_cr3() & pte::address)[i];
  }
  return root;
}
// A linear page at the top-level slot 256: three levels of tables and the entry.
u64* add_mapping(u64 root, u64 physical) {
  const u64 level3 = alloc_page();
  const u64 level2 = alloc_page();
  const u64 level1 = alloc_page();
  page_pointer(root)[256] = level3 | 3;
  page_pointer(level3)[0] = level2 | 3;
  page_pointer(level2)[0] = level1 | 3;
  page_pointer(level1)[0] = physical | 3;
  return page_pointer(level1);
}
constexpr u64 kOwnLinear = ~bit_mask(46, 0);  // 0xffff8000'00000000

void vpids_do_not_mix() {
  L2 a;
  if (!a.proc2(v::proc2::vpid)) {
    skip("no VPID");
    return;
  }
  vmwrite(Field::vpid, 5);
  const u64 page_a = alloc_page();
  const u64 page_b = alloc_page();
  *page_pointer(page_a) = 0xaaaa;
  *page_pointer(page_b) = 0xbbbb;
  const u64 root_a = copy_of_tables();
  add_mapping(root_a, page_a);
  vmwrite(Field::guest_cr3, root_a);
  a.start(serve);
  L2 b;
  b.proc2(v::proc2::vpid);
  vmwrite(Field::vpid, 6);
  const u64 root_b = copy_of_tables();
  add_mapping(root_b, page_b);
  vmwrite(Field::guest_cr3, root_b);
  b.start(serve);
  for (unsigned round = 0; round < 5; ++round) {
    vmptrld(a.region());
    ask(kOwnLinear, Access::read);
    done(a, "VPID 5");
    expect_equal("VPID 5's page", request.value, 0xaaaa);
    vmptrld(b.region());
    ask(kOwnLinear, Access::read);
    done(b, "VPID 6");
    expect_equal("VPID 6's page", request.value, 0xbbbb);
  }
}

void invvpid_makes_edits_seen() {
  L2 l2;
  if (!l2.proc2(v::proc2::vpid)) {
    skip("no VPID");
    return;
  }
  vmwrite(Field::vpid, 7);
  const u64 first = alloc_page();
  const u64 second = alloc_page();
  *page_pointer(first) = 0x1111;
  *page_pointer(second) = 0x2222;
  const u64 root = copy_of_tables();
  u64* const entry = add_mapping(root, first);
  vmwrite(Field::guest_cr3, root);
  l2.start(serve);
  const u64 capability = ept_vpid_capability();
  u64 wanted = 0x1111;
  for (const u64 type : {u64{0}, u64{1}, u64{2}, u64{3}}) {
    if ((capability >> (40 + type) & 1) == 0) {
      continue;
    }
    ask(kOwnLinear, Access::read);
    done(l2, "a read");
    expect_equal("before", request.value, wanted);
    wanted = wanted == 0x1111 ? 0x2222 : 0x1111;
    *entry = (wanted == 0x1111 ? first : second) | 3;
    invvpid(type, {7, kOwnLinear});
    ask(kOwnLinear, Access::read);
    done(l2, "a read after INVVPID");
    expect_equal("after", request.value, wanted);
  }
}

// Without VPID each entry drops what was cached: L1's edit of L2's tables needs no more.
void entry_without_vpid_flushes() {
  L2 l2;
  const u64 first = alloc_page();
  const u64 second = alloc_page();
  *page_pointer(first) = 0x1111;
  *page_pointer(second) = 0x2222;
  const u64 root = copy_of_tables();
  u64* const entry = add_mapping(root, first);
  vmwrite(Field::guest_cr3, root);
  l2.start(serve);
  for (unsigned round = 0; round < 6; ++round) {
    *entry = (round % 2 == 0 ? first : second) | 3;
    ask(kOwnLinear, Access::read);
    done(l2, "a read");
    expect_equal("value", request.value, round % 2 == 0 ? 0x1111 : 0x2222);
  }
}

// L2's own INVLPG and MOV CR3 act as on a processor of its own.
void l2_invalidates_for_itself() {
  L2 l2;
  l2.proc2(v::proc2::vpid);
  vmwrite(Field::vpid, 8);
  const u64 first = alloc_page();
  const u64 second = alloc_page();
  *page_pointer(first) = 0x1111;
  *page_pointer(second) = 0x2222;
  const u64 root = copy_of_tables();
  static u64* entry;
  static u64 to_first, to_second;
  entry = add_mapping(root, first);
  to_first = first | 3;
  to_second = second | 3;
  vmwrite(Field::guest_cr3, root);
  l2.start([](u64) {
    const auto read = [] { return *reinterpret_cast<volatile u64*>(kOwnLinear); };
    for (unsigned round = 0; round < 4; ++round) {
      *entry = to_first;
      cpu::invlpg(kOwnLinear);
      expect_equal("after INVLPG", read(), 0x1111);
      *entry = to_second;
      cpu::write_cr3(cpu::read_cr3());
      expect_equal("after MOV CR3", read(), 0x2222);
      *entry = to_first;
      const u64 cr4 = cpu::read_cr4();
      cpu::write_cr4(cr4 ^ cpu::cr4::pge);
      expect_equal("after CR4.PGE", read(), 0x1111);
      cpu::write_cr4(cr4);
    }
  });
  l2.expect_return("the end");
}

// Memory that is nobody's: no fault, no crash; L1 and L2 see what the bus gives.
void ept_to_no_memory() {
  Ept tables;
  L2 l2;
  if (!install(l2, tables)) {
    return;
  }
  constexpr u64 kAddress = 0x60'0000'0000;
  tables.entry(kAddress) = 0xf000'0000 | ept::rwx | ept::uc;
  map_page(kAddress, kAddress);
  l2.start(serve);
  ask(kAddress, Access::read);
  done(l2, "a read of no memory");
  ask(kAddress, Access::write, 1);
  done(l2, "a write to no memory");
  map_page(kAddress, 0, 0);
}

constexpr Case kCases[] = {
    {"violation_matrix", "SDM vol. 3, table 28-7", violation_matrix},
    {"violation_addresses", "SDM vol. 3, 28.2.1", violation_addresses},
    {"more_permissive_without_invept", "SDM vol. 3, 29.4.3.1", more_permissive_without_invept},
    {"absent_to_present_without_invept", "SDM vol. 3, 29.4.2", absent_to_present_without_invept},
    {"less_permissive_with_invept", "SDM vol. 3, 29.4.3.1", less_permissive_with_invept},
    {"remapped_with_invept", "SDM vol. 3, 29.4.3.1", remapped_with_invept},
    {"edited_between_invept_and_entry", "SDM vol. 3, 29.4.2, 29.4.3.1",
     edited_between_invept_and_entry},
    {"subtree_replaced_with_invept", "SDM vol. 3, 29.4.3.1", subtree_replaced_with_invept},
    {"two_eptps", "SDM vol. 3, 29.4.3.1", two_eptps},
    {"shared_table_two_rights", "SDM vol. 3, 29.3.3.2", shared_table_two_rights},
    {"violation_by_guest_walk", "SDM vol. 3, table 28-7", violation_by_guest_walk},
    {"read_only_guest_tables", "SDM vol. 3, 29.3.3.2", read_only_guest_tables, 0, under_aerie,
     "an SVM host's walk of L2's tables counts as writes (FACTS)"},
    {"read_only_guest_tables_accessed_clear", "SDM vol. 3, 29.3.3.2",
     read_only_guest_tables_accessed_clear, 0, bochs, "Bochs sets A and D without asking EPT"},
    {"guest_accessed_and_dirty", "SDM vol. 3, 4.8", guest_accessed_and_dirty},
    {"misconfigurations", "SDM vol. 3, 29.3.3.1", misconfigurations},
    {"execute_only_misconfigured", "SDM vol. 3, 29.3.3.1", execute_only_misconfigured},
    {"large_page_alignment", "SDM vol. 3, 29.3.3.1", large_page_alignment},
    {"large_page_bit_12", "SDM vol. 3, 29.3.3.1", large_page_bit_12, 0, bochs,
     "Bochs does not reserve bit 12"},
    {"absent_with_garbage_is_violation", "SDM vol. 3, 29.3.3.2", absent_with_garbage_is_violation},
    {"large_pages_translate", "SDM vol. 3, 29.3.2", large_pages_translate},
    {"large_page_split_and_joined", "SDM vol. 3, 29.3.2", large_page_split_and_joined},
    {"accessed_and_dirty", "SDM vol. 3, 29.3.5", accessed_and_dirty},
    {"guest_walk_dirties_table_page", "SDM vol. 3, 29.3.5", guest_walk_dirties_table_page},
    {"no_flags_when_disabled", "SDM vol. 3, 29.3.5", no_flags_when_disabled},
    {"vpids_do_not_mix", "SDM vol. 3, 29.4.2", vpids_do_not_mix},
    {"invvpid_makes_edits_seen", "SDM vol. 3, 29.4.3.1", invvpid_makes_edits_seen},
    {"entry_without_vpid_flushes", "SDM vol. 3, 29.4.3.1", entry_without_vpid_flushes},
    {"l2_invalidates_for_itself", "SDM vol. 3, 29.4.3.1", l2_invalidates_for_itself},
    {"ept_to_no_memory", "SDM vol. 3, 29.3.2", ept_to_no_memory},
};

}  // namespace

u8 guest_main() { return run_vmx_cases(kCases); }

}  // namespace aerie::guest
