#include "trireme/train/metrics.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "trireme/core/check.h"

namespace trireme::train {
namespace {

[[noreturn]] void fail(const std::string& path) {
  const int reason = errno;
  throw std::runtime_error(
      core::concatenate("[metrics] metrics must be written; got ", std::strerror(reason), " for ", path));
}

}  // namespace

nlohmann::ordered_json to_json(const StepReport& report) {
  return {{"step", report.step},
          {"loss", report.loss},
          {"grad_norm", report.grad_norm},
          {"lr", report.learning_rate},
          {"tokens", report.tokens},
          {"step_seconds", report.step_seconds},
          {"tokens_per_second", report.tokens_per_second()},
          {"peak_memory_bytes", report.peak_memory_bytes},
          {"start_memory_bytes", report.start_memory_bytes},
          {"planned_memory_bytes", report.planned_memory_bytes},
          {"bytes_sent", report.bytes_sent},
          {"gathered_elements", report.gathered_elements},
          {"hidden_elements", report.hidden_elements},
          {"disk_bytes_read", report.disk_bytes_read},
          {"disk_bytes_written", report.disk_bytes_written}};
}

MetricsWriter::MetricsWriter(const std::string& path) : path_(path) {
  const auto directory = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // opening the file tells
  if (!directory.empty()) std::filesystem::create_directories(directory, ignored);
  errno = 0;
  file_.open(path, std::ios::trunc);
  if (!file_) fail(path_);
}

void MetricsWriter::write(const StepReport& report) {
  std::error_code unreadable;
  errno = std::filesystem::exists(path_, unreadable)
              ? 0
              : ENOENT;  // removed meanwhile: nobody would see what is written
  if (errno != 0) fail(path_);
  file_ << to_json(report).dump() << '\n' << std::flush;
  if (!file_) fail(path_);
}

}  // namespace trireme::train
