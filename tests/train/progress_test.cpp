#include "trireme/train/progress.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace trireme::train {
namespace {

StepReport report(int64_t step, double seconds) {
  StepReport report;
  report.step = step;
  report.loss = 2.34567;
  report.tokens = 8192;
  report.step_seconds = seconds;
  report.peak_memory_bytes = int64_t{600} << 20;
  return report;
}

TEST(Progress, RewritesOneLineOnATerminal) {
  std::ostringstream out;
  {
    Progress progress(out, ProgressStyle::rewrite, 120);
    progress.show(report(1, 4));
    progress.show(report(2, 2));
  }
  EXPECT_EQ(out.str(),
            "\rstep   1/120  loss 2.3457  2.05k tokens/s  ETA 7m56s  peak 600 MiB\x1b[K"
            "\rstep   2/120  loss 2.3457  4.10k tokens/s  ETA 3m56s  peak 600 MiB\x1b[K\n");
}

TEST(Progress, WritesALineEveryFewSteps) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::lines, 11, 4);
  for (int64_t step = 1; step <= 11; ++step) progress.show(report(step, 1));
  progress.finish();
  std::istringstream lines(out.str());
  std::string text, steps;
  while (std::getline(lines, text)) steps += text.substr(0, text.find("  loss")) + ";";
  EXPECT_EQ(steps, "step  1/11;step  4/11;step  8/11;step 11/11;");
}

TEST(Progress, WritesAboutTwentyLinesUnlessTold) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::lines, 1000);
  for (int64_t step = 1; step <= 1000; ++step) progress.show(report(step, 1));
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
}

TEST(Progress, SmoothsTheTimeLeft) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::lines, 103, 1);
  progress.show(report(1, 50));  // set-up
  progress.show(report(2, 1));
  progress.show(report(3, 2));  // 0.8 * 1 + 0.2 * 2 = 1.2 s a step, 100 left
  EXPECT_NE(out.str().find("ETA 2m00s"), std::string::npos) << out.str();
}

TEST(Progress, TakesAResumedRun) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::lines, 100, 10);
  progress.show(report(50, 2));
  EXPECT_NE(out.str().find("ETA 1m40s"), std::string::npos) << out.str();
}

TEST(ProgressStyle, FollowsTheVariableThenTheTerminal) {
  const auto none = [](const char*) -> const char* { return nullptr; };
  const auto tty = [](const char* name) -> const char* {
    return std::string_view(name) == "TRIREME_PROGRESS" ? "tty" : nullptr;
  };
  const auto lines = [](const char*) -> const char* { return "lines"; };
  EXPECT_EQ(progress_style(none, true), ProgressStyle::rewrite);
  EXPECT_EQ(progress_style(none, false), ProgressStyle::lines);
  EXPECT_EQ(progress_style(tty, false), ProgressStyle::rewrite);
  EXPECT_EQ(progress_style(lines, true), ProgressStyle::lines);
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(3661), "1h01m");
  EXPECT_EQ(format_duration(86400 * 3 + 3600 * 4), "3d04h");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(int64_t{12345} << 20), "12.1 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8192 PiB");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999.4), "999");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(4.56e6), "4.56M");
}

}  // namespace
}  // namespace trireme::train
