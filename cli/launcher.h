// Starts the ranks of a run on this machine, and ends all of them when one fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

#include "cli/process.h"

namespace trireme::cli {

struct LaunchOptions {
  Command command;  ///< of every rank
  int64_t ranks = 1;
  int port = 0;                           ///< of the store that this process holds
  bool rewrites_progress = false;         ///< standard output is a terminal
  std::chrono::milliseconds grace{3000};  ///< between SIGTERM and SIGKILL
  /// How long a rank that lost contact with another waits for that one to turn out to be the cause.
  std::chrono::milliseconds suspicion{1000};
  /// Where a rank was last, "last heard from 0.3 s ago, in step 12, backward", or nothing: told of a rank
  /// that a signal ended.
  std::function<std::string(int64_t rank)> last_seen = [](int64_t) { return std::string(); };
};

/// OpenMP threads of each of `ranks` on this machine, unless OMP_NUM_THREADS says how many: the cores, shared
/// out.
int64_t threads_of_rank(int64_t ranks);

/// The variables of one rank: torchrun's (with the store held by this process), the number of OpenMP threads
/// unless it is set (the machine's cores shared out), and how progress is shown.
Variables rank_variables(const LaunchOptions& options, int64_t rank);

/// Runs all ranks to their end and gives the exit code: 0, the code of the first rank that failed (1 for
/// `kPeerLost`), or 128 + the signal that ended it or that interrupted this process. When a rank fails, or on
/// SIGINT, SIGTERM or SIGHUP, all ranks are asked to end (SIGTERM), and ended after a while or on a second
/// signal (SIGKILL); those that are stopped are woken for it. What ranks print goes to `out` and `err`, as
/// rank_output.h says, and after that which rank ended and why. No rank outlives this call, nor this process.
/// Throws as `Process` does.
int launch(const LaunchOptions& options, std::ostream& out, std::ostream& err);

}  // namespace trireme::cli
