// Memory for the emulator's tests: one run of bytes at a linear address. Anything else is a page
// fault, and so is the access whose number a test names.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "cpu/emulate/emulator.h"

namespace aerie::cpu {

struct EmulatedMemory {
  u64 base = 0;
  std::vector<u8> bytes;
  int fail_at = -1;  // number of the access that faults, counting from 0
  int accesses = 0;
  int writes = 0;
  int exchanges = 0;
  std::map<SegmentRegister, Segment> segments;
  // Called before each compare_exchange: another processor at work.
  std::function<void()> interfere;
  EmulationFault last{};

  bool inside(u64 linear, u64 size, bool write) {
    if (accesses++ != fail_at && linear >= base && linear - base + size <= bytes.size()) {
      return true;
    }
    last = {.event = Event::exception(Exception::pf, write ? pfec::write : 0), .cr2 = linear};
    return false;
  }
  bool read(u64 linear, unsigned size, u64& value, MemoryIntent intent) {
    if (!inside(linear, size, intent == MemoryIntent::modify)) {
      return false;
    }
    value = 0;
    std::memcpy(&value, &bytes[linear - base], size);
    return true;
  }
  bool write(u64 linear, unsigned size, u64 value) {
    if (!inside(linear, size, true)) {
      return false;
    }
    ++writes;
    std::memcpy(&bytes[linear - base], &value, size);
    return true;
  }
  CompareExchange compare_exchange(u64 linear, unsigned size, u128 expected, u128 desired,
                                   u128& found) {
    if (!inside(linear, size, true)) {
      return CompareExchange::fault;
    }
    ++exchanges;
    if (interfere) {
      interfere();
    }
    found = 0;
    std::memcpy(&found, &bytes[linear - base], size);
    if (found != expected) {
      return CompareExchange::differs;
    }
    std::memcpy(&bytes[linear - base], &desired, size);
    return CompareExchange::done;
  }
  Segment segment(SegmentRegister name) { return segments[name]; }
  EmulationFault fault() const { return last; }
};
static_assert(EmulationEnvironment<EmulatedMemory>);

}  // namespace aerie::cpu
