// What a payload file is, told from its bytes before anything is started, so that a wrong file is
// one clear line rather than a silent machine. (Aerie checks again: it may be started without this
// tool.)
#pragma once

#include <cstdint>
#include <string>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aerie::tools {

enum class PayloadKind { multiboot, linux_kernel };

struct Payload {
  PayloadKind kind;
  // Multiboot: the highest physical address that its segments fill. Linux: the bytes of the file.
  std::uint64_t extent = 0;
};

// Judges the contents of `name`. Errors name the file and what is wrong with it.
absl::StatusOr<Payload> inspect_payload(absl::string_view name, absl::string_view contents);

// The whole file, or an error that names it and its `role` ("payload", "initrd", "module").
absl::StatusOr<std::string> read_file(absl::string_view role, const std::string& path);
// Size in bytes of a readable regular file, or an error as above.
absl::StatusOr<std::uint64_t> file_size(absl::string_view role, const std::string& path);

}  // namespace aerie::tools
