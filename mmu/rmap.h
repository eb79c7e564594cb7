// Reverse maps: from a frame of L1's memory to the shadow leaves that map it, and from a shadow
// page to the entries that point to it. Chains of 8-byte nodes out of one array that is reserved at
// boot, so that a chain never grows by allocation and L1 cannot make them use more than their
// share.
#pragma once

#include "base/page_allocator.h"
#include "base/panic.h"
#include "base/physical.h"

namespace aerie::mmu {

// A shadow entry, named by its page's number and its index there.
class EntryRef {
 public:
  constexpr EntryRef() = default;
  constexpr EntryRef(u32 page, u32 index) : value_{page << 9 | index} {}
  constexpr u32 page() const { return value_ >> 9; }
  constexpr u32 index() const { return value_ & 0x1ff; }
  constexpr bool operator==(const EntryRef&) const = default;

 private:
  u32 value_ = 0;
};

class NodePool {
 public:
  struct Node {
    EntryRef ref;
    u32 next;
  };
  static_assert(sizeof(Node) == 8);
  static constexpr u32 kNone = 0;

  // Room for about `count` nodes. False when memory runs out.
  [[nodiscard]] bool init(PageAllocator& allocator, u32 count) {
    const u64 pages = (u64{count} * sizeof(Node) + kPageSize - 1) / kPageSize;
    const Hpa memory = allocator.allocate_contiguous(pages);
    if (memory == Hpa{}) {
      return false;
    }
    nodes_ = physical_pointer<Node>(memory);
    capacity_ = static_cast<u32>(pages * kPageSize / sizeof(Node));
    fresh_ = 1;
    free_ = capacity_ - 1;
    return true;
  }
  u32 free() const { return free_; }
  u32 capacity() const { return capacity_ - 1; }

  // The caller has seen to it that one is free.
  void push(u32& head, EntryRef ref) {
    AERIE_CHECK(free_ != 0);
    --free_;
    u32 n = free_list_;
    if (n != kNone) {
      free_list_ = nodes_[n].next;
    } else {
      n = fresh_++;
    }
    nodes_[n] = {ref, head};
    head = n;
  }
  // Removes one node for `ref`; false where there is none.
  bool remove(u32& head, EntryRef ref) {
    for (u32* at = &head; *at != kNone; at = &nodes_[*at].next) {
      const u32 n = *at;
      if (nodes_[n].ref == ref) {
        *at = nodes_[n].next;
        nodes_[n].next = free_list_;
        free_list_ = n;
        ++free_;
        return true;
      }
    }
    return false;
  }
  // f(EntryRef) until it returns false; f must not change the chain.
  template <class F>
  void for_each(u32 head, F&& f) const {
    for (u32 n = head; n != kNone; n = nodes_[n].next) {
      if (!f(nodes_[n].ref)) {
        return;
      }
    }
  }
  EntryRef first(u32 head) const { return nodes_[head].ref; }

 private:
  Node* nodes_ = nullptr;
  u32 capacity_ = 0;
  u32 fresh_ = 0;  // nodes from here on were never used
  u32 free_ = 0;
  u32 free_list_ = kNone;
};

// Leaves by the first frame they map. Leaves of different frames and sizes share a chain; whoever
// looks compares the entry itself. A chain's length is known, so that it can be kept short: an L1
// may map one page of its own (its zero page, say) a million times into an L2.
class LeafMap {
 public:
  static constexpr u32 kMaxChain = 1024;

  [[nodiscard]] bool init(PageAllocator& allocator, u32 buckets) {
    bits_ = 9;
    while ((u32{1} << bits_) < buckets) {
      ++bits_;
    }
    const Hpa memory = allocator.allocate_contiguous((sizeof(Bucket) << bits_) / kPageSize);
    if (memory == Hpa{}) {
      return false;
    }
    buckets_ = physical_pointer<Bucket>(memory);
    return true;
  }
  void add(NodePool& nodes, u64 frame, EntryRef ref) {
    Bucket& b = buckets_[hash(frame)];
    nodes.push(b.head, ref);
    ++b.count;
  }
  bool remove(NodePool& nodes, u64 frame, EntryRef ref) {
    Bucket& b = buckets_[hash(frame)];
    const bool found = nodes.remove(b.head, ref);
    b.count -= found ? 1 : 0;
    return found;
  }
  // f(EntryRef) for what may map `frame`, until f returns false.
  template <class F>
  void for_each(const NodePool& nodes, u64 frame, F&& f) const {
    nodes.for_each(buckets_[hash(frame)].head, f);
  }
  bool full(u64 frame) const { return buckets_[hash(frame)].count >= kMaxChain; }
  // One of the leaves in the chain of `frame`, which is not empty.
  EntryRef any(const NodePool& nodes, u64 frame) const {
    return nodes.first(buckets_[hash(frame)].head);
  }

 private:
  struct Bucket {
    u32 head;
    u32 count;
  };
  u32 hash(u64 frame) const {
    return static_cast<u32>((frame * 0x9e37'79b9'7f4a'7c15) >> (64 - bits_));
  }

  Bucket* buckets_ = nullptr;
  unsigned bits_ = 0;
};

}  // namespace aerie::mmu
