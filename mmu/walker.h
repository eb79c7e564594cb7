// Walks of a guest's tables in software, one walker for every format of mmu/guest_formats.h:
//
//   L1:                     linear → Gpa
//   L2, guest paging only:  linear → Ngpa, its tables' addresses being Ngpas, which a second
//                           dimension (EptDimension, NptDimension) turns into Gpas
//   EPT12:                  Ngpa → Gpa
//
// A guest's tables change under L0's eyes: each entry is loaded once and that copy is checked. An
// entry whose address is not in L1's RAM or ROM reads as all ones, as an unclaimed bus cycle does;
// device memory is never touched. Setting accessed and dirty bits is a compare-exchange against the
// value that was checked.
#pragma once

#include <atomic>

#include "base/address.h"
#include "mmu/guest_formats.h"
#include "mmu/l1_memory.h"
#include "mmu/permissions.h"

namespace aerie::mmu {

// How a guest translates linear addresses: its control registers, digested.
struct GuestPaging {
  ModeBits mode{};
  u64 cr3 = 0;
  PagingFeatures features{};
  const PermissionTable* permissions = &kPermissions[0];
  bool wp = false;
  bool fetch_reported = false;  // page-fault error codes have the I/D bit
  bool pke = false;
  bool pks = false;
  u32 pkru = 0;
  u32 pkrs = 0;
  // The four PDPTEs where the processor holds them in registers (VMX with PAE); null: read from
  // memory.
  const u64* pdptes = nullptr;

  static constexpr GuestPaging make(u64 cr0, u64 cr3, u64 cr4, u64 efer,
                                    const PagingFeatures& features, bool nested = false) {
    GuestPaging p;
    p.mode = ModeBits{cr0, cr4, efer, nested};
    p.cr3 = cr3;
    p.features = features;
    p.permissions = permissions_for(cr0, cr4, efer);
    p.wp = (cr0 & cpu::cr0::wp) != 0;
    p.fetch_reported =
        (cr4 & cpu::cr4::smep) != 0 || ((cr4 & cpu::cr4::pae) != 0 && (efer & cpu::efer::nxe) != 0);
    p.pke = (cr4 & cpu::cr4::pke) != 0;
    p.pks = (cr4 & cpu::cr4::pks) != 0;
    return p;
  }
};

// What stopped a translation in the second dimension.
struct NestedFault {
  enum class Kind : u8 { none, violation, misconfiguration, page_fault };
  Kind kind = Kind::none;
  u8 access = 0;           // ept_access bits of the access that failed
  u8 rights = 0;           // ept_right bits, ANDed over the path; 0 where an entry was not present
  bool page_walk = false;  // the access was to a paging-structure entry of the guest
  u32 pfec = 0;            // page_fault (NPT12): bits 4:0 of EXITINFO1
  Ngpa address{};

