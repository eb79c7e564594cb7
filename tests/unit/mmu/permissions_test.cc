// Every entry of the permission tables against a plain reading of the manuals.
#include "mmu/permissions.h"

#include <gtest/gtest.h>

namespace aerie::mmu {
namespace {

// SDM vol. 3, 4.6.1, sentence by sentence.
bool allowed(bool wp, bool smep, bool smap, bool nxe, u32 a, u8 rights) {
  const bool user_page = (rights & right::user) != 0;
  const bool writable = (rights & right::write) != 0;
  const bool executable = (rights & right::execute) != 0;
  const bool write = (a & access::write) != 0, fetch = (a & access::fetch) != 0;
  if ((a & access::user) == 0) {  // supervisor-mode access
    if (fetch) {
      if (user_page && smep) {
        return false;
      }
      return !nxe || executable;
    }
    if (user_page && smap && (a & access::smap_exempt) == 0) {
      return false;
    }
    return !write || !wp || writable;
  }
  if (!user_page) {
    return false;
  }
  if (fetch) {
    return !nxe || executable;
  }
  return !write || writable;
}

TEST(Permissions, EveryEntryIsWhatTheManualSays) {
  for (unsigned mode = 0; mode < 16; ++mode) {
    const PermissionMode m{(mode & 1) != 0, (mode & 2) != 0, (mode & 4) != 0, (mode & 8) != 0};
    ASSERT_EQ(m.index(), mode);
    for (u32 a = 0; a < 32; a += 2) {
      for (u8 rights = 0; rights < 8; ++rights) {
        EXPECT_EQ(!is_denied(kPermissions[mode], a, rights),
                  allowed(m.wp, m.smep, m.smap, m.nxe, a, rights))
            << "mode " << mode << " access " << a << " rights " << int{rights};
      }
    }
  }
}

TEST(Permissions, TheTableOfAModeFollowsItsControlRegisters) {
  EXPECT_EQ(permissions_for(0, 0, 0), &kPermissions[0]);
  EXPECT_EQ(permissions_for(cpu::cr0::wp, cpu::cr4::smap, cpu::efer::nxe),
            &kPermissions[1 + 4 + 8]);
}

// SDM vol. 3, 29.3.3.2.
TEST(Permissions, EptEntriesAreWhatTheManualSays) {
  for (unsigned mbec = 0; mbec < 2; ++mbec) {
    for (unsigned a = 0; a < 16; ++a) {
      for (unsigned rights = 0; rights < 16; ++rights) {
        bool ok = true;
        if (a & 1) ok = ok && (rights & 1);
        if (a & 2) ok = ok && (rights & 2);
        if (a & 4) {
          if (mbec && (a & 8)) {
            ok = ok && (rights & 8);
          } else {
            ok = ok && (rights & 4);
          }
        }
        EXPECT_EQ(((kEptPermissions[mbec][a] >> rights) & 1) == 0, ok);
      }
    }
  }
}

TEST(Permissions, ProtectionKeys) {
  EXPECT_FALSE(key_denies(0, 3, true, true));
  EXPECT_TRUE(key_denies(1u << 6, 3, false, false));
  EXPECT_TRUE(key_denies(2u << 6, 3, true, true));
  EXPECT_FALSE(key_denies(2u << 6, 3, true, false));  // supervisor with CR0.WP = 0
  EXPECT_FALSE(key_denies(2u << 6, 3, false, true));
  EXPECT_FALSE(key_denies(3u << 6, 4, true, true));
}

}  // namespace
}  // namespace aerie::mmu
