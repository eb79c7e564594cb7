#include "tools/run/payload.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aerie::tools {
namespace {

// A little-endian number of the file; false when it lies beyond the end.
template <class T>
bool read_at(absl::string_view contents, std::uint64_t offset, T* value) {
  if (offset > contents.size() || contents.size() - offset < sizeof(T)) {
    return false;
  }
  std::memcpy(value, contents.data() + offset, sizeof(T));
  return true;
}

absl::Status wrong(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("payload ", name, ": ", why));
}

absl::Status truncated(absl::string_view name, absl::string_view part, std::uint64_t needed,
                       std::uint64_t size) {
  return wrong(
      name, absl::StrFormat("truncated: %s needs %u bytes, the file has %u", part, needed, size));
}

// Multiboot specification 0.6.96, 3.1: within the first 8192 bytes, 4-byte aligned.
bool has_multiboot_header(absl::string_view contents) {
  constexpr std::uint32_t kMagic = 0x1badb002;
  const std::uint64_t end = std::min<std::uint64_t>(contents.size(), 8192);
  for (std::uint64_t offset = 0; offset + 12 <= end; offset += 4) {
    std::uint32_t word[3];
    std::memcpy(word, contents.data() + offset, sizeof word);
    if (word[0] == kMagic && word[0] + word[1] + word[2] == 0) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<Payload> inspect_elf(absl::string_view name, absl::string_view contents) {
  const std::uint64_t size = contents.size();
  std::uint8_t file_class = 0;
  if (!read_at(contents, 4, &file_class)) {
    return truncated(name, "its ELF header", 52, size);
  }
  if (file_class == 2) {
    return wrong(name, "a 64-bit ELF file; multiboot 1 wants a 32-bit ELF container");
  }
  std::uint16_t machine = 0;
  std::uint32_t program_headers = 0;
  std::uint32_t section_headers = 0;
  std::uint16_t program_header_bytes = 0;
  std::uint16_t program_header_count = 0;
  std::uint16_t section_header_bytes = 0;
  std::uint16_t section_header_count = 0;
  if (!read_at(contents, 18, &machine) || !read_at(contents, 28, &program_headers) ||
      !read_at(contents, 32, &section_headers) || !read_at(contents, 42, &program_header_bytes) ||
      !read_at(contents, 44, &program_header_count) ||
      !read_at(contents, 46, &section_header_bytes) ||
      !read_at(contents, 48, &section_header_count)) {
    return truncated(name, "its ELF header", 52, size);
  }
  if (machine != 3) {
    return wrong(name, "an ELF file, but not for x86");
  }
  if (program_header_count == 0 || program_header_bytes < 32) {
    return wrong(name, "an ELF file without program headers; not an executable");
  }
  Payload payload{.kind = PayloadKind::multiboot};
  for (unsigned i = 0; i < program_header_count; ++i) {
    const std::uint64_t at =
        std::uint64_t{program_headers} + std::uint64_t{i} * program_header_bytes;
    std::uint32_t type = 0;
    std::uint32_t offset = 0;
    std::uint32_t address = 0;
    std::uint32_t file_bytes = 0;
    std::uint32_t memory_bytes = 0;
    if (!read_at(contents, at, &type) || !read_at(contents, at + 4, &offset) ||
        !read_at(contents, at + 12, &address) || !read_at(contents, at + 16, &file_bytes) ||
        !read_at(contents, at + 20, &memory_bytes)) {
      return truncated(name, "its program header table", at + 32, size);
    }
    if (type != 1) {
      continue;  // only PT_LOAD
    }
    const std::uint64_t end = std::uint64_t{offset} + file_bytes;
    if (end > size) {
      return truncated(name, absl::StrCat("its segment ", i), end, size);
    }
    payload.extent = std::max(payload.extent, std::uint64_t{address} + memory_bytes);
  }
  const std::uint64_t sections_end =
      std::uint64_t{section_headers} + std::uint64_t{section_header_bytes} * section_header_count;
  if (section_headers != 0 && sections_end > size) {
    return truncated(name, "its section header table", sections_end, size);
  }
  if (payload.extent == 0) {
    return wrong(name, "an ELF file with nothing to load");
  }
  if (!has_multiboot_header(contents)) {
    return wrong(name, "an ELF file without a multiboot 1 header in its first 8 KiB");
  }
  return payload;
}

// Linux, Documentation/arch/x86/boot.rst.
absl::StatusOr<Payload> inspect_linux_kernel(absl::string_view name, absl::string_view contents) {
  std::uint8_t setup_sectors = 0;
  std::uint32_t paragraphs = 0;
  std::uint16_t version = 0;
  std::uint8_t load_flags = 0;
  read_at(contents, 0x1f1, &setup_sectors);
  read_at(contents, 0x1f4, &paragraphs);
  if (!read_at(contents, 0x206, &version) || !read_at(contents, 0x211, &load_flags)) {
    return truncated(name, "its Linux setup header", 0x212, contents.size());
  }
  if (version < 0x206 || (load_flags & 1) == 0) {
    return wrong(name, absl::StrFormat("a Linux kernel of boot protocol %d.%02d that is no bzImage "
                                       "(2.06 or newer, loaded high)",
                                       version >> 8, version & 0xff));
  }
  const std::uint64_t setup = (setup_sectors == 0 ? 4u : setup_sectors) * 512u + 512u;
  const std::uint64_t needed = setup + std::uint64_t{paragraphs} * 16;
  if (contents.size() < needed) {
    return truncated(name, "this Linux kernel", needed, contents.size());
  }
  return Payload{.kind = PayloadKind::linux_kernel, .extent = contents.size()};
}

}  // namespace

absl::StatusOr<Payload> inspect_payload(absl::string_view name, absl::string_view contents) {
  if (contents.empty()) {
    return wrong(name, "the file is empty");
  }
  std::uint32_t setup_magic = 0;
  std::uint16_t boot_flag = 0;
  if (read_at(contents, 0x202, &setup_magic) && read_at(contents, 0x1fe, &boot_flag) &&
      boot_flag == 0xaa55 && setup_magic == 0x53726448) {
    return inspect_linux_kernel(name, contents);
  }
  if (contents.substr(0, 4) == "\177ELF") {
    return inspect_elf(name, contents);
  }
  return wrong(name, "neither a multiboot 1 ELF file nor a Linux bzImage");
}

absl::StatusOr<std::uint64_t> file_size(absl::string_view role, const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    return absl::NotFoundError(absl::StrCat(role, " ", path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(role, " ", path, ": not a regular file"));
  }
  if (::access(path.c_str(), R_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(role, " ", path, ": ", std::strerror(errno)));
  }
  return static_cast<std::uint64_t>(status.st_size);
}

absl::StatusOr<std::string> read_file(absl::string_view role, const std::string& path) {
  const absl::StatusOr<std::uint64_t> size = file_size(role, path);
  if (!size.ok()) {
    return size.status();
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::NotFoundError(absl::StrCat(role, " ", path, ": ", std::strerror(errno)));
  }
  std::string contents;
  contents.resize(*size);
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t n = ::read(fd, contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      break;
    }
    done += static_cast<std::size_t>(n);
  }
  ::close(fd);
  contents.resize(done);
  return contents;
}

}  // namespace aerie::tools
