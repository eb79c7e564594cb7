// Several runs at a time.
#pragma once

#include <functional>

namespace aerie::tools {

// Calls task(0) ... task(count - 1), `jobs` of them at a time, each once; begins no more of them
// after the user has interrupted the tool.
void run_parallel(unsigned jobs, unsigned count, const std::function<void(unsigned)>& task);

// Processors of this machine.
unsigned default_jobs();

}  // namespace aerie::tools
