// What the ranks of a run print, made into one readable stream.
//
// Rank 0's standard output passes through as it comes, so that its progress line can be rewritten. Other
// lines get the rank in front. Lines of standard error wait a moment before they are printed: when a rank
// fails, what it said last is printed, and what the others said because of it is not.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cli {

/// Cuts a stream of bytes into lines.
class LineSplitter {
 public:
  /// The lines that `bytes` ends, without their line ends.
  std::vector<std::string> add(std::string_view bytes);
  /// The line that was begun, or nothing.
  std::vector<std::string> rest();

 private:
  std::string line_;
};

class RankOutput {
 public:
  using Clock = std::chrono::steady_clock;

  /// The streams must outlive this.
  RankOutput(std::ostream& out, std::ostream& err, int64_t ranks);

  /// What a rank wrote to its standard output, or to its standard error at time `now`.
  void add_output(int64_t rank, std::string_view bytes);
  void add_errors(int64_t rank, std::string_view bytes, Clock::time_point now);
  /// The rank ended: lines it began are whole now.
  void end_rank(int64_t rank, Clock::time_point now);

  /// The exit code that the rank's error mark announced, once there was one.
  std::optional<int> announced(int64_t rank) const { return announced_[size_t(rank)]; }

  /// Prints the lines of standard error that came before `before`, but for those from an error mark on.
  void release(Clock::time_point before);
  /// Prints all that waits.
  void release_all();
  /// Prints what waits of one rank, and drops what waits of all others and whatever they still say on
  /// standard error.
  void keep_only(int64_t rank);
  /// Drops what waits and whatever any rank still says on standard error.
  void silence();

  /// Prints a line of the launcher's own.
  void say(std::string_view line);

 private:
  struct Line {
    int64_t rank;
    Clock::time_point time;
    std::string text;
    bool held;  ///< from an error mark on
  };

  void add_line(int64_t rank, Clock::time_point now, std::string text);
  void print(std::ostream& stream, std::string_view prefix, std::string_view text);
  void print_error(const Line& line);

  std::ostream& out_;
  std::ostream& err_;
  std::vector<LineSplitter> output_lines_, error_lines_;  // by rank
  std::vector<std::optional<int>> announced_;             // by rank
  std::deque<Line> waiting_;
  std::deque<Line> printed_;  // the latest ones, to know what another rank says again
  int64_t kept_rank_ = kAll;  // whose standard error is printed
  bool in_line_ = false;      // rank 0's output stands in the middle of a line

  static constexpr int64_t kAll = -1;
  static constexpr int64_t kNobody = -2;
};

}  // namespace trireme::cli
