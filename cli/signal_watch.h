// Signals that ask the program to end, turned into something that poll() can wait for.
#pragma once

#include <optional>

namespace trireme::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the process but wait here. SIGHUP stays ignored
/// where it was (nohup). Works whatever threads there are. One at a time in a process.
class SignalWatch {
 public:
  /// Throws `std::runtime_error` where the system refuses.
  SignalWatch();
  /// Restores what was.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Readable when a signal has come.
  int descriptor() const;
  /// The next signal that has come, if any; never waits.
  std::optional<int> next();
};

}  // namespace trireme::cli
