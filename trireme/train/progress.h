// The progress of a run on a terminal: step, loss, tokens/s, time left, peak memory.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

#include "trireme/train/metrics.h"

namespace trireme::train {

enum class ProgressStyle {
  rewrite,  ///< one line, written over: a terminal
  lines,    ///< a line every few steps: a file or a pipe
};

/// The style for standard output. The variable TRIREME_PROGRESS ("tty" or "lines") decides where it is set,
/// as the launcher does for its ranks, whose output is a pipe; else whether standard output is a terminal.
ProgressStyle progress_style(const std::function<const char*(const char*)>& get_variable,
                             bool output_is_terminal);

/// Writes the progress of one run to a stream. One rank does so.
class Progress {
 public:
  /// With `lines`, the first, the last and each `every`-th step are written; 0: about twenty in all. `out`
  /// must outlive this.
  Progress(std::ostream& out, ProgressStyle style, int64_t total_steps, int64_t every = 0);
  /// Ends a line that is still open.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const StepReport& report);
  /// Ends the line, so that other output may follow.
  void finish();

 private:
  std::string line(const StepReport& report) const;

  std::ostream& out_;
  ProgressStyle style_;
  int64_t total_steps_;
  int64_t every_;
  double smooth_seconds_ = 0;  // of a step; 0 before the first
  bool line_open_ = false;
};

/// "7s", "3m05s", "2h07m", "4d03h".
std::string format_duration(double seconds);

/// "512 B", "1.5 KiB", "12.3 GiB".
std::string format_bytes(int64_t bytes);

/// "950", "12.3k", "4.56M".
std::string format_count(double count);

}  // namespace trireme::train
