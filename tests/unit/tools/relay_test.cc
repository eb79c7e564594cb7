#include "tools/run/relay.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/run/interrupts.h"

namespace aerie::tools {
namespace {

struct Ended {
  RelayEnd end;
  int status;
  std::string output;
};

Ended run(const std::string& script, double timeout = 0, const std::string& stop_at = "") {
  auto process =
      Subprocess::start({.command = {"/bin/sh", "-c", script}, .inherited = {}, .directory = {}});
  EXPECT_TRUE(process.ok()) << process.status();
  Ended ended;
  ended.end = relay(
      *process,
      {.sources = {{process->standard_output().get(),
                    [&](absl::string_view bytes) {
                      absl::StrAppend(&ended.output, bytes);
                      return stop_at.empty() || ended.output.find(stop_at) == std::string::npos;
                    }},
                   {process->standard_error().get(), [](absl::string_view) { return true; }}},
       .standard_input = false,
       .timeout_seconds = timeout});
  ended.status = process->status();
  return ended;
}

// Whether it runs: a zombie that nobody has waited for yet does not.
bool alive(pid_t pid) {
  std::ifstream stat{absl::StrCat("/proc/", pid, "/stat")};
  std::string text;
  std::getline(stat, text);
  return !text.empty() && text.find(") Z ") == std::string::npos;
}

TEST(Relay, DeliversAllOutputAndTheStatus) {
  const Ended ended = run("head -c 300000 /dev/zero | tr '\\0' x; exit 7");
  EXPECT_EQ(ended.end, RelayEnd::exited);
  EXPECT_EQ(WEXITSTATUS(ended.status), 7);
  EXPECT_EQ(ended.output.size(), 300000u);
}

TEST(Relay, EndsAChildWhoseTimeIsUp) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run("exec sleep 100", 0.2).end, RelayEnd::timeout);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{10});
}

TEST(Relay, KillsAChildThatIgnoresSigterm) {
  EXPECT_EQ(run("trap '' TERM; while :; do sleep 0.1; done", 0.2).end, RelayEnd::timeout);
}

TEST(Relay, StopsWhenTheReaderHasEnough) {
  EXPECT_EQ(run("while :; do echo tick; sleep 0.05; done", 20, "tick\ntick\n").end,
            RelayEnd::stopped);
}

TEST(Relay, LeavesNoGrandchildBehind) {
  const Ended ended = run("sleep 100 & echo $!; exit 0");
  EXPECT_EQ(ended.end, RelayEnd::exited);
  pid_t grandchild = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ended.output, &grandchild));
  for (int i = 0; i < 100 && alive(grandchild); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
  EXPECT_FALSE(alive(grandchild));
}

TEST(Subprocess, SaysWhyAProgramDoesNotStart) {
  const auto process =
      Subprocess::start({.command = {"/nonexistent/qemu"}, .inherited = {}, .directory = {}});
  EXPECT_EQ(process.status().message(), "/nonexistent/qemu: No such file or directory");
}

}  // namespace
}  // namespace aerie::tools
