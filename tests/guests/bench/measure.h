// What an operation costs, in ticks of the TSC: under `-icount shift=0,sleep=off` QEMU's TSC counts
// the instructions of all levels together. Lines for `aerie bench`:
//
//   BENCH name 152 instructions           the least of many runs
//   BENCH name_average 153 instructions   the mean of all
//
// A run is kRepeat operations in a row; the loop and the two RDTSCs, measured with no operation,
// are taken off. Words of the command line choose by name, as in cases.h; rounds=N sets the runs.
#pragma once

#include "cpu/arch/instructions.h"
#include "tests/guests/runtime/cases.h"
#include "tests/guests/runtime/console.h"
#include "tests/guests/runtime/start.h"

namespace aerie::guest {

inline constexpr u64 kRepeat = 16;

struct Cost {
  u64 least, sum, runs;
};

template <class Run>
Cost time_runs(Run&& run, u64 rounds) {
  Cost cost{~u64{0}, 0, rounds};
  run();  // what is cached is cached now
  run();
  for (u64 i = 0; i < rounds; ++i) {
    const u64 start = cpu::rdtsc();
    run();
    const u64 ticks = cpu::rdtsc() - start;
    cost.least = ticks < cost.least ? ticks : cost.least;
    cost.sum += ticks;
  }
  return cost;
}

inline bool bench_chosen(std::string_view name) {
  bool any = false;
  for (const std::string_view word : command_line_words()) {
    if (word.find('=') == std::string_view::npos) {
      any = true;
      if (word == name) {
        return true;
      }
    }
  }
  return !any;
}

inline void print_cost(std::string_view name, const Cost& cost, const Cost& empty) {
  const u64 least = (cost.least - empty.least + kRepeat / 2) / kRepeat;
  const u64 mean = (cost.sum / cost.runs - empty.sum / empty.runs + kRepeat / 2) / kRepeat;
  print("BENCH {} {} instructions\n", name, least);
  print("BENCH {}_average {} instructions\n", name, mean);
}

// `operation` is one asm statement, so that the loop around it is the same for all.
template <class Operation>
void bench(std::string_view name, Operation&& operation) {
  if (!bench_chosen(name)) {
    return;
  }
  const u64 rounds = option("rounds", 200);
  const auto loop = [](auto&& body) {
    for (u64 i = kRepeat; i != 0; --i) {
      body();
      asm volatile("" : "+r"(i));
    }
  };
  const Cost empty = time_runs([&] { loop([] {}); }, rounds);
  print_cost(name, time_runs([&] { loop(operation); }, rounds), empty);
}

}  // namespace aerie::guest
