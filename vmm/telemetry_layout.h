// The telemetry block: what Aerie shows of itself to the host tool. It lies at the very start of
// Aerie's own memory, page aligned; the tool maps the file that backs the guest's RAM, finds the
// block by its magic and reads it in place, so watching costs L0 nothing and L1 cannot see it.
//
// Shared by the hypervisor and tools/: plain words only, no pointers; a change of layout raises
// kVersion. Every counter has one writer (its own processor) and is raised with one `inc`.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "base/types.h"
#include "cpu/exit.h"

namespace aerie::telemetry {

inline constexpr u64 kMagic = 0x4d4c'5445'4952'4541;  // "AERIETLM" in memory
inline constexpr u32 kVersion = 1;

// Whose execution an exit ended, as an index.
inline constexpr unsigned kLevels = 3;
inline constexpr unsigned kReasonSlots = 64;
static_assert(cpu::kExitReasons <= kReasonSlots);

// Who dealt with an exit.
enum class Handler : u8 {
  l0,         // Aerie itself; the level that exited goes on
  reflected,  // handed to L1 as an exit of its L2
  count
};
inline constexpr unsigned kHandlers = static_cast<unsigned>(Handler::count);

// What else is counted: instructions that Aerie performs for L1, and the work of its own machinery.
enum class Event : u8 {
  // VMX instructions of L1
  vmxon,
  vmxoff,
  vmclear,
  vmptrld,
  vmptrst,
  vmread,
  vmwrite,
  vmlaunch,
  vmresume,
  vmcall,
  invept,
  invvpid,
  vmfunc,
  // ways into L2 and out of it
  nested_entry,
  nested_entry_failed,
  nested_exit,
  // interrupts
  interrupt_taken,     // physical
  interrupt_injected,  // virtual, into L1 or L2
  ipi_sent,
  kick_sent,
  eoi,
  // exit sites
  decode_hit,
  decode_miss,
  walk_hit,
  walk_miss,
  emulated,
  reexecuted,
  // MMU
  shadow_fault,
  shadow_page_allocated,
  shadow_page_freed,
  shadow_large_mapped,
  root_hit,
  root_miss,
  tlb_flush,
  resync,
  unshadowed,
  merge,  // groups of vmcs12/vmcb12 fields merged again
  count
};
inline constexpr unsigned kEvents = static_cast<unsigned>(Event::count);
inline constexpr unsigned kEventSlots = 64;
static_assert(kEvents <= kEventSlots);

inline constexpr std::array<std::string_view, kEvents> kEventNames = {
    "VMXON",
    "VMXOFF",
    "VMCLEAR",
    "VMPTRLD",
    "VMPTRST",
    "VMREAD",
    "VMWRITE",
    "VMLAUNCH",
    "VMRESUME",
    "VMCALL",
    "INVEPT",
    "INVVPID",
    "VMFUNC",
    "entries into L2",
    "failed entries into L2",
    "exits from L2 to L1",
    "physical interrupts",
    "injected interrupts",
    "IPIs",
    "kicks",
    "EOIs",
    "decode cache hits",
    "decode cache misses",
    "walk cache hits",
    "walk cache misses",
    "emulated instructions",
    "instructions run again",
    "shadow faults",
    "shadow pages made",
    "shadow pages freed",
    "large shadow mappings",
    "root cache hits",
    "root cache misses",
    "TLB flushes",
    "resyncs",
    "unshadowed tables",
    "groups merged",
};
static_assert(!kEventNames.back().empty(), "an event has no name");

// How a run ended, written once by Aerie before it ends the machine. An L1 that ends the machine by
// itself (isa-debug-exit, power-off, reset: all passed through) leaves `running` behind.
enum class EndState : u32 {
  starting,          // Aerie has not yet entered L1
  running,           // L1 has been entered
  l1_triple_fault,   // L1 shut down; end_text says where
  panic,             // a fault of Aerie's own
  payload_error,     // the payload cannot be loaded; end_text says which and why
  unsupported_host,  // the processor lacks what Aerie needs
  emulation_failed,  // L1 did to a trapped page what Aerie cannot perform
  l1_power_off,      // L1 asked for it through Aerie
  count
};

// One nested transition, or whatever else is worth a place in the ring.
struct TraceEntry {
  u64 tsc;
  u64 rip;   // of the level that is left
  u64 info;  // reason-specific: exit qualification, EXITINFO1
  u8 cpu;
  u8 from_level;
  u8 to_level;
  u8 reason;   // cpu::ExitReason; an entry repeats the reason of the exit it answers
  u32 detail;  // reason-specific: L1's own exit reason number
};
static_assert(sizeof(TraceEntry) == 32);

inline constexpr unsigned kTraceEntries = 256;  // a power of two

// One processor's part. Entry i of the ring is trace[i % kTraceEntries]; `trace_next` counts all
// that were ever written and is raised after the entry is complete.
struct alignas(kPageSize) PerCpu {
  u64 exits[kLevels][kReasonSlots][kHandlers];
  u64 events[kEventSlots];
  u64 trace_next;
  u64 reserved[63];
  TraceEntry trace[kTraceEntries];

