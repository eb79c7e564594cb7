#include "vmm/ioapic.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

namespace aerie::vmm {
namespace {

// Registers as QEMU's has them: 24 entries, version 0x20.
class ModelIoApic : public HostIoApic {
 public:
  u32 read(u8 index) override {
    if (index == ioapic::id || index == ioapic::arbitration) return id;
    if (index == ioapic::version) return version;
    return entries[index];
  }
  void write(u8 index, u32 value) override {
    if (index == ioapic::id)
      id = value;
    else
      entries[index] = value;
    ++writes;
  }
  void give_eoi(u8 vector) override { ended.push_back(vector); }

  u32 id = 0;
  u32 version = 0x0017'0020;
  std::map<u8, u32> entries;
  std::vector<u8> ended;
  unsigned writes = 0;
};

struct IoApicTest : ::testing::Test {
  IoApicTest() {
    for (u8 i = 0; i < 24; ++i) host.entries[static_cast<u8>(0x10 + 2 * i)] = ioapic::masked;
    ioapic.power_up();
  }
  u32 read(u8 index) {
    ioapic.mmio_write(ioapic::select, 4, index);
    return static_cast<u32>(ioapic.mmio_read(ioapic::window, 4));
  }
  void write(u8 index, u32 value) {
    ioapic.mmio_write(ioapic::select, 4, index);
    ioapic.mmio_write(ioapic::window, 4, value);
  }
  ModelIoApic host;
  IoApic ioapic{host, Gpa{ioapic::kDefaultBase}};
};

TEST_F(IoApicTest, OwnsItsPageOnly) {
  EXPECT_TRUE(ioapic.owns_page(Gpa{0xfec00000}));
  EXPECT_TRUE(ioapic.owns_page(Gpa{0xfec00fff}));
  EXPECT_FALSE(ioapic.owns_page(Gpa{0xfec01000}));
  EXPECT_EQ(ioapic.entries(), 24u);
}

TEST_F(IoApicTest, VersionAndArbitrationAreReadOnlyAndIdHasFourBits) {
  write(ioapic::version, 0xffff'ffff);
  EXPECT_EQ(read(ioapic::version), 0x0017'0020u);
  write(ioapic::id, 0xffff'ffff);
  EXPECT_EQ(read(ioapic::id), 0x0f00'0000u);
  EXPECT_EQ(read(ioapic::arbitration), 0x0f00'0000u);
  write(ioapic::arbitration, 0);
  EXPECT_EQ(read(ioapic::arbitration), 0x0f00'0000u);
}

TEST_F(IoApicTest, RegistersThatAreNotThereReadZeroAndTakeNothing) {
  for (unsigned index = 0x10 + 48; index < 256; ++index) {
    write(static_cast<u8>(index), 0x1234);
    EXPECT_EQ(read(static_cast<u8>(index)), 0u);
  }
  EXPECT_EQ(host.writes, 24u);  // power_up()'s
  EXPECT_EQ(ioapic.mmio_read(0x20, 4), 0u);
}

TEST_F(IoApicTest, EntriesKeepTheWritableBits) {
  write(0x20, 0xffff'ff00 & ~0x700u);
  EXPECT_EQ(read(0x20), 0x1'a800u);
  write(0x21, 0xffff'ffff);
  EXPECT_EQ(read(0x21), 0xff00'0000u);
  write(0x20, 0xa955);
  EXPECT_EQ(host.entries[0x20], 0xa955u);
  EXPECT_EQ(host.entries[0x21], 0xff00'0000u);
}

TEST_F(IoApicTest, ReadsShowThePhysicalRemoteIrrAndDeliveryStatus) {
  write(0x20, 0x8055);
  host.entries[0x20] |= ioapic::remote_irr | ioapic::delivery_status;
  EXPECT_EQ(read(0x20), 0xd055u);
  write(0x20, 0xd055);  // read-only: a write of them is not kept
  EXPECT_EQ(host.entries[0x20], 0x8055u);
}

TEST_F(IoApicTest, FiltersWhatMustNotReachAProcessorForEveryModeAndVector) {
  for (u32 mode = 0; mode < 8; ++mode) {
    for (u32 vector : {0u, 1u, 15u, 16u, 0x80u, 0xffu}) {
      for (u32 flags : {0u, ioapic::level, ioapic::level | ioapic::active_low, ioapic::masked,
                        ioapic::logical}) {
        const u32 value = (mode << 8) | vector | flags;
        write(0x24, value);
        const bool needs_vector = mode == 0 || mode == 1;
        const bool allowed = mode == 0 || mode == 1 || mode == 4 || mode == 7;
        const bool passes = allowed && (!needs_vector || vector >= 16);
        const u32 pin = flags & (ioapic::level | ioapic::active_low);
        EXPECT_EQ(host.entries[0x24], passes ? value : ioapic::masked | pin) << std::hex << value;
        EXPECT_EQ(read(0x24), value);
      }
    }
  }
}

TEST_F(IoApicTest, AFilteredEntryShowsNoPhysicalStatus) {
  write(0x24, 0x200);
  host.entries[0x24] |= ioapic::remote_irr;
  EXPECT_EQ(read(0x24), 0x200u);
  write(0x24, 0x40);
  EXPECT_EQ(host.entries[0x24], 0x40u);
}

TEST_F(IoApicTest, TheEoiRegisterExistsFromVersion20On) {
  ioapic.mmio_write(ioapic::eoi, 4, 0x77);
  EXPECT_EQ(host.ended, std::vector<u8>{0x77});
  ModelIoApic old;
  old.version = 0x0017'0011;
  IoApic other{old, Gpa{ioapic::kDefaultBase}};
  other.power_up();
  other.mmio_write(ioapic::eoi, 4, 0x77);
  EXPECT_TRUE(old.ended.empty());
}

TEST_F(IoApicTest, OtherAccessSizesAreDefined) {
  ioapic.mmio_write(ioapic::select, 1, 0x01);
  EXPECT_EQ(ioapic.mmio_read(ioapic::select, 1), 1u);
  EXPECT_EQ(ioapic.mmio_read(ioapic::window, 1), 0u);
  EXPECT_EQ(ioapic.mmio_read(ioapic::window, 8), 0x0017'0020u);
  ioapic.mmio_write(ioapic::select, 2, 0x21);
  ioapic.mmio_write(ioapic::window, 2, 0xffff);
  EXPECT_EQ(host.entries[0x21], 0u);
  ioapic.mmio_write(ioapic::eoi, 1, 0x55);
  EXPECT_TRUE(host.ended.empty());
}

TEST_F(IoApicTest, WhatFirmwareLeftIsL1sAndIsFilteredToo) {
  ModelIoApic firmware;
  firmware.entries[0x10] = 0x0000'0500;  // INIT
  firmware.entries[0x12] = 0x0000'0031;
  firmware.entries[0x13] = 0x0200'0000;
  IoApic other{firmware, Gpa{ioapic::kDefaultBase}};
  other.power_up();
  EXPECT_EQ(firmware.entries[0x10], ioapic::masked);
  EXPECT_EQ(firmware.entries[0x12], 0x31u);
  other.mmio_write(ioapic::select, 4, 0x13);
  EXPECT_EQ(other.mmio_read(ioapic::window, 4), 0x0200'0000u);
}

TEST_F(IoApicTest, AHostileVersionRegisterOverrunsNothing) {
  ModelIoApic huge;
  huge.version = 0x00ff'0020;
  IoApic other{huge, Gpa{ioapic::kDefaultBase}};
  other.power_up();
  EXPECT_EQ(other.entries(), 120u);
  other.mmio_write(ioapic::select, 4, 0xff);
  other.mmio_write(ioapic::window, 4, 0x0100'0000);
  EXPECT_EQ(huge.entries[0xff], 0x0100'0000u);
}

TEST_F(IoApicTest, ProcessorsMayUseItTogether) {
  const auto worker = [this](u32 vector) {
    for (int i = 0; i < 20'000; ++i) {
      ioapic.mmio_write(ioapic::window, 4, vector);
      ioapic.mmio_read(ioapic::window, 4);
    }
  };
  ioapic.mmio_write(ioapic::select, 4, 0x20);
  std::thread a{worker, 0x41}, b{worker, 0x42};
  a.join();
  b.join();
  EXPECT_TRUE(host.entries[0x20] == 0x41 || host.entries[0x20] == 0x42);
}

}  // namespace
}  // namespace aerie::vmm
