#include "nested/vmx/vmcs12_fields.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "nested/vmx/capabilities.h"

namespace aerie::nested::vmx {
namespace {

using cpu::vmx::Field;
using cpu::vmx::FieldEncoding;
using cpu::vmx::FieldType;
using cpu::vmx::FieldWidth;

Capabilities default_capabilities() { return Capabilities{CapabilityConfig{}}; }

Capabilities everything() {
  CapabilityConfig config;
  for (const FeatureRow& row : features()) {
    config.anyway.add(row.feature);
  }
  return Capabilities{config};
}

// SDM vol. 3, appendix B: how many fields of each width and type, by the highest index of each
// table that Aerie can store, and the encodings in between that it cannot.
TEST(Vmcs12Fields, EveryEncodingOfTheManualIsStoredOrKnownNotToBe) {
  struct Run {
    u32 first;
    u32 last;
    std::set<u32> without;
  };
  const Run kRuns[] = {
      {0x0000, 0x0008, {0x0006, 0x0008}},  // HLAT prefix size, last PID-pointer index
      {0x0800, 0x0814, {0x0814}},          // UINV
      {0x0c00, 0x0c0c, {}},
      {0x2000,
       0x2052,
       {0x202e, 0x2030, 0x2036, 0x2038, 0x203a, 0x203c, 0x203e, 0x2040, 0x2042, 0x2044, 0x2046,
        0x2048, 0x204e, 0x2050, 0x2052}},  // SGX, SPP, PASID, TDX, HLAT, …
      {0x2400, 0x2404, {0x2402, 0x2404}},  // FRED
      {0x2800, 0x2818, {0x2814, 0x2816}},  // PT, LBR
      {0x2c00, 0x2c06, {}},
      {0x4000, 0x4024, {0x4024}},  // instruction timeout
      {0x4400, 0x440e, {}},
      {0x4800, 0x482e, {0x482c}},  // no such field
      {0x4c00, 0x4c00, {}},
      {0x6000, 0x600e, {}},
      {0x6400, 0x640a, {}},
      {0x6800, 0x682c, {}},
      {0x6c00, 0x6c1c, {}},
  };
  std::set<u32> expected;
  for (const Run& run : kRuns) {
    for (u32 e = run.first; e <= run.last; e += 2) {
      if (!run.without.contains(e)) {
        expected.insert(e);
      }
    }
  }
  // 0x204a and 0x204c: IA32_SPEC_CTRL mask and shadow.
  std::set<u32> stored;
  for (const FieldRow& row : vmcs12_fields()) {
    stored.insert(static_cast<u32>(row.field));
  }
  EXPECT_EQ(stored, expected);
}

TEST(Vmcs12Fields, NoTwoFieldsOverlapNorTouchTheHeader) {
  std::array<bool, sizeof(Vmcs12)> taken{};
  std::fill_n(taken.begin(), offsetof(Vmcs12, unused0) + 4, true);
  for (const FieldRow& row : vmcs12_fields()) {
    const unsigned size = FieldEncoding{row.field}.size();
    EXPECT_EQ(row.offset % size, 0u) << row.name;
    for (unsigned i = 0; i < size; ++i) {
      EXPECT_FALSE(taken[row.offset + i]) << row.name;
      taken[row.offset + i] = true;
    }
    EXPECT_LE(row.offset + 8u, sizeof(Vmcs12)) << row.name;
  }
}

TEST(Vmcs12Fields, GuestFieldsAreInGuestGroupsAndHostFieldsInHostGroups) {
  for (const FieldRow& row : vmcs12_fields()) {
    switch (FieldEncoding{row.field}.type()) {
      case FieldType::control:
        EXPECT_NE(mask(row.group) & kControlGroups, 0u) << row.name;
        break;
      case FieldType::read_only:
        EXPECT_EQ(row.group, Group::information) << row.name;
        break;
      case FieldType::guest:
        EXPECT_NE(mask(row.group) & kGuestGroups, 0u) << row.name;
        break;
      case FieldType::host:
        EXPECT_NE(mask(row.group) & kHostGroups, 0u) << row.name;
        break;
    }
  }
}

TEST(FieldIndex, FindsEachFieldAndItsHighHalf) {
  const Capabilities all = everything();
  FieldIndex index;
  index.build(all);
  for (const FieldRow& row : vmcs12_fields()) {
    const FieldEncoding encoding{row.field};
    const FieldSlot slot = index.find(row.field);
    ASSERT_TRUE(slot.present()) << row.name;
    EXPECT_EQ(slot.offset, row.offset) << row.name;
    EXPECT_EQ(slot.mask(), mask(row.group)) << row.name;
    EXPECT_EQ(64 - slot.shift(), encoding.size() * 8) << row.name;
    const FieldSlot high = index.find(encoding.value + 1);
    ASSERT_EQ(high.present(), encoding.width() == FieldWidth::bits64) << row.name;
    if (high.present()) {
      EXPECT_EQ(high.offset, row.offset + 4u) << row.name;
      EXPECT_EQ(high.shift(), 32u) << row.name;
      EXPECT_EQ(high.group, slot.group) << row.name;
    }
  }
}

TEST(FieldIndex, FindsNothingElse) {
  const Capabilities all = everything();
  FieldIndex index;
  index.build(all);
  std::set<u64> known;
  for (const FieldRow& row : vmcs12_fields()) {
    const FieldEncoding encoding{row.field};
    known.insert(encoding.value);
    if (encoding.width() == FieldWidth::bits64) {
      known.insert(encoding.value + 1);
    }
  }
  for (u64 e = 0; e < 0x20000; ++e) {
    EXPECT_EQ(index.find(e).present(), known.contains(e)) << std::hex << e;
  }
  for (unsigned b = 15; b < 64; ++b) {
    EXPECT_FALSE(index.find(0x681e | bit(b)).present()) << b;  // guest RIP with a reserved bit
  }
  EXPECT_FALSE(index.find(~u64{0}).present());
  EXPECT_FALSE(index.find(0xffff'ffff).present());
}

TEST(FieldIndex, LeavesOutFieldsOfFeaturesThatAreNotOffered) {
  FieldIndex index;
  index.build(default_capabilities());
  EXPECT_TRUE(index.find(Field::eptp).present());
  EXPECT_TRUE(index.find(Field::vpid).present());
  EXPECT_TRUE(index.find(Field::guest_pat).present());
  EXPECT_FALSE(index.find(Field::virtual_apic_address).present());
  EXPECT_FALSE(index.find(Field::preemption_timer_value).present());
  EXPECT_FALSE(index.find(Field::pml_address).present());
  EXPECT_FALSE(index.find(Field::vmread_bitmap).present());
  EXPECT_FALSE(index.find(Field::guest_perf_global_ctrl).present());

  CapabilityConfig no_ept;
  no_ept.hidden.add(Feature::ept);
  index.build(Capabilities{no_ept});
  EXPECT_FALSE(index.find(Field::eptp).present());
  EXPECT_FALSE(index.find(Field::guest_pdpte0).present());
  EXPECT_FALSE(index.find(Field::guest_physical_address).present());
  EXPECT_TRUE(index.find(Field::guest_linear_address).present());
}

TEST(FieldIndex, ReadOnlyDataIsWritableOnlyWhereMiscBit29SaysSo) {
  FieldIndex index;
  index.build(default_capabilities());
  EXPECT_FALSE(index.find(Field::exit_reason).read_only());

  CapabilityConfig config;
  config.hidden.add(Feature::vmwrite_read_only);
  index.build(Capabilities{config});
  for (const FieldRow& row : vmcs12_fields()) {
    const FieldSlot slot = index.find(row.field);
    if (slot.present()) {
      EXPECT_EQ(slot.read_only(), FieldEncoding{row.field}.type() == FieldType::read_only)
          << row.name;
    }
  }
  EXPECT_TRUE(index.find(static_cast<u64>(Field::guest_physical_address) + 1).read_only());
}

// Each field keeps the value written to it, cut to its width, and leaves all others alone.
TEST(FieldIndex, ReadsBackWhatWasWrittenToEveryField) {
  const Capabilities all = everything();
  FieldIndex index;
  index.build(all);
  Vmcs12 vmcs{};
  const auto value_of = [](Field f, u64 salt) {
    return (static_cast<u64>(f) * 0x9e37'79b9'7f4a'7c15) ^ salt;
  };
  for (const u64 salt : {u64{0}, ~u64{0}}) {
    for (const FieldRow& row : vmcs12_fields()) {
      write_field(vmcs, index.find(row.field), value_of(row.field, salt));
    }
    for (const FieldRow& row : vmcs12_fields()) {
      const unsigned bits = FieldEncoding{row.field}.size() * 8;
      EXPECT_EQ(read_field(vmcs, index.find(row.field)),
                value_of(row.field, salt) & bit_mask(bits - 1, 0))
          << row.name;
    }
  }
  EXPECT_EQ(vmcs.revision_id, 0u);
  EXPECT_EQ(vmcs.abort_indicator, 0u);
  EXPECT_EQ(vmcs.launched, 0u);
}

TEST(FieldIndex, WriteTellsWhetherTheFieldChanged) {
  FieldIndex index;
  index.build(default_capabilities());
  Vmcs12 vmcs{};
  const FieldSlot vpid = index.find(Field::vpid);
  EXPECT_TRUE(write_field(vmcs, vpid, 7));
  EXPECT_FALSE(write_field(vmcs, vpid, 7));
  EXPECT_FALSE(write_field(vmcs, vpid, 0xabcd'0007));  // what does not fit is ignored
  EXPECT_EQ(vmcs.vpid, 7);
  EXPECT_EQ(vmcs.posted_interrupt_vector, 0);
}

// SDM vol. 3, 25.11.2: the high access type reaches bits 63:32 and leaves the others.
TEST(FieldIndex, HighAccessReachesTheUpperHalf) {
  FieldIndex index;
  index.build(default_capabilities());
  Vmcs12 vmcs{};
  const FieldSlot low = index.find(Field::tsc_offset);
  const FieldSlot high = index.find(static_cast<u64>(Field::tsc_offset) + 1);
  write_field(vmcs, low, 0x0123'4567'89ab'cdef);
  EXPECT_EQ(read_field(vmcs, high), 0x0123'4567u);
  write_field(vmcs, high, 0xffff'ffff'7654'3210);
  EXPECT_EQ(read_field(vmcs, low), 0x7654'3210'89ab'cdefu);
}

TEST(FieldNames, ComeFromTheTable) {
  EXPECT_EQ(field_name(Field::guest_cs_access_rights), "guest_cs_access_rights");
  EXPECT_EQ(field_name(Field::vpid), "vpid");
  EXPECT_EQ(field_name(Field::host_rip), "host_rip");
  EXPECT_EQ(field_name(Field::hlatp), "");
}

TEST(VmcsSegment, SurvivesTheNeutralForm) {
  // A 64-bit code segment, an unusable one.
  VmcsSegment s{.selector = 8,
                .unused = 0,
                .limit = 0xffff'ffff,
                .access_rights = 0xa09b,
                .unused2 = 0,
                .base = 0};
  VmcsSegment t{};
  t.set(s.neutral());
  EXPECT_EQ(t.access_rights, 0xa09bu);
  EXPECT_EQ(t.limit, s.limit);
  EXPECT_TRUE(t.long_mode());
  s.access_rights = cpu::kVmxSegmentUnusable;
  t.set(s.neutral());
  EXPECT_FALSE(t.usable());
}

// The CPL is SS's DPL, also where SS is null (as in an interrupt handler of a 64-bit guest) and so
// unusable.
TEST(VmcsSegment, UnusableKeepsTheDpl) {
  VmcsSegment s{};
  s.set({.selector = 3, .attributes = 0x60, .limit = 0, .base = 0});
  EXPECT_FALSE(s.usable());
  EXPECT_EQ(s.dpl(), 3u);
  EXPECT_EQ(s.neutral().dpl(), 3u);
  EXPECT_FALSE(s.neutral().present());
  // What else is in there survives too, and the way back loses nothing but P.
  s.set({.selector = 0, .attributes = 0xf13, .limit = 0, .base = 0});
  EXPECT_EQ(s.access_rights, cpu::kVmxSegmentUnusable | 0xf013u);
  EXPECT_EQ(s.neutral().attributes, 0xf13u);
}

TEST(VmcsSegment, ALoadedSegmentIsAccessedAndALoadedTssBusy) {
  VmcsSegment s{};
  s.set({.selector = 0x10,
         .attributes = 0xa9a,
         .limit = ~u32{0},
         .base = 0});  // 64-bit code, A clear
  EXPECT_EQ(s.access_rights, 0xa09bu);
  s.set({.selector = 0x18, .attributes = 0xc92, .limit = ~u32{0}, .base = 0});
  EXPECT_EQ(s.access_rights, 0xc093u);
  s.set({.selector = 0x40, .attributes = 0x89, .limit = 0xfff, .base = 0});
  EXPECT_EQ(s.access_rights, 0x8bu);
  s.set({.selector = 0x40, .attributes = 0x82, .limit = 0xfff, .base = 0});  // an LDT
  EXPECT_EQ(s.access_rights, 0x82u);
  s.set({.selector = 0, .attributes = 0, .limit = 0, .base = 0});
  EXPECT_FALSE(s.usable());
}

}  // namespace
}  // namespace aerie::nested::vmx
