// VMCS field encodings: SDM vol. 3, appendix B, in its order and its groups. All of them, whether
// Aerie offers the field to an L1 (nested/vmx/vmcs12.h says which) or not.
#pragma once

#include "base/bits.h"
#include "base/types.h"

namespace aerie::cpu::vmx {

enum class Field : u32 {
  // 16-bit control fields (table B-1)
  vpid = 0x0000,
  posted_interrupt_vector = 0x0002,
  eptp_index = 0x0004,
  hlat_prefix_size = 0x0006,
  last_pid_pointer_index = 0x0008,
  // 16-bit guest state (B-2)
  guest_es_selector = 0x0800,
  guest_cs_selector = 0x0802,
  guest_ss_selector = 0x0804,
  guest_ds_selector = 0x0806,
  guest_fs_selector = 0x0808,
  guest_gs_selector = 0x080a,
  guest_ldtr_selector = 0x080c,
  guest_tr_selector = 0x080e,
  guest_interrupt_status = 0x0810,
  pml_index = 0x0812,
  guest_uinv = 0x0814,
  // 16-bit host state (B-3)
  host_es_selector = 0x0c00,
  host_cs_selector = 0x0c02,
  host_ss_selector = 0x0c04,
  host_ds_selector = 0x0c06,
  host_fs_selector = 0x0c08,
  host_gs_selector = 0x0c0a,
  host_tr_selector = 0x0c0c,

  // 64-bit control fields (B-4)
  io_bitmap_a = 0x2000,
  io_bitmap_b = 0x2002,
  msr_bitmap = 0x2004,
  exit_msr_store_address = 0x2006,
  exit_msr_load_address = 0x2008,
  entry_msr_load_address = 0x200a,
  executive_vmcs_pointer = 0x200c,
  pml_address = 0x200e,
  tsc_offset = 0x2010,
  virtual_apic_address = 0x2012,
  apic_access_address = 0x2014,
  posted_interrupt_descriptor = 0x2016,
  vm_function_controls = 0x2018,
  eptp = 0x201a,
  eoi_exit_bitmap0 = 0x201c,
  eoi_exit_bitmap1 = 0x201e,
  eoi_exit_bitmap2 = 0x2020,
  eoi_exit_bitmap3 = 0x2022,
  eptp_list_address = 0x2024,
  vmread_bitmap = 0x2026,
  vmwrite_bitmap = 0x2028,
  ve_information_address = 0x202a,
  xss_exiting_bitmap = 0x202c,
  encls_exiting_bitmap = 0x202e,
  sub_page_permission_table = 0x2030,
  tsc_multiplier = 0x2032,
  tertiary_controls = 0x2034,
  enclv_exiting_bitmap = 0x2036,
  low_pasid_directory = 0x2038,
  high_pasid_directory = 0x203a,
  shared_eptp = 0x203c,
  pconfig_exiting_bitmap = 0x203e,
  hlatp = 0x2040,
  pid_pointer_table = 0x2042,
  secondary_exit_controls = 0x2044,
  spec_ctrl_mask = 0x204a,
  spec_ctrl_shadow = 0x204c,
  injected_event_data = 0x2052,
  // 64-bit read-only data (B-5)
  guest_physical_address = 0x2400,
  original_event_data = 0x2404,
  // 64-bit guest state (B-6)
  vmcs_link_pointer = 0x2800,
  guest_debugctl = 0x2802,
  guest_pat = 0x2804,
  guest_efer = 0x2806,
  guest_perf_global_ctrl = 0x2808,
  guest_pdpte0 = 0x280a,
  guest_pdpte1 = 0x280c,
  guest_pdpte2 = 0x280e,
  guest_pdpte3 = 0x2810,
  guest_bndcfgs = 0x2812,
  guest_rtit_ctl = 0x2814,
  guest_lbr_ctl = 0x2816,
  guest_pkrs = 0x2818,
  // 64-bit host state (B-7)
  host_pat = 0x2c00,
  host_efer = 0x2c02,
  host_perf_global_ctrl = 0x2c04,
  host_pkrs = 0x2c06,

