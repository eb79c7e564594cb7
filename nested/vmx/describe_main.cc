// Prints docs/vmx_tables.md.
#include <cstdio>

#include "nested/vmx/describe.h"

int main() {
  using namespace aerie::nested::vmx;
  const LineSink out{nullptr, [](void*, std::string_view line) {
                       std::fwrite(line.data(), 1, line.size(), stdout);
                       std::fputc('\n', stdout);
                     }};
  describe_vmx(Capabilities{CapabilityConfig{}}, out);
}
