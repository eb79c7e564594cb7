// Files under names that QEMU's -initrd can take, in a temporary folder that ends with the run.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace aerie::tools {

// A temporary folder, removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() = default;
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // Makes it at the first call.
  absl::Status make();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class StagedFiles {
 public:
  // The path itself where it is plain, else a symbolic link to it.
  std::string stage(const std::string& path);
  // The first error of all calls.
  const absl::Status& status() const { return status_; }

 private:
  TemporaryFolder folder_;
  absl::Status status_;
  int next_ = 0;
};

}  // namespace aerie::tools
