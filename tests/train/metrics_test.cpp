#include "trireme/train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <limits>

#include "tests/support/files.h"

namespace trireme::train {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

StepReport report(int64_t step) {
  return {.step = step,
          .loss = 0.1,
          .grad_norm = 2.5,
          .learning_rate = 1e-3,
          .tokens = 3000,
          .step_seconds = 1.5,
          .peak_memory_bytes = int64_t{5} << 40,
          .start_memory_bytes = 11,
          .planned_memory_bytes = 22,
          .bytes_sent = {{"all_to_all", {{"sequence", 12}, {"world", 34}}}, {"all_gather", {{"world", 56}}}},
          .gathered_elements = 70,
          .hidden_elements = 60,
          .disk_bytes_read = 8,
          .disk_bytes_written = 9};
}

TEST(MetricsFiles, HoldAnObjectALine) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "deep/metrics.jsonl";
  MetricsWriter writer(path);
  writer.write(report(1));
  writer.write(report(2));
  // Read while the writer is open: each line is on disk when `write` returns.
  std::ifstream file(path);
  for (int64_t step = 1; step <= 2; ++step) {
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_TRUE(line.starts_with(R"({"step":)")) << line;
    EXPECT_EQ(json::parse(line), json::parse(R"({"step": )" + std::to_string(step) + R"(, "loss": 0.1,
        "grad_norm": 2.5, "lr": 0.001, "tokens": 3000, "step_seconds": 1.5, "tokens_per_second": 2000.0,
        "peak_memory_bytes": 5497558138880, "start_memory_bytes": 11, "planned_memory_bytes": 22,
        "bytes_sent": {"all_to_all": {"sequence": 12, "world": 34}, "all_gather": {"world": 56}},
        "gathered_elements": 70, "hidden_elements": 60, "disk_bytes_read": 8, "disk_bytes_written": 9})"));
  }
  EXPECT_EQ(file.get(), EOF);
}

TEST(MetricsFiles, StartAnew) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "metrics.jsonl";
  MetricsWriter(path).write(report(7));
  MetricsWriter(path).write(report(1));
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(json::parse(line).at("step"), 1);
  EXPECT_FALSE(std::getline(file, line));
}

template <class Function>
std::string failure(const Function& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no runtime_error";
}

TEST(MetricsFiles, SayWhereTheyCannotBeWritten) {
  const testing::TemporaryDirectory directory;
  const std::string in_the_way = directory.path();
  EXPECT_THAT(failure([&] { MetricsWriter writer(in_the_way); }),
              AllOf(HasSubstr("[metrics]"), HasSubstr(in_the_way)));
  MetricsWriter full("/dev/full");
  EXPECT_THAT(failure([&] { full.write(report(1)); }),
              AllOf(HasSubstr("No space left"), HasSubstr("/dev/full")));
}

TEST(MetricsFiles, AreMissedWhereTheyAreRemovedDuringTheRun) {
  const testing::TemporaryDirectory directory;
  MetricsWriter writer(directory / "out/metrics.jsonl");
  writer.write(report(1));
  std::filesystem::remove_all(directory / "out");
  EXPECT_THAT(failure([&] { writer.write(report(2)); }), HasSubstr("No such file or directory"));
}

TEST(StepReport, IsJsonWhateverTheLoss) {
  StepReport odd = report(1);
  odd.loss = std::numeric_limits<double>::quiet_NaN();
  odd.grad_norm = std::numeric_limits<double>::infinity();
  odd.bytes_sent.clear();
  const json line = json::parse(to_json(odd).dump());
  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_TRUE(line.at("grad_norm").is_null());
  EXPECT_EQ(line.at("bytes_sent"), json::object());
}

TEST(StepReport, HasARateOnlyWhereTimePassed) {
  StepReport instant = report(1);
  instant.step_seconds = 0;
  EXPECT_EQ(instant.tokens_per_second(), 0);
}

}  // namespace
}  // namespace trireme::train
