// The policy tables as the page docs/what_l1_sees.md, so that the page cannot say what the tables
// don't. Hosted only.
#pragma once

#include <string>

namespace aerie::vmm::policy {

std::string describe();

}  // namespace aerie::vmm::policy
