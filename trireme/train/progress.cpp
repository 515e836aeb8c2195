#include "trireme/train/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string_view>

namespace trireme::train {
namespace {

constexpr int64_t kLinesOfARun = 20;
constexpr double kNewest = 0.2;  // share of the last step in the smoothed time of a step

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

/// Three significant digits.
std::string short_number(double value) {
  return format(value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto total = static_cast<long long>(std::llround(std::min(seconds, 1e15)));
  const long long minutes = total / 60, hours = minutes / 60, days = hours / 24;
  if (minutes == 0) return format("%llds", total);
  if (hours == 0) return format("%lldm%02llds", minutes, total % 60);
  if (days == 0) return format("%lldh%02lldm", hours, minutes % 60);
  return format("%lldd%02lldh", days, hours % 24);
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return format("%lld B", static_cast<long long>(bytes));
  auto value = double(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {  // 1023.5 would be shown as 1024
    value /= 1024;
    ++unit;
  }
  return short_number(value) + " " + kUnits[unit];
}

std::string format_count(double count) {
  static constexpr std::array<const char*, 5> kUnits{"", "k", "M", "G", "T"};
  if (count < 999.5) return format("%.0f", count);
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return short_number(count) + kUnits[unit];
}

ProgressStyle progress_style(const std::function<const char*(const char*)>& get_variable,
                             bool output_is_terminal) {
  const char* chosen = get_variable("TRIREME_PROGRESS");
  const std::string_view style = chosen ? chosen : "";
  if (style == "tty") return ProgressStyle::rewrite;
  if (style == "lines") return ProgressStyle::lines;
  return output_is_terminal ? ProgressStyle::rewrite : ProgressStyle::lines;
}

Progress::Progress(std::ostream& out, ProgressStyle style, int64_t total_steps, int64_t every)
    : out_(out),
      style_(style),
      total_steps_(total_steps),
      every_(every > 0 ? every : std::max<int64_t>(1, total_steps / kLinesOfARun)) {}

Progress::~Progress() { finish(); }

void Progress::show(const StepReport& report) {
  // The first step is slower than the rest (buffers, caches): the second one replaces it.
  smooth_seconds_ = report.step <= 2 || smooth_seconds_ == 0
                        ? report.step_seconds
                        : (1 - kNewest) * smooth_seconds_ + kNewest * report.step_seconds;
  if (style_ == ProgressStyle::rewrite) {
    out_ << '\r' << line(report) << "\x1b[K" << std::flush;  // the code clears what is left of a longer line
    line_open_ = true;
  } else if (report.step == 1 || report.step % every_ == 0 || report.step == total_steps_) {
    out_ << line(report) << std::endl;
  }
}

void Progress::finish() {
  if (line_open_) out_ << std::endl;
  line_open_ = false;
}

std::string Progress::line(const StepReport& report) const {
  const double left = double(std::max<int64_t>(0, total_steps_ - report.step)) * smooth_seconds_;
  const int width = int(std::to_string(total_steps_).size());
  return format("step %*lld/%lld  loss %.4f  %s tokens/s  ETA %s  peak %s", width,
                static_cast<long long>(report.step), static_cast<long long>(total_steps_), report.loss,
                format_count(report.tokens_per_second()).c_str(), format_duration(left).c_str(),
                format_bytes(report.peak_memory_bytes).c_str());
}

}  // namespace trireme::train
