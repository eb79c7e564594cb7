// General registers, control registers, RFLAGS, EFER: names and bits. SDM vol. 3, 2.3-2.5.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::cpu {

// In the encoding order of ModRM and of VM-exit qualifications.
enum class Gpr : u8 {
  rax,
  rcx,
  rdx,
  rbx,
  rsp,
  rbp,
  rsi,
  rdi,
  r8,
  r9,
  r10,
  r11,
  r12,
  r13,
  r14,
  r15
};

// A guest's general registers while L0 runs. RAX and RSP are here too: the backend moves them to
// and from its control block. RIP and RFLAGS stay in the control block.
struct GuestRegisters {
  u64 gpr[16];

  u64& operator[](Gpr r) { return gpr[static_cast<u8>(r)]; }
  u64 operator[](Gpr r) const { return gpr[static_cast<u8>(r)]; }
};
static_assert(sizeof(GuestRegisters) == 128);

namespace cr0 {
inline constexpr u64 pe = bit(0), mp = bit(1), em = bit(2), ts = bit(3), et = bit(4), ne = bit(5),
                     wp = bit(16), am = bit(18), nw = bit(29), cd = bit(30), pg = bit(31);
inline constexpr u64 defined = pe | mp | em | ts | et | ne | wp | am | nw | cd | pg;
}  // namespace cr0

namespace cr4 {
inline constexpr u64 vme = bit(0), pvi = bit(1), tsd = bit(2), de = bit(3), pse = bit(4),
                     pae = bit(5), mce = bit(6), pge = bit(7), pce = bit(8), osfxsr = bit(9),
                     osxmmexcpt = bit(10), umip = bit(11), la57 = bit(12), vmxe = bit(13),
                     smxe = bit(14), fsgsbase = bit(16), pcide = bit(17), osxsave = bit(18),
                     kl = bit(19), smep = bit(20), smap = bit(21), pke = bit(22), cet = bit(23),
                     pks = bit(24);
}  // namespace cr4

namespace efer {
inline constexpr u64 sce = bit(0), lme = bit(8), lma = bit(10), nxe = bit(11), svme = bit(12),
                     lmsle = bit(13), ffxsr = bit(14);
}  // namespace efer

namespace rflags {
inline constexpr u64 cf = bit(0), fixed = bit(1), pf = bit(2), af = bit(4), zf = bit(6),
                     sf = bit(7), tf = bit(8), interrupt = bit(9), df = bit(10), of = bit(11),
                     iopl = bit_mask(13, 12), nt = bit(14), rf = bit(16), vm = bit(17),
                     ac = bit(18), vif = bit(19), vip = bit(20), id = bit(21);
inline constexpr u64 arithmetic = cf | pf | af | zf | sf | of;
}  // namespace rflags

namespace dr6 {
inline constexpr u64 bd = bit(13), bs = bit(14), bt = bit(15), rtm = bit(16), initial = 0xffff0ff0;
}
namespace dr7 {
inline constexpr u64 fixed = bit(10), gd = bit(13), initial = 0x400;
}

}  // namespace aerie::cpu
