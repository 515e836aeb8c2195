// What happened when, for a timeline viewer.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::core {

/// Times of this machine's monotonic clock, which all its processes share.
struct Interval {
  std::chrono::steady_clock::time_point begin, end;
};

/// Collects one rank's events. Not thread-safe.
class Timeline {
 public:
  /// Events of one `lane` ("compute", "gather", "reduction", "offload") are drawn in one row, or in as many
  /// as overlap.
  void add(std::string_view lane, std::string name, const Interval& interval);

  /// The events as Chrome's trace event format has them, one a line: process `rank`, a thread for each row,
  /// times in microseconds since `origin`.
  std::string to_json_lines(int64_t rank, std::chrono::steady_clock::time_point origin) const;

  struct Event {
    std::string lane, name;
    Interval interval;
  };
  const std::vector<Event>& events() const { return events_; }

 private:
  std::vector<Event> events_;
};

/// Writes a file that chrome://tracing and ui.perfetto.dev open, from the lines of every rank. Throws
/// `ValueError` where it cannot be written.
void write_timeline(const std::filesystem::path& path, const std::vector<std::string>& lines_of_ranks);

}  // namespace trireme::core
