// How ranks tell each other where they are, and find out why one of them waits in vain.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/comm/position.h"

namespace trireme::comm {

/// The key in the store under which a rank's latest heartbeat lies, as `to_text` has it.
std::string heartbeat_key(int64_t rank);

/// A rank's latest heartbeat, unless there is none. Throws what the store throws.
std::optional<Heartbeat> last_heartbeat(c10d::Store& store, int64_t rank);

/// One rank's part: while it lives, a thread of its own writes the rank's position to the store, over a
/// connection of its own. Collectives cost no traffic. Neither a store that hangs nor one that is gone holds
/// anything up: what is asked of it is given up after a while. The thread takes no signals. Thread-safe.
class Watch {
 public:
  struct Options {
    c10::intrusive_ptr<c10d::Store> store;  ///< null: nobody to tell, no thread
    int64_t rank = 0, size = 1;
    bool store_on_rank_0 = false;  ///< which then stays until the others know why they waited in vain
    std::chrono::milliseconds period{500};     ///< between heartbeats
    std::chrono::milliseconds patience{2000};  ///< for signs of life of another rank, when one waits in vain
  };

  /// Throws what the store throws where it cannot be reached.
  explicit Watch(Options options);
  /// Tells the others that this rank has left.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const Position& position() const { return position_; }

  /// The error's text for a collective that failed for `reason`, to be called where `position` still waits in
  /// it. The first rank that asks looks where all ranks are, for `patience` at most; every later one gets the
  /// same text. Where the store does not answer for two seconds, the text is of this rank alone.
  std::string diagnose(const std::string& reason) const;

 private:
  class Thread;

  Options options_;
  Position position_;
  std::unique_ptr<Thread> thread_;  // null without a store
};

}  // namespace trireme::comm
