#include "vmm/payload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/physical.h"
#include "vmm/payload_formats.h"

namespace aerie::vmm {
namespace {

using Bytes = std::vector<u8>;

constexpr u64 kRamTop = 64 * kMiB;
constexpr MemoryRange kAerie{48 * kMiB, 56 * kMiB};

template <class T>
void store(Bytes& to, usize offset, const T& value) {
  if (to.size() < offset + sizeof value) {
    to.resize(offset + sizeof value);
  }
  std::memcpy(to.data() + offset, &value, sizeof value);
}

struct Segment {
  u32 address;
  u32 virtual_address;
  Bytes data;
  u32 memory_size;
};

// A multiboot ELF32 program: headers in the first page, then each segment's bytes.
Bytes make_elf(const std::vector<Segment>& segments, u32 entry, u32 flags = 0x3) {
  Bytes file(0x1000);
  elf::Header header{};
  header.magic = elf::kMagic;
  header.file_class = elf::kClass32;
  header.data = elf::kLittleEndian;
  header.machine = elf::kMachine386;
  header.entry = entry;
  header.program_headers = sizeof header;
  header.program_header_size = sizeof(elf::ProgramHeader);
  header.program_header_count = static_cast<u16>(segments.size());
  store(file, 0, header);
  const u32 multiboot[] = {multiboot::kHeaderMagic, flags, 0u - multiboot::kHeaderMagic - flags};
  store(file, 0x800, multiboot);
  usize at = sizeof header;
  for (const Segment& s : segments) {
    store(file, at,
          elf::ProgramHeader{.type = elf::kLoad,
                             .offset = static_cast<u32>(file.size()),
                             .virtual_address = s.virtual_address,
                             .physical_address = s.address,
                             .file_size = static_cast<u32>(s.data.size()),
                             .memory_size = s.memory_size,
                             .flags = 7,
                             .alignment = 0x1000});
    at += sizeof(elf::ProgramHeader);
    file.insert(file.end(), s.data.begin(), s.data.end());
  }
  return file;
}

// A bzImage with `setup_sects` = 4 and `kernel` as its protected-mode part.
Bytes make_linux(const Bytes& kernel) {
  namespace at = linux_boot::at;
  Bytes file(5 * 512);
  store(file, at::setup_sects, u8{4});
  store(file, at::boot_flag, linux_boot::kBootFlag);
  store(file, 0x1f4, static_cast<u32>((kernel.size() + 15) / 16));
  store(file, 0x200, u16{0x6aeb});  // jmp over the header: it ends at 0x202 + 0x6a
  store(file, at::magic, linux_boot::kMagic);
  store(file, at::version, u16{0x020f});
  store(file, at::loadflags, linux_boot::kLoadedHigh);
  store(file, at::initrd_addr_max, u32{0x7fffffff});
  store(file, at::kernel_alignment, u32{0x200000});
  store(file, at::relocatable_kernel, u8{1});
  store(file, at::cmdline_size, u32{2047});
  store(file, at::pref_address, u64{16 * kMiB});
  store(file, at::init_size, static_cast<u32>(4 * kMiB));
  file.insert(file.end(), kernel.begin(), kernel.end());
  return file;
}

class Payload : public ::testing::Test {
 protected:
  Payload() { physical_window = ram_.data(); }
  ~Payload() override { physical_window = nullptr; }

  PayloadResult load(const Bytes& file, std::string_view text,
                     const std::vector<PayloadModule>& modules = {}) {
    return load_payload(
        {.payload = {file, text}, .modules = modules, .memory_map = map_, .aerie = kAerie});
  }
  std::string error(const Bytes& file, const std::vector<PayloadModule>& modules = {}) {
    const PayloadResult r = load(file, "test.flat a b", modules);
    EXPECT_FALSE(r.ok);
    return std::string{r.error()};
  }
  template <class T>
  T at(u64 address) const {
    T value;
    std::memcpy(&value, ram_.data() + address, sizeof value);
    return value;
  }
  std::string text_at(u64 address) const {
    return reinterpret_cast<const char*>(ram_.data() + address);
  }
  bool untouched() const {
    return ram_[0] == 0xcc && std::memcmp(ram_.data(), ram_.data() + 1, ram_.size() - 1) == 0;
  }