  // Exit qualification of an EPT violation whose guest linear address is valid (SDM vol. 3, table
  // 28-7), bits 8:0. `mode_based_execute`: bit 6 is defined.
  constexpr u64 qualification(bool mode_based_execute = false) const {
    return (access & 7u) | (u64{rights & 7u} << 3) |
           (mode_based_execute && (rights & ept_right::execute_user) != 0 ? bit(6) : 0) | bit(7) |
           (page_walk ? 0 : bit(8));
  }
};

// The path of a walk through one set of tables, from the root down.
struct WalkPath {
  static constexpr unsigned kMaxDepth = 5;
  struct Step {
    Gpa at;     // where the entry lies
    u64 entry;  // its value when it was checked, with accessed and dirty bits as left behind
    u8 level;
    bool memory;  // `at` is RAM or ROM
  };
  Step step[kMaxDepth];  // [0, depth) are set
  unsigned depth = 0;
};

struct EptWalk {
  enum class Status : u8 { ok, violation, misconfiguration, retry };
  Status status = Status::retry;
  u8 level = 0;   // of the leaf, or of the entry that stopped the walk
  u8 rights = 0;  // ept_right bits, ANDed over the path; 0 where an entry was not present
  Gpa gpa{};
  WalkPath path;
};

struct WalkOptions {
  bool check_rights = true;
  bool set_accessed_dirty = true;
};

namespace detail {

template <class Entry>
Entry load_entry(const L1Memory& memory, Gpa at, bool& is_memory) {
  const Entry* p = memory.pointer<Entry>(at);
  is_memory = p != nullptr;
  return p != nullptr ? __atomic_load_n(p, __ATOMIC_RELAXED) : static_cast<Entry>(~u64{0});
}

// Sets `bits` in the entry at `at`, which was `seen`. False where it has changed since. An entry in
// ROM or nowhere stays as it is.
template <class Entry>
bool set_entry_bits(const L1Memory& memory, Gpa at, u64& seen, u64 bits) {
  if ((seen & bits) == bits || !memory.writable(at, sizeof(Entry))) {
    return true;
  }
  auto expected = static_cast<Entry>(seen);
  const auto wanted = static_cast<Entry>(seen | bits);
  if (!__atomic_compare_exchange_n(memory.pointer<Entry>(at), &expected, wanted, false,
                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    return false;
  }
  seen = wanted;
  return true;
}

}  // namespace detail

// Translates an Ngpa through L1's EPT. `access` is ept_access bits; a page-walk access under an
// EPTP with accessed and dirty flags must be passed as a write (SDM vol. 3, 29.3.5). Sets accessed
// and dirty flags when the EPTP has them and `options` asks. Status::retry: L1 changed an entry
// meanwhile.
EptWalk walk_ept(const L1Memory& memory, Eptp eptp, const EptFormat::Context& context, Ngpa address,
                 u8 access, WalkOptions options = {});

// A guest paging walk's outcome.
struct GuestWalk {
  enum class Status : u8 { ok, page_fault, nested_fault, retry };
  Status status = Status::retry;
  u8 level = 0;     // of the leaf; 0 without paging
  u8 rights = 0;    // right bits, ANDed over the path
  u32 pfec = 0;     // page_fault
  u64 address = 0;  // what the linear address translates to: a Gpa, or an Ngpa of an L2
  Gpa gpa{};        // the same in L1's memory, where the second dimension was asked for it
  WalkPath path;
  NestedFault nested{};
};

// What a second dimension answers.
struct SecondDimension {
  Gpa gpa{};
  NestedFault fault{};
  bool retry = false;
};

// L1, or an L2 without nested paging: table addresses are Gpas.
struct NoSecondDimension {
  SecondDimension translate(u64 address, u8, bool) const { return {.gpa = Gpa{address}}; }
};

struct EptDimension {
  const L1Memory& memory;
  Eptp eptp;
  EptFormat::Context context;
  WalkOptions options{};

  SecondDimension translate(u64 address, u8 access, bool page_walk) const;
};

// NPT12: L1's own paging mode, each access a user one, those of the guest's walk writes.
// APM vol. 2, 15.25.5 and 15.25.6.
struct NptDimension {
  const L1Memory& memory;
  GuestPaging paging;  // of L1 as host, cr3 = nCR3
  WalkOptions options{};

  SecondDimension translate(u64 address, u8 access, bool page_walk) const;
};

// Translates a linear address. `access_bits`: mmu/permissions.h. The final address is taken through
// the second dimension too.
template <class Second>
GuestWalk walk_guest(const L1Memory& memory, const GuestPaging& paging, const Second& second,
                     u64 linear, u32 access_bits, WalkOptions options = {});

extern template GuestWalk walk_guest(const L1Memory&, const GuestPaging&, const NoSecondDimension&,
                                     u64, u32, WalkOptions);
extern template GuestWalk walk_guest(const L1Memory&, const GuestPaging&, const EptDimension&, u64,
                                     u32, WalkOptions);
extern template GuestWalk walk_guest(const L1Memory&, const GuestPaging&, const NptDimension&, u64,
                                     u32, WalkOptions);

// L1's own linear addresses.
inline GuestWalk walk_l1(const L1Memory& memory, const GuestPaging& paging, u64 linear,
                         u32 access_bits, WalkOptions options = {}) {
  return walk_guest(memory, paging, NoSecondDimension{}, linear, access_bits, options);
}

}  // namespace aerie::mmu
