#include "tools/run/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tools/run/interrupts.h"

namespace aerie::tools {

void run_parallel(unsigned jobs, unsigned count, const std::function<void(unsigned)>& task) {
  std::atomic<unsigned> next{0};
  const auto work = [&] {
    for (unsigned i; interrupt_signal() == 0 && (i = next++) < count;) {
      task(i);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::min(std::max(jobs, 1u), count); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

unsigned default_jobs() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace aerie::tools
