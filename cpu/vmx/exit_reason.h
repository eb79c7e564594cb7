// What a VM exit or a failed VMX instruction reports: basic exit reasons (SDM vol. 3, appendix C),
// VM-instruction errors (31.4), exit qualifications (28.2.1), interruption information (25.8.3,
// 25.9.2) and VM-exit instruction information (28.2.5). Each is a small value that packs to, or
// unpacks from, the word of the manual's table.
#pragma once

#include "base/bits.h"
#include "base/types.h"
#include "cpu/arch/exception.h"
#include "cpu/arch/registers.h"

namespace aerie::cpu::vmx {

// Basic exit reasons: appendix C, table C-1.
enum class BasicExit : u16 {
  exception_or_nmi = 0,
  external_interrupt = 1,
  triple_fault = 2,
  init = 3,
  sipi = 4,
  io_smi = 5,
  other_smi = 6,
  interrupt_window = 7,
  nmi_window = 8,
  task_switch = 9,
  cpuid = 10,
  getsec = 11,
  hlt = 12,
  invd = 13,
  invlpg = 14,
  rdpmc = 15,
  rdtsc = 16,
  rsm = 17,
  vmcall = 18,
  vmclear = 19,
  vmlaunch = 20,
  vmptrld = 21,
  vmptrst = 22,
  vmread = 23,
  vmresume = 24,
  vmwrite = 25,
  vmxoff = 26,
  vmxon = 27,
  cr_access = 28,
  mov_dr = 29,
  io = 30,
  rdmsr = 31,
  wrmsr = 32,
  entry_guest_state = 33,
  entry_msr_loading = 34,
  mwait = 36,
  monitor_trap = 37,
  monitor = 39,
  pause = 40,
  entry_machine_check = 41,
  tpr_below_threshold = 43,
  apic_access = 44,
  virtualized_eoi = 45,
  gdtr_idtr = 46,
  ldtr_tr = 47,
  ept_violation = 48,
  ept_misconfiguration = 49,
  invept = 50,
  rdtscp = 51,
  preemption_timer = 52,
  invvpid = 53,
  wbinvd = 54,
  xsetbv = 55,
  apic_write = 56,
  rdrand = 57,
  invpcid = 58,
  vmfunc = 59,
  encls = 60,
  rdseed = 61,
  pml_full = 62,
  xsaves = 63,
  xrstors = 64,
  pconfig = 65,
  spp_event = 66,
  umwait = 67,
  tpause = 68,
  loadiwkey = 69,
  enclv = 70,
  enqcmd_pasid = 72,
  enqcmds_pasid = 73,
  bus_lock = 74,
  instruction_timeout = 75,
  seamcall = 76,
  tdcall = 77,
  rdmsrlist = 78,
  wrmsrlist = 79,
};
inline constexpr unsigned kBasicExits = 80;

// The 32-bit exit-reason field: table 25-18. Bit 31: the VM entry failed.
inline constexpr u32 kExitEntryFailure = 1u << 31;
constexpr u32 exit_reason(BasicExit basic) { return static_cast<u32>(basic); }
constexpr u32 failed_entry_reason(BasicExit basic) {
  return static_cast<u32>(basic) | kExitEntryFailure;
}

// VM-instruction error numbers: 31.4, table 31-1.
enum class InstructionError : u32 {
  none = 0,
  vmcall_in_root = 1,
  vmclear_invalid_address = 2,
  vmclear_vmxon_pointer = 3,
  vmlaunch_not_clear = 4,
  vmresume_not_launched = 5,
  vmresume_after_vmxoff = 6,
  entry_invalid_control = 7,
  entry_invalid_host_state = 8,
  vmptrld_invalid_address = 9,
  vmptrld_vmxon_pointer = 10,
  vmptrld_wrong_revision = 11,
  unsupported_component = 12,  // VMREAD or VMWRITE of a field that does not exist
  write_to_read_only = 13,
  vmxon_in_root = 15,
  entry_invalid_executive_vmcs = 16,
  entry_not_launched_executive_vmcs = 17,
  entry_executive_vmcs_not_vmxon = 18,
  vmcall_not_clear = 19,
  vmcall_invalid_exit_control = 20,
  vmcall_wrong_mseg_revision = 22,
  vmxoff_dual_monitor = 23,
  vmcall_invalid_smm_features = 24,
  entry_invalid_executive_controls = 25,
  entry_blocked_by_mov_ss = 26,
  invalid_operand_to_invalidation = 28,
};

// Exit qualification of exit 33: 27.8.
enum class EntryFailureQualification : u64 { other = 0, pdpte = 2, nmi = 3, link_pointer = 4 };

// VMX-abort indicators, stored at byte 4 of the VMCS region: 28.7.
enum class VmxAbort : u32 {
  none = 0,
  saving_guest_msrs = 1,
  host_pdpte = 2,
  corrupted_vmcs = 3,
  loading_host_msrs = 4,
  machine_check = 5,
  host_64_mismatch = 6,
};

// Interruption information: VM-entry (table 25-17), VM-exit (25-19) and IDT-vectoring (25-20)
// formats differ only in bit 12, "NMI unblocking due to IRET", which only the exit's has.
namespace interruption_info {
inline constexpr u32 error_valid = 1u << 11, nmi_unblocking = 1u << 12, valid = 1u << 31,
                     entry_reserved = 0x7ffff000;
constexpr u8 vector(u32 info) { return static_cast<u8>(info); }
constexpr EventType type(u32 info) { return static_cast<EventType>((info >> 8) & 7); }

constexpr u32 encode(const Event& event) {
  return event.valid ? valid | (event.has_error ? error_valid : 0) |
                           (static_cast<u32>(event.type) << 8) | event.vector
                     : 0;
}
// `length` is the VM-entry (or VM-exit) instruction length; it means something for software events
// only.
constexpr Event decode(u32 info, u32 error, u32 length) {
  return {.valid = (info & valid) != 0,
          .type = type(info),
          .vector = vector(info),
          .has_error = (info & error_valid) != 0,
          .error = (info & error_valid) != 0 ? error : 0,
          .instruction_length = static_cast<u8>(length)};
}
}  // namespace interruption_info

// Software interrupts and exceptions: the instruction's length goes with them.
constexpr bool is_software_event(EventType type) {
  return type == EventType::software_interrupt ||
         type == EventType::privileged_software_exception || type == EventType::software_exception;
}

// Qualification of a control-register access: table 28-3.
struct CrAccess {
  enum class Kind : u8 { mov_to = 0, mov_from = 1, clts = 2, lmsw = 3 };
  u8 cr = 0;
  Kind kind = Kind::mov_to;
  Gpr gpr = Gpr::rax;        // of MOV
  bool lmsw_memory = false;  // LMSW's operand is in memory
  u16 lmsw_source = 0;       // LMSW's operand

