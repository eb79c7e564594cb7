// `aerie kut`: runs a built kvm-unit-tests suite, wherever the user has it.
#pragma once

#include <string>
#include <vector>

namespace aerie::tools {

int kut_command(const std::vector<std::string>& arguments);

}  // namespace aerie::tools
