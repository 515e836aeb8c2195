// The built program, started as a user starts it.
#pragma once

#include <string>
#include <vector>

#include "cli/process.h"
#include "tests/support/files.h"

namespace trireme::cli {

/// One run of build/bin/trireme.
class Program {
 public:
  /// Variables of a launcher around the tests do not reach the program unless they are in `variables`.
  explicit Program(std::vector<std::string> arguments, Variables variables = {});

  /// Waits until it ends, for two minutes at most. Its exit code; minus the number of a signal that ended it.
  int wait();
  /// Waits until it has printed `part` to standard output, for a minute at most. False where it did not.
  bool prints(const std::string& part);
  void send(int signal) { process_.send(signal); }
  pid_t id() const { return process_.id(); }
  /// The processes that it has started and that still run.
  std::vector<pid_t> children() const;

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  void read_some();

  Process process_;
  std::string out_, err_;
};

/// Writes the options of a run that trains a tiny model on a few tokens, and the tokens, into `directory`;
/// its output is `directory`/out. Gives the options' path.
std::string write_run(const testing::TemporaryDirectory& directory, int64_t steps);

}  // namespace trireme::cli
