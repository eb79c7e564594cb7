// `aerie bench`: what operations of L1 and L2 cost, in instructions of all levels together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aerie::tools {

int bench_command(const std::vector<std::string>& arguments);

// The figures in a bench guest's output: lines `BENCH name value unit`.
std::map<std::string, double> parse_bench_lines(absl::string_view console);

}  // namespace aerie::tools
