#include "tools/run/images.h"

#include <sys/wait.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/run/relay.h"
#include "tools/run/run_command.h"

namespace aerie::tools {

std::string source_root() {
  return std::filesystem::path{build_folder()}.parent_path().parent_path().string();
}

absl::Status build_images() {
  absl::StatusOr<Subprocess> process = Subprocess::start(
      {.command = {source_root() + "/images/build"}, .inherited = {}, .directory = {}});
  if (!process.ok()) {
    return process.status();
  }
  std::string said;
  const auto collect = [&said](absl::string_view bytes) {
    absl::StrAppend(&said, bytes);
    return true;
  };
  const RelayEnd end = relay(*process, {.sources = {{process->standard_output().get(), collect},
                                                    {process->standard_error().get(), collect}},
                                        .standard_input = false,
                                        .timeout_seconds = 600});
  if (end == RelayEnd::exited && process->status() == 0) {
    return absl::OkStatus();
  }
  const std::vector<std::string> lines = absl::StrSplit(said, '\n', absl::SkipWhitespace());
  return absl::InternalError(
      absl::StrCat("images/build failed: ", lines.empty() ? "no output" : lines.back()));
}

void use_linux_l1(MachineSpec* spec, absl::string_view words) {
  const std::string folder = source_root() + "/build/images";
  spec->payload = folder + "/vmlinuz";
  spec->initrd = folder + "/l1.cpio.gz";
  spec->append = absl::StrCat("console=ttyS0 reboot=t panic=-1", words.empty() ? "" : " ", words);
}

}  // namespace aerie::tools
