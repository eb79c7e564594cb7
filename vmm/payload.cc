#include "vmm/payload.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/bits.h"
#include "base/log.h"
#include "base/physical.h"
#include "vmm/payload_formats.h"

namespace aerie::vmm {
namespace {

constexpr u64 kFourGiB = 4 * kGiB;
// Our own small structures (information, GDT, boot_params) go to conventional memory: above what
// firmware and programs' AP trampolines use, below the extended BIOS data area, which firmware's
// map leaves out of RAM.
constexpr u64 kLowBegin = 0x9000;
constexpr u64 kLowEnd = 0xa0000;

constexpr std::string_view kLoaderName = "Aerie";

// Null, null, flat 32-bit code, flat data: the selectors Linux's protocol names serve both kinds.
constexpr u64 kGdt[] = {0, 0, 0x00cf9b000000ffff, 0x00cf93000000ffff};

// A structure at `offset` of a file; nothing where the file ends before it does.
template <class T>
std::optional<T> read_at(std::span<const u8> file, u64 offset) {
  if (offset > file.size() || sizeof(T) > file.size() - offset) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

class Loader {
 public:
  explicit Loader(const PayloadRequest& request)
      : request_{request},
        file_{request.payload.data},
        l1_map_{memory_map_of_l1(request.memory_map, request.aerie)},
        free_{l1_map_.ranges()},
        lower_{contiguous_ram(0)},
        upper_{contiguous_ram(kMiB)} {}

  PayloadResult run() {
    bool good = false;
    if (const auto header = find_multiboot_header(); header.has_value()) {
      result_.kind = PayloadKind::multiboot;
      good = load_multiboot(*header);
    } else if (result_.length == 0) {
      if (is_linux()) {
        result_.kind = PayloadKind::bzimage;
        good = load_linux();
      } else {
        fail("neither a multiboot program nor a Linux bzImage");
      }
    }
    result_.ok = good;
    return result_;
  }

 private:
  // --- Errors
  // ---------------------------------------------------------------------------------------
  template <class... Args>
  bool fail_file(std::string_view file, std::string_view pattern, const Args&... args) {
    const LogArgument name[] = {file.empty() ? std::string_view{"(no name)"} : file};
    const LogArgument list[sizeof...(Args) + 1] = {LogArgument{args}..., LogArgument{0}};
    usize used = format(result_.text, "{}: ", name);
    used +=
        format(std::span{result_.text}.subspan(used), pattern, std::span{list, sizeof...(Args)});
    result_.length = used;
    return false;
  }
  template <class... Args>
  bool fail(std::string_view pattern, const Args&... args) {
    return fail_file(request_.payload.file(), pattern, args...);
  }

  // --- Writes: collected while planning, done once everything is known to fit
  // ------------------------
  struct Write {
    u64 to;
    std::span<const u8> from;
    u64 zeros;  // after the bytes
  };
  static constexpr usize kMaxWrites = 64;

  bool plan_write(u64 to, std::span<const u8> from, u64 zeros = 0) {
    if (write_count_ == kMaxWrites) {
      return fail("more than {} parts to load", kMaxWrites);
    }
    writes_[write_count_++] = {to, from, zeros};
    return true;
  }

  // Whether a planned write would overwrite `source` before it is read.
  bool in_the_way(const void* source, usize size) const {
    const u8* begin = static_cast<const u8*>(source);
    return std::any_of(writes_.begin(), writes_.begin() + write_count_, [&](const Write& w) {
      const u8* to = physical_pointer<u8>(Hpa{w.to});
      return to < begin + size && begin < to + w.from.size() + w.zeros;
    });
  }
  bool sources_are_safe() {
    const auto check = [&](const PayloadModule& module) {
      return in_the_way(module.data.data(), module.data.size()) ||
                     in_the_way(module.text.data(), module.text.size())
                 ? fail_file(module.file(), "lies where L1 is to be loaded")
                 : true;
    };
    return check(request_.payload) &&
           std::all_of(request_.modules.begin(), request_.modules.end(), check);
  }
  void perform_writes() {
    for (const Write& w : std::span{writes_}.first(write_count_)) {
      u8* to = physical_pointer<u8>(Hpa{w.to});
      if (!w.from.empty()) {
        std::memcpy(to, w.from.data(), w.from.size());
      }
      if (w.zeros != 0) {
        std::memset(to + w.from.size(), 0, w.zeros);
      }
    }
  }

  static void put(u64 to, const void* from, usize size) {
    if (size != 0) {
      std::memcpy(physical_pointer<u8>(Hpa{to}), from, size);
    }
  }
  // Text with its terminating NUL; returns the address behind it.
  static u64 put_text(u64 to, std::string_view text) {
    put(to, text.data(), text.size());
    *physical_pointer<u8>(Hpa{to + text.size()}) = 0;
    return to + text.size() + 1;
  }
  void put_gdt(u64 to) {
    put(to, kGdt, sizeof kGdt);
    result_.entry.gdt_base = static_cast<u32>(to);
    result_.entry.gdt_limit = sizeof kGdt - 1;
    result_.entry.code_selector = linux_boot::kCodeSelector;
    result_.entry.data_selector = linux_boot::kDataSelector;
  }

  // --- Multiboot 1
  // ----------------------------------------------------------------------------------
  struct MultibootHeader {
    multiboot::Header fields;
    u64 offset;
  };

  std::optional<MultibootHeader> find_multiboot_header() {
    const usize end = std::min(file_.size(), multiboot::kHeaderSearch);
    for (u64 offset = 0; offset + multiboot::kShortHeader <= end; offset += 4) {
      multiboot::Header header{};
      std::memcpy(&header, file_.data() + offset, multiboot::kShortHeader);
      if (header.magic != multiboot::kHeaderMagic ||
          header.magic + header.flags + header.checksum != 0) {
        continue;
      }
      if ((header.flags & multiboot::header_flags::addresses) != 0) {
        const auto whole = read_at<multiboot::Header>(file_, offset);
        if (!whole.has_value()) {
          fail("truncated: the file ends inside its multiboot header");
          return std::nullopt;
        }
        header = *whole;
      }
      return MultibootHeader{header, offset};
    }
    return std::nullopt;
  }

  bool load_multiboot(const MultibootHeader& header) {
    namespace flags = multiboot::header_flags;
    const u32 unknown = header.fields.flags & flags::required & ~flags::known_required;
    if (unknown != 0) {
      return fail("its multiboot header requires features that no loader has (flags {x})", unknown);
    }
    const bool addresses = (header.fields.flags & flags::addresses) != 0;
    return (addresses ? plan_addresses(header) : plan_elf()) && place_multiboot_info();
  }

  // Takes memory for one part of the payload. `what` names it in messages.
  bool plan_part(std::string_view what, u64 to, std::span<const u8> bytes, u64 memory_size) {
    if (request_.aerie.overlaps(to, to + memory_size)) {
      return fail("its {} at {x}-{x} does not fit: Aerie's own memory is there", what, to,
                  to + memory_size);
    }
    if (!free_.take(to, to + memory_size)) {
      return fail("its {} at {x}-{x} does not fit: not RAM, or taken by another part of it", what,
                  to, to + memory_size);
    }
    payload_end_ = std::max(payload_end_, to + memory_size);
    return plan_write(to, bytes, memory_size - bytes.size());
  }

  // The header's own address fields say what goes where (multiboot 3.1.3).
  bool plan_addresses(const MultibootHeader& header) {
    const multiboot::Header& h = header.fields;
    if (h.load_address > h.header_address || h.header_address - h.load_address > header.offset) {
      return fail("its multiboot header's addresses contradict its place in the file");
    }
    const u64 offset = header.offset - (h.header_address - h.load_address);
    u64 size = file_.size() - offset;
    if (h.load_end_address != 0) {
      if (h.load_end_address < h.load_address) {
        return fail("its multiboot header's load end lies before its load address");
      }
      const u64 wanted = h.load_end_address - h.load_address;
      if (wanted > size) {
        return fail("truncated: {} bytes to load, {} in the file", wanted, size);
      }
      size = wanted;
    }
    u64 memory_size = size;
    if (h.bss_end_address != 0) {
      if (h.bss_end_address < h.load_address + size) {
        return fail("its multiboot header's BSS end lies before its data's end");
      }
      memory_size = h.bss_end_address - h.load_address;
    }
    if (h.entry_address < h.load_address || h.entry_address - h.load_address >= memory_size) {
      return fail("its entry point {x} lies outside of what it loads", h.entry_address);
    }
    result_.entry.eip = h.entry_address;
    return plan_part("image", h.load_address, file_.subspan(offset, size), memory_size);
  }

  bool plan_elf() {
    const auto elf = read_at<elf::Header>(file_, 0);
    if (!elf.has_value() || elf->magic != elf::kMagic) {
      return fail("has a multiboot header but is no ELF file and gives no load addresses");
    }
    if (elf->file_class != elf::kClass32 || elf->data != elf::kLittleEndian ||
        elf->machine != elf::kMachine386) {
      return fail("not a 32-bit x86 ELF file, which multiboot 1 asks for");
    }
    if (elf->program_header_size < sizeof(elf::ProgramHeader) || elf->program_header_count == 0) {
      return fail("an ELF file without program headers");
    }
    std::optional<u32> entry;
    for (u64 i = 0; i < elf->program_header_count; ++i) {
      const auto segment =
          read_at<elf::ProgramHeader>(file_, elf->program_headers + i * elf->program_header_size);
      if (!segment.has_value()) {
        return fail("truncated: the file ends inside its program headers");
      }
      if (segment->type != elf::kLoad || segment->memory_size == 0) {
        continue;
      }
      const elf::ProgramHeader& s = *segment;
      if (s.file_size > s.memory_size) {
        return fail("segment {} is larger in the file than in memory", i);
      }
      if (s.offset > file_.size() || s.file_size > file_.size() - s.offset) {
        return fail("truncated: segment {} ends at {}, the file at {}", i,
                    u64{s.offset} + s.file_size, file_.size());
      }
      if (!plan_part("segment", s.physical_address, file_.subspan(s.offset, s.file_size),
                     s.memory_size)) {
        return false;
      }
      // The entry point is a virtual address; a program linked elsewhere than it is loaded means
      // the physical one (multiboot 3.2).
      if (elf->entry >= s.virtual_address && elf->entry - s.virtual_address < s.memory_size) {
        entry = s.physical_address + (elf->entry - s.virtual_address);
      }
    }
    if (!entry.has_value()) {
      return fail("its entry point {x} lies in none of its segments", elf->entry);
    }
    result_.entry.eip = *entry;
    return true;
  }

  bool place_multiboot_info() {
    const auto modules = request_.modules;
    const auto map = l1_map_.ranges();
    const u64 module_table = sizeof kGdt + sizeof(multiboot::Info);
    const u64 map_table = module_table + modules.size() * sizeof(multiboot::Module);
    const u64 texts = map_table + map.size() * sizeof(multiboot::MemoryMapEntry);
    u64 size = texts + kLoaderName.size() + 1 + request_.payload.text.size() + 1;
    for (const PayloadModule& m : modules) {
      size += m.text.size() + 1;
    }
    const auto info_at = free_.take_lowest(size, 16, kLowBegin, kLowEnd);
    if (!info_at.has_value()) {
      return fail("no room below 640 KiB for {} bytes of multiboot information", size);
    }
    if (!plan_write(*info_at, {}, size)) {
      return false;
    }

    // Modules, page aligned, behind the payload like other loaders do.
    const usize first_module = write_count_;
    for (const PayloadModule& m : modules) {
      const u64 floor = std::max(payload_end_, kMiB);
      const auto at =
          free_.take_lowest(std::max<u64>(m.data.size(), 1), kPageSize, floor, kFourGiB);
      if (!at.has_value()) {
        return fail_file(m.file(), "{} bytes of module do not fit into L1's memory", m.data.size());
      }
      if (!plan_write(*at, m.data)) {
        return false;
      }
    }
    if (!sources_are_safe()) {
      return false;
    }
    perform_writes();

    put_gdt(*info_at);
    multiboot::Info info{};
    info.flags = multiboot::info_flags::memory | multiboot::info_flags::command_line |
                 multiboot::info_flags::memory_map | multiboot::info_flags::loader_name;
    info.memory_lower = static_cast<u32>(lower_ / kKiB);
    info.memory_upper = static_cast<u32>(upper_ / kKiB);
    u64 text_at = *info_at + texts;
    const auto add_text = [&](std::string_view text) {
      const u64 at = text_at;
      text_at = put_text(at, text);
      return static_cast<u32>(at);
    };
    info.loader_name = add_text(kLoaderName);
    info.command_line = add_text(request_.payload.text);
    if (!modules.empty()) {
      info.flags |= multiboot::info_flags::modules;
      info.module_count = static_cast<u32>(modules.size());
      info.modules = static_cast<u32>(*info_at + module_table);
    }
    for (usize i = 0; i < modules.size(); ++i) {
      const u64 begin = writes_[first_module + i].to;
      const multiboot::Module entry{.begin = static_cast<u32>(begin),
                                    .end = static_cast<u32>(begin + modules[i].data.size()),
                                    .text = add_text(modules[i].text),
                                    .reserved = 0};
      put(info.modules + i * sizeof entry, &entry, sizeof entry);
    }
    info.memory_map = static_cast<u32>(*info_at + map_table);
    info.memory_map_length = static_cast<u32>(map.size() * sizeof(multiboot::MemoryMapEntry));
    for (usize i = 0; i < map.size(); ++i) {
      const multiboot::MemoryMapEntry entry{.size = sizeof entry - sizeof(u32),
                                            .base = map[i].begin,
                                            .length = map[i].size(),
                                            .type = static_cast<u32>(map[i].type)};
      put(info.memory_map + i * sizeof entry, &entry, sizeof entry);
    }
    put(*info_at + sizeof kGdt, &info, sizeof info);
    result_.entry.eax = multiboot::kLoaderMagic;
    result_.entry.ebx = static_cast<u32>(*info_at + sizeof kGdt);
    return true;
  }

  // Bytes of free RAM from `begin` to the first hole.
  u64 contiguous_ram(u64 begin) const {
    u64 end = begin;
    for (const MemoryRange& r : free_.ranges()) {
      if (r.begin <= end && end < r.end) {
        end = r.end;
      }
    }
    return std::min(end, kFourGiB) - begin;
  }

  // --- Linux
  // ----------------------------------------------------------------------------------------
  template <class T>
  T header_field(usize offset) const {
    return read_at<T>(file_, offset).value_or(T{});
  }

  bool is_linux() const {
    return header_field<u16>(linux_boot::at::boot_flag) == linux_boot::kBootFlag &&
           header_field<u32>(linux_boot::at::magic) == linux_boot::kMagic;
  }

  bool load_linux() {
    namespace at = linux_boot::at;
    const u16 version = header_field<u16>(at::version);
    if (version < linux_boot::kOldestVersion) {
      return fail("a Linux kernel with boot protocol {x}; {x} is the oldest supported", version,
                  linux_boot::kOldestVersion);
    }
    if ((header_field<u8>(at::loadflags) & linux_boot::kLoadedHigh) == 0) {
      return fail("a Linux zImage; only a bzImage can be loaded");
    }
    const u8 sectors = header_field<u8>(at::setup_sects);
    const u64 setup_size = (u64{sectors == 0 ? u8{4} : sectors} + 1) * linux_boot::kSectorSize;
    const usize header_end = linux_boot::at::magic + header_field<u8>(at::header_end_offset);
    if (file_.size() <= setup_size || header_end > setup_size) {
      return fail("truncated: {} bytes, its real-mode part alone has {}", file_.size(), setup_size);
    }
    // syssize counts 16-byte units of the protected-mode part, rounded up.
    const u64 announced = u64{header_field<u32>(0x1f4)} * 16;
    const auto kernel = file_.subspan(setup_size);
    if (kernel.size() + 15 < announced) {
      return fail("truncated: {} bytes of kernel announced, {} in the file", announced,
                  kernel.size());
    }
    const std::string_view command_line = request_.payload.arguments();
    const u32 command_line_max = header_field<u32>(at::cmdline_size);
    if (command_line.size() > command_line_max) {
      return fail("command line of {} bytes; this kernel takes {}", command_line.size(),
                  command_line_max);
    }
    if (header_end > linux_boot::kHeaderEndMax) {
      return fail("its setup header is larger than boot_params has room for");
    }

    const auto kernel_at = place_kernel(version, kernel);
    if (!kernel_at.has_value()) {
      return false;
    }
    const auto params_at =
        free_.take_lowest(linux_boot::kBootParamsSize, kPageSize, kLowBegin, kLowEnd);
    const auto gdt_at = free_.take_lowest(sizeof kGdt, 16, kLowBegin, kLowEnd);
    const auto text_at = free_.take_lowest(command_line.size() + 1, 16, kLowBegin, kLowEnd);
    if (!params_at.has_value() || !gdt_at.has_value() || !text_at.has_value()) {
      return fail("no room below 640 KiB for boot_params and the command line");
    }
    if (!plan_write(*params_at, {}, linux_boot::kBootParamsSize) ||
        !plan_write(*gdt_at, {}, sizeof kGdt) ||
        !plan_write(*text_at, {}, command_line.size() + 1)) {
      return false;
    }
    const auto initrd = place_initrd();
    if (!initrd.has_value() || !sources_are_safe()) {
      return false;
    }
    perform_writes();

    put_gdt(*gdt_at);
    put_text(*text_at, command_line);
    const auto set = [&]<class T>(usize offset, T value) {
      put(*params_at + offset, &value, sizeof value);
    };
    put(*params_at + at::setup_header, file_.data() + at::setup_header,
        header_end - at::setup_header);
    set(at::type_of_loader, linux_boot::kUndefinedLoader);
    set(at::vid_mode, u16{0xffff});  // "normal": the mode it finds
    set(at::code32_start, static_cast<u32>(*kernel_at));
    set(at::ramdisk_image, static_cast<u32>(initrd->begin));
    set(at::ramdisk_size, static_cast<u32>(initrd->size()));
    set(at::cmd_line_ptr, static_cast<u32>(*text_at));
    if (header_end >= at::hardware_subarch + sizeof(u32)) {
      set(at::hardware_subarch, u32{0});  // a PC
    }
    // VGA text mode 3, as the firmware leaves it, cursor at the bottom.
    set(at::orig_y, u8{24});
    set(at::orig_video_mode, u8{3});
    set(at::orig_video_cols, u8{80});
    set(at::orig_video_lines, u8{25});
    set(at::orig_video_is_vga, u8{1});
    set(at::orig_video_points, u16{16});
    const auto map = l1_map_.ranges();
    set(at::e820_entries, static_cast<u8>(map.size()));
    for (usize i = 0; i < map.size(); ++i) {
      const linux_boot::E820Entry entry{map[i].begin, map[i].size(), static_cast<u32>(map[i].type)};
      set(at::e820_table + i * sizeof entry, entry);
    }
    result_.entry.eip = static_cast<u32>(*kernel_at);
    result_.entry.esi = static_cast<u32>(*params_at);
    return true;
  }

  // The kernel's place: what it prefers, else, if it can be relocated, anywhere above 1 MiB that
  // holds what it needs while it unpacks itself.
  std::optional<u64> place_kernel(u16 version, std::span<const u8> kernel) {
    namespace at = linux_boot::at;
    u64 wanted = kMiB;
    u64 size = align_up<u64>(4 * kernel.size(), kPageSize);  // older kernels don't say
    u64 alignment = 0;
    if (version >= linux_boot::kPreferredAddress) {
      wanted = header_field<u64>(at::pref_address);
      size = header_field<u32>(at::init_size);
      if (header_field<u8>(at::relocatable_kernel) != 0) {
        alignment = header_field<u32>(at::kernel_alignment);
      }
    }
    size = std::max<u64>(size, kernel.size());
    std::optional<u64> place;
    if (wanted >= kMiB && wanted < kFourGiB && size <= kFourGiB - wanted &&
        free_.take(wanted, wanted + size)) {
      place = wanted;
    } else if (std::has_single_bit(alignment)) {
      place = free_.take_lowest(size, alignment, kMiB, kFourGiB);
    }
    if (!place.has_value()) {
      fail("does not fit: it needs {} KiB of RAM at {x}{}", size / kKiB, wanted,
           std::has_single_bit(alignment) ? std::string_view{" or elsewhere below 4 GiB"}
                                          : std::string_view{});
      return std::nullopt;
    }
    if (!plan_write(*place, kernel)) {
      return std::nullopt;
    }
    return place;
  }

  // All modules, each at a multiple of 4 as the initramfs format wants, as high as the kernel can
  // reach.
  std::optional<MemoryRange> place_initrd() {
    u64 size = 0;
    for (const PayloadModule& m : request_.modules) {
      size = align_up<u64>(size, 4) + m.data.size();
    }
    if (size == 0) {
      return MemoryRange{};
    }
    const u64 limit = u64{header_field<u32>(linux_boot::at::initrd_addr_max)} + 1;
    const auto begin = free_.take_highest(size, kPageSize, kMiB, std::min(limit, kFourGiB));
    if (!begin.has_value()) {
      fail_file(request_.modules[0].file(), "an initrd of {} bytes does not fit into L1's memory",
                size);
      return std::nullopt;
    }
    u64 at = *begin;
    for (const PayloadModule& m : request_.modules) {
      const u64 padding = align_up(at, 4) - at;
      if (!plan_write(at, {}, padding) || !plan_write(at + padding, m.data)) {
        return std::nullopt;
      }
      at += padding + m.data.size();
    }
    return MemoryRange{*begin, at};
  }

  const PayloadRequest& request_;
  std::span<const u8> file_;
  MemoryMap l1_map_;
  FreeMemory free_;
  u64 lower_;  // bytes of RAM at 0 and at 1 MiB, before anything is placed
  u64 upper_;
  std::array<Write, kMaxWrites> writes_{};
  usize write_count_ = 0;
  u64 payload_end_ = 0;
  PayloadResult result_{};
};

constexpr std::string_view kBlanks = " \t";

}  // namespace

std::string_view PayloadModule::file() const { return text.substr(0, text.find_first_of(kBlanks)); }

std::string_view PayloadModule::arguments() const {
  const usize blank = text.find_first_of(kBlanks);
  const usize begin = blank == text.npos ? blank : text.find_first_not_of(kBlanks, blank);
  return begin == text.npos ? std::string_view{} : text.substr(begin);
}

PayloadResult load_payload(const PayloadRequest& request) { return Loader{request}.run(); }

}  // namespace aerie::vmm