  // 32-bit control fields (B-8)
  pin_controls = 0x4000,
  proc_controls = 0x4002,
  exception_bitmap = 0x4004,
  page_fault_error_mask = 0x4006,
  page_fault_error_match = 0x4008,
  cr3_target_count = 0x400a,
  exit_controls = 0x400c,
  exit_msr_store_count = 0x400e,
  exit_msr_load_count = 0x4010,
  entry_controls = 0x4012,
  entry_msr_load_count = 0x4014,
  entry_interruption_info = 0x4016,
  entry_exception_error = 0x4018,
  entry_instruction_length = 0x401a,
  tpr_threshold = 0x401c,
  proc2_controls = 0x401e,
  ple_gap = 0x4020,
  ple_window = 0x4022,
  instruction_timeout = 0x4024,
  // 32-bit read-only data (B-9)
  instruction_error = 0x4400,
  exit_reason = 0x4402,
  exit_interruption_info = 0x4404,
  exit_interruption_error = 0x4406,
  idt_vectoring_info = 0x4408,
  idt_vectoring_error = 0x440a,
  exit_instruction_length = 0x440c,
  exit_instruction_info = 0x440e,
  // 32-bit guest state (B-10)
  guest_es_limit = 0x4800,
  guest_cs_limit = 0x4802,
  guest_ss_limit = 0x4804,
  guest_ds_limit = 0x4806,
  guest_fs_limit = 0x4808,
  guest_gs_limit = 0x480a,
  guest_ldtr_limit = 0x480c,
  guest_tr_limit = 0x480e,
  guest_gdtr_limit = 0x4810,
  guest_idtr_limit = 0x4812,
  guest_es_access_rights = 0x4814,
  guest_cs_access_rights = 0x4816,
  guest_ss_access_rights = 0x4818,
  guest_ds_access_rights = 0x481a,
  guest_fs_access_rights = 0x481c,
  guest_gs_access_rights = 0x481e,
  guest_ldtr_access_rights = 0x4820,
  guest_tr_access_rights = 0x4822,
  guest_interruptibility = 0x4824,
  guest_activity = 0x4826,
  guest_smbase = 0x4828,
  guest_sysenter_cs = 0x482a,
  preemption_timer_value = 0x482e,
  // 32-bit host state (B-11)
  host_sysenter_cs = 0x4c00,

  // Natural-width control fields (B-12)
  cr0_mask = 0x6000,
  cr4_mask = 0x6002,
  cr0_read_shadow = 0x6004,
  cr4_read_shadow = 0x6006,
  cr3_target0 = 0x6008,
  cr3_target1 = 0x600a,
  cr3_target2 = 0x600c,
  cr3_target3 = 0x600e,
  // Natural-width read-only data (B-13)
  exit_qualification = 0x6400,
  io_rcx = 0x6402,
  io_rsi = 0x6404,
  io_rdi = 0x6406,
  io_rip = 0x6408,
  guest_linear_address = 0x640a,
  // Natural-width guest state (B-14)
  guest_cr0 = 0x6800,
  guest_cr3 = 0x6802,
  guest_cr4 = 0x6804,
  guest_es_base = 0x6806,
  guest_cs_base = 0x6808,
  guest_ss_base = 0x680a,
  guest_ds_base = 0x680c,
  guest_fs_base = 0x680e,
  guest_gs_base = 0x6810,
  guest_ldtr_base = 0x6812,
  guest_tr_base = 0x6814,
  guest_gdtr_base = 0x6816,
  guest_idtr_base = 0x6818,
  guest_dr7 = 0x681a,
  guest_rsp = 0x681c,
  guest_rip = 0x681e,
  guest_rflags = 0x6820,
  guest_pending_debug = 0x6822,
  guest_sysenter_esp = 0x6824,
  guest_sysenter_eip = 0x6826,
  guest_s_cet = 0x6828,
  guest_ssp = 0x682a,
  guest_interrupt_ssp_table = 0x682c,
  // Natural-width host state (B-15)
  host_cr0 = 0x6c00,
  host_cr3 = 0x6c02,
  host_cr4 = 0x6c04,
  host_fs_base = 0x6c06,
  host_gs_base = 0x6c08,
  host_tr_base = 0x6c0a,
  host_gdtr_base = 0x6c0c,
  host_idtr_base = 0x6c0e,
  host_sysenter_esp = 0x6c10,
  host_sysenter_eip = 0x6c12,
  host_rsp = 0x6c14,
  host_rip = 0x6c16,
  host_s_cet = 0x6c18,
  host_ssp = 0x6c1a,
  host_interrupt_ssp_table = 0x6c1c,
};

// The structure of an encoding: SDM vol. 3, 25.11.2, table 25-21.
enum class FieldWidth : u8 { bits16, bits64, bits32, natural };
enum class FieldType : u8 { control, read_only, guest, host };

struct FieldEncoding {
  u32 value;

  constexpr explicit FieldEncoding(u32 encoding) : value{encoding} {}
  constexpr explicit FieldEncoding(Field field) : value{static_cast<u32>(field)} {}

  // Bits 63:32 of a 64-bit field.
  constexpr bool high() const { return (value & 1) != 0; }
  constexpr unsigned index() const { return (value >> 1) & 0x1ff; }
  constexpr FieldType type() const { return static_cast<FieldType>((value >> 10) & 3); }
  constexpr FieldWidth width() const { return static_cast<FieldWidth>((value >> 13) & 3); }
  // Bytes of the whole field on a processor with 64-bit support.
  constexpr unsigned size() const {
    return width() == FieldWidth::bits16 ? 2 : width() == FieldWidth::bits32 ? 4 : 8;
  }
};

}  // namespace aerie::cpu::vmx
