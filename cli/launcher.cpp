#include "cli/launcher.h"

#include <poll.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/rank_output.h"
#include "cli/signal_watch.h"
#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{50};       // longest sleep: endings and time limits are looked at this often
constexpr milliseconds kEnding{30000};  // longest time that a rank may take to end after it said why
constexpr milliseconds kHeld{300};      // how long a line of standard error waits: see rank_output.h

/// The state of one `launch`.
class Launch {
 public:
  Launch(const LaunchOptions& options, std::ostream& out, std::ostream& err)
      : options_(options), output_(out, err, options.ranks) {
    for (int64_t rank = 0; rank < options.ranks; ++rank)
      ranks_.push_back(std::make_unique<Process>(options.command, rank_variables(options, rank)));
  }

  int run() {
    while (!finished()) {
      wait();
      for (int64_t rank = 0; rank < options_.ranks; ++rank) read_and_reap(rank);
      handle_signals();  // one that ended ranks as well has come by now
      if (!exit_code_) judge();
      if (kill_time_ && Clock::now() >= *kill_time_) send(SIGKILL);
    }
    output_.release_all();
    return exit_code_.value_or(kSuccess);
  }

 private:
  /// Sees what `judge` saw, so that no failure is missed: only `read_and_reap` looks for new endings.
  bool finished() const {
    if (suspect_ && !exit_code_) return false;
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
      return rank->ending() && rank->output() < 0 && rank->errors() < 0;
    });
  }

  /// Sleeps until a rank prints or closes a pipe, a signal comes, or a tick has passed.
  void wait() {
    std::vector<pollfd> descriptors{{signals_.descriptor(), POLLIN, 0}};
    for (const auto& rank : ranks_)
      for (const int descriptor : {rank->output(), rank->errors()})
        if (descriptor >= 0) descriptors.push_back({descriptor, POLLIN, 0});
    ::poll(descriptors.data(), descriptors.size(), int(kTick.count()));
  }

  void handle_signals() {
    while (const auto signal = signals_.next()) {
      if (interrupted_) {
        send(SIGKILL);
        continue;
      }
      interrupted_ = true;
      if (exit_code_) continue;  // already ending
      output_.silence();
      output_.say(core::concatenate("interrupted by ", signal_name(*signal), "; ending all ranks"));
      end(kSignalBase + *signal, *signal);
    }
  }

  void read_and_reap(int64_t rank) {
    Process& process = *ranks_[size_t(rank)];
    // What a rank's own children still hold open does not count: after its end, what is there now is read, no
    // more.
    const bool ended = process.poll().has_value();
    const auto now = Clock::now();
    if (process.output() >= 0 &&
        (read_all(process.output(), [&](auto bytes) { output_.add_output(rank, bytes); }) || ended))
      process.close_output();
    if (process.errors() >= 0 &&
        (read_all(process.errors(), [&](auto bytes) { output_.add_errors(rank, bytes, now); }) || ended)) {
      process.close_errors();
      output_.end_rank(rank, now);
    }
  }

  /// Hands over all bytes that are there; true at the end of the pipe.
  template <class Function>
  static bool read_all(int descriptor, const Function& hand_over) {
    std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t count = read(descriptor, buffer.data(), buffer.size());
      if (count == 0) return true;
      if (count < 0) return errno != EAGAIN && errno != EINTR;
      hand_over(std::string_view(buffer.data(), size_t(count)));
    }
  }

  /// Looks for a rank that failed, and ends the run because of it.
  void judge() {
    bool all_ended = true;
    for (int64_t rank = 0; rank < options_.ranks; ++rank) {
      const auto& ending = ranks_[size_t(rank)]->ending();
      all_ended = all_ended && ending;
      if (!ending || ending->good()) continue;
      if (!may_follow_from_another(*ending)) return blame(rank);
      if (!suspect_) {
        suspect_ = rank;
        verdict_time_ = Clock::now() + options_.suspicion;
      }
    }
    if (!suspect_)
      output_.release(Clock::now() - kHeld);
    else if (all_ended || Clock::now() >= verdict_time_ + (another_is_ending() ? kEnding : milliseconds(0)))
      blame(*suspect_);
  }

  /// Whether a rank has said that it fails for a reason of its own, and only takes its time to end.
  bool another_is_ending() const {
    for (int64_t rank = 0; rank < options_.ranks; ++rank)
      if (output_.announced(rank).value_or(kPeerLost) != kPeerLost) return true;
    return false;
  }

  /// Ctrl-C on a terminal reaches ranks and launcher alike: the launcher's part may come a moment later.
  static bool may_follow_from_another(const Ending& ending) {
    return ending.signal == SIGINT || (ending.signal == 0 && ending.code == kPeerLost);
  }

  void blame(int64_t rank) {
    read_and_reap(rank);  // its last words
    const Ending& ending = *ranks_[size_t(rank)]->ending();
    output_.keep_only(rank);
    const bool lost = ending.signal == 0 && ending.code == kPeerLost;
    const std::string place = ending.signal != 0 ? options_.last_seen(rank) : "";
    output_.say(core::concatenate("rank ", rank, " of ", options_.ranks,
                                  lost ? " had no answer from another rank, which hangs or is elsewhere"
                                       : " ended with " + ending.text(),
                                  place.empty() ? "" : ", ", place, "; ending the others"));
    if (ending.signal != 0) return end(kSignalBase + ending.signal, SIGTERM);
    end(lost ? kFailure : ending.code, SIGTERM);
  }

  void end(int exit_code, int signal) {
    exit_code_ = exit_code;
    kill_time_ = Clock::now() + options_.grace;
    send(signal);
    send(SIGCONT);  // one that is stopped takes the other signal only then
  }

  void send(int signal) {
    for (const auto& rank : ranks_) rank->send(signal);
  }

  const LaunchOptions& options_;
  SignalWatch signals_;
  RankOutput output_;
  std::vector<std::unique_ptr<Process>> ranks_;
  bool interrupted_ = false;
  std::optional<int> exit_code_;  // once the run is ending
  std::optional<Clock::time_point> kill_time_;
  std::optional<int64_t> suspect_;  // lost contact with another rank
  Clock::time_point verdict_time_;  // when the suspect is to blame after all
};

}  // namespace

int64_t threads_of_rank(int64_t ranks) {
  const int64_t cores = std::thread::hardware_concurrency();
  return std::max<int64_t>(1, cores / ranks);
}

Variables rank_variables(const LaunchOptions& options, int64_t rank) {
  const std::string index = std::to_string(rank), size = std::to_string(options.ranks);
  Variables variables{{"RANK", index},
                      {"LOCAL_RANK", index},
                      {"WORLD_SIZE", size},
                      {"LOCAL_WORLD_SIZE", size},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", std::to_string(options.port)},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"TORCHELASTIC_RESTART_COUNT", ""},
                      {"TRIREME_LAUNCHER", "1"}};
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (!threads || !*threads) variables["OMP_NUM_THREADS"] = std::to_string(threads_of_rank(options.ranks));
  if (!std::getenv("TRIREME_PROGRESS"))
    variables["TRIREME_PROGRESS"] = options.rewrites_progress ? "tty" : "lines";
  return variables;
}

int launch(const LaunchOptions& options, std::ostream& out, std::ostream& err) {
  core::check_value(options.ranks >= 1, "[launcher] there must be at least one rank; got ", options.ranks);
  return Launch(options, out, err).run();
}

}  // namespace trireme::cli