  constexpr u64 encode() const {
    u64 word = cr | (static_cast<u64>(kind) << 4);
    if (kind == Kind::lmsw) {
      word |= (lmsw_memory ? bit(6) : 0) | (static_cast<u64>(lmsw_source) << 16);
    } else if (kind != Kind::clts) {
      word |= static_cast<u64>(gpr) << 8;
    }
    return word;
  }
  static constexpr CrAccess decode(u64 word) {
    return {.cr = static_cast<u8>(word & 15),
            .kind = static_cast<Kind>((word >> 4) & 3),
            .gpr = static_cast<Gpr>((word >> 8) & 15),
            .lmsw_memory = (word & bit(6)) != 0,
            .lmsw_source = static_cast<u16>(word >> 16)};
  }
};

// Qualification of MOV DR: table 28-4.
struct DrAccess {
  u8 dr = 0;
  bool read = false;  // MOV from DR
  Gpr gpr = Gpr::rax;

  constexpr u64 encode() const {
    return (dr & 7) | (read ? bit(4) : 0) | (static_cast<u64>(gpr) << 8);
  }
  static constexpr DrAccess decode(u64 word) {
    return {.dr = static_cast<u8>(word & 7),
            .read = (word & bit(4)) != 0,
            .gpr = static_cast<Gpr>((word >> 8) & 15)};
  }
};

// Qualification of an I/O instruction: table 28-5.
struct IoAccess {
  u8 size = 1;  // bytes: 1, 2 or 4
  bool in = false;
  bool string = false;
  bool rep = false;
  bool immediate = false;  // port in the instruction, not in DX
  u16 port = 0;

  constexpr u64 encode() const {
    return static_cast<u64>(size - 1) | (in ? bit(3) : 0) | (string ? bit(4) : 0) |
           (rep ? bit(5) : 0) | (immediate ? bit(6) : 0) | (u64{port} << 16);
  }
  static constexpr IoAccess decode(u64 word) {
    return {.size = static_cast<u8>((word & 7) + 1),
            .in = (word & bit(3)) != 0,
            .string = (word & bit(4)) != 0,
            .rep = (word & bit(5)) != 0,
            .immediate = (word & bit(6)) != 0,
            .port = static_cast<u16>(word >> 16)};
  }
};

// Qualification of a task switch: table 28-2.
struct TaskSwitch {
  enum class Source : u8 { call = 0, iret = 1, jmp = 2, gate = 3 };
  u16 selector = 0;
  Source source = Source::call;

