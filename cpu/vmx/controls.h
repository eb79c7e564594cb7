// Bits of the VM-execution, VM-exit and VM-entry controls. SDM vol. 3, 25.6-25.8. What Aerie offers
// of them is nested/vmx/capabilities.h's matter.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::cpu::vmx {

// The words that hold them. Tertiary controls are 64 bits wide, the others 32.
enum class ControlWord : u8 { pin, proc, proc2, proc3, exit, entry };
inline constexpr unsigned kControlWords = 6;

// Pin-based VM-execution controls: table 25-5.
namespace pin {
inline constexpr u32 external_interrupt = 1u << 0, nmi = 1u << 3, virtual_nmis = 1u << 5,
                     preemption_timer = 1u << 6, posted_interrupts = 1u << 7;
}

// Primary processor-based VM-execution controls: table 25-6.
namespace proc {
inline constexpr u32 interrupt_window = 1u << 2, tsc_offsetting = 1u << 3, hlt = 1u << 7,
                     invlpg = 1u << 9, mwait = 1u << 10, rdpmc = 1u << 11, rdtsc = 1u << 12,
                     cr3_load = 1u << 15, cr3_store = 1u << 16, tertiary = 1u << 17,
                     cr8_load = 1u << 19, cr8_store = 1u << 20, tpr_shadow = 1u << 21,
                     nmi_window = 1u << 22, mov_dr = 1u << 23, unconditional_io = 1u << 24,
                     io_bitmaps = 1u << 25, monitor_trap = 1u << 27, msr_bitmaps = 1u << 28,
                     monitor = 1u << 29, pause = 1u << 30, secondary = 1u << 31;
}

// Secondary processor-based VM-execution controls: table 25-7.
namespace proc2 {
inline constexpr u32 virtualize_apic = 1u << 0, ept = 1u << 1, descriptor_table = 1u << 2,
                     rdtscp = 1u << 3, virtualize_x2apic = 1u << 4, vpid = 1u << 5,
                     wbinvd = 1u << 6, unrestricted_guest = 1u << 7, apic_register = 1u << 8,
                     virtual_interrupts = 1u << 9, pause_loop = 1u << 10, rdrand = 1u << 11,
                     invpcid = 1u << 12, vmfunc = 1u << 13, vmcs_shadowing = 1u << 14,
                     encls = 1u << 15, rdseed = 1u << 16, pml = 1u << 17, ept_ve = 1u << 18,
                     conceal_from_pt = 1u << 19, xsaves = 1u << 20, pasid = 1u << 21,
                     mode_based_execute = 1u << 22, sub_page_permission = 1u << 23,
                     pt_guest_physical = 1u << 24, tsc_scaling = 1u << 25, user_wait = 1u << 26,
                     pconfig = 1u << 27, enclv = 1u << 28, bus_lock = 1u << 30,
                     instruction_timeout = 1u << 31;
}

// Tertiary processor-based VM-execution controls: table 25-8. A 64-bit field.
namespace proc3 {
inline constexpr u64 loadiwkey = bit(0), hlat = bit(1), ept_paging_write = bit(2),
                     guest_paging = bit(3), ipi_virtualization = bit(4), spec_ctrl = bit(7);
}

// Primary VM-exit controls: table 25-14.
namespace exit {
inline constexpr u32 save_debug = 1u << 2, host_64 = 1u << 9, load_perf_global_ctrl = 1u << 12,
                     acknowledge_interrupt = 1u << 15, save_pat = 1u << 18, load_pat = 1u << 19,
                     save_efer = 1u << 20, load_efer = 1u << 21, save_preemption_timer = 1u << 22,
                     clear_bndcfgs = 1u << 23, conceal_from_pt = 1u << 24,
                     clear_rtit_ctl = 1u << 25, clear_lbr_ctl = 1u << 26, clear_uinv = 1u << 27,
                     load_cet = 1u << 28, load_pkrs = 1u << 29, save_perf_global_ctrl = 1u << 30,
                     secondary = 1u << 31;
}

// VM-entry controls: table 25-16.
namespace entry {
inline constexpr u32 load_debug = 1u << 2, ia32e_guest = 1u << 9, smm = 1u << 10,
                     deactivate_dual_monitor = 1u << 11, load_perf_global_ctrl = 1u << 13,
                     load_pat = 1u << 14, load_efer = 1u << 15, load_bndcfgs = 1u << 16,
                     conceal_from_pt = 1u << 17, load_rtit_ctl = 1u << 18, load_uinv = 1u << 19,
                     load_cet = 1u << 20, load_lbr_ctl = 1u << 21, load_pkrs = 1u << 22;
}

// EPTP: table 25-9.
struct Eptp {
  u64 value;
  constexpr unsigned memory_type() const { return value & 7; }
  constexpr unsigned levels() const { return ((value >> 3) & 7) + 1; }
  constexpr bool accessed_dirty() const { return (value & bit(6)) != 0; }
  constexpr u64 root() const { return value & bit_mask(51, 12); }
  static constexpr u64 kReserved = bit_mask(11, 8);  // bit 7 too, without supervisor shadow stacks
};

// Guest interruptibility state: table 25-3.
namespace interruptibility {
inline constexpr u32 sti = 1u << 0, mov_ss = 1u << 1, smi = 1u << 2, nmi = 1u << 3,
                     enclave = 1u << 4, reserved = ~0x1fu;
}

// Guest activity state: 25.4.2.
enum class Activity : u32 { active = 0, hlt = 1, shutdown = 2, wait_for_sipi = 3 };

// Guest pending debug exceptions: table 25-4.
namespace pending_debug {
inline constexpr u64 b0_b3 = 0xf, bus_lock = bit(11), enabled_breakpoint = bit(12), bs = bit(14),
                     rtm = bit(16), reserved = ~(b0_b3 | bus_lock | enabled_breakpoint | bs | rtm);
}

}  // namespace aerie::cpu::vmx
