// A small machine's memory for the MMU's tests: L1 has [0, kL1Size), Aerie's block is above it.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "base/page_allocator.h"
#include "base/physical.h"
#include "mmu/l1_memory.h"

namespace aerie::mmu::test {

class Arena {
 public:
  static constexpr u64 kL1Size = 64 * kMiB;
  static constexpr u64 kL0Size = 64 * kMiB;

  explicit Arena(u64 l0_size = kL0Size) {
    size_ = kL1Size + kL0Size;
    void* p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    physical_window = static_cast<u8*>(p);
    allocator.add_range(Hpa{kL1Size}, Hpa{kL1Size + l0_size});
    const L1Memory::Range ranges[] = {{Gpa{0}, Gpa{kL1Size}}};
    memory.set_ranges(ranges);
  }
  ~Arena() {
    ::munmap(physical_window, size_);
    physical_window = nullptr;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A zeroed page of L1's.
  u64 page() {
    const u64 p = next_;
    next_ += kPageSize;
    std::memset(at<u8>(p), 0, kPageSize);
    return p;
  }
  template <class T>
  T* at(u64 address) const {
    return physical_pointer<T>(Hpa{address});
  }
  u64& word(u64 table, u64 index) const { return at<u64>(table)[index]; }
  u32& half(u64 table, u64 index) const { return at<u32>(table)[index]; }

  PageAllocator allocator;
  L1Memory memory;

 private:
  u64 size_ = 0;
  u64 next_ = kMiB;
};

}  // namespace aerie::mmu::test