  constexpr u64 encode() const { return selector | (static_cast<u64>(source) << 30); }
  static constexpr TaskSwitch decode(u64 word) {
    return {.selector = static_cast<u16>(word), .source = static_cast<Source>((word >> 30) & 3)};
  }
};

// Qualification of a debug exception: table 28-1. The bits are those of DR6 (0-3, 11, 13, 14; RTM
// at 16 with the opposite sense), to be merged into DR6 by who delivers the exception.
namespace debug_qualification {
inline constexpr u64 b0_b3 = 0xf, bus_lock = bit(11), bd = bit(13), bs = bit(14), rtm = bit(16);
}

// Qualification of an EPT violation: table 28-7.
struct EptViolation {
  bool read = false, write = false, fetch = false;              // the access
  bool readable = false, writable = false, executable = false;  // AND over the entries used
  bool linear_valid = false;  // the guest-linear address field is valid
  bool translated =
      false;  // the access is to the translation of that address, not to a paging entry
  bool nmi_unblocking = false;

  constexpr u64 encode() const {
    return (read ? bit(0) : 0) | (write ? bit(1) : 0) | (fetch ? bit(2) : 0) |
           (readable ? bit(3) : 0) | (writable ? bit(4) : 0) | (executable ? bit(5) : 0) |
           (linear_valid ? bit(7) : 0) | (linear_valid && translated ? bit(8) : 0) |
           (nmi_unblocking ? bit(12) : 0);
  }
  static constexpr EptViolation decode(u64 word) {
    return {.read = (word & bit(0)) != 0,
            .write = (word & bit(1)) != 0,
            .fetch = (word & bit(2)) != 0,
            .readable = (word & bit(3)) != 0,
            .writable = (word & bit(4)) != 0,
            .executable = (word & bit(5)) != 0,
            .linear_valid = (word & bit(7)) != 0,
            .translated = (word & bit(8)) != 0,
            .nmi_unblocking = (word & bit(12)) != 0};
  }
};

// VM-exit instruction information. One type for the tables that share their positions: 28-8 (INS,
// OUTS), 28-9 (INVEPT, INVPCID, INVVPID), 28-10 (LIDT, LGDT, SIDT, SGDT), 28-11 (LLDT, LTR, SLDT,
// STR), 28-13 (VMCLEAR, VMPTRLD, VMPTRST, VMXON, XRSTORS, XSAVES), 28-14 (VMREAD, VMWRITE).
struct InstructionInfo {
  u8 scaling = 0;                 // log2 of the index's factor
  Gpr register1 = Gpr::rax;       // bits 6:3
  u8 address_size = 2;            // 0: 16 bits, 1: 32 bits, 2: 64 bits
  bool register_operand = false;  // bit 10: mod = 3
  u8 operand_size = 0;            // bits 12:11: of 28-10 (1: 32 bits) and of RDRAND, RDSEED
  u8 segment = 3;                 // ES CS SS DS FS GS
  u8 index = 0;
  bool index_invalid = true;
  u8 base = 0;
  bool base_invalid = true;
  u8 register2 = 0;  // bits 31:28; of 28-10 and 28-11, bits 29:28: which instruction

  // A memory operand's fields are undefined with a register operand; they are encoded as zero then.
  constexpr u32 encode() const {
    u32 word =
        (u32{register2} << 28) | (static_cast<u32>(register1) << 3) | (u32{operand_size} << 11);
    if (register_operand) {
      return word | (1u << 10);
    }
    word |= scaling | (u32{address_size} << 7) | (u32{segment} << 15);
    word |= index_invalid ? 1u << 22 : u32{index} << 18;
    word |= base_invalid ? 1u << 27 : u32{base} << 23;
    return word;
  }
  static constexpr InstructionInfo decode(u32 word) {
    return {.scaling = static_cast<u8>(word & 3),
            .register1 = static_cast<Gpr>((word >> 3) & 15),
            .address_size = static_cast<u8>((word >> 7) & 7),
            .register_operand = (word & (1u << 10)) != 0,
            .operand_size = static_cast<u8>((word >> 11) & 3),
            .segment = static_cast<u8>((word >> 15) & 7),
            .index = static_cast<u8>((word >> 18) & 15),
            .index_invalid = (word & (1u << 22)) != 0,
            .base = static_cast<u8>((word >> 23) & 15),
            .base_invalid = (word & (1u << 27)) != 0,
            .register2 = static_cast<u8>(word >> 28)};
  }
};

}  // namespace aerie::cpu::vmx
