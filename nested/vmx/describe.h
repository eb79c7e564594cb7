// The tables of VMX as text: for docs/vmx_tables.md, which is this output, and for logs.
#pragma once

#include <string_view>

#include "nested/vmx/capabilities.h"
#include "nested/vmx/entry_checks.h"
#include "nested/vmx/vmcs12.h"

namespace aerie::nested::vmx {

// Where lines go.
struct LineSink {
  void* context;
  void (*write)(void* context, std::string_view line);

  void operator()(std::string_view line) const { write(context, line); }
};

// Features and controls with what is offered and why not, the capability MSRs, the VMCS fields, the
// VM-entry checks: as Markdown.
void describe_vmx(const Capabilities& capabilities, const LineSink& out);

// Every field that exists, with its value, a line each. `stale` groups are marked.
void dump_vmcs12(const Vmcs12& vmcs, const Capabilities& capabilities, GroupMask stale,
                 const LineSink& out);

}  // namespace aerie::nested::vmx
