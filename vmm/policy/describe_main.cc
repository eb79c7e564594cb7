// Prints docs/what_l1_sees.md.
#include <cstdio>

#include "vmm/policy/describe.h"

int main() {
  const std::string text = aerie::vmm::policy::describe();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
