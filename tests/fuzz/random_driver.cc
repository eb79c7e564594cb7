// Drives a fuzz target with random inputs where there is no libFuzzer: the same ones each time, or
// those of the seed given as argument.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  constexpr int kInputs = 60'000;
  const unsigned long seed = argc > 1 ? std::strtoul(argv[1], nullptr, 0) : 1;
  std::mt19937_64 random{seed};
  for (int n = 0; n < kInputs; ++n) {
    std::vector<std::uint8_t> input(random() % 64);
    for (std::uint8_t& byte : input) {
      byte = static_cast<std::uint8_t>(random());
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%d inputs, seed %lu\n", kInputs, seed);
}
