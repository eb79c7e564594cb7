// CPUID of a processor underneath, for policy tests: QEMU 7.2's `-cpu max` under TCG, as read
// there.
#pragma once

#include "cpu/arch/instructions.h"

namespace aerie::vmm::policy::testing {

inline cpu::CpuidResult tcg_host(u32 leaf, u32 subleaf) {
  switch (leaf) {
    case 0x0:
      return {0xd, 0x68747541, 0x444d4163, 0x69746e65};
    case 0x1:
      return {0x00060fb1, 0x00020800, 0xf6d8320b, 0x1fcbfbfd};
    case 0x6:
      return {4, 0, 0, 0};
    case 0x7:
      return subleaf == 0 ? cpu::CpuidResult{0, 0x01d843a9, 0x8001020c, 0} : cpu::CpuidResult{};
    case 0xd:
      switch (subleaf) {
        case 0:
          return {0x21f, 0x240, 0xa88, 0};
        case 1:
          return {5, 0x3c8, 0, 0};
        case 2:
          return {0x100, 0x240, 0, 0};
        case 3:
          return {0x40, 0x3c0, 0, 0};
        case 4:
          return {0x40, 0x400, 0, 0};
        case 9:
          return {0x8, 0xa80, 0, 0};
        default:
          return {};
      }
    case 0x40000000:
      return {0x40000001, 0x54474354, 0x43544743, 0x47435447};
    case 0x80000000:
      return {0x8000000a, 0x68747541, 0x444d4163, 0x69746e65};
    case 0x80000001:
      return {0x00060fb1, 0, 0x77, 0xedd3fbfd};
    case 0x80000008:
      return {0x3928, 0, 0x1001, 0};
    case 0x8000000a:
      return {1, 0x10, 0, 0x10010001};
    default:
      return {};
  }
}

}  // namespace aerie::vmm::policy::testing
