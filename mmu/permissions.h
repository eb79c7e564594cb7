// Which accesses a page's rights allow, computed at compile time for every paging mode. A mode is a
// pointer to its table; a check is one load and one shift.
//
// Guest paging: SDM vol. 3, 4.6. EPT: SDM vol. 3, 29.3.3.2.
#pragma once

#include <array>

#include "base/types.h"
#include "cpu/arch/exception.h"
#include "cpu/arch/registers.h"
#include "mmu/guest_formats.h"

namespace aerie::mmu {

// An access to linear memory, as the error code of the page fault it may cause: pfec::write, user,
// fetch. In the place of the reserved bit: a supervisor-mode data access that EFLAGS.AC exempts
// from SMAP (explicit, CPL < 3, AC = 1). Implicit accesses (descriptor tables, TSS) are never
// exempt.
namespace access {
inline constexpr u32 read = 0, write = cpu::pfec::write, user = cpu::pfec::user,
                     fetch = cpu::pfec::fetch, smap_exempt = cpu::pfec::reserved;
inline constexpr u32 in_error_code = write | user | fetch;
}  // namespace access

// For each kind of access (index: access bits 4:1) a bit for each combination of right::user, write
// and execute: set where the access faults.
using PermissionTable = std::array<u8, 16>;

constexpr unsigned permission_index(u32 access_bits) { return (access_bits >> 1) & 0xf; }

constexpr bool is_denied(const PermissionTable& table, u32 access_bits, u8 rights) {
  return ((table[permission_index(access_bits)] >> rights) & 1) != 0;
}

struct PermissionMode {
  bool wp, smep, smap, nxe;
  constexpr unsigned index() const { return wp * 1u + smep * 2u + smap * 4u + nxe * 8u; }
};

namespace detail {

constexpr PermissionTable make_permission_table(unsigned mode) {
  const bool wp = (mode & 1) != 0, smep = (mode & 2) != 0, smap = (mode & 4) != 0,
             nxe = (mode & 8) != 0;
  PermissionTable table{};
  for (unsigned i = 0; i < 16; ++i) {
    const u32 a = i << 1;
    const bool write = (a & access::write) != 0, user = (a & access::user) != 0,
               fetch = (a & access::fetch) != 0, exempt = (a & access::smap_exempt) != 0;
    for (u8 rights = 0; rights < 8; ++rights) {
      const bool page_user = (rights & right::user) != 0;
      bool denied = user && !page_user;
      if (fetch) {
        denied |= nxe && (rights & right::execute) == 0;
        denied |= smep && !user && page_user;
      } else {
        denied |= write && (user || wp) && (rights & right::write) == 0;
        denied |= smap && !user && page_user && !exempt;
      }
      table[i] = static_cast<u8>(table[i] | (denied << rights));
    }
  }
  return table;
}

constexpr std::array<PermissionTable, 16> make_permission_tables() {
  std::array<PermissionTable, 16> tables{};
  for (unsigned mode = 0; mode < 16; ++mode) {
    tables[mode] = make_permission_table(mode);
  }
  return tables;
}

}  // namespace detail

// Indexed by PermissionMode::index().
inline constexpr std::array<PermissionTable, 16> kPermissions = detail::make_permission_tables();

constexpr const PermissionTable* permissions_for(u64 cr0, u64 cr4, u64 efer) {
  return &kPermissions[PermissionMode{(cr0 & cpu::cr0::wp) != 0, (cr4 & cpu::cr4::smep) != 0,
                                      (cr4 & cpu::cr4::smap) != 0, (efer & cpu::efer::nxe) != 0}
                           .index()];
}

// An access to guest-physical memory under EPT, at the positions of exit qualification bits 2:0,
// and whether the linear address it comes from is a user-mode one (for fetches under mode-based
// execute control).
namespace ept_access {
inline constexpr u8 read = 1, write = 2, fetch = 4, user = 8;
}

// For each kind of access (index: ept_access bits) a bit for each combination of ept_right bits.
using EptPermissionTable = std::array<u16, 16>;

namespace detail {
constexpr EptPermissionTable make_ept_table(bool mode_based_execute) {
  EptPermissionTable table{};
  for (unsigned a = 0; a < 16; ++a) {
    for (unsigned rights = 0; rights < 16; ++rights) {
      const unsigned execute = mode_based_execute && (a & ept_access::user) != 0
                                   ? ept_right::execute_user
                                   : ept_right::execute;
      const bool denied = ((a & ept_access::read) != 0 && (rights & ept_right::read) == 0) ||
                          ((a & ept_access::write) != 0 && (rights & ept_right::write) == 0) ||
                          ((a & ept_access::fetch) != 0 && (rights & execute) == 0);
      table[a] = static_cast<u16>(table[a] | (denied << rights));
    }
  }
  return table;
}
}  // namespace detail

// Indexed by mode-based execute control.
inline constexpr std::array<EptPermissionTable, 2> kEptPermissions = {detail::make_ept_table(false),
                                                                      detail::make_ept_table(true)};

// Protection keys. SDM vol. 3, 4.6.2: data accesses only, `key` from bits 62:59 of the leaf.
constexpr bool key_denies(u32 pkr, unsigned key, bool write, bool write_checked) {
  const u32 bits = (pkr >> (2 * key)) & 3;
  return (bits & 1) != 0 || ((bits & 2) != 0 && write && write_checked);
}

}  // namespace aerie::mmu
