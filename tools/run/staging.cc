#include "tools/run/staging.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tools/run/machine.h"

namespace aerie::tools {

namespace fs = std::filesystem;

TemporaryFolder::~TemporaryFolder() {
  if (!path_.empty()) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
}

absl::Status TemporaryFolder::make() {
  if (!path_.empty()) {
    return absl::OkStatus();
  }
  const char* base = std::getenv("TMPDIR");
  std::string name =
      absl::StrCat(base != nullptr && plain_path(base) ? base : "/tmp", "/aerie-XXXXXX");
  if (::mkdtemp(name.data()) == nullptr) {
    return absl::InternalError(
        absl::StrCat("no temporary folder ", name, ": ", std::strerror(errno)));
  }
  path_ = name;
  return absl::OkStatus();
}

std::string StagedFiles::stage(const std::string& path) {
  if (plain_path(path)) {
    return path;
  }
  if (const absl::Status made = folder_.make(); !made.ok()) {
    status_.Update(made);
    return path;
  }
  std::string name = fs::path{path}.filename().string();
  for (char& c : name) {
    if (!plain_path({&c, 1})) {
      c = '_';
    }
  }
  const std::string link = absl::StrCat(folder_.path(), "/", next_++, "-", name);
  std::error_code error;
  fs::create_symlink(fs::absolute(path), link, error);
  if (error) {
    status_.Update(absl::InternalError(absl::StrCat(link, ": ", error.message())));
  }
  return link;
}

}  // namespace aerie::tools
