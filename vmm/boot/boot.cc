// From the loader's hand-over to the first processor's vCPU: take what the loader left in low
// memory, move to the top of RAM, set the machine up, start the other processors.
#include <algorithm>
#include <cstring>

#include "base/panic.h"
#include "base/physical.h"
#include "cpu/arch/instructions.h"
#include "cpu/arch/registers.h"
#include "cpu/host/host.h"
#include "vmm/apic_registers.h"
#include "vmm/boot/acpi.h"
#include "vmm/boot/multiboot.h"
#include "vmm/boot/start.h"
#include "vmm/host_apic.h"
#include "vmm/machine.h"

extern "C" {
extern aerie::u8 image_begin[], image_end[], boot_stack[];
extern aerie::u8 trampoline_begin[], trampoline_end[], trampoline_parameters[];
void relocate(void* destination, const void* source, aerie::u64 bytes, aerie::u64 cr3);
}

namespace aerie::vmm {
namespace {

using telemetry::EndState;

constexpr u64 kVirtualBase = 0xffff'ffff'8000'0000;
constexpr u64 kLoadBase = 0x100'0000;
constexpr u64 kLargePage = 2 * kMiB;
constexpr u64 kMinimumL1Memory = 512 * kMiB;

// Loader's strings, copied out of low memory before anything else uses that.
struct TextStorage {
  std::array<char, 16 * kKiB> bytes;
  usize used;

  std::string_view keep(u32 physical) {
    const char* text = physical_pointer<char>(Hpa{physical});
    const usize begin = used;
    while (*text != '\0' && used + 1 < bytes.size()) {
      bytes[used++] = *text++;
    }
    bytes[used++] = '\0';
    return {&bytes[begin], used - 1 - begin};
  }
};
TextStorage texts;

u64 image_bytes() { return static_cast<u64>(image_end - image_begin); }

void read_loader_information(u32 magic, u32 address) {
  if (magic != multiboot::kLoaderMagic) {
    end_run(EndState::payload_error, "not started by a multiboot loader (EAX {x})", magic);
  }
  const auto& info = *physical_pointer<multiboot::Information>(Hpa{address});
  if ((info.flags & multiboot::flag::command_line) != 0) {
    const std::string_view line = texts.keep(info.command_line);
    const std::string_view bad = parse_boot_options(line, machine.options);
    if (!bad.empty()) {
      end_run(EndState::payload_error, "Aerie's command line: what is \"{}\"?", bad);
    }
  }
  set_log_level(machine.options.log_level);
  if ((info.flags & multiboot::flag::memory_map) == 0) {
    end_run(EndState::payload_error, "the loader gave no memory map");
  }
  for (u64 at = info.memory_map; at + sizeof(u32) < info.memory_map + u64{info.memory_map_bytes};) {
    const auto& e = *physical_pointer<multiboot::MapEntry>(Hpa{at});
    machine.memory.add({e.base, e.base + e.length, static_cast<MemoryType>(e.type)});
    at += e.size + sizeof(u32);
  }
  if ((info.flags & multiboot::flag::modules) != 0) {
    for (u32 i = 0; i < info.module_count; ++i) {
      if (i == Machine::kMaxModules) {
        end_run(EndState::payload_error, "more than {} boot modules", Machine::kMaxModules);
      }
      const auto& m = physical_pointer<multiboot::Module>(Hpa{info.modules})[i];
      machine.modules[i] = {m.begin, m.end - m.begin, texts.keep(m.text)};
      machine.module_count = i + 1;
    }
  }
}

u64 module_pages_bytes() {
  u64 bytes = 0;
  for (usize i = 0; i < machine.module_count; ++i) {
    bytes += align_up(machine.modules[i].size, kPageSize);
  }
  return bytes;
}

// The highest place below 4 GiB, aligned for large pages. The modules are kept at its end until L1
// is loaded; what they take comes on top of the size asked for, since the MMU counts on that.
void choose_block() {
  const u64 size = machine.options.block_bytes + align_up(module_pages_bytes(), kLargePage);
  u64 total = 0;
  for (const MemoryRange& r : machine.memory.ranges()) {
    if (r.type != MemoryType::ram) {
      continue;
    }
    total += r.size();
    const u64 end = align_down(std::min<u64>(r.end, 4 * kGiB), kLargePage);
    if (end >= r.begin + size + kLargePage) {
      machine.block = {end - size, end, MemoryType::reserved};
    }
  }
  if (machine.block.end == 0 || total < size + kMinimumL1Memory - 2 * kMiB) {
    end_run(EndState::unsupported_host,
            "{} MiB of RAM: Aerie takes {} MiB and L1 gets at least {} MiB", total / kMiB,
            size / kMiB, kMinimumL1Memory / kMiB);
  }
}

// Modules go to the end of the block, where they stay until the payload has been loaded.
void stage_modules() {
  u64 top = machine.block.end;
  // The last module first: sources ascend, so none is overwritten before it has been copied.
  for (usize i = machine.module_count; i-- > 0;) {
    BootModule& m = machine.modules[i];
    top -= align_up(m.size, kPageSize);
    std::memmove(physical_pointer<u8>(Hpa{top}), physical_pointer<u8>(Hpa{m.begin}), m.size);
    m.begin = top;
  }
  machine.staging = top;
}

// Page tables of L0 for good: the window over all of physical memory, the image at its linked
// address, and, until the other processors are up, low memory as it is.
class HostTables {
 public:
  explicit HostTables(u64 first_page) : next_{first_page} {
    pml4_ = take();
    const u64 top = u64{1} << machine.physical_bits;
    for (u64 base = 0; base < top; base += 512 * kGiB) {
      const u64 pdpt = take();
      for (u64 i = 0; i < 512 && base + i * kGiB < top; ++i) {
        entry(pdpt, i) = (base + i * kGiB) | kLarge | kPresentWritable | kNoExecute;
      }
      entry(pml4_, 256 + base / (512 * kGiB)) = pdpt | kPresentWritable;
    }
    const u64 low_pdpt = take();
    entry(low_pdpt, 0) = kLarge | kPresentWritable;
    entry(pml4_, 0) = low_pdpt | kPresentWritable;
    const u64 image_pdpt = take();
    const u64 image_pd = take();
    const u64 image = machine.block.begin + kLargePage;
    for (u64 at = 0; at < align_up(image_bytes(), kLargePage); at += kLargePage) {
      entry(image_pd, (kLoadBase + at) / kLargePage) = (image + at) | kLarge | kPresentWritable;
    }
    entry(image_pdpt, 510) = image_pd | kPresentWritable;
    entry(pml4_, 511) = image_pdpt | kPresentWritable;
  }

