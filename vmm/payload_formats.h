// The formats payload.cc reads and writes, as byte offsets and packed structures. Multiboot
// specification 0.6.96; ELF (System V ABI, chapter 4); Linux, Documentation/arch/x86/boot.rst.
#pragma once

#include "base/types.h"

namespace aerie::vmm {

namespace multiboot {

inline constexpr u32 kHeaderMagic = 0x1badb002;
inline constexpr u32 kLoaderMagic = 0x2badb002;
inline constexpr usize kHeaderSearch = 8192;  // the header lies wholly within these bytes

namespace header_flags {
inline constexpr u32 page_align = 1u << 0, memory_info = 1u << 1, video_mode = 1u << 2,
                     addresses = 1u << 16;
// Of bits 15:0, those this loader honours; it must refuse a payload that sets another. A wish for a
// video mode is one the specification lets a loader leave unfulfilled.
inline constexpr u32 required = 0xffff, known_required = page_align | memory_info | video_mode;
}  // namespace header_flags

struct Header {
  u32 magic, flags, checksum;
  u32 header_address, load_address, load_end_address, bss_end_address,
      entry_address;  // `addresses`
};
inline constexpr usize kShortHeader = 12;  // without the address fields

namespace info_flags {
inline constexpr u32 memory = 1u << 0, command_line = 1u << 2, modules = 1u << 3,
                     memory_map = 1u << 6, loader_name = 1u << 9;
}
struct Info {
  u32 flags, memory_lower, memory_upper, boot_device, command_line, module_count, modules;
  u32 symbols[4];
  u32 memory_map_length, memory_map;
  u32 drives_length, drives, config_table, loader_name, apm_table;
  u32 vbe[4];
};
static_assert(sizeof(Info) == 88);

struct Module {
  u32 begin, end, text, reserved;
};
static_assert(sizeof(Module) == 16);

struct [[gnu::packed]] MemoryMapEntry {
  u32 size;  // of the entry without this field
  u64 base, length;
  u32 type;
};
static_assert(sizeof(MemoryMapEntry) == 24);

}  // namespace multiboot

namespace elf {

inline constexpr u32 kMagic = 0x464c457f;
inline constexpr u8 kClass32 = 1, kClass64 = 2, kLittleEndian = 1;
inline constexpr u16 kMachine386 = 3;
inline constexpr u32 kLoad = 1;

struct Header {
  u32 magic;
  u8 file_class, data, version, abi[9];
  u16 type, machine;
  u32 file_version, entry, program_headers, section_headers, flags;
  u16 header_size, program_header_size, program_header_count;
  u16 section_header_size, section_header_count, section_names;
};
static_assert(sizeof(Header) == 52);

struct ProgramHeader {
  u32 type, offset, virtual_address, physical_address, file_size, memory_size, flags, alignment;
};
static_assert(sizeof(ProgramHeader) == 32);

}  // namespace elf

namespace linux_boot {

inline constexpr u16 kBootFlag = 0xaa55;
inline constexpr u32 kMagic = 0x53726448;         // "HdrS"
inline constexpr u16 kOldestVersion = 0x0206;     // the first with cmdline_size
inline constexpr u16 kPreferredAddress = 0x020a;  // the first with pref_address and init_size
inline constexpr u8 kLoadedHigh = 1;  // loadflags: protected-mode code goes to 1 MiB or above
inline constexpr u8 kUndefinedLoader = 0xff;
inline constexpr u16 kCodeSelector = 0x10, kDataSelector = 0x18;  // __BOOT_CS, __BOOT_DS

// Offsets in boot_params; from kSetupHeader on also in the file.
namespace at {
inline constexpr usize orig_x = 0x00, orig_y = 0x01, orig_video_mode = 0x06, orig_video_cols = 0x07,
                       orig_video_lines = 0x0e, orig_video_is_vga = 0x0f, orig_video_points = 0x10,
                       e820_entries = 0x1e8, setup_header = 0x1f1, setup_sects = 0x1f1,
                       vid_mode = 0x1fa, boot_flag = 0x1fe, header_end_offset = 0x201,
                       magic = 0x202, version = 0x206, type_of_loader = 0x210, loadflags = 0x211,
                       code32_start = 0x214, ramdisk_image = 0x218, ramdisk_size = 0x21c,
                       cmd_line_ptr = 0x228, initrd_addr_max = 0x22c, kernel_alignment = 0x230,
                       relocatable_kernel = 0x234, cmdline_size = 0x238, hardware_subarch = 0x23c,
                       pref_address = 0x258, init_size = 0x260, e820_table = 0x2d0;
}  // namespace at
inline constexpr usize kBootParamsSize = 4096;
inline constexpr usize kHeaderEndMax = 0x290;  // edd_mbr_sig_buffer begins there
inline constexpr usize kSectorSize = 512;

struct [[gnu::packed]] E820Entry {
  u64 address, size;
  u32 type;
};
static_assert(sizeof(E820Entry) == 20);

}  // namespace linux_boot

}  // namespace aerie::vmm
