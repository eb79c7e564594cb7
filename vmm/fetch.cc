#include "vmm/fetch.h"

namespace aerie::vmm {

const cpu::Instruction* fetch_slowly(Vcpu& v, u64 linear, cpu::CodeMode mode) {
  v.telemetry().count(telemetry::Event::decode_miss);
  return v.decode_cache.lookup(linear, mode, [&v](u64 at) { return code_at(v, at); }).instruction;
}

}  // namespace aerie::vmm