  u64 root() const { return pml4_; }
  u64 end() const { return next_; }

 private:
  static constexpr u64 kPresentWritable = 3, kLarge = 0x80, kNoExecute = bit(63);

  u64 take() {
    const u64 page = next_;
    next_ += kPageSize;
    std::memset(physical_pointer<u8>(Hpa{page}), 0, kPageSize);
    return page;
  }
  static u64& entry(u64 table, u64 index) { return physical_pointer<u64>(Hpa{table})[index]; }

  u64 next_;
  u64 pml4_;
};

void set_l1_memory() {
  std::array<mmu::L1Memory::Range, mmu::L1Memory::kMaxRanges> ranges;
  usize count = 0;
  const MemoryMap map = memory_map_of_l1(machine.memory.ranges(), machine.block);
  // Firmware's data area below 640 KiB is RAM whatever the map calls it, and option ROMs and the
  // BIOS between 768 KiB and 1 MiB can be executed from.
  ranges[count++] = {Gpa{0}, Gpa{0xa0000}};
  ranges[count++] = {Gpa{0xc0000}, Gpa{0x100000}, false};
  for (const MemoryRange& r : map.ranges()) {
    const u64 begin = std::max<u64>(align_up(r.begin, kPageSize), 0x100000);
    const u64 end = align_down(r.end, kPageSize);
    const bool ram = r.type == MemoryType::ram || r.type == MemoryType::acpi_reclaimable ||
                     r.type == MemoryType::acpi_nvs;
    if (ram && begin < end && count < ranges.size()) {
      ranges[count++] = {Gpa{begin}, Gpa{end}};
    }
  }
  machine.l1_memory.set_ranges({ranges.data(), count});
}

// TSC and APIC timer against the PIT's 1.193182 MHz, channel 2, over 4 ms.
void calibrate_clocks() {
  constexpr u64 kPitHz = 1193182;
  constexpr u32 kTicks = kPitHz * 4 / 1000;
  HostApic apic;
  const auto read_pit = [] {
    cpu::outb(0x43, 0x80);  // latch channel 2
    const u32 low = cpu::inb(0x42);
    return low | (u32{cpu::inb(0x42)} << 8);
  };
  const u8 speaker = cpu::inb(0x61);
  cpu::outb(0x61, static_cast<u8>((speaker & ~2) | 1));  // gate on, speaker off
  cpu::outb(0x43, 0xb0);                                 // channel 2, both bytes, mode 0
  cpu::outb(0x42, 0xff);
  cpu::outb(0x42, 0xff);
  apic.write(apic::lvt_timer, 0x10000);
  apic.write(apic::divide, 0xb);  // by 1
  apic.write(apic::initial_count, ~0u);
  const u32 pit_begin = read_pit();
  const u64 tsc_begin = cpu::rdtsc();
  const u32 apic_begin = apic.read(apic::current_count);
  u32 pit = pit_begin;
  // A machine may have no PIT (QEMU: pit=off): its ports then read the same for ever.
  constexpr u64 kPatience = 100'000'000;
  while (pit_begin - pit < kTicks && pit <= pit_begin && cpu::rdtsc() - tsc_begin < kPatience) {
    pit = read_pit();
  }
  const u64 tsc = cpu::rdtsc() - tsc_begin;
  const u32 ticks = apic_begin - apic.read(apic::current_count);
  const u64 elapsed = std::max<u64>(pit_begin - pit, 1);
  apic.write(apic::initial_count, 0);
  cpu::outb(0x61, speaker);
  if (pit == pit_begin) {
    // QEMU's APIC timer counts 1 GHz; what L1 sees rests on the ratio of the two alone.
    constexpr u64 kQemuApicHz = 1'000'000'000;
    machine.apic_hz = kQemuApicHz;
    machine.tsc_hz = tsc * kQemuApicHz / std::max<u32>(ticks, 1);
    log_warning("no PIT: the APIC timer is taken to count 1 GHz");
    return;
  }
  machine.tsc_hz = tsc * kPitHz / elapsed;
  machine.apic_hz = u64{ticks} * kPitHz / elapsed;
}

u8 physical_apic_id() { return static_cast<u8>(HostApic{}.read(apic::id) >> 24); }

// `command`: ICR bits 31:0. SDM vol. 3, 11.6.1.
void send_startup(u8 destination, u32 command) {
  HostApic apic;
  while ((apic.read(apic::icr_low) & apic::icr::delivery_status) != 0) {
    cpu::pause();
  }
  apic.write(apic::icr_high, u32{destination} << 24);
  apic.write(apic::icr_low, command);
}

void start_processors(u64 cr3) {
  const Processors found = find_processors();
  machine.cpu_of_apic_id.fill(0xff);
  machine.cpu_of_apic_id[physical_apic_id()] = 0;
  cpu::this_cpu().apic_id = physical_apic_id();
  if (!found.found) {
    log_warning("no ACPI MADT: one processor");
    return;
  }
  // A page below 1 MiB, put back afterwards.
  constexpr u64 kTrampoline = 0x8000;
  static std::array<u8, kPageSize> saved;
  u8* page = physical_pointer<u8>(Hpa{kTrampoline});
  const usize code_bytes = static_cast<usize>(trampoline_end - trampoline_begin);
  std::memcpy(saved.data(), page, kPageSize);
  std::memcpy(page, trampoline_begin, code_bytes);
  struct Parameters {
    u64 cr3, stacks, entry;
    u32 next, limit;
  };
  auto& parameters =
      *reinterpret_cast<Parameters*>(page + (trampoline_parameters - trampoline_begin));
  parameters = {cr3, reinterpret_cast<u64>(boot_stack),
                reinterpret_cast<u64>(&aerie_start_processor), 1, kMaxCpus};
  for (unsigned i = 0; i < found.count; ++i) {
    const u8 id = found.apic_ids[i];
    if (id == physical_apic_id()) {
      continue;
    }
    if (machine.cpus == kMaxCpus) {
      log_warning("more than {} processors: the others stay halted", kMaxCpus);
      break;
    }
    const u32 expected = parameters.next + 1;
    machine.cpu_of_apic_id[id] = static_cast<u8>(machine.cpus);
    send_startup(id, 0x4500);                                // INIT
    send_startup(id, 0x4600 | (kTrampoline >> kPageShift));  // SIPI
    const u64 begin = cpu::rdtsc();
    const u64 patience = std::max<u64>(machine.tsc_hz, kGiB / 4);
    while (machine.cpus_ready.load(std::memory_order_acquire) + 1 != expected &&
           cpu::rdtsc() - begin < patience) {
      cpu::pause();
    }
    if (machine.cpus_ready.load(std::memory_order_acquire) + 1 != expected) {
      log_warning("processor with APIC ID {} does not start", id);
      machine.cpu_of_apic_id[id] = 0xff;
      continue;
    }
    ++machine.cpus;
  }
  std::memcpy(page, saved.data(), kPageSize);
}

}  // namespace

constinit Machine machine;

void end_machine(EndState state, std::string_view pattern, std::span<const LogArgument> arguments) {
  log_line(LogLevel::error, pattern, arguments);
  if (machine.telemetry != nullptr) {
    auto& header = machine.telemetry->header;
    const usize used = format({header.end_text, sizeof(header.end_text) - 1}, pattern, arguments);
    header.end_text[used] = '\0';
    header.end_cpu = cpu::this_cpu().index;
    header.end_state = state;
  }
  // isa-debug-exit where there is one; the host tool reads the state and the log, not this number.
  cpu::outl(0xf4, 0x7f);
  for (;;) {
    cpu::cli();
    cpu::hlt();
  }
}

}  // namespace aerie::vmm

