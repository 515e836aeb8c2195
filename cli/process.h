// A child process whose output comes through pipes, and which never outlives this one.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::cli {

/// What to start.
struct Command {
  std::string program;                 ///< path of the executable
  std::vector<std::string> arguments;  ///< the first is the name it gets
};

/// Variables to set for a child, over those of this process; an empty value removes one.
using Variables = std::map<std::string, std::string>;

/// How a process ended.
struct Ending {
  int code = 0;    ///< exit code, where `signal` is 0
  int signal = 0;  ///< the signal that ended it, or 0

  bool good() const { return code == 0 && signal == 0; }
  /// "exit code 3", "signal 9 (SIGKILL)".
  std::string text() const;
};

/// "SIGKILL"; "signal 40" for one without a name.
std::string signal_name(int signal);

/// A running child. Its standard input is empty. The kernel ends it with SIGKILL when the thread that started
/// it ends.
class Process {
 public:
  /// Throws `ValueError` where the program cannot be run, `std::runtime_error` where the system refuses.
  Process(const Command& command, const Variables& variables);
  /// Ends it with SIGKILL if it still runs, and waits for it.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  /// Non-blocking ends of the pipes; -1 after `close_output`.
  int output() const { return output_; }
  int errors() const { return errors_; }
  void close_output();
  void close_errors();

  /// Looks whether it has ended; never waits.
  const std::optional<Ending>& poll();
  /// How it ended, as far as `poll` and `send` have seen.
  const std::optional<Ending>& ending() const { return ending_; }
  /// Sends a signal unless the process has ended.
  void send(int signal);

 private:
  pid_t id_ = -1;
  int output_ = -1;
  int errors_ = -1;
  std::optional<Ending> ending_;
};

}  // namespace trireme::cli
