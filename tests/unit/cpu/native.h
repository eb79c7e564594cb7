// Executes one instruction on the processor the test runs on, for comparison with the emulator.
#pragma once

#include <span>

#include "cpu/arch/registers.h"

namespace aerie::cpu {

struct NativeState {
  GuestRegisters registers;  // but RSP, which stays the test's own
  u64 rflags;
};

// `code` must neither branch nor touch the stack. Only the status flags and DF are loaded from
// state.rflags. Where an x86-64 host has no room for executable memory, returns false.
bool run_natively(std::span<const u8> code, NativeState& state);

}  // namespace aerie::cpu
