#include "tools/run/telemetry.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cpu/exit_names.h"
#include "tools/report/json.h"
#include "tools/report/text.h"

namespace aerie::tools {
namespace {

using telemetry::Block;
using telemetry::Handler;

bool read_exactly(int fd, void* data, std::size_t bytes, std::uint64_t offset) {
  auto* out = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, out, bytes, static_cast<off_t>(offset));
    if (n <= 0) {
      return false;
    }
    out += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

// Whether the page at `base` begins a block of this tool's own layout.
bool is_block(int fd, std::uint64_t base) {
  telemetry::Header header;
  return read_exactly(fd, &header, sizeof header, base) && header.magic == telemetry::kMagic &&
         header.version == telemetry::kVersion && header.block_base == base &&
         header.header_bytes == sizeof header &&
         header.per_cpu_bytes == sizeof(telemetry::PerCpu) && header.cpus <= kMaxCpus;
}

bool has_magic(int fd, std::uint64_t base) {
  std::uint64_t word = 0;
  return read_exactly(fd, &word, sizeof word, base) && word == telemetry::kMagic &&
         is_block(fd, base);
}

struct Row {
  unsigned level;
  absl::string_view reason;
  std::uint64_t l0;
  std::uint64_t reflected;
};

// Summed over the processors, most frequent first within a level.
std::vector<Row> exit_rows(const Block& block) {
  std::vector<Row> rows;
  const unsigned cpus = std::min<unsigned>(block.header.cpus, kMaxCpus);
  for (unsigned level = 0; level < telemetry::kLevels; ++level) {
    for (unsigned reason = 0; reason < cpu::kExitReasons; ++reason) {
      Row row{level, absl_view(cpu::kExitNames[reason].name), 0, 0};
      for (unsigned i = 0; i < cpus; ++i) {
        row.l0 += block.cpu[i].exits[level][reason][static_cast<unsigned>(Handler::l0)];
        row.reflected +=
            block.cpu[i].exits[level][reason][static_cast<unsigned>(Handler::reflected)];
      }
      if (row.l0 + row.reflected > 0) {
        rows.push_back(row);
      }
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.level != b.level ? a.level < b.level : a.l0 + a.reflected > b.l0 + b.reflected;
  });
  return rows;
}

std::uint64_t event_sum(const Block& block, unsigned event) {
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < std::min<unsigned>(block.header.cpus, kMaxCpus); ++i) {
    sum += block.cpu[i].events[event];
  }
  return sum;
}

}  // namespace

std::unique_ptr<Block> read_telemetry(int fd, std::uint64_t low_end) {
  // Aerie sits below whatever the firmware keeps at the top. Whole 64 MiB steps first, then every
  // page that holds data, from the top down.
  constexpr std::uint64_t kWindow = std::uint64_t{64} << 20;
  std::uint64_t found = 0;
  for (std::uint64_t base = low_end / kWindow * kWindow; base >= kWindow && found == 0;
       base -= kWindow) {
    if (base < low_end && has_magic(fd, base)) {
      found = base;
    }
  }
  for (std::uint64_t top = low_end; top > 0 && found == 0;) {
    const std::uint64_t bottom = top > kWindow ? top - kWindow : 0;
    std::uint64_t at = bottom;
    while (at < top && found == 0) {
      const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 || static_cast<std::uint64_t>(data) >= top) {
        break;
      }
      off_t hole = ::lseek(fd, data, SEEK_HOLE);
      if (hole < 0 || static_cast<std::uint64_t>(hole) > top) {
        hole = static_cast<off_t>(top);
      }
      for (std::uint64_t page = static_cast<std::uint64_t>(data) & ~kPageMask;
           page < static_cast<std::uint64_t>(hole) && found == 0; page += kPageSize) {
        if (has_magic(fd, page)) {
          found = page;
        }
      }
      at = static_cast<std::uint64_t>(hole);
    }
    top = bottom;
  }
  if (found == 0) {
    return nullptr;
  }
  auto block = std::make_unique<Block>();
  if (!read_exactly(fd, block.get(), sizeof *block, found)) {
    return nullptr;
  }
  return block;
}

std::string end_text(const Block& block) {
  const char* text = block.header.end_text;
  return std::string{text, ::strnlen(text, sizeof block.header.end_text)};
}

std::string telemetry_table(const Block& block) {
  std::string out = absl::StrFormat("%-6s %-24s %16s %16s %16s\n", "level", "exit", "L0 handled",
                                    "reflected to L1", "total");
  std::uint64_t l0 = 0;
  std::uint64_t reflected = 0;
  for (const Row& row : exit_rows(block)) {
    absl::StrAppendFormat(&out, "L%-5u %-24s %16u %16u %16u\n", row.level, row.reason, row.l0,
                          row.reflected, row.l0 + row.reflected);
    l0 += row.l0;
    reflected += row.reflected;
  }
  absl::StrAppendFormat(&out, "%-6s %-24s %16u %16u %16u\n", "all", "", l0, reflected,
                        l0 + reflected);
  bool heading = false;
  for (unsigned event = 0; event < telemetry::kEvents; ++event) {
    if (const std::uint64_t sum = event_sum(block, event); sum > 0) {
      if (!heading) {
        absl::StrAppendFormat(&out, "\n%-31s %16s\n", "event", "count");
        heading = true;
      }
      absl::StrAppendFormat(&out, "%-31s %16u\n", absl_view(telemetry::kEventNames[event]), sum);
    }
  }
  const telemetry::Header& header = block.header;
  const std::uint64_t used = header.total_pages - std::min(header.total_pages, header.free_pages);
  absl::StrAppendFormat(&out, "\nAerie's memory: %u MiB at 0x%x; pages in use %u of %u (%u KiB)\n",
                        header.block_bytes >> 20, header.block_base, used, header.total_pages,
                        used * 4);
  return out;
}

std::string telemetry_json(const Block& block) {
  std::vector<std::string> exits;
  for (const Row& row : exit_rows(block)) {
    exits.push_back(
        absl::StrFormat("    {\"level\": %u, \"reason\": %s, \"l0\": %u, \"reflected\": %u}",
                        row.level, json_string(row.reason), row.l0, row.reflected));
  }
  std::vector<std::string> events;
  for (unsigned event = 0; event < telemetry::kEvents; ++event) {
    events.push_back(absl::StrFormat("    %s: %u",
                                     json_string(absl_view(telemetry::kEventNames[event])),
                                     event_sum(block, event)));
  }
  const telemetry::Header& header = block.header;
  return absl::StrFormat(
      "{\n  \"cpus\": %u,\n  \"memory\": {\"base\": %u, \"bytes\": %u, \"total_pages\": %u, "
      "\"free_pages\": %u},\n  \"end\": {\"state\": %u, \"text\": %s},\n"
      "  \"exits\": [\n%s\n  ],\n  \"events\": {\n%s\n  }\n}\n",
      header.cpus, header.block_base, header.block_bytes, header.total_pages, header.free_pages,
      static_cast<unsigned>(header.end_state), json_string(end_text(block)),
      absl::StrJoin(exits, ",\n"), absl::StrJoin(events, ",\n"));
}

}  // namespace aerie::tools
