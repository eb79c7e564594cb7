// vmcs12: the VMCS that an L1 keeps for its L2, as Aerie holds it while it is current or cached,
// and as it lies in L1's VMCS region otherwise (SDM vol. 3, 25.2). The layout is Aerie's own: L1
// reaches fields through VMREAD and VMWRITE only.
//
// vmcs12_fields.h has the one table of the fields, FieldIndex the lookup that VMREAD and VMWRITE
// use.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/types.h"
#include "cpu/arch/segment.h"

namespace aerie::nested::vmx {

// VMCS revision identifier (IA32_VMX_BASIC bits 30:0). Change it when the layout changes: an L1
// that was saved under another Aerie must not have its regions misread.
inline constexpr u32 kRevisionId = 0x4145'5201;
static_assert((kRevisionId >> 31) == 0);

// Attributes as a processor has them after loading a segment register: code and data segments
// accessed, a TSS busy; VM entry insists on both (SDM vol. 3, 27.3.1.2). TCG's far transfers and
// LTR set the bits in the descriptor alone, so that an L2 that has executed them could not be
// entered again.
constexpr u16 as_loaded(u16 attributes) {
  constexpr u16 present = 0x80, code_or_data = 0x10, accessed = 0x1, busy = 0x2;
  if ((attributes & present) == 0) {
    return attributes;
  }
  const bool available_tss = (attributes & 0x17) == 0x1;  // 16-bit; or 32- or 64-bit, with bit 3
  const u16 bits = (attributes & code_or_data) != 0 ? accessed : available_tss ? busy : u16{0};
  return static_cast<u16>(attributes | bits);
}

// A guest segment register; GDTR and IDTR have a limit and a base only.
struct VmcsSegment {
  u16 selector;
  u16 unused;
  u32 limit;
  u32 access_rights;  // SDM vol. 3, table 25-2
  u32 unused2;
  u64 base;

  constexpr bool usable() const { return (access_rights & cpu::kVmxSegmentUnusable) == 0; }
  constexpr unsigned type() const { return access_rights & 15; }
  constexpr bool code_or_data() const { return (access_rights & (1u << 4)) != 0; }
  constexpr unsigned dpl() const { return (access_rights >> 5) & 3; }
  constexpr bool present() const { return (access_rights & (1u << 7)) != 0; }
  constexpr bool long_mode() const { return (access_rights & (1u << 13)) != 0; }
  constexpr bool default_big() const { return (access_rights & (1u << 14)) != 0; }
  constexpr bool granularity() const { return (access_rights & (1u << 15)) != 0; }

  // From and to the form of the host's control block.
  constexpr cpu::Segment neutral() const {
    return {selector, cpu::segment_attributes(access_rights), limit, base};
  }
  constexpr void set(const cpu::Segment& s) {
    selector = s.selector;
    access_rights = cpu::vmx_access_rights(as_loaded(s.attributes));
    limit = s.limit;
    base = s.base;
  }
};
static_assert(sizeof(VmcsSegment) == 24);

// Exactly one VMCS region. Members are named as the fields in cpu/vmx/fields.h.
struct Vmcs12 {
  // The region's header: architectural.
  u32 revision_id;      // bit 31: shadow-VMCS indicator
  u32 abort_indicator;  // cpu::vmx::VmxAbort
  // Launch state; architectural, but with no encoding. Nonzero: launched.
  u32 launched;
  u32 unused0;

  // What nearly every exit writes or L1 reads then.
  u32 exit_reason;
  u32 exit_interruption_info;
  u32 exit_interruption_error;
  u32 idt_vectoring_info;
  u32 idt_vectoring_error;
  u32 exit_instruction_length;
  u32 exit_instruction_info;
  u32 instruction_error;
  u64 exit_qualification;
  u64 guest_linear_address;
  u64 guest_physical_address;
  u64 guest_rip;
  u64 guest_rsp;
  u64 guest_rflags;
  u64 guest_pending_debug;
  u32 guest_interruptibility;
  u32 guest_activity;
  u32 entry_interruption_info;
  u32 entry_exception_error;
  u32 entry_instruction_length;
  u32 pin_controls;
  u32 proc_controls;
  u32 proc2_controls;
  u64 tertiary_controls;
  u32 exit_controls;
  u32 entry_controls;
  u32 exception_bitmap;
  u32 page_fault_error_mask;
  u32 page_fault_error_match;
  u32 exit_msr_store_count;
  u32 exit_msr_load_count;
  u32 entry_msr_load_count;

