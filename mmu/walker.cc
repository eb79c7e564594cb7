#include "mmu/walker.h"

namespace aerie::mmu {
namespace {

// A guest that changes an entry between its check and its compare-exchange makes the walk start
// over, but not for ever: after these many it is run again and faults again if it must.
constexpr unsigned kMaxRestarts = 8;

enum class Step : u8 { done, restart };

void walk_ept_once(const L1Memory& memory, Eptp eptp, const EptFormat::Context& context,
                   Ngpa address, u8 access, WalkOptions options, EptWalk& walk) {
  walk.path.depth = 0;
  walk.rights = 0;
  const u64 beyond = EptFormat::beyond(context);
  const unsigned levels = eptp.levels() == 5 ? 5 : 4;
  u64 table = eptp.root();
  u8 rights = ept_right::all | ept_right::execute_user;
  for (unsigned level = levels;; --level) {
    WalkPath::Step& step = walk.path.step[walk.path.depth++];
    step.level = static_cast<u8>(level);
    step.at = Gpa{table + EptFormat::index(address.value(), level) * sizeof(u64)};
    step.entry = detail::load_entry<u64>(memory, step.at, step.memory);
    walk.level = step.level;
    if (!EptFormat::present(step.entry, context)) {
      walk.status = EptWalk::Status::violation;
      return;
    }
    if (EptFormat::misconfigured(step.entry, level, beyond, context)) {
      walk.status = EptWalk::Status::misconfiguration;
      return;
    }
    rights &= EptFormat::rights(step.entry, context);
    if (EptFormat::leaf(step.entry, level)) {
      const u64 low = bit(EptFormat::shift(level)) - 1;
      walk.gpa = Gpa{EptFormat::frame(step.entry, level) | (address.value() & low)};
      break;
    }
    table = EptFormat::table(step.entry);
  }
  walk.rights = rights;
  const EptPermissionTable& permissions = kEptPermissions[context.mode_based_execute];
  if (options.check_rights && ((permissions[access & 0xf] >> rights) & 1) != 0) {
    walk.status = EptWalk::Status::violation;
    return;
  }
  if (options.set_accessed_dirty && eptp.accessed_dirty()) {
    for (unsigned i = 0; i < walk.path.depth; ++i) {
      WalkPath::Step& step = walk.path.step[i];
      const bool last = i + 1 == walk.path.depth;
      const u64 bits = EptFormat::kAccessed |
                       (last && (access & ept_access::write) != 0 ? EptFormat::kDirty : 0);
      if (!detail::set_entry_bits<u64>(memory, step.at, step.entry, bits)) {
        walk.status = EptWalk::Status::retry;
        return;
      }
    }
  }
  walk.status = EptWalk::Status::ok;
}

// The second dimension's word for an access of the guest's walk or of the guest itself.
// What makes a linear address a user-mode one is its translation, not the CPL; without paging all
// are (SDM vol. 3, table 28-7, note on bit 9).
constexpr u8 as_ept_access(u32 access_bits, u8 rights) {
  if ((access_bits & access::fetch) != 0) {
    return ept_access::fetch | ((rights & right::user) != 0 ? ept_access::user : 0);
  }
  return (access_bits & access::write) != 0 ? ept_access::write : ept_access::read;
}

template <class Format, class Second>
Step walk_format(const L1Memory& memory, const GuestPaging& paging, const Second& second,
                 u64 linear, u32 access_bits, WalkOptions options, GuestWalk& walk) {
  using Entry = typename Format::Entry;
  const FormatContext context{paging.features, paging.mode.nxe(), paging.mode.pse()};
  const u32 error = (access_bits & (access::write | access::user)) |
                    (paging.fetch_reported ? access_bits & access::fetch : 0);
  const auto page_fault = [&](u32 more) {
    walk.status = GuestWalk::Status::page_fault;
    walk.pfec = error | more;
    return Step::done;
  };
  const auto through = [&](u64 address, u8 how, bool page_walk, Gpa& gpa) {
    const SecondDimension answer = second.translate(address, how, page_walk);
    if (answer.retry) {
      walk.status = GuestWalk::Status::retry;
      return false;
    }
    if (answer.fault.kind != NestedFault::Kind::none) {
      walk.status = GuestWalk::Status::nested_fault;
      walk.nested = answer.fault;
      return false;
    }
    gpa = answer.gpa;
    return true;
  };

  walk.path.depth = 0;
  u64 where[WalkPath::kMaxDepth]{};
  u64 table = Format::root(paging.cr3);
  u8 rights = right::all;
  for (unsigned level = Format::kLevels;; --level) {
    const unsigned i = walk.path.depth++;
    WalkPath::Step& step = walk.path.step[i];
    step.level = static_cast<u8>(level);
    where[i] = table + Format::index(linear, level) * sizeof(Entry);
    if (Format::kLevels == 3 && level == 3 && paging.pdptes != nullptr) {
      step.entry = paging.pdptes[Format::index(linear, 3)];
    } else {
      if (!through(where[i], ept_access::read, true, step.at)) {
        return Step::done;
      }
      step.entry = detail::load_entry<Entry>(memory, step.at, step.memory);
    }
    walk.level = step.level;
    if (!Format::present(step.entry)) {
      return page_fault(0);
    }
    const bool leaf = Format::leaf(step.entry, level, context);
    if ((step.entry & Format::reserved(level, leaf, context)) != 0) {
      return page_fault(cpu::pfec::present | cpu::pfec::reserved);
    }
    rights &= Format::rights(step.entry, level, context);
    if (leaf) {
      const u64 low = bit(Format::shift(level)) - 1;
      walk.address = Format::frame(step.entry, level) | (linear & low);
      break;
    }
    table = Format::table(step.entry);
  }
  walk.rights = rights;

  const u64 leaf_entry = walk.path.step[walk.path.depth - 1].entry;
  if (options.check_rights) {
    u32 fault = is_denied(*paging.permissions, access_bits, rights) ? u32{cpu::pfec::present} : 0;
    if (Format::kLevels >= 4 && (access_bits & access::fetch) == 0) {
      const bool user_page = (rights & right::user) != 0;
      if (user_page ? paging.pke : paging.pks) {
        const bool write_checked = (access_bits & access::user) != 0 || paging.wp;
        if (key_denies(user_page ? paging.pkru : paging.pkrs,
                       static_cast<unsigned>((leaf_entry >> 59) & 15),
                       (access_bits & access::write) != 0, write_checked)) {
          fault |= cpu::pfec::present | cpu::pfec::protection_key;
        }
      }
    }
    if (fault != 0) {
      return page_fault(fault);
    }
  }
  if (options.set_accessed_dirty) {
    for (unsigned i = 0; i < walk.path.depth; ++i) {
      WalkPath::Step& step = walk.path.step[i];
      const bool last = i + 1 == walk.path.depth;
      const u64 bits =
          Format::kAccessed | (last && (access_bits & access::write) != 0 ? Format::kDirty : 0);
      if (!Format::has_accessed(step.level) || (step.entry & bits) == bits) {
        continue;
      }
      // An update of a table is a write to it, whatever reading it was.
      Gpa at{};
      if (!through(where[i], ept_access::read | ept_access::write, true, at)) {
        return Step::done;
      }
      if (at != step.at || !detail::set_entry_bits<Entry>(memory, at, step.entry, bits)) {
        return Step::restart;
      }
    }
  }
  if (!through(walk.address, as_ept_access(access_bits, rights), false, walk.gpa)) {
    return Step::done;
  }
  walk.status = GuestWalk::Status::ok;
  return Step::done;
}

}  // namespace

EptWalk walk_ept(const L1Memory& memory, Eptp eptp, const EptFormat::Context& context, Ngpa address,
                 u8 access, WalkOptions options) {
  EptWalk walk;
  for (unsigned i = 0; i < kMaxRestarts && walk.status == EptWalk::Status::retry; ++i) {
    walk_ept_once(memory, eptp, context, address, access, options, walk);
  }
  return walk;
}

SecondDimension EptDimension::translate(u64 address, u8 access, bool page_walk) const {
  // With accessed and dirty flags a paging-structure access is a write, and reported as both.
  if (page_walk && eptp.accessed_dirty()) {
    access |= ept_access::read | ept_access::write;
  }
  const EptWalk walk = walk_ept(memory, eptp, context, Ngpa{address}, access, options);
  SecondDimension answer{.gpa = walk.gpa};
  answer.retry = walk.status == EptWalk::Status::retry;
  if (walk.status == EptWalk::Status::violation ||
      walk.status == EptWalk::Status::misconfiguration) {
    answer.fault = {.kind = walk.status == EptWalk::Status::violation
                                ? NestedFault::Kind::violation
                                : NestedFault::Kind::misconfiguration,
                    .access = access,
                    .rights = walk.rights,
                    .page_walk = page_walk,
                    .address = Ngpa{address}};
  }
  return answer;
}

SecondDimension NptDimension::translate(u64 address, u8 access, bool page_walk) const {
  u32 bits = access::user;
  if (page_walk || (access & ept_access::write) != 0) {
    bits |= access::write;
  } else if ((access & ept_access::fetch) != 0) {
    bits |= access::fetch;
  }
  const GuestWalk walk = walk_l1(memory, paging, address, bits, options);
  SecondDimension answer{.gpa = walk.gpa};
  answer.retry = walk.status == GuestWalk::Status::retry;
  if (walk.status == GuestWalk::Status::page_fault) {
    answer.fault = {.kind = NestedFault::Kind::page_fault,
                    .access = access,
                    .rights = walk.rights,
                    .page_walk = page_walk,
                    .pfec = walk.pfec,
                    .address = Ngpa{address}};
  }
  return answer;
}

template <class Second>
GuestWalk walk_guest(const L1Memory& memory, const GuestPaging& paging, const Second& second,
                     u64 linear, u32 access_bits, WalkOptions options) {
  GuestWalk walk;
  const auto once = [&]() -> Step {
    switch (paging.mode.mode()) {
      case PagingMode::legacy:
        return walk_format<Legacy>(memory, paging, second, linear & bit_mask(31, 0), access_bits,
                                   options, walk);
      case PagingMode::pae:
        return walk_format<Pae>(memory, paging, second, linear & bit_mask(31, 0), access_bits,
                                options, walk);
      case PagingMode::ia32e4:
        return walk_format<Ia32e<4>>(memory, paging, second, linear, access_bits, options, walk);
      case PagingMode::ia32e5:
        return walk_format<Ia32e<5>>(memory, paging, second, linear, access_bits, options, walk);
      case PagingMode::none:
        break;
    }
    // Without paging a linear address is a physical one of 32 bits.
    walk = GuestWalk{};
    walk.rights = right::all;
    walk.address = linear & bit_mask(31, 0);
    const SecondDimension answer =
        second.translate(walk.address, as_ept_access(access_bits, right::all), false);
    walk.gpa = answer.gpa;
    walk.nested = answer.fault;
    walk.status = answer.retry                                   ? GuestWalk::Status::retry
                  : answer.fault.kind != NestedFault::Kind::none ? GuestWalk::Status::nested_fault
                                                                 : GuestWalk::Status::ok;
    return Step::done;
  };
  for (unsigned i = 0; i < kMaxRestarts; ++i) {
    if (once() == Step::done) {
      return walk;
    }
  }
  walk.status = GuestWalk::Status::retry;
  return walk;
}

template GuestWalk walk_guest(const L1Memory&, const GuestPaging&, const NoSecondDimension&, u64,
                              u32, WalkOptions);
template GuestWalk walk_guest(const L1Memory&, const GuestPaging&, const EptDimension&, u64, u32,
                              WalkOptions);
template GuestWalk walk_guest(const L1Memory&, const GuestPaging&, const NptDimension&, u64, u32,
                              WalkOptions);

}  // namespace aerie::mmu
