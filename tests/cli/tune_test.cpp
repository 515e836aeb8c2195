// `trireme tune` as a user starts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Tune, WritesOptionsThatTrainTheRealJob) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 7);
  std::filesystem::create_directory(folder / "nvme");
  Program program({"tune", run, "--ranks", "2", "--steps", "2", "--nvme-path", folder / "nvme", "--set",
                   "scheduler.type=WarmupCosineLR", "scheduler.params.warmup_num_steps=5"});
  ASSERT_EQ(program.wait(), kSuccess) << program.err();
  EXPECT_EQ(program.err(), "");
  EXPECT_THAT(program.out(), AllOf(HasSubstr("tuning     "), HasSubstr(" MiB  (the defaults)\n"),
                                   HasSubstr("           nvme           none"), HasSubstr("\nwritten    ")));
  EXPECT_EQ(count(program.out(), "failed"), 0u) << program.out();
  const std::string path = folder / "run.tuned.json";
  const json tuned = json::parse(testing::read_text(path)), original = json::parse(testing::read_text(run));
  for (const char* key : {"model", "data", "steps", "output"}) EXPECT_EQ(tuned.at(key), original.at(key));
  EXPECT_EQ(tuned.at("scheduler").at("params").at("warmup_num_steps"), 5);
  EXPECT_EQ(folder.entries(), 4u);  // the corpus, both options files, nvme: nothing of the trials is left

  Program train({"train", path, "--ranks", "2"});
  EXPECT_EQ(train.wait(), kSuccess) << train.err();
  EXPECT_THAT(train.out(), HasSubstr("step 7/7"));
}

TEST(Tune, SaysWhatCameNearestWhereNothingFits) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  Program program({"tune", run, "--memory", "1MiB", "--steps", "2", "--set", "zero_optimization.stage=2"});
  EXPECT_EQ(program.wait(), kFailure);
  EXPECT_THAT(program.err(), AllOf(StartsWith("error: [tune] a run must fit into 1.00 MiB a rank; got "),
                                   HasSubstr(" with ")));
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(Tune, LeavesNothingBehindWhenInterrupted) {
  const testing::TemporaryDirectory folder;
  Program program({"tune", write_run(folder, 1), "--ranks", "2", "--steps", "1000000"});
  std::vector<pid_t> children;
  ASSERT_TRUE(program.prints("s a step")) << program.err();
  while (children.empty()) children = program.children();
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), kSignalBase + SIGINT);
  EXPECT_EQ(program.err(), "trireme: interrupted by SIGINT; nothing is written\n");
  EXPECT_TRUE(all_end(children));
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(Tune, RefusesWrongArguments) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  const auto refusal = [&](std::vector<std::string> arguments, const Variables& variables = {}) {
    arguments.insert(arguments.begin(), {"tune", run});
    Program program(arguments, variables);
    EXPECT_EQ(program.wait(), kUserError);
    EXPECT_EQ(program.out(), "");
    return program.err();
  };
  for (const char* memory : {"8", "GiB", "8 parsecs", "-1GiB", "0B", "nanGiB"})
    EXPECT_THAT(refusal({"--memory", memory}), StartsWith("error: [cli] --memory must be a number of bytes, "
                                                          "fewer than 2^60, with its unit, such as 8GiB or "
                                                          "512MiB; got "));
  EXPECT_THAT(refusal({"--steps", "1"}),
              StartsWith("error: [cli] --steps must be an integer of at least 2; got 1; see"));
  EXPECT_THAT(refusal({"--nvme-path", "/nowhere"}),
              StartsWith("error: [cli] --nvme-path must be a directory; got /nowhere"));
  EXPECT_THAT(refusal({"--output", run}), StartsWith("error: [cli] --output must not be the options file"));
  EXPECT_THAT(refusal({"--output", "/nowhere/run.json"}),
              StartsWith("error: [cli] --output must lie in a directory that is there; got /nowhere/"));
  EXPECT_THAT(refusal({"--set", "zero_optimization.stge=3"}),
              StartsWith("error: [options] zero_optimization.stge is not a known key"));
  EXPECT_THAT(refusal({}, {{"RANK", "0"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "0"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", "1"}}),
              StartsWith("error: [cli] `trireme tune` starts ranks itself"));
}

}  // namespace
}  // namespace trireme::cli
