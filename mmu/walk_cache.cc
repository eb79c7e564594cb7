#include "mmu/walk_cache.h"

namespace aerie::mmu {

bool WalkCache::unchanged_narrow(const Slot& s) {
  u64 changed = 0;
  for (unsigned i = 0; i < Legacy::kLevels && s.at[i] != nullptr; ++i) {
    changed |= __atomic_load_n(static_cast<const u32*>(s.at[i]), __ATOMIC_RELAXED) ^ s.value[i];
  }
  return (changed & ~kIgnored) == 0;
}

template <class Second>
const u8* WalkCache::refill(ModeBits mode, u64 cr3, u64 rip, u64 generation, const L1Memory& memory,
                            const Second& second) {
  Slot& s = slot(cr3, rip);
  if (matches(s, mode, cr3, rip, generation) && s.kind == kNarrow && unchanged_narrow(s)) {
    return s.bytes + (rip & kPageMask);
  }
  ++misses_;
  s = Slot{};
  // The most permissive features: what the processor has executed from was not reserved.
  GuestPaging paging;
  paging.mode = mode;
  paging.cr3 = cr3;
  paging.features = {.maxphyaddr = 52, .gib_pages = true, .pse36 = true};
  const GuestWalk walk = walk_guest(memory, paging, second, rip, access::fetch,
                                    {.check_rights = false, .set_accessed_dirty = false});
  if (walk.status != GuestWalk::Status::ok) {
    return nullptr;
  }
  const u8* bytes = memory.pointer<const u8>(walk.gpa.page(), kPageSize);
  if (bytes == nullptr) {
    return nullptr;
  }
  for (unsigned i = 0; i < walk.path.depth; ++i) {
    const WalkPath::Step& step = walk.path.step[i];
    if (!step.memory) {
      return nullptr;  // an entry read from nowhere: nothing to compare with
    }
    s.at[i] = memory.pointer<const u8>(step.at);
    s.value[i] = step.entry;
  }
  s.page = rip >> kPageShift;
  s.cr3 = cr3;
  s.cr3_mask = cr3_mask(mode.mode());
  s.generation = generation;
  s.mode = mode.value();
  s.kind = mode.mode() == PagingMode::legacy ? kNarrow : walk.path.depth;
  s.bytes = bytes;
  return bytes + (rip & kPageMask);
}

const u8* WalkCache::fill(ModeBits mode, u64 cr3, u64 rip, const L1Memory& memory) {
  return refill(mode, cr3, rip, 0, memory, NoSecondDimension{});
}

const u8* WalkCache::fill_nested(ModeBits mode, u64 cr3, u64 rip, u64 generation,
                                 const L1Memory& memory, Eptp eptp,
                                 const EptFormat::Context& context) {
  return refill(
      mode, cr3, rip, generation, memory,
      EptDimension{memory, eptp, context, {.check_rights = false, .set_accessed_dirty = false}});
}

}  // namespace aerie::mmu
