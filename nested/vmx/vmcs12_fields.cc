#include "nested/vmx/vmcs12_fields.h"

#include <algorithm>

#include "nested/vmx/capabilities.h"

namespace aerie::nested::vmx {
namespace {

namespace entry = cpu::vmx::entry;
namespace exit = cpu::vmx::exit;
namespace pin = cpu::vmx::pin;
namespace proc = cpu::vmx::proc;
namespace proc2 = cpu::vmx::proc2;
namespace proc3 = cpu::vmx::proc3;
using cpu::vmx::ControlWord;
using cpu::vmx::Field;
using cpu::vmx::FieldEncoding;
using cpu::vmx::FieldType;
using cpu::vmx::FieldWidth;

constexpr Gate pin_bit(u64 bits) { return {ControlWord::pin, bits}; }
constexpr Gate proc_bit(u64 bits) { return {ControlWord::proc, bits}; }
constexpr Gate proc2_bit(u64 bits) { return {ControlWord::proc2, bits}; }
constexpr Gate proc3_bit(u64 bits) { return {ControlWord::proc3, bits}; }
constexpr Gate exit_bit(u64 bits) { return {ControlWord::exit, bits}; }
constexpr Gate entry_bit(u64 bits) { return {ControlWord::entry, bits}; }

// A row whose member is as wide as the encoding says.
template <Field kField, usize kSize>
constexpr FieldRow row(usize offset, Group group, Gate gate, std::string_view name) {
  static_assert(kSize == FieldEncoding{kField}.size(), "the member is not as wide as the field");
  return {kField, static_cast<u16>(offset), group, gate, name};
}
#define AERIE_FIELD(name, group, gate) \
  row<Field::name, sizeof(Vmcs12::name)>(offsetof(Vmcs12, name), Group::group, gate, #name)
#define AERIE_SEGMENT(reg, part, group)                                         \
  row<Field::guest_##reg##_##part, sizeof(VmcsSegment::part)>(                  \
      offsetof(Vmcs12, guest_segments) +                                        \
          sizeof(VmcsSegment) * static_cast<usize>(cpu::SegmentRegister::reg) + \
          offsetof(VmcsSegment, part),                                          \
      Group::group, {}, "guest_" #reg "_" #part)

constexpr FieldRow kFields[] = {
    // 16-bit control fields
    AERIE_FIELD(vpid, vpid, proc2_bit(proc2::vpid)),
    AERIE_FIELD(posted_interrupt_vector, pin, pin_bit(pin::posted_interrupts)),
    AERIE_FIELD(eptp_index, extensions, proc2_bit(proc2::ept_ve)),
    // 16-bit guest state
    AERIE_SEGMENT(es, selector, guest_segments),
    AERIE_SEGMENT(cs, selector, guest_cs_ss),
    AERIE_SEGMENT(ss, selector, guest_cs_ss),
    AERIE_SEGMENT(ds, selector, guest_segments),
    AERIE_SEGMENT(fs, selector, guest_segments),
    AERIE_SEGMENT(gs, selector, guest_segments),
    AERIE_SEGMENT(ldtr, selector, guest_segments),
    AERIE_SEGMENT(tr, selector, guest_segments),
    AERIE_FIELD(guest_interrupt_status, guest_other, proc2_bit(proc2::virtual_interrupts)),
    AERIE_FIELD(pml_index, guest_other, proc2_bit(proc2::pml)),
    // 16-bit host state
    AERIE_FIELD(host_es_selector, host_state, {}),
    AERIE_FIELD(host_cs_selector, host_state, {}),
    AERIE_FIELD(host_ss_selector, host_state, {}),
    AERIE_FIELD(host_ds_selector, host_state, {}),
    AERIE_FIELD(host_fs_selector, host_state, {}),
    AERIE_FIELD(host_gs_selector, host_state, {}),
    AERIE_FIELD(host_tr_selector, host_state, {}),
    // 64-bit control fields
    AERIE_FIELD(io_bitmap_a, io_bitmaps, proc_bit(proc::io_bitmaps)),
    AERIE_FIELD(io_bitmap_b, io_bitmaps, proc_bit(proc::io_bitmaps)),
    AERIE_FIELD(msr_bitmap, msr_bitmap, proc_bit(proc::msr_bitmaps)),
    AERIE_FIELD(exit_msr_store_address, msr_lists, {}),
    AERIE_FIELD(exit_msr_load_address, msr_lists, {}),
    AERIE_FIELD(entry_msr_load_address, msr_lists, {}),
    AERIE_FIELD(executive_vmcs_pointer, extensions, {}),
    AERIE_FIELD(pml_address, extensions, proc2_bit(proc2::pml)),
    AERIE_FIELD(tsc_offset, tsc, {}),
    AERIE_FIELD(virtual_apic_address, apic, proc_bit(proc::tpr_shadow)),
    AERIE_FIELD(apic_access_address, apic, proc2_bit(proc2::virtualize_apic)),
    AERIE_FIELD(posted_interrupt_descriptor, pin, pin_bit(pin::posted_interrupts)),
    AERIE_FIELD(vm_function_controls, extensions, proc2_bit(proc2::vmfunc)),
    AERIE_FIELD(eptp, ept, proc2_bit(proc2::ept)),
    AERIE_FIELD(eoi_exit_bitmap0, apic, proc2_bit(proc2::virtual_interrupts)),
    AERIE_FIELD(eoi_exit_bitmap1, apic, proc2_bit(proc2::virtual_interrupts)),
    AERIE_FIELD(eoi_exit_bitmap2, apic, proc2_bit(proc2::virtual_interrupts)),
    AERIE_FIELD(eoi_exit_bitmap3, apic, proc2_bit(proc2::virtual_interrupts)),
    AERIE_FIELD(eptp_list_address, extensions, proc2_bit(proc2::vmfunc)),
    AERIE_FIELD(vmread_bitmap, extensions, proc2_bit(proc2::vmcs_shadowing)),
    AERIE_FIELD(vmwrite_bitmap, extensions, proc2_bit(proc2::vmcs_shadowing)),
    AERIE_FIELD(ve_information_address, extensions, proc2_bit(proc2::ept_ve)),
    AERIE_FIELD(xss_exiting_bitmap, extensions, proc2_bit(proc2::xsaves)),
    AERIE_FIELD(tsc_multiplier, tsc, proc2_bit(proc2::tsc_scaling)),
    AERIE_FIELD(tertiary_controls, proc, proc_bit(proc::tertiary)),
    AERIE_FIELD(spec_ctrl_mask, extensions, proc3_bit(proc3::spec_ctrl)),
    AERIE_FIELD(spec_ctrl_shadow, extensions, proc3_bit(proc3::spec_ctrl)),
    // 64-bit read-only data
    AERIE_FIELD(guest_physical_address, information, proc2_bit(proc2::ept)),
    // 64-bit guest state
    AERIE_FIELD(vmcs_link_pointer, guest_other, {}),
    AERIE_FIELD(guest_debugctl, guest_debug, {}),
    AERIE_FIELD(guest_pat, guest_msrs, entry_bit(entry::load_pat)),
    AERIE_FIELD(guest_efer, guest_msrs, entry_bit(entry::load_efer)),
    AERIE_FIELD(guest_perf_global_ctrl, guest_msrs, entry_bit(entry::load_perf_global_ctrl)),
    AERIE_FIELD(guest_pdpte0, guest_pdptes, proc2_bit(proc2::ept)),
    AERIE_FIELD(guest_pdpte1, guest_pdptes, proc2_bit(proc2::ept)),
    AERIE_FIELD(guest_pdpte2, guest_pdptes, proc2_bit(proc2::ept)),
    AERIE_FIELD(guest_pdpte3, guest_pdptes, proc2_bit(proc2::ept)),
    AERIE_FIELD(guest_bndcfgs, guest_msrs, entry_bit(entry::load_bndcfgs)),
    AERIE_FIELD(guest_pkrs, guest_msrs, entry_bit(entry::load_pkrs)),
    // 64-bit host state
    AERIE_FIELD(host_pat, host_state, exit_bit(exit::load_pat)),
    AERIE_FIELD(host_efer, host_state, exit_bit(exit::load_efer)),
    AERIE_FIELD(host_perf_global_ctrl, host_state, exit_bit(exit::load_perf_global_ctrl)),
    AERIE_FIELD(host_pkrs, host_state, exit_bit(exit::load_pkrs)),
    // 32-bit control fields
    AERIE_FIELD(pin_controls, pin, {}),
    AERIE_FIELD(proc_controls, proc, {}),
    AERIE_FIELD(exception_bitmap, exceptions, {}),
    AERIE_FIELD(page_fault_error_mask, exceptions, {}),
    AERIE_FIELD(page_fault_error_match, exceptions, {}),
    AERIE_FIELD(cr3_target_count, cr3_targets, {}),
    AERIE_FIELD(exit_controls, exit, {}),
    AERIE_FIELD(exit_msr_store_count, msr_lists, {}),
    AERIE_FIELD(exit_msr_load_count, msr_lists, {}),
    AERIE_FIELD(entry_controls, entry, {}),
    AERIE_FIELD(entry_msr_load_count, msr_lists, {}),
    AERIE_FIELD(entry_interruption_info, event, {}),
    AERIE_FIELD(entry_exception_error, event, {}),
    AERIE_FIELD(entry_instruction_length, event, {}),
    AERIE_FIELD(tpr_threshold, apic, proc_bit(proc::tpr_shadow)),
    AERIE_FIELD(proc2_controls, proc, proc_bit(proc::secondary)),
    AERIE_FIELD(ple_gap, extensions, proc2_bit(proc2::pause_loop)),
    AERIE_FIELD(ple_window, extensions, proc2_bit(proc2::pause_loop)),
    // 32-bit read-only data
    AERIE_FIELD(instruction_error, information, {}),
    AERIE_FIELD(exit_reason, information, {}),
    AERIE_FIELD(exit_interruption_info, information, {}),
    AERIE_FIELD(exit_interruption_error, information, {}),
    AERIE_FIELD(idt_vectoring_info, information, {}),
    AERIE_FIELD(idt_vectoring_error, information, {}),
    AERIE_FIELD(exit_instruction_length, information, {}),
    AERIE_FIELD(exit_instruction_info, information, {}),
    // 32-bit guest state
    AERIE_SEGMENT(es, limit, guest_segments),
    AERIE_SEGMENT(cs, limit, guest_cs_ss),
    AERIE_SEGMENT(ss, limit, guest_cs_ss),
    AERIE_SEGMENT(ds, limit, guest_segments),
    AERIE_SEGMENT(fs, limit, guest_segments),
    AERIE_SEGMENT(gs, limit, guest_segments),
    AERIE_SEGMENT(ldtr, limit, guest_segments),
    AERIE_SEGMENT(tr, limit, guest_segments),
    AERIE_SEGMENT(gdtr, limit, guest_tables),
    AERIE_SEGMENT(idtr, limit, guest_tables),
    AERIE_SEGMENT(es, access_rights, guest_segments),
    AERIE_SEGMENT(cs, access_rights, guest_cs_ss),
    AERIE_SEGMENT(ss, access_rights, guest_cs_ss),
    AERIE_SEGMENT(ds, access_rights, guest_segments),
    AERIE_SEGMENT(fs, access_rights, guest_segments),
    AERIE_SEGMENT(gs, access_rights, guest_segments),
    AERIE_SEGMENT(ldtr, access_rights, guest_segments),
    AERIE_SEGMENT(tr, access_rights, guest_segments),
    AERIE_FIELD(guest_interruptibility, guest_blocking, {}),
    AERIE_FIELD(guest_activity, guest_blocking, {}),
    AERIE_FIELD(guest_smbase, guest_other, {}),
    AERIE_FIELD(guest_sysenter_cs, guest_sysenter, {}),
    AERIE_FIELD(preemption_timer_value, guest_other, pin_bit(pin::preemption_timer)),
    // 32-bit host state
    AERIE_FIELD(host_sysenter_cs, host_state, {}),
    // Natural-width control fields
    AERIE_FIELD(cr0_mask, cr_masks, {}),
    AERIE_FIELD(cr4_mask, cr_masks, {}),
    AERIE_FIELD(cr0_read_shadow, cr_masks, {}),
    AERIE_FIELD(cr4_read_shadow, cr_masks, {}),
    AERIE_FIELD(cr3_target0, cr3_targets, {}),
    AERIE_FIELD(cr3_target1, cr3_targets, {}),
    AERIE_FIELD(cr3_target2, cr3_targets, {}),
    AERIE_FIELD(cr3_target3, cr3_targets, {}),
    // Natural-width read-only data
    AERIE_FIELD(exit_qualification, information, {}),
    AERIE_FIELD(io_rcx, information, {}),
    AERIE_FIELD(io_rsi, information, {}),
    AERIE_FIELD(io_rdi, information, {}),
    AERIE_FIELD(io_rip, information, {}),
    AERIE_FIELD(guest_linear_address, information, {}),
    // Natural-width guest state
    AERIE_FIELD(guest_cr0, guest_cr, {}),
    AERIE_FIELD(guest_cr3, guest_cr3, {}),
    AERIE_FIELD(guest_cr4, guest_cr, {}),
    AERIE_SEGMENT(es, base, guest_segments),
    AERIE_SEGMENT(cs, base, guest_cs_ss),
    AERIE_SEGMENT(ss, base, guest_cs_ss),
    AERIE_SEGMENT(ds, base, guest_segments),
    AERIE_SEGMENT(fs, base, guest_segments),
    AERIE_SEGMENT(gs, base, guest_segments),
    AERIE_SEGMENT(ldtr, base, guest_segments),
    AERIE_SEGMENT(tr, base, guest_segments),
    AERIE_SEGMENT(gdtr, base, guest_tables),
    AERIE_SEGMENT(idtr, base, guest_tables),
    AERIE_FIELD(guest_dr7, guest_debug, {}),
    AERIE_FIELD(guest_rsp, guest_rip, {}),
    AERIE_FIELD(guest_rip, guest_rip, {}),
    AERIE_FIELD(guest_rflags, guest_rflags, {}),
    AERIE_FIELD(guest_pending_debug, guest_blocking, {}),
    AERIE_FIELD(guest_sysenter_esp, guest_sysenter, {}),
    AERIE_FIELD(guest_sysenter_eip, guest_sysenter, {}),
    AERIE_FIELD(guest_s_cet, guest_msrs, entry_bit(entry::load_cet)),
    AERIE_FIELD(guest_ssp, guest_msrs, entry_bit(entry::load_cet)),
    AERIE_FIELD(guest_interrupt_ssp_table, guest_msrs, entry_bit(entry::load_cet)),
    // Natural-width host state
    AERIE_FIELD(host_cr0, host_state, {}),
    AERIE_FIELD(host_cr3, host_state, {}),
    AERIE_FIELD(host_cr4, host_state, {}),
    AERIE_FIELD(host_fs_base, host_state, {}),
    AERIE_FIELD(host_gs_base, host_state, {}),
    AERIE_FIELD(host_tr_base, host_state, {}),
    AERIE_FIELD(host_gdtr_base, host_state, {}),
    AERIE_FIELD(host_idtr_base, host_state, {}),
    AERIE_FIELD(host_sysenter_esp, host_state, {}),
    AERIE_FIELD(host_sysenter_eip, host_state, {}),
    AERIE_FIELD(host_rsp, host_rip, {}),
    AERIE_FIELD(host_rip, host_rip, {}),
    AERIE_FIELD(host_s_cet, host_state, exit_bit(exit::load_cet)),
    AERIE_FIELD(host_ssp, host_state, exit_bit(exit::load_cet)),
    AERIE_FIELD(host_interrupt_ssp_table, host_state, exit_bit(exit::load_cet)),
};
#undef AERIE_FIELD
#undef AERIE_SEGMENT

static_assert(std::ranges::is_sorted(kFields, {}, [](const FieldRow& r) { return r.field; }));
static_assert(std::ranges::adjacent_find(kFields, {}, [](const FieldRow& r) { return r.field; }) ==
              std::ranges::end(kFields));
// Read-only data is what L0 writes, and nothing else is.
static_assert(std::ranges::all_of(kFields, [](const FieldRow& r) {
  return (FieldEncoding{r.field}.type() == FieldType::read_only) == (r.group == Group::information);
}));
// FieldIndex leaves bits 9:7 of an encoding out.
static_assert(std::ranges::all_of(kFields, [](const FieldRow& r) {
  return FieldEncoding{r.field}.index() < 64;
}));

constexpr u8 width_shift(Field field) {
  return static_cast<u8>(64 - 8 * FieldEncoding{field}.size());
}

}  // namespace

std::span<const FieldRow> vmcs12_fields() { return kFields; }

bool field_exists(const FieldRow& row, const Capabilities& capabilities) {
  return row.gate.bits == 0 || capabilities.offers_any(row.gate.word, row.gate.bits);
}

void FieldIndex::build(const Capabilities& capabilities) {
  slots_ = {};
  for (const FieldRow& r : kFields) {
    if (!field_exists(r, capabilities)) {
      continue;
    }
    const FieldEncoding encoding{r.field};
    u8 flags = FieldSlot::kPresent;
    if (encoding.type() == FieldType::read_only && !capabilities.vmwrite_any()) {
      flags |= FieldSlot::kReadOnly;
    }
    const auto group = static_cast<u8>(r.group);
    slots_[slot_of(encoding.value)] = {r.offset, group,
                                       static_cast<u8>(flags | width_shift(r.field))};
    if (encoding.width() == FieldWidth::bits64) {
      slots_[slot_of(encoding.value + 1)] = {static_cast<u16>(r.offset + 4), group,
                                             static_cast<u8>(flags | 32)};
    }
  }
}

std::string_view field_name(Field field) {
  const FieldRow* const found = std::ranges::lower_bound(kFields, field, {}, &FieldRow::field);
  return found != std::ranges::end(kFields) && found->field == field ? found->name
                                                                     : std::string_view{};
}

}  // namespace aerie::nested::vmx
