// What happens on an exit: one handler a reason. To change what L0 does when L1 executes an
// instruction or touches a page, find its row in exit_table.cc and the handler in vmm/exits/.
#pragma once

#include <array>

#include "cpu/exit.h"

namespace aerie::vmm {

class Vcpu;

using ExitHandler = void (*)(Vcpu&, const cpu::Exit&);

// Exits of L1, by reason.
extern const std::array<ExitHandler, cpu::kExitReasons> kL1Exits;

}  // namespace aerie::vmm
