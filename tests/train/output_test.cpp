#include "trireme/train/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::value_error;

class Output : public ::testing::Test {
 protected:
  Options into(const std::string& output) const {
    Options options = parse_options({{"model", {{"config", {{"vocab_size", 8}}}}},
                                     {"data", {{"path", "d"}, {"sequence_length", 64}}},
                                     {"steps", 5},
                                     {"sequence_parallel_size", 2},
                                     {"train_micro_batch_size_per_gpu", 3}});
    options.output = output;
    return options;
  }
  std::string refusal(const std::string& output) const {
    return value_error([&] { make_output(into(output)); });
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(Output, IsMadeOnce) {
  const std::string output = directory_ / "a/b";
  EXPECT_NO_THROW(make_output(into(output)));
  EXPECT_TRUE(std::filesystem::is_directory(output));
  EXPECT_NO_THROW(make_output(into(output)));
  EXPECT_TRUE(std::filesystem::is_empty(output));
}

TEST_F(Output, IsRefusedWhereNothingCanBeWritten) {
  const std::string file = testing::write_text(directory_ / "file", "");
  EXPECT_EQ(refusal(file + "/below"), "[options] output must be a directory that a run can write into; got " +
                                          file + "/below: Not a directory; set output to another");
  EXPECT_THAT(refusal(file), HasSubstr(file + ": Not a directory"));
  for (const std::string place : {"/proc/trireme", "/sys/trireme"})  // refuse root as well
    EXPECT_THAT(refusal(place), StartsWith("[options] output must be a directory that a run can write into; "
                                           "got " +
                                           place + ": "));
}

TEST_F(Output, IsRefusedWhereOtherThingsStandInTheWay) {
  testing::write_text(directory_ / "a/model", "");
  EXPECT_THAT(refusal(directory_ / "a"), HasSubstr("/a/model: not a directory"));
  std::filesystem::create_directories(directory_ / "b/metrics.jsonl");
  EXPECT_THAT(refusal(directory_ / "b"), HasSubstr("/b/metrics.jsonl: a directory"));
}

TEST_F(Output, IsNotOverTheModelThatTheRunStartsFrom) {
  Options options = into(directory_ / "run");
  std::filesystem::create_directories(directory_ / "run/model");
  EXPECT_NO_THROW(check_output(options));
  options.model = {.path = directory_ / "run/../run/model/", .config = {}};
  EXPECT_THAT(value_error([&] { check_output(options); }), HasSubstr("must not take the place of"));
  options.model.path = directory_ / "run";
  EXPECT_NO_THROW(check_output(options));
}

TEST_F(Output, LosesWhatAKilledRankLeftOfAModel) {
  testing::write_text(directory_ / "run/model.partial/config.json", "{}");
  testing::write_text(directory_ / "run/model/config.json", "{}");
  discard_partial_model(into(directory_ / "run"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "run/model.partial"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "run/model/config.json"));
  EXPECT_NO_THROW(discard_partial_model(into(directory_ / "none")));
}

TEST_F(Output, HoldsARecordThatCanBeRunAgain) {
  const Options options = into(directory_ / "run");
  make_output(options);
  record_options(options, 4);
  const std::string path = directory_ / "run/options.json";
  const Options again = read_options(path);
  EXPECT_EQ(again.train_batch_size, 6);
  EXPECT_EQ(again.output, options.output);
  EXPECT_NO_THROW(check_world(again, 4));
  EXPECT_THAT(value_error([&] { check_world(again, 2); }), HasSubstr("= 3; got 6"));
}

TEST_F(Output, SaysWhyThereIsNoRecord) {
  EXPECT_THAT(value_error([&] { record_options(into(directory_ / "none"), 2); }),
              AllOf(HasSubstr("got No such file or directory for"), HasSubstr("none/options.json")));
}

}  // namespace
}  // namespace trireme::train