  std::vector<MemoryRange> map_ = {{0, 0x9fc00, MemoryType::ram},
                                   {0x9fc00, 0xa0000, MemoryType::reserved},
                                   {0xf0000, 0x100000, MemoryType::reserved},
                                   {0x100000, kRamTop, MemoryType::ram}};
  Bytes ram_ = Bytes(kRamTop, 0xcc);
};

const Bytes kCode = {0xb8, 1, 2, 3, 4, 0xf4};

TEST_F(Payload, ModuleTextIsFileAndArguments) {
  const PayloadModule m{{}, "dir/vmx.flat   null a,b  c"};
  EXPECT_EQ(m.file(), "dir/vmx.flat");
  EXPECT_EQ(m.arguments(), "null a,b  c");
  EXPECT_EQ((PayloadModule{{}, "x"}.arguments()), "");
  EXPECT_EQ((PayloadModule{{}, "x  "}.arguments()), "");
  EXPECT_EQ((PayloadModule{{}, ""}.file()), "");
}

TEST_F(Payload, AnElfProgramIsLoadedWithItsBssZeroed) {
  const auto r = load(make_elf({{0x400000, 0x400000, kCode, 0x3000}}, 0x400002), "t.flat");
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(r.kind, PayloadKind::multiboot);
  EXPECT_EQ(r.entry.eip, 0x400002u);
  EXPECT_EQ(r.entry.eax, 0x2badb002u);
  EXPECT_TRUE(std::equal(kCode.begin(), kCode.end(), ram_.begin() + 0x400000));
  for (u64 a = 0x400000 + kCode.size(); a < 0x403000; ++a) {
    ASSERT_EQ(ram_[a], 0) << a;
  }
  EXPECT_EQ(ram_[0x403000], 0xcc);
  EXPECT_EQ(ram_[0x3fffff], 0xcc);
}

TEST_F(Payload, TheEntryPointIsTranslatedToWhereItsSegmentLies) {
  const auto r = load(make_elf({{0x200000, 0xc0000000, kCode, 0x1000}}, 0xc0000004), "t.flat");
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(r.entry.eip, 0x200004u);
}

TEST_F(Payload, TheGdtHoldsFlatSegments) {
  const auto r = load(make_elf({{0x400000, 0x400000, kCode, 0x1000}}, 0x400000), "t.flat");
  ASSERT_TRUE(r.ok);
  EXPECT_EQ(r.entry.code_selector, 0x10);
  EXPECT_EQ(r.entry.data_selector, 0x18);
  EXPECT_EQ(r.entry.gdt_limit, 31);
  EXPECT_EQ(at<u64>(r.entry.gdt_base + 0x10), 0x00cf9b000000ffffu);
  EXPECT_EQ(at<u64>(r.entry.gdt_base + 0x18), 0x00cf93000000ffffu);
}

TEST_F(Payload, MultibootInformationTellsMemoryTextsAndModules) {
  const Bytes environment(0x1801, 0x55);
  const Bytes empty;
  const auto r = load(make_elf({{0x400000, 0x400000, kCode, 0x3000}}, 0x400000),
                      "d/t.flat arg, two", {{environment, "env x"}, {empty, "nothing"}});
  ASSERT_TRUE(r.ok) << r.error();
  const auto info = at<multiboot::Info>(r.entry.ebx);
  EXPECT_EQ(info.flags, 0x24du);  // memory, command line, modules, memory map, loader name
  EXPECT_EQ(info.memory_lower, 0x9fc00u / 1024);
  EXPECT_EQ(info.memory_upper, (kAerie.begin - kMiB) / 1024);
  EXPECT_EQ(text_at(info.command_line), "d/t.flat arg, two");
  EXPECT_EQ(text_at(info.loader_name), "Aerie");

  ASSERT_EQ(info.module_count, 2u);
  const auto first = at<multiboot::Module>(info.modules);
  const auto second = at<multiboot::Module>(info.modules + sizeof first);
  EXPECT_EQ(first.begin, 0x403000u);  // the first page behind the payload
  EXPECT_EQ(first.end - first.begin, environment.size());
  EXPECT_EQ(ram_[first.begin], 0x55);
  EXPECT_EQ(ram_[first.end - 1], 0x55);
  EXPECT_EQ(text_at(first.text), "env x");
  EXPECT_EQ(second.begin, second.end);
  EXPECT_GE(second.begin, first.end);
  EXPECT_EQ(text_at(second.text), "nothing");

  std::vector<MemoryRange> map;
  for (u32 offset = 0; offset < info.memory_map_length;) {
    const auto e = at<multiboot::MemoryMapEntry>(info.memory_map + offset);
    map.push_back({e.base, e.base + e.length, static_cast<MemoryType>(e.type)});
    offset += e.size + 4;
  }
  const auto expected = memory_map_of_l1(map_, kAerie);
  EXPECT_TRUE(
      std::equal(map.begin(), map.end(), expected.ranges().begin(), expected.ranges().end()));
}

TEST_F(Payload, InformationKeepsClearOfAPayloadInLowMemory) {
  // As kvm-unit-tests' realmode.flat: 0x8000 to beyond 0x9000.
  const auto r = load(make_elf({{0x8000, 0x8000, kCode, 0x5a30}}, 0x8000), "realmode.flat");
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_GE(r.entry.gdt_base, 0x8000u + 0x5a30);
  EXPECT_LT(r.entry.ebx + sizeof(multiboot::Info), 0x9fc00u);
}

TEST_F(Payload, AddressFieldsReplaceElf) {
  Bytes file(0x2000, 0x90);
  const u32 flags = 0x10003;
  // The header at offset 0x40 of the file; loading begins at offset 0x20.
  store(file, 0x40,
        multiboot::Header{multiboot::kHeaderMagic, flags, 0u - multiboot::kHeaderMagic - flags,
                          0x100020, 0x100000, 0x101000, 0x102000, 0x100060});
  file[0x20] = 0x11;
  const auto r = load(file, "flat.bin");
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(r.entry.eip, 0x100060u);
  EXPECT_EQ(ram_[0x100000], 0x11);
  EXPECT_EQ(ram_[0x100fff], 0x90);
  EXPECT_EQ(ram_[0x101000], 0);
  EXPECT_EQ(ram_[0x101fff], 0);
  EXPECT_EQ(ram_[0x102000], 0xcc);

  store(file, 0x40 + 20, u32{0x109000});  // load end: more than the file has
  EXPECT_EQ(error(file), "test.flat: truncated: 36864 bytes to load, 8160 in the file");
}

TEST_F(Payload, EveryTruncationOfAnElfProgramIsRefusedAndWritesNothing) {
  const Bytes file = make_elf(
      {{0x400000, 0x400000, kCode, 0x1000}, {0x500000, 0x500000, kCode, 0x1000}}, 0x400000);
  for (usize size = 0; size < file.size(); size += size < 0x900 ? 1 : 3) {
    const Bytes cut(file.begin(), file.begin() + static_cast<long>(size));
    const auto r = load(cut, "t.flat");
    ASSERT_FALSE(r.ok) << size;
    ASSERT_TRUE(r.error().starts_with("t.flat: ")) << r.error();
  }
  EXPECT_TRUE(untouched());
}

TEST_F(Payload, BadElfProgramsAreNamedAndWriteNothing) {
  EXPECT_EQ(error(Bytes(100, 1)), "test.flat: neither a multiboot program nor a Linux bzImage");
  EXPECT_EQ(error({}), "test.flat: neither a multiboot program nor a Linux bzImage");
  EXPECT_NE(
      error(make_elf({{0x400000, 0x400000, kCode, 0x1000}}, 0x401000)).find("entry point 0x401000"),
      std::string::npos);
  EXPECT_NE(
      error(make_elf({{0x400000, 0x400000, kCode, 0x1000}, {0x400800, 0x400800, kCode, 0x1000}},
                     0x400000))
          .find("segment at 0x400800-0x401800 does not fit"),
      std::string::npos);
  EXPECT_NE(error(make_elf({{0x9f000, 0x9f000, kCode, 0x1000}}, 0x9f000)).find("not RAM"),
            std::string::npos);
  EXPECT_NE(error(make_elf({{0xfffff000, 0xfffff000, kCode, 0x2000}}, 0xfffff000)).find("not RAM"),
            std::string::npos);
  EXPECT_NE(error(make_elf({{0x2fff000, 0x2fff000, kCode, 0x1001}}, 0x2fff000)).find("Aerie's own"),
            std::string::npos);
  EXPECT_NE(error(make_elf({{0x400000, 0x400000, kCode, 3}}, 0x400000)).find("larger in the file"),
            std::string::npos);
  EXPECT_NE(
      error(make_elf({{0x400000, 0x400000, kCode, 0x1000}}, 0x400000, 0x83)).find("flags 0x80"),
      std::string::npos);
  Bytes elf64 = make_elf({{0x400000, 0x400000, kCode, 0x1000}}, 0x400000);
  elf64[4] = elf::kClass64;
  EXPECT_NE(error(elf64).find("not a 32-bit x86 ELF"), std::string::npos);
  EXPECT_TRUE(untouched());
}

TEST_F(Payload, AMultibootHeaderBeyond8KiBIsNotOne) {
  Bytes file(0x3000);
  const u32 header[] = {multiboot::kHeaderMagic, 3, 0u - multiboot::kHeaderMagic - 3};
  store(file, 8192 - 8, header);
  EXPECT_NE(error(file).find("neither"), std::string::npos);
}

TEST_F(Payload, ModulesThatDoNotFitAreNamed) {
  // The largest hole is 47 MiB; the module's bytes are never read, as the plan fails first.
  const Bytes big(48 * kMiB);
  const std::string text =
      error(make_elf({{0x400000, 0x400000, kCode, 0x1000}}, 0x400000), {{big, "big.img z"}});
  EXPECT_EQ(text, "big.img: 50331648 bytes of module do not fit into L1's memory");
  EXPECT_TRUE(untouched());
}

TEST_F(Payload, ASourceInTheWayIsRefused) {
  const Bytes file = make_elf({{0x400000, 0x400000, kCode, 0x1000}}, 0x400000);
  std::copy(file.begin(), file.end(), ram_.begin() + 0x400800);
  const auto r = load_payload({.payload = {{ram_.data() + 0x400800, file.size()}, "t.flat"},
                               .modules = {},
                               .memory_map = map_,
                               .aerie = kAerie});
  EXPECT_FALSE(r.ok);
  EXPECT_EQ(r.error(), "t.flat: lies where L1 is to be loaded");
}

TEST_F(Payload, LinuxIsStartedByIts32BitProtocol) {
  namespace at_ = linux_boot::at;
  const Bytes kernel(0x1234, 0x77);
  const Bytes initrd1(5, 0x11);
  const Bytes initrd2(7, 0x22);
  const auto r =
      load(make_linux(kernel), "vmlinuz console=ttyS0 x", {{initrd1, "a"}, {initrd2, "b"}});
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(r.kind, PayloadKind::bzimage);
  EXPECT_EQ(r.entry.eip, 16 * kMiB);
  EXPECT_EQ(r.entry.ebx, 0u);
  EXPECT_EQ(r.entry.code_selector, 0x10);
  EXPECT_EQ(r.entry.data_selector, 0x18);
  EXPECT_EQ(ram_[16 * kMiB], 0x77);
  EXPECT_EQ(ram_[16 * kMiB + 0x1233], 0x77);

  const u64 params = r.entry.esi;
  EXPECT_EQ(at<u32>(params + at_::magic), linux_boot::kMagic);
  EXPECT_EQ(at<u16>(params + at_::version), 0x020f);
  EXPECT_EQ(at<u8>(params + at_::type_of_loader), 0xff);
  EXPECT_EQ(at<u32>(params + at_::code32_start), 16 * kMiB);
  EXPECT_EQ(text_at(at<u32>(params + at_::cmd_line_ptr)), "console=ttyS0 x");
  EXPECT_EQ(at<u8>(params + at_::orig_video_is_vga), 1);

  const u64 image = at<u32>(params + at_::ramdisk_image);
  EXPECT_EQ(at<u32>(params + at_::ramdisk_size), 15u);
  EXPECT_EQ(image, kRamTop - kPageSize);  // as high as it goes
  const Bytes both(ram_.begin() + static_cast<long>(image),
                   ram_.begin() + static_cast<long>(image) + 15);
  EXPECT_EQ(both, (Bytes{0x11, 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22,
                         0x22}));

  const auto expected = memory_map_of_l1(map_, kAerie);
  ASSERT_EQ(at<u8>(params + at_::e820_entries), expected.ranges().size());
  for (usize i = 0; i < expected.ranges().size(); ++i) {
    const auto e = at<linux_boot::E820Entry>(params + at_::e820_table + 20 * i);
    EXPECT_EQ((MemoryRange{e.address, e.address + e.size, static_cast<MemoryType>(u32{e.type})}),
              expected.ranges()[i]);
  }
}

TEST_F(Payload, LinuxWithoutInitrdHasNone) {
  const auto r = load(make_linux(Bytes(0x1000)), "vmlinuz");
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(at<u32>(r.entry.esi + linux_boot::at::ramdisk_image), 0u);
  EXPECT_EQ(at<u32>(r.entry.esi + linux_boot::at::ramdisk_size), 0u);
  EXPECT_EQ(text_at(at<u32>(r.entry.esi + linux_boot::at::cmd_line_ptr)), "");
}

TEST_F(Payload, ARelocatableKernelMovesWhereItsPreferredPlaceIsTaken) {
  map_.push_back({16 * kMiB, 17 * kMiB, MemoryType::acpi_nvs});
  auto r = load(make_linux(Bytes(0x1000)), "vmlinuz");
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(r.entry.eip, 2 * kMiB);

  Bytes fixed = make_linux(Bytes(0x1000));
  store(fixed, linux_boot::at::relocatable_kernel, u8{0});
  EXPECT_EQ(error(fixed), "test.flat: does not fit: it needs 4096 KiB of RAM at 0x1000000");
}

TEST_F(Payload, AnInitrdStaysBelowWhatTheKernelCanReach) {
  Bytes file = make_linux(Bytes(0x1000));
  store(file, linux_boot::at::initrd_addr_max, static_cast<u32>(32 * kMiB - 1));
  const Bytes initrd(0x2800, 1);
  const auto r = load(file, "vmlinuz", {{initrd, "i"}});
  ASSERT_TRUE(r.ok) << r.error();
  EXPECT_EQ(at<u32>(r.entry.esi + linux_boot::at::ramdisk_image), 32 * kMiB - 0x3000);
}

TEST_F(Payload, BadLinuxKernelsAreNamedAndWriteNothing) {
  namespace at_ = linux_boot::at;
  const Bytes good = make_linux(Bytes(0x1000));
  Bytes old = good;
  store(old, at_::version, u16{0x0205});
  EXPECT_NE(error(old).find("boot protocol 0x205"), std::string::npos);
  Bytes low = good;
  store(low, at_::loadflags, u8{0});
  EXPECT_NE(error(low).find("zImage"), std::string::npos);
  Bytes deaf = good;
  store(deaf, at_::cmdline_size, u32{2});
  EXPECT_NE(error(deaf).find("command line of 3 bytes"), std::string::npos);
  Bytes huge = good;
  store(huge, at_::init_size, static_cast<u32>(100 * kMiB));
  EXPECT_NE(error(huge).find("does not fit"), std::string::npos);
  const Bytes initrd(48 * kMiB);
  EXPECT_NE(error(good, {{initrd, "initrd.gz"}}).find("initrd.gz: an initrd of 50331648 bytes"),
            std::string::npos);
  // syssize counts paragraphs, so that up to 15 bytes may be missing unnoticed.
  for (usize size = 0x206; size + 15 < good.size(); size += 7) {
    EXPECT_NE(error(Bytes(good.begin(), good.begin() + static_cast<long>(size))), "") << size;
  }
  EXPECT_TRUE(untouched());
}

}  // namespace
}  // namespace aerie::vmm
