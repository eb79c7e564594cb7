// SIGINT, SIGTERM and SIGHUP as something that poll(2) can wait for, so that no loop of the tool
// goes on once the user wants it to end.
#pragma once

namespace aerie::tools {

// Catches the signals from now on (and ignores SIGPIPE). Once, at the tool's start.
void catch_interrupts();
// Readable from the first such signal on, for ever.
int interrupt_fd();
// The first signal that came, or 0.
int interrupt_signal();

}  // namespace aerie::tools
