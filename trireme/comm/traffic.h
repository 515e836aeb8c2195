// Bytes that this rank sent to other ranks, by collective.
#pragma once

#include <array>
#include <atomic>
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

 private:
  std::array<std::atomic<int64_t>, kCollectives> bytes_{};
};

}  // namespace trireme::comm
