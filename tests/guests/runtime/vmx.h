// VMX for cases: the instructions with their flags, a VMCS filled with a 64-bit L2 that shares L1's
// address space, entering it, and what its exits say. SDM vol. 3, chapters 24-31.
#pragma once

#include "cpu/arch/instructions.h"
#include "cpu/arch/registers.h"
#include "cpu/vmx/controls.h"
#include "cpu/vmx/exit_reason.h"
#include "cpu/vmx/fields.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/memory.h"

namespace aerie::guest {

using cpu::vmx::BasicExit;
using cpu::vmx::Field;
using cpu::vmx::InstructionError;

// How a VMX instruction ended (31.2): VMfailInvalid sets CF, VMfailValid ZF.
enum class VmStatus : u8 { succeed, fail_invalid, fail_valid };
constexpr VmStatus vm_status(bool cf, bool zf) {
  return cf ? VmStatus::fail_invalid : zf ? VmStatus::fail_valid : VmStatus::succeed;
}

#define AERIE_VMX_FLAGS "=@ccc"(cf), "=@ccz"(zf)
inline VmStatus vmxon(u64 address) {
  bool cf, zf;
  asm volatile("vmxon %2" : AERIE_VMX_FLAGS : "m"(address) : "memory");
  return vm_status(cf, zf);
}
inline VmStatus vmxoff() {
  bool cf, zf;
  asm volatile("vmxoff" : AERIE_VMX_FLAGS : : "memory");
  return vm_status(cf, zf);
}
inline VmStatus vmclear(u64 address) {
  bool cf, zf;
  asm volatile("vmclear %2" : AERIE_VMX_FLAGS : "m"(address) : "memory");
  return vm_status(cf, zf);
}
inline VmStatus vmptrld(u64 address) {
  bool cf, zf;
  asm volatile("vmptrld %2" : AERIE_VMX_FLAGS : "m"(address) : "memory");
  return vm_status(cf, zf);
}
inline u64 vmptrst() {
  u64 address;
  asm volatile("vmptrst %0" : "=m"(address) : : "cc", "memory");
  return address;
}
inline VmStatus vmread(u32 encoding, u64& value) {
  bool cf, zf;
  asm volatile("vmread %q3, %2" : AERIE_VMX_FLAGS, "+r"(value) : "r"(u64{encoding}));
  return vm_status(cf, zf);
}
inline VmStatus vmwrite(u32 encoding, u64 value) {
  bool cf, zf;
  asm volatile("vmwrite %2, %q3" : AERIE_VMX_FLAGS : "r"(value), "r"(u64{encoding}) : "memory");
  return vm_status(cf, zf);
}
// Of a field that exists: a failure fails the case.
u64 vmread(Field field);
void vmwrite(Field field, u64 value);
inline VmStatus vmlaunch() {
  bool cf, zf;
  asm volatile("vmlaunch" : AERIE_VMX_FLAGS : : "memory");
  return vm_status(cf, zf);
}
inline VmStatus vmresume() {
  bool cf, zf;
  asm volatile("vmresume" : AERIE_VMX_FLAGS : : "memory");
  return vm_status(cf, zf);
}
struct alignas(16) InvalidateDescriptor {
  u64 tag;      // EPTP or VPID
  u64 address;  // linear address of INVVPID type 0
};
inline VmStatus invept(u64 type, const InvalidateDescriptor& descriptor) {
  bool cf, zf;
  asm volatile("invept %2, %3" : AERIE_VMX_FLAGS : "m"(descriptor), "r"(type) : "memory");
  return vm_status(cf, zf);
}
inline VmStatus invvpid(u64 type, const InvalidateDescriptor& descriptor) {
  bool cf, zf;
  asm volatile("invvpid %2, %3" : AERIE_VMX_FLAGS : "m"(descriptor), "r"(type) : "memory");
  return vm_status(cf, zf);
}
inline void vmcall() { asm volatile("vmcall" ::: "memory"); }

// VMX operation of this processor. vmx_on() sets CR4.VMXE and IA32_FEATURE_CONTROL where it is
// unlocked. Both do nothing if the processor is where they would bring it.
bool vmx_on();
void vmx_off();
u64 vmxon_region();
// A page with the processor's VMCS revision identifier.
u64 alloc_vmcs();

// Controls: whether the capability MSRs allow them to be 1; and a wanted set with the bits that
// have to be 1 added (A.3-A.5, the TRUE MSRs where they exist).
bool allows(cpu::vmx::ControlWord word, u32 bits);
u32 adjust_controls(cpu::vmx::ControlWord word, u32 wanted);
u64 ept_vpid_capability();

// An L2. Its code is L1's, its stack its own; interrupts and exceptions it takes go to L1's
// handlers with a PerCpu of its own. With ept=1 on the command line every L2 starts with an
// identity-mapping EPT.
class L2 {
 public:
  static constexpr u64 kReturned = 0x600d;  // RAX of the VMCALL that ends an L2 function