  // Controls
  u64 exit_msr_store_address;
  u64 exit_msr_load_address;
  u64 entry_msr_load_address;
  u64 cr0_mask;
  u64 cr4_mask;
  u64 cr0_read_shadow;
  u64 cr4_read_shadow;
  u64 cr3_target0;
  u64 cr3_target1;
  u64 cr3_target2;
  u64 cr3_target3;
  u32 cr3_target_count;
  u16 vpid;
  u16 posted_interrupt_vector;
  u64 eptp;
  u64 io_bitmap_a;
  u64 io_bitmap_b;
  u64 msr_bitmap;
  u64 tsc_offset;
  u64 tsc_multiplier;
  u64 executive_vmcs_pointer;
  u64 virtual_apic_address;
  u64 apic_access_address;
  u64 posted_interrupt_descriptor;
  u64 eoi_exit_bitmap0;
  u64 eoi_exit_bitmap1;
  u64 eoi_exit_bitmap2;
  u64 eoi_exit_bitmap3;
  u32 tpr_threshold;
  u16 eptp_index;
  u16 unused1;
  u64 pml_address;
  u64 vm_function_controls;
  u64 eptp_list_address;
  u64 vmread_bitmap;
  u64 vmwrite_bitmap;
  u64 ve_information_address;
  u64 xss_exiting_bitmap;
  u32 ple_gap;
  u32 ple_window;
  u64 spec_ctrl_mask;
  u64 spec_ctrl_shadow;

  // Guest state
  u64 guest_cr0;
  u64 guest_cr3;
  u64 guest_cr4;
  u64 guest_pdpte0;
  u64 guest_pdpte1;
  u64 guest_pdpte2;
  u64 guest_pdpte3;
  u64 guest_dr7;
  u64 guest_debugctl;
  u64 guest_efer;
  u64 guest_pat;
  u64 guest_perf_global_ctrl;
  u64 guest_bndcfgs;
  u64 guest_pkrs;
  u64 guest_s_cet;
  u64 guest_ssp;
  u64 guest_interrupt_ssp_table;
  u64 guest_sysenter_esp;
  u64 guest_sysenter_eip;
  u32 guest_sysenter_cs;
  u32 guest_smbase;
  u64 vmcs_link_pointer;
  u32 preemption_timer_value;
  u16 guest_interrupt_status;
  u16 pml_index;
  std::array<VmcsSegment, cpu::kSegmentRegisters> guest_segments;  // by cpu::SegmentRegister

  // Host state
  u64 host_rip;
  u64 host_rsp;
  u64 host_cr0;
  u64 host_cr3;
  u64 host_cr4;
  u64 host_efer;
  u64 host_pat;
  u64 host_perf_global_ctrl;
  u64 host_pkrs;
  u64 host_s_cet;
  u64 host_ssp;
  u64 host_interrupt_ssp_table;
  u64 host_fs_base;
  u64 host_gs_base;
  u64 host_tr_base;
  u64 host_gdtr_base;
  u64 host_idtr_base;
  u64 host_sysenter_esp;
  u64 host_sysenter_eip;
  u32 host_sysenter_cs;
  u16 host_es_selector;
  u16 host_cs_selector;
  u16 host_ss_selector;
  u16 host_ds_selector;
  u16 host_fs_selector;
  u16 host_gs_selector;
  u16 host_tr_selector;
  u16 unused3;

  // VM-exit information that few exits write
  u64 io_rcx;
  u64 io_rsi;
  u64 io_rdi;
  u64 io_rip;

  // Reads and writes of any field move eight bytes at its offset; this keeps them inside.
  static constexpr usize kUsed = 1096;
  std::array<u8, kPageSize - kUsed> unused4;

  VmcsSegment& segment(cpu::SegmentRegister r) { return guest_segments[static_cast<u8>(r)]; }
  const VmcsSegment& segment(cpu::SegmentRegister r) const {
    return guest_segments[static_cast<u8>(r)];
  }
};
static_assert(std::is_trivial_v<Vmcs12> && std::is_standard_layout_v<Vmcs12>);
static_assert(offsetof(Vmcs12, revision_id) == 0 && offsetof(Vmcs12, abort_indicator) == 4);
static_assert(offsetof(Vmcs12, unused4) == Vmcs12::kUsed && Vmcs12::kUsed % 8 == 0);
static_assert(sizeof(Vmcs12) == kPageSize);

}  // namespace aerie::nested::vmx
