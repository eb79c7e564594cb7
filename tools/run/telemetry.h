// Reading Aerie's telemetry block out of the file that backs the guest's RAM, and printing it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "vmm/telemetry_layout.h"

namespace aerie::tools {

// A copy of the block as it was when it was taken, or null when there is none (yet) below
// `low_end`, the end of RAM below 4 GiB. `fd` is the file that backs RAM, from physical address 0
// up.
std::unique_ptr<telemetry::Block> read_telemetry(int fd, std::uint64_t low_end);

// Exits by level, reason and handler, other events, and Aerie's memory, within 100 columns.
std::string telemetry_table(const telemetry::Block& block);
std::string telemetry_json(const telemetry::Block& block);

// What Aerie wrote about the end of the run; empty if nothing.
std::string end_text(const telemetry::Block& block);

}  // namespace aerie::tools
