// MSR numbers and the bits of those Aerie interprets. SDM vol. 4; APM vol. 2, appendix A.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::cpu::msr {

inline constexpr u32 tsc = 0x10, platform_id = 0x17, apic_base = 0x1b, feature_control = 0x3a,
                     tsc_adjust = 0x3b, spec_ctrl = 0x48, pred_cmd = 0x49,
                     bios_update_trigger = 0x79, bios_sign_id = 0x8b, smm_monitor_ctl = 0x9b,
                     smbase = 0x9e, platform_info = 0xce, mtrr_cap = 0xfe,
                     arch_capabilities = 0x10a, flush_cmd = 0x10b, sysenter_cs = 0x174,
                     sysenter_esp = 0x175, sysenter_eip = 0x176, mcg_cap = 0x179,
                     mcg_status = 0x17a, mcg_ctl = 0x17b, misc_enable = 0x1a0, debugctl = 0x1d9,
                     last_branch_from = 0x1db, last_branch_to = 0x1dc, last_exception_from = 0x1dd,
                     last_exception_to = 0x1de, mtrr_phys_base0 = 0x200, mtrr_fix_first = 0x250,
                     pat = 0x277, mtrr_def_type = 0x2ff, perf_global_status = 0x38e,
                     perf_global_ctrl = 0x38f, perf_global_ovf_ctrl = 0x390, mc0_ctl = 0x400,
                     vmx_basic = 0x480, vmx_pinbased = 0x481, vmx_procbased = 0x482,
                     vmx_exit = 0x483, vmx_entry = 0x484, vmx_misc = 0x485, vmx_cr0_fixed0 = 0x486,
                     vmx_cr0_fixed1 = 0x487, vmx_cr4_fixed0 = 0x488, vmx_cr4_fixed1 = 0x489,
                     vmx_vmcs_enum = 0x48a, vmx_procbased2 = 0x48b, vmx_ept_vpid_cap = 0x48c,
                     vmx_true_pinbased = 0x48d, vmx_true_procbased = 0x48e, vmx_true_exit = 0x48f,
                     vmx_true_entry = 0x490, vmx_vmfunc = 0x491, vmx_procbased3 = 0x492,
                     tsc_deadline = 0x6e0, pkrs = 0x6e1, x2apic_first = 0x800, x2apic_last = 0x8ff,
                     bndcfgs = 0xd90, xss = 0xda0, efer = 0xc0000080, star = 0xc0000081,
                     lstar = 0xc0000082, cstar = 0xc0000083, sfmask = 0xc0000084,
                     fs_base = 0xc0000100, gs_base = 0xc0000101, kernel_gs_base = 0xc0000102,
                     tsc_aux = 0xc0000103, tsc_ratio = 0xc0000104, syscfg = 0xc0010010,
                     hwcr = 0xc0010015, vm_cr = 0xc0010114, ignne = 0xc0010115,
                     vm_hsave_pa = 0xc0010117, amd_patch_level = 0x8b, de_cfg = 0xc0011029;

namespace apic_base_bits {
inline constexpr u64 bsp = bit(8), x2apic = bit(10), enable = bit(11);
}
namespace feature_control_bits {
inline constexpr u64 locked = bit(0), vmx_in_smx = bit(1), vmx_outside_smx = bit(2);
}
namespace debugctl_bits {
inline constexpr u64 lbr = bit(0), btf = bit(1);
}

// Each of the eight PAT entries must be UC, WC, WT, WP, WB or UC-. SDM vol. 3, 12.12.2.
constexpr bool is_valid_pat(u64 value) {
  for (unsigned i = 0; i < 8; ++i) {
    const u64 type = (value >> (8 * i)) & 0xff;
    if (type > 7 || type == 2 || type == 3) {
      return false;
    }
  }
  return true;
}

}  // namespace aerie::cpu::msr