  u64& exit_counter(unsigned level, cpu::ExitReason reason, Handler handler) {
    return exits[level][static_cast<unsigned>(reason)][static_cast<unsigned>(handler)];
  }
  void count(Event event) { ++events[static_cast<unsigned>(event)]; }
  void trace_transition(const TraceEntry& entry) {
    trace[trace_next % kTraceEntries] = entry;
    __atomic_store_n(&trace_next, trace_next + 1, __ATOMIC_RELEASE);
  }
};
static_assert(offsetof(PerCpu, events) == 3072);
static_assert(offsetof(PerCpu, trace_next) == 3584);
static_assert(offsetof(PerCpu, trace) == kPageSize);
static_assert(sizeof(PerCpu) == 3 * kPageSize);

// Orders from the host tool, one at a time: it fills `command` and `arguments` and raises
// `requested`; Aerie carries it out, fills `result` and sets `completed` to the same number. No
// command exists yet.
struct Mailbox {
  u32 requested;
  u32 completed;
  u32 command;
  u32 result;
  u64 arguments[6];
};
static_assert(sizeof(Mailbox) == 64);

// The first page of the block; PerCpu parts follow it.
struct Header {
  u64 magic;  // written last, once the rest is valid
  u32 version;
  u32 header_bytes;   // kPageSize
  u32 per_cpu_bytes;  // sizeof(PerCpu)
  u32 max_cpus;       // PerCpu parts that follow
  u64 block_base;     // host physical address of Aerie's memory, which is this header's own
  u64 block_bytes;
  u32 cpus;          // processors that L1 has
  u32 exit_reasons;  // cpu::kExitReasons of this build
  u32 events;        // kEvents of this build
  u32 reserved0;
  u64 tsc_hz;  // 0 if not known

  u64 total_pages;  // of Aerie's page allocator
  u64 free_pages;

  EndState end_state;
  u32 end_cpu;
  char end_text[256];  // NUL-terminated; what happened, in words

  Mailbox mailbox;
  u8 reserved1[kPageSize - 408];
};
static_assert(offsetof(Header, block_base) == 24);
static_assert(offsetof(Header, total_pages) == 64);
static_assert(offsetof(Header, end_state) == 80);
static_assert(offsetof(Header, end_text) == 88);
static_assert(offsetof(Header, mailbox) == 344);
static_assert(sizeof(Header) == kPageSize);

struct Block {
  Header header;
  PerCpu cpu[kMaxCpus];
};
static_assert(offsetof(Block, cpu) == kPageSize);
static_assert(std::is_trivially_copyable_v<Block> && std::is_standard_layout_v<Block>);

}  // namespace aerie::telemetry