namespace aerie {

void panic_stop() {
  vmm::end_run(telemetry::EndState::panic, "Aerie stopped: see the log's line above");
}

}  // namespace aerie

using namespace aerie;       // NOLINT(google-build-using-namespace): the entry points below
using namespace aerie::vmm;  // NOLINT(google-build-using-namespace)

extern "C" [[noreturn]] void aerie_boot(u32 magic, u32 information) {
  cpu::build_idt();
  machine.physical_bits = std::min<unsigned>(cpu::cpuid(0x80000008).eax & 0xff, 46);
  read_loader_information(magic, information);
  if (const char* why = cpu::svm_unusable(); why != nullptr) {
    end_run(EndState::unsupported_host, "{}", why);
  }
  choose_block();
  if (machine.module_count == 0) {
    end_run(EndState::payload_error, "no payload: Aerie wants L1 as its first boot module");
  }
  stage_modules();

  const HostTables tables{machine.block.begin + kLargePage + image_bytes()};
  relocate(physical_pointer<u8>(Hpa{machine.block.begin + kLargePage}), image_begin, image_bytes(),
           tables.root());

  cpu::load_descriptor_tables();
  machine.pages.add_range(Hpa{tables.end()}, Hpa{machine.staging});
  machine.telemetry = physical_pointer<telemetry::Block>(Hpa{machine.block.begin});
  std::memset(machine.telemetry, 0, sizeof(telemetry::Block));
  auto& header = machine.telemetry->header;
  header.version = telemetry::kVersion;
  header.header_bytes = kPageSize;
  header.per_cpu_bytes = sizeof(telemetry::PerCpu);
  header.max_cpus = kMaxCpus;
  header.block_base = machine.block.begin;
  header.block_bytes = machine.block.size();
  header.exit_reasons = cpu::kExitReasons;
  header.events = telemetry::kEvents;
  header.total_pages = machine.pages.total_pages();
  __atomic_store_n(&header.magic, telemetry::kMagic, __ATOMIC_RELEASE);

  const Processors found = find_processors();
  machine.ioapic_page = found.ioapic;
  machine.found_cpus = std::min(found.count, kMaxCpus);
  set_l1_memory();
  calibrate_clocks();
  set_up_l1();
  start_processors(tables.root());
  header.cpus = machine.cpus;
  header.tsc_hz = machine.tsc_hz;
  physical_pointer<u64>(Hpa{tables.root()})[0] = 0;
  log_info("Aerie at {x}, {} MiB; {} processors; TSC {} kHz, APIC timer {} kHz",
           machine.block.begin, machine.block.size() / kMiB, machine.cpus, machine.tsc_hz / 1000,
           machine.apic_hz / 1000);
  start_l1();
}

extern "C" [[noreturn]] void aerie_start_processor(u32 number) {
  cpu::load_descriptor_tables();
  auto& self = cpu::this_cpu();
  self.index = number;
  self.apic_id = physical_apic_id();
  start_waiting_processor(number);
}
