// What one optimizer step did, and the file that holds it for plotting tools: one JSON object a line.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace trireme::train {

/// One optimizer step, summed or agreed over all ranks except where said otherwise.
struct StepReport {
  int64_t step = 0;      ///< counted from 1: the number of steps done
  double loss = 0;       ///< mean over the real tokens of the step
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;                ///< real tokens of the step
  double step_seconds = 0;           ///< wall time
  int64_t peak_memory_bytes = 0;     ///< of this rank, or of the rank that has most
  int64_t start_memory_bytes = 0;    ///< the same, before the model was made
  int64_t planned_memory_bytes = 0;  ///< what the peak was to be: the start, and what plan_memory says
  std::map<std::string, std::map<std::string, int64_t>>
      bytes_sent;  ///< this rank's: collective -> group -> bytes
  /// This rank's, of stage 3: elements that were gathered for a use, and of these what had arrived before.
  int64_t gathered_elements = 0, hidden_elements = 0;
  /// This rank's, of states that are kept on a disk.
  int64_t disk_bytes_read = 0, disk_bytes_written = 0;

  /// 0 where no time passed.
  double tokens_per_second() const { return step_seconds > 0 ? double(tokens) / step_seconds : 0; }
};

/// The object of one line, keys in the order of the fields. A loss or norm that is not finite is null, since
/// JSON has no such number.
nlohmann::ordered_json to_json(const StepReport& report);

/// Writes reports to a file, each line complete on disk before `write` returns, so that a killed run loses
/// none.
class MetricsWriter {
 public:
  /// Starts `path` anew and makes its directory. Throws `std::runtime_error` where that fails.
  explicit MetricsWriter(const std::string& path);

  /// Throws `std::runtime_error` where the line cannot be written, as on a full disk.
  void write(const StepReport& report);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace trireme::train
