#include "tools/run/telemetry.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_split.h"
#include "tools/run/subprocess.h"

namespace aerie::tools {
namespace {

using telemetry::Block;

// Guest RAM of 512 MiB with a block at `base`.
class Telemetry : public testing::Test {
 protected:
  static constexpr std::uint64_t kRam = 512 * kMiB;

  void SetUp() override {
    fd_ = Fd{::memfd_create("ram", 0)};
    ASSERT_EQ(::ftruncate(fd_.get(), kRam), 0);
    block_ = std::make_unique<Block>();
    std::memset(block_.get(), 0, sizeof(Block));
    telemetry::Header& header = block_->header;
    header.magic = telemetry::kMagic;
    header.version = telemetry::kVersion;
    header.header_bytes = sizeof(telemetry::Header);
    header.per_cpu_bytes = sizeof(telemetry::PerCpu);
    header.cpus = 2;
    header.block_bytes = 64 * kMiB;
    header.total_pages = 100;
    header.free_pages = 40;
  }
  void put(std::uint64_t base) {
    block_->header.block_base = base;
    ASSERT_EQ(::pwrite(fd_.get(), block_.get(), sizeof(Block), static_cast<off_t>(base)),
              static_cast<ssize_t>(sizeof(Block)));
  }

  Fd fd_;
  std::unique_ptr<Block> block_;
};

TEST_F(Telemetry, IsFoundWhereverItLies) {
  EXPECT_EQ(read_telemetry(fd_.get(), kRam), nullptr);
  put(kRam - 66 * kMiB + 3 * kPageSize);
  const auto found = read_telemetry(fd_.get(), kRam);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->header.total_pages, 100u);
}

TEST_F(Telemetry, AMagicWithoutABlockIsPassedOver) {
  const std::uint64_t magic = telemetry::kMagic;
  ASSERT_EQ(::pwrite(fd_.get(), &magic, sizeof magic, kRam - kPageSize), 8);
  EXPECT_EQ(read_telemetry(fd_.get(), kRam), nullptr);
  put(kRam - 64 * kMiB);
  EXPECT_NE(read_telemetry(fd_.get(), kRam), nullptr);
}

TEST_F(Telemetry, TheTableSumsProcessorsWithinAHundredColumns) {
  block_->cpu[0].exit_counter(1, cpu::ExitReason::cpuid, telemetry::Handler::l0) = 5;
  block_->cpu[1].exit_counter(1, cpu::ExitReason::cpuid, telemetry::Handler::l0) = 7;
  block_->cpu[0].exit_counter(2, cpu::ExitReason::hlt, telemetry::Handler::reflected) =
      ~std::uint64_t{0} / 2;
  block_->cpu[0].count(telemetry::Event::vmread);
  const std::string table = telemetry_table(*block_);
  EXPECT_NE(
      table.find(
          "L1     CPUID                                  12                0               12"),
      std::string::npos)
      << table;
  EXPECT_NE(table.find("L2     HLT"), std::string::npos) << table;
  EXPECT_NE(table.find("VMREAD"), std::string::npos) << table;
  EXPECT_NE(table.find("in use 60 of 100"), std::string::npos) << table;
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(Telemetry, EndTextNeedNotBeTerminated) {
  std::memset(block_->header.end_text, 'x', sizeof block_->header.end_text);
  EXPECT_EQ(end_text(*block_).size(), sizeof block_->header.end_text);
}

TEST_F(Telemetry, JsonHoldsTheSame) {
  block_->cpu[0].exit_counter(1, cpu::ExitReason::io, telemetry::Handler::l0) = 3;
  std::strcpy(block_->header.end_text, "a \"quoted\" text");
  const std::string json = telemetry_json(*block_);
  EXPECT_NE(json.find("{\"level\": 1, \"reason\": \"I/O\", \"l0\": 3, \"reflected\": 0}"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find("\"a \\\"quoted\\\" text\""), std::string::npos) << json;
}

}  // namespace
}  // namespace aerie::tools
