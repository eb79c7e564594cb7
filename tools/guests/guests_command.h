// `aerie guests`: runs the L1 guests of tests/guests as their manifest says.
#pragma once

#include <string>
#include <vector>

namespace aerie::tools {

int guests_command(const std::vector<std::string>& arguments);

}  // namespace aerie::tools
