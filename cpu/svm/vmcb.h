// The virtual machine control block. APM vol. 2, appendix B; offsets are asserted below.
#pragma once

#include <cstddef>

#include "base/bits.h"
#include "base/types.h"
#include "cpu/arch/segment.h"

namespace aerie::cpu::svm {

// Intercept vectors 3 and 4 (offsets 0x0c, 0x10); vectors 0-2 are CR, DR and exception bitmaps.
namespace intercept {
// vector 3
inline constexpr u32 intr = 1u << 0, nmi = 1u << 1, smi = 1u << 2, init = 1u << 3, vintr = 1u << 4,
                     cr0_selective = 1u << 5, read_idtr = 1u << 6, read_gdtr = 1u << 7,
                     read_ldtr = 1u << 8, read_tr = 1u << 9, write_idtr = 1u << 10,
                     write_gdtr = 1u << 11, write_ldtr = 1u << 12, write_tr = 1u << 13,
                     rdtsc = 1u << 14, rdpmc = 1u << 15, pushf = 1u << 16, popf = 1u << 17,
                     cpuid = 1u << 18, rsm = 1u << 19, iret = 1u << 20,
                     software_interrupt = 1u << 21, invd = 1u << 22, pause = 1u << 23,
                     hlt = 1u << 24, invlpg = 1u << 25, invlpga = 1u << 26, ioio = 1u << 27,
                     msr = 1u << 28, task_switch = 1u << 29, ferr_freeze = 1u << 30,
                     shutdown = 1u << 31;
// vector 4
inline constexpr u32 vmrun = 1u << 0, vmmcall = 1u << 1, vmload = 1u << 2, vmsave = 1u << 3,
                     stgi = 1u << 4, clgi = 1u << 5, skinit = 1u << 6, rdtscp = 1u << 7,
                     icebp = 1u << 8, wbinvd = 1u << 9, monitor = 1u << 10, mwait = 1u << 11,
                     mwait_armed = 1u << 12, xsetbv = 1u << 13, rdpru = 1u << 14;
}  // namespace intercept

// VIRTUAL_CONTROL, offset 0x60 ("int_ctl").
namespace int_ctl {
using V_TPR = Field<7, 0>;
inline constexpr u64 v_irq = bit(8), v_gif = bit(9), v_nmi = bit(11), v_nmi_mask = bit(12);
using V_INTR_PRIO = Field<19, 16>;
inline constexpr u64 v_ign_tpr = bit(20), v_intr_masking = bit(24), v_gif_enable = bit(25),
                     v_nmi_enable = bit(26), x2avic_enable = bit(30), avic_enable = bit(31);
using V_INTR_VECTOR = Field<39, 32>;
}  // namespace int_ctl

// EVENTINJ and EXITINTINFO. APM vol. 2, 15.20 and 15.7.2.
namespace event {
using Vector = Field<7, 0>;
using Type = Field<10, 8>;
inline constexpr u64 error_valid = bit(11), valid = bit(31);
using ErrorCode = Field<63, 32>;
inline constexpr u64 type_interrupt = 0, type_nmi = 2, type_exception = 3,
                     type_software_interrupt = 4;
}  // namespace event

namespace tlb_control {
inline constexpr u8 nothing = 0, flush_all = 1, flush_asid = 3, flush_asid_nonglobal = 7;
}

// Clean bits, offset 0xc0. APM vol. 2, 15.15.3.
namespace clean {
inline constexpr u32 intercepts = 1u << 0, iopm = 1u << 1, asid = 1u << 2, tpr = 1u << 3,
                     np = 1u << 4, crx = 1u << 5, drx = 1u << 6, dt = 1u << 7, seg = 1u << 8,
                     cr2 = 1u << 9, lbr = 1u << 10, avic = 1u << 11, cet = 1u << 12;
}

struct ControlArea {
  u16 intercept_cr_read;     // 0x000
  u16 intercept_cr_write;    // 0x002
  u16 intercept_dr_read;     // 0x004
  u16 intercept_dr_write;    // 0x006
  u32 intercept_exceptions;  // 0x008
  u32 intercept_misc1;       // 0x00c, vector 3
  u32 intercept_misc2;       // 0x010, vector 4
  u32 intercept_misc3;       // 0x014
  u8 reserved0[0x3c - 0x18];
  u16 pause_filter_threshold;  // 0x03c
  u16 pause_filter_count;      // 0x03e
  u64 iopm_base;               // 0x040
  u64 msrpm_base;              // 0x048
  u64 tsc_offset;              // 0x050
  u32 asid;                    // 0x058
  u8 tlb_control;              // 0x05c
  u8 reserved1[3];
  u64 int_ctl;          // 0x060
  u64 interrupt_state;  // 0x068: bit 0 shadow, bit 1 guest interrupt mask
  u64 exit_code;        // 0x070
  u64 exit_info1;       // 0x078
  u64 exit_info2;       // 0x080
  u64 exit_int_info;    // 0x088
  u64 np_enable;        // 0x090: bit 0 nested paging
  u64 avic_apic_bar;    // 0x098
  u64 ghcb;             // 0x0a0
  u64 event_injection;  // 0x0a8
  u64 nested_cr3;       // 0x0b0
  u64 lbr_control;      // 0x0b8: bit 0 LBR, bit 1 virtualized VMLOAD/VMSAVE
  u32 clean;            // 0x0c0
  u32 reserved2;
  u64 next_rip;      // 0x0c8
  u8 fetched_bytes;  // 0x0d0
  u8 instruction_bytes[15];
  u64 avic_backing_page;  // 0x0e0
  u64 reserved3;
  u64 avic_logical_table;   // 0x0f0
  u64 avic_physical_table;  // 0x0f8
  u8 reserved4[0x400 - 0x100];
};
static_assert(sizeof(ControlArea) == 0x400);
static_assert(offsetof(ControlArea, pause_filter_count) == 0x3e);
static_assert(offsetof(ControlArea, int_ctl) == 0x60);
static_assert(offsetof(ControlArea, exit_code) == 0x70);
static_assert(offsetof(ControlArea, event_injection) == 0xa8);
static_assert(offsetof(ControlArea, next_rip) == 0xc8);
static_assert(offsetof(ControlArea, avic_physical_table) == 0xf8);

struct SaveArea {
  Segment segments[kSegmentRegisters];  // 0x000: ES CS SS DS FS GS GDTR LDTR IDTR TR
  u8 reserved0[0xcb - 0xa0];
  u8 cpl;  // 0x0cb
  u8 reserved1[4];
  u64 efer;  // 0x0d0
  u8 reserved2[0x148 - 0xd8];
  u64 cr4;  // 0x148
  u64 cr3;
  u64 cr0;
  u64 dr7;  // 0x160
  u64 dr6;
  u64 rflags;  // 0x170
  u64 rip;     // 0x178
  u8 reserved3[0x1d8 - 0x180];
  u64 rsp;  // 0x1d8
  u64 s_cet, ssp, isst_addr;
  u64 rax;   // 0x1f8
  u64 star;  // 0x200
  u64 lstar, cstar, sfmask;
  u64 kernel_gs_base;  // 0x220
  u64 sysenter_cs, sysenter_esp, sysenter_eip;
  u64 cr2;  // 0x240
  u8 reserved4[0x268 - 0x248];
  u64 pat;       // 0x268
  u64 debugctl;  // 0x270
  u64 br_from, br_to, last_exception_from, last_exception_to;
  u8 reserved5[0xc00 - 0x298];
};
static_assert(offsetof(SaveArea, cpl) == 0xcb);
static_assert(offsetof(SaveArea, efer) == 0xd0);
static_assert(offsetof(SaveArea, cr4) == 0x148);
static_assert(offsetof(SaveArea, rip) == 0x178);
static_assert(offsetof(SaveArea, rsp) == 0x1d8);
static_assert(offsetof(SaveArea, rax) == 0x1f8);
static_assert(offsetof(SaveArea, kernel_gs_base) == 0x220);
static_assert(offsetof(SaveArea, cr2) == 0x240);
static_assert(offsetof(SaveArea, pat) == 0x268);
static_assert(sizeof(SaveArea) == 0xc00);

struct Vmcb {
  ControlArea control;
  SaveArea save;
};
static_assert(sizeof(Vmcb) == 4096);

}  // namespace aerie::cpu::svm
