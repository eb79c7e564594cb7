#include <cstdlib>

#include "base/panic.h"
#include "base/physical.h"

namespace aerie {

u8* physical_window = nullptr;

void panic_stop() { std::abort(); }

}  // namespace aerie
