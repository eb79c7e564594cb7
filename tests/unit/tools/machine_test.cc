#include "tools/run/machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace aerie::tools {
namespace {

// The value of the last `option` in a command; empty if it is not there.
std::string last_value(const std::vector<std::string>& command, const std::string& option) {
  const auto it = std::find(command.rbegin(), command.rend(), option);
  return it == command.rend() || it == command.rbegin() ? "" : *(it - 1);
}

MachineSpec spec_of(Host host) {
  MachineSpec spec;
  spec.host = host;
  spec.image = "aerie.elf";
  spec.payload = "vmx.flat";
  return spec;
}

TEST(Machine, AeriesCommandLineSaysWhatL1IsShown) {
  MachineSpec spec;
  EXPECT_EQ(aerie_command_line(spec), "cpu=intel tdp=on block=64M log=info");
  spec.cpu = CpuVendor::amd;
  spec.tdp = false;
  spec.hide = {"npt", "pku"};
  EXPECT_EQ(aerie_command_line(spec), "cpu=amd tdp=off hide=npt,pku block=64M log=info");
}

TEST(Machine, ThePayloadIsAeriesFirstModule) {
  MachineSpec spec = spec_of(Host::aerie);
  spec.append = "null vmenter";
  const auto command =
      qemu_command(spec, PayloadKind::multiboot, {.payload = "vmx.flat", .modules = {"env"}});
  EXPECT_EQ(last_value(command, "-kernel"), "aerie.elf");
  EXPECT_EQ(last_value(command, "-initrd"), "vmx.flat null vmenter,env");
}

TEST(Machine, CommasInArgumentsAreDoubled) {
  MachineSpec spec = spec_of(Host::aerie);
  spec.append = "console=ttyS0,115200 a,b";
  const auto command =
      qemu_command(spec, PayloadKind::linux_kernel, {.payload = "vmlinuz", .initrd = "i.gz"});
  EXPECT_EQ(last_value(command, "-initrd"), "vmlinuz console=ttyS0,,115200 a,,b,i.gz");
}

TEST(Machine, WithoutAerieThePayloadIsTheKernel) {
  MachineSpec spec = spec_of(Host::none);
  spec.append = "console=ttyS0,115200";
  const auto command =
      qemu_command(spec, PayloadKind::linux_kernel, {.payload = "vmlinuz", .initrd = "i,1.gz"});
  EXPECT_EQ(last_value(command, "-kernel"), "vmlinuz");
  EXPECT_EQ(last_value(command, "-append"), "console=ttyS0,115200");
  EXPECT_EQ(last_value(command, "-initrd"), "i,1.gz");
}

TEST(Machine, OnlyWithoutAerieQemusProcessorIsChanged) {
  MachineSpec spec = spec_of(Host::none);
  spec.hide = {"smap"};
  spec.cpu = CpuVendor::intel;
  EXPECT_EQ(last_value(qemu_command(spec, PayloadKind::multiboot, {}), "-cpu"),
            "max,vendor=GenuineIntel,-smap");
  spec.host = Host::aerie;
  EXPECT_EQ(last_value(qemu_command(spec, PayloadKind::multiboot, {}), "-cpu"), "max");
}

TEST(Machine, TheUsersOptionsComeLast) {
  MachineSpec spec = spec_of(Host::aerie);
  spec.qemu_options = {"-m", "4G"};
  EXPECT_EQ(last_value(qemu_command(spec, PayloadKind::multiboot, {}), "-m"), "4G");
}

TEST(Machine, RamSplitsAtThreeGigabytesOnceItReachesThreeAndAHalf) {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  EXPECT_EQ(low_memory_end(kGiB), kGiB);
  EXPECT_EQ(low_memory_end(7 * kGiB / 2 - 1), 7 * kGiB / 2 - 1);
  EXPECT_EQ(low_memory_end(7 * kGiB / 2), 3 * kGiB);
  EXPECT_EQ(low_memory_end(8 * kGiB), 3 * kGiB);
}

TEST(Machine, QuotedCommandsCanBePasted) {
  EXPECT_EQ(shell_quoted({"qemu", "-append", "a b", "it's", ""}),
            "qemu -append 'a b' 'it'\\''s' ''");
}

}  // namespace
}  // namespace aerie::tools
