// What this rank sent to other ranks, by collective, and how long it waited for them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace trireme::comm {

enum class Collective { all_to_all, all_gather, reduce_scatter, all_reduce, broadcast, barrier };
inline constexpr size_t kCollectives = 6;

/// "all_to_all" and so on.
std::string_view name_of(Collective collective);

/// Counts what really crosses between ranks, each rank its own part: what a rank keeps for itself is not
/// counted. Thread-safe.
class Traffic {
 public:
  void add(Collective collective, int64_t bytes) { bytes_[size_t(collective)] += bytes; }
  int64_t bytes(Collective collective) const { return bytes_[size_t(collective)]; }
  int64_t total() const;

  void add_wait(std::chrono::nanoseconds time) { waited_ += time.count(); }
  /// Time spent inside `Pending::wait`, which is not all of a collective's where it ran beside computation.
  double seconds_waited() const { return double(waited_) * 1e-9; }

 private:
  std::array<std::atomic<int64_t>, kCollectives> bytes_{};
  std::atomic<int64_t> waited_ = 0;
};

}  // namespace trireme::comm
