// A processor that plays a script: each run() of a control block takes the next step, which may
// look at what the engine set up, change guest state as the guest would have, and says why it
// exited. Hosted only.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "cpu/model/control_block.h"

namespace aerie::cpu::model {

// An exit with nothing but its reason.
constexpr Exit exit_for(ExitReason reason) { return {reason, 0, 0, 0, 0, 0}; }

class Processor {
 public:
  using Step = std::function<Exit(ControlBlock&, GuestRegisters&)>;

  // What run() found at its entry, kept for the test to look at.
  struct Entry {
    const ControlBlock* block;
    Event injected;
    TlbFlush flush;
    u32 tag;
    Hpa tdp_root;
    bool interrupt_window;
  };

  // The state VMLOAD and VMSAVE move; control blocks of this processor are made with its address.
  SyscallState syscall_state{};

  void then(Step step) { script_.push_back(std::move(step)); }
  void then(const Exit& exit) {
    script_.push_back([exit](ControlBlock&, GuestRegisters&) { return exit; });
  }

  // Runs a guest to its next exit. Injection and flush requests are consumed, the interrupt shadow
  // ends, and with the script at its end the guest shuts down: an engine that loops is stopped.
  Exit run(ControlBlock& block, GuestRegisters& registers) {
    entries_.push_back({&block, block.injected, block.pending_flush, block.tag, block.tdp_root,
                        block.interrupt_window});
    block.clear_injection();
    block.pending_flush = TlbFlush::none;
    block.interrupted = {};
    block.set_interrupt_shadow(false);
    if (script_.empty()) {
      return exit_for(ExitReason::shutdown);
    }
    const Step step = std::move(script_.front());
    script_.pop_front();
    return step(block, registers);
  }

  const std::vector<Entry>& entries() const { return entries_; }
  bool done() const { return script_.empty(); }

 private:
  std::deque<Step> script_;
  std::vector<Entry> entries_;
};

}  // namespace aerie::cpu::model
