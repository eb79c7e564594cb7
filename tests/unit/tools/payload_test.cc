#include "tools/run/payload.h"

#include <gtest/gtest.h>

#include <cstring>

namespace aerie::tools {
namespace {

template <class T>
void put(std::string* file, std::size_t offset, T value) {
  std::memcpy(file->data() + offset, &value, sizeof value);
}

// A multiboot program of one segment: 0x100 bytes of file at 0x1000, 0x300 of memory at 1 MiB.
std::string multiboot_program() {
  std::string file(0x1100, '\0');
  std::memcpy(file.data(), "\177ELF\1\1\1", 7);
  put<std::uint16_t>(&file, 16, 2);
  put<std::uint16_t>(&file, 18, 3);
  put<std::uint32_t>(&file, 28, 52);
  put<std::uint16_t>(&file, 42, 32);
  put<std::uint16_t>(&file, 44, 1);
  put<std::uint32_t>(&file, 52, 1);
  put<std::uint32_t>(&file, 56, 0x1000);
  put<std::uint32_t>(&file, 64, 0x100000);
  put<std::uint32_t>(&file, 68, 0x100);
  put<std::uint32_t>(&file, 72, 0x300);
  put<std::uint32_t>(&file, 0x1000, 0x1badb002);
  put<std::uint32_t>(&file, 0x1008, 0u - 0x1badb002);
  return file;
}

// A bzImage of 1 + 3 setup sectors and 0x40 paragraphs.
std::string linux_image() {
  std::string file(4 * 512 + 0x400, '\0');
  put<std::uint8_t>(&file, 0x1f1, 3);
  put<std::uint32_t>(&file, 0x1f4, 0x40);
  put<std::uint16_t>(&file, 0x1fe, 0xaa55);
  std::memcpy(file.data() + 0x202, "HdrS", 4);
  put<std::uint16_t>(&file, 0x206, 0x20f);
  put<std::uint8_t>(&file, 0x211, 1);
  return file;
}

std::string error_of(const std::string& file) {
  return std::string{inspect_payload("x.elf", file).status().message()};
}

TEST(Payload, AMultibootProgramReachesToTheEndOfItsMemory) {
  const auto payload = inspect_payload("x.elf", multiboot_program());
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(payload->kind, PayloadKind::multiboot);
  EXPECT_EQ(payload->extent, 0x100300u);
}

TEST(Payload, ALinuxKernelIsKnownByItsHeader) {
  const auto payload = inspect_payload("vmlinuz", linux_image());
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(payload->kind, PayloadKind::linux_kernel);
}

TEST(Payload, EveryTruncationIsFound) {
  const std::string program = multiboot_program();
  for (std::size_t size = 0; size < program.size(); ++size) {
    EXPECT_FALSE(inspect_payload("x.elf", program.substr(0, size)).ok()) << size;
  }
  const std::string kernel = linux_image();
  for (std::size_t size = 0; size < kernel.size(); ++size) {
    EXPECT_FALSE(inspect_payload("vmlinuz", kernel.substr(0, size)).ok()) << size;
  }
}

TEST(Payload, ErrorsNameTheFileAndTheReason) {
  EXPECT_EQ(error_of(""), "payload x.elf: the file is empty");
  EXPECT_EQ(error_of("#!/bin/sh\n"),
            "payload x.elf: neither a multiboot 1 ELF file nor a Linux bzImage");
  EXPECT_EQ(error_of(multiboot_program().substr(0, 0x1080)),
            "payload x.elf: truncated: its segment 0 needs 4352 bytes, the file has 4224");
  std::string wide = multiboot_program();
  wide[4] = 2;
  EXPECT_NE(error_of(wide).find("64-bit"), std::string::npos);
  std::string plain = multiboot_program();
  put<std::uint32_t>(&plain, 0x1000, 0);
  EXPECT_NE(error_of(plain).find("without a multiboot 1 header"), std::string::npos);
  std::string old = linux_image();
  put<std::uint16_t>(&old, 0x206, 0x200);
  EXPECT_NE(error_of(old).find("2.06 or newer"), std::string::npos);
}

TEST(Payload, AMissingFileIsNamedWithItsRole) {
  EXPECT_EQ(read_file("initrd", "/nonexistent/i.gz").status().message(),
            "initrd /nonexistent/i.gz: No such file or directory");
  EXPECT_EQ(read_file("module", "/tmp").status().message(), "module /tmp: not a regular file");
}

}  // namespace
}  // namespace aerie::tools
