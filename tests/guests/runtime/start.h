// What the loader handed over. Multiboot specification 0.6.96, 3.3.
#pragma once

#include <span>
#include <string_view>

#include "base/types.h"

namespace aerie::guest {

// The command line's words, the program's own name left out.
std::span<const std::string_view> command_line_words();

}  // namespace aerie::guest