  L2();

  // Makes the next enter() call function(argument); enter() gives exits, the last of which is a
  // VMCALL with RAX = kReturned.
  void start(void (*function)(u64), u64 argument = 0);
  template <class Body>
  void start(Body& body) {
    start([](u64 b) { (*reinterpret_cast<Body*>(b))(); }, reinterpret_cast<u64>(&body));
  }

  // VMLAUNCH the first time, VMRESUME then. False after VMfail: see status, error().
  bool enter();
  // enter() and the exit that must follow, else the case fails; the second skips the instruction.
  bool expect_exit(std::string_view what, BasicExit wanted);
  bool expect_exit_and_skip(std::string_view what, BasicExit wanted);
  // The L2 function runs to its end without any other exit.
  bool expect_return(std::string_view what);
  // VMfailValid with this error, nothing launched.
  bool expect_fail(std::string_view what, InstructionError error);
  // An exit with bit 31 and this basic reason.
  bool expect_failed_entry(std::string_view what, BasicExit basic, u64 qualification);

  void skip_instruction();

  u32 reason() const { return static_cast<u32>(vmread(Field::exit_reason)); }
  u64 qualification() const { return vmread(Field::exit_qualification); }
  u64 length() const { return vmread(Field::exit_instruction_length); }
  u32 error() const { return static_cast<u32>(vmread(Field::instruction_error)); }

  // Adds and takes controls; a control that cannot be set makes these return false.
  bool pin(u32 set, u32 clear = 0);
  bool proc(u32 set, u32 clear = 0);
  bool proc2(u32 set, u32 clear = 0);
  bool exit(u32 set, u32 clear = 0);
  bool entry(u32 set, u32 clear = 0);

  bool unrestricted() const {
    return (vmread(Field::proc2_controls) & cpu::vmx::proc2::unrestricted_guest) != 0;
  }
  u64 region() const { return region_; }
  u8* msr_bitmap() { return page_pointer<u8>(msr_bitmap_); }
  void intercept_msr(u32 index, bool read, bool write, bool on = true);
  PerCpu& per_cpu() { return *per_cpu_; }
  u64 stack_top() const { return stack_ + kStackPages * kPageSize; }

  cpu::GuestRegisters registers{};
  VmStatus status = VmStatus::succeed;
  bool launched = false;

 private:
  static constexpr unsigned kStackPages = 4;
  bool change(Field field, cpu::vmx::ControlWord word, u32 set, u32 clear);

  u64 region_;
  u64 stack_;
  u64 msr_bitmap_;
  PerCpu* per_cpu_;
};

// Writes host and guest state of the current VMCS anew, as L2's constructor does.
void write_host_state();
void write_guest_state(u64 gs_base);

// EPT entry bits (29.3.2).
namespace ept {
inline constexpr u64 read = bit(0), write = bit(1), execute = bit(2), rwx = 7, wb = 6 << 3, uc = 0,
                     ignore_pat = bit(6), large = bit(7), accessed = bit(8), dirty = bit(9),
                     address = bit_mask(51, 12);
}

// Tables that map the first 4 GiB one to one with 2 MiB pages.
class Ept {
 public:
  Ept();
  u64 eptp() const { return root_ | 3 << 3 | 6 | flags_; }
  void enable_accessed_dirty() { flags_ |= bit(6); }
  // The entry for `address` at `level` (1: 4 KiB, 2: 2 MiB, 3: 1 GiB, 4), made by splitting or with
  // new tables where there is none.
  u64& entry(u64 address, unsigned level = 1);
  void map(u64 address, u64 physical, u64 rights = ept::rwx) {
    entry(address) = physical | rights | ept::wb;
  }
  u64 root() const { return root_; }
  // Gives it to the current VMCS, with the controls.
  bool install(L2& l2, bool unrestricted = false) const;
  VmStatus invalidate() const { return invept(1, {eptp(), 0}); }

 private:
  u64 root_;
  u64 flags_ = 0;
};

// For guests of VMX cases: VMXON, the cases, VMXOFF.
u8 run_vmx_cases(std::span<const Case> cases);

}  // namespace aerie::guest
