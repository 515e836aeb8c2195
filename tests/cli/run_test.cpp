// Whole runs of several ranks, each way of starting them, and what happens when one of them ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "trireme/core/check.h"
#include "trireme/core/safetensors_writer.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr int64_t kManySteps = 1000000;

/// The lines of a run's metrics.jsonl.
std::vector<json> metrics(const testing::TemporaryDirectory& folder) {
  std::ifstream file(folder / "out/metrics.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

std::vector<double> losses(const testing::TemporaryDirectory& folder) {
  std::vector<double> losses;
  for (const json& line : metrics(folder)) losses.push_back(line.at("loss"));
  return losses;
}

std::vector<std::string> arguments_for(const std::string& run) {
  return {"train", run, "--set", "sequence_parallel_size=2"};
}

/// Trains with the launcher, and then once more with ranks that `variables` makes.
template <class Function>
void expect_same_run(const Function& variables) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 3);
  std::vector<std::string> launched = arguments_for(run);
  launched.insert(launched.end(), {"--ranks", "2"});
  Program launcher(launched);
  ASSERT_EQ(launcher.wait(), kSuccess) << launcher.err();
  const auto expected = losses(folder);
  ASSERT_EQ(expected.size(), 3u);
  std::filesystem::remove_all(folder / "out");

  Program first(arguments_for(run), variables("0")), second(arguments_for(run), variables("1"));
  EXPECT_EQ(first.wait(), kSuccess) << first.err();
  EXPECT_EQ(second.wait(), kSuccess) << second.err();
  EXPECT_EQ(losses(folder), expected);
  EXPECT_EQ(second.out(), "");
}

TEST(Runs, WriteTheMetricsThatAreDocumented) {
  const testing::TemporaryDirectory folder;
  Program program({"train", write_run(folder, 2), "--ranks", "2"});
  ASSERT_EQ(program.wait(), kSuccess) << program.err();
  EXPECT_EQ(program.err(), "");
  EXPECT_THAT(program.out(), AllOf(HasSubstr("step 1/2  loss "), HasSubstr("step 2/2  loss ")));
  const auto lines = metrics(folder);
  ASSERT_EQ(lines.size(), 2u);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::set<std::string> keys;
    for (const auto& [key, value] : lines[i].items()) keys.insert(key);
    EXPECT_EQ(keys, (std::set<std::string>{"step", "loss", "grad_norm", "lr", "tokens", "step_seconds",
                                           "tokens_per_second", "peak_memory_bytes", "start_memory_bytes",
                                           "planned_memory_bytes", "bytes_sent", "gathered_elements",
                                           "hidden_elements", "disk_bytes_read", "disk_bytes_written"}));
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_GT(lines[i].at("start_memory_bytes"), 0);
    EXPECT_GT(lines[i].at("peak_memory_bytes"), lines[i].at("start_memory_bytes"));
    EXPECT_GT(lines[i].at("planned_memory_bytes"), lines[i].at("start_memory_bytes"));
  }
  EXPECT_THAT(program.out(), HasSubstr("\nmemory     peak "));
  EXPECT_THAT(program.out(), HasSubstr(" before the model\n"));
}

TEST(Runs, KeepStatesOnADiskWithoutAnotherLossOrAFile) {
  const testing::TemporaryDirectory folder, disk;
  const std::string run = write_run(folder, 3);
  Program plain({"train", run, "--ranks", "2"});
  ASSERT_EQ(plain.wait(), kSuccess) << plain.err();
  const auto expected = losses(folder);
  EXPECT_EQ(metrics(folder).back().at("disk_bytes_read"), 0);
  const std::string place = R"(={"device": "nvme", "nvme_path": ")" + disk.path().string() + R"("})";
  const std::string path = folder / "timeline.json";
  Program offloaded({"train", run, "--ranks", "2", "--timeline", path, "--set",
                     "zero_optimization.offload_param" + place, "--set",
                     "zero_optimization.offload_optimizer" + place});
  ASSERT_EQ(offloaded.wait(), kSuccess) << offloaded.err();
  EXPECT_EQ(losses(folder), expected);
  EXPECT_GT(metrics(folder).back().at("disk_bytes_read"), 0);
  EXPECT_GT(metrics(folder).back().at("disk_bytes_written"), 0);
  EXPECT_EQ(disk.entries(), 0u);
  EXPECT_THAT(testing::read_text(path),
              AllOf(HasSubstr("read of the first moments of unit"), HasSubstr("write of")));
}

TEST(Runs, KeepActivationsOnADiskWithoutAnotherLossOrAFile) {
  const testing::TemporaryDirectory folder, disk;
  const std::string run = write_run(folder, 3);
  const std::vector<std::string> plain{"train", run,     "--ranks",
                                       "2",     "--set", "activation_checkpointing.policy=keep_attention"};
  Program in_memory(plain);
  ASSERT_EQ(in_memory.wait(), kSuccess) << in_memory.err();
  const auto expected = losses(folder);
  for (const char* settings : {R"("keep_last_count": 0)", R"("keep_last_count": 0, "what": "inputs")",
                               R"("keep_last_count": 0, "max_fwd_stash_count": 0)"}) {
    auto arguments = plain;
    arguments.insert(arguments.end(),
                     {"--set", core::concatenate(R"(activation_checkpointing.offload={"device": "nvme", )",
                                                 R"("min_offload_bytes": 0, "nvme_path": ")",
                                                 disk.path().string(), R"(", )", settings, "}")});
    Program on_disk(arguments);
    ASSERT_EQ(on_disk.wait(), kSuccess) << on_disk.err();
    EXPECT_EQ(losses(folder), expected);
    for (const auto& step : metrics(folder)) {
      EXPECT_GT(step.at("disk_bytes_written"), 0);
      EXPECT_EQ(step.at("disk_bytes_read"), step.at("disk_bytes_written"));
    }
    EXPECT_EQ(disk.entries(), 0u);
  }
}

TEST(Runs, WriteATimelineOfEveryRank) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder / "timeline.json";
  Program program({"train", write_run(folder, 3), "--ranks", "2", "--timeline", path});
  ASSERT_EQ(program.wait(), kSuccess) << program.err();
  std::set<std::string> seen;
  const auto timeline = nlohmann::json::parse(testing::read_text(path));
  for (const auto& event : timeline.at("traceEvents"))
    if (event.at("ph") == "X")
      seen.insert(core::concatenate(event.at("pid"), ' ', event.at("cat").get<std::string>(), ' ',
                                    event.at("name").get<std::string>()));
  for (const char* rank : {"0 ", "1 "})
    for (const char* event : {"compute forward of layers.0", "compute backward of layers.0",
                              "gather layers.0", "reduction layers.0"})
      EXPECT_TRUE(seen.contains(std::string(rank) + event)) << rank << event;
}

TEST(Runs, StartUnderOpenMpi) {
  expect_same_run([](const std::string& rank) {
    return Variables{{"OMPI_COMM_WORLD_RANK", rank},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "test-" + std::to_string(getpid())}};
  });
}

TEST(Runs, StartUnderSlurm) {
  expect_same_run([](const std::string& rank) {
    return Variables{{"SLURM_PROCID", rank},  {"SLURM_NTASKS", "2"},
                     {"SLURM_LOCALID", rank}, {"SLURM_TASKS_PER_NODE", "2"},
                     {"SLURM_NODEID", "0"},   {"SLURM_JOB_NODELIST", "localhost"},
                     {"SLURM_STEP_ID", "0"},  {"SLURM_JOB_ID", std::to_string(getpid())}};
  });
}

TEST(Runs, EndWhenARankIsKilled) {
  const testing::TemporaryDirectory folder;
  Program program({"train", write_run(folder, kManySteps), "--ranks", "2"});
  ASSERT_TRUE(program.prints("step ")) << program.err();
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(program.wait(), kSignalBase + SIGKILL);
  EXPECT_THAT(program.err(),
              MatchesRegex("trireme: rank 1 of 2 ended with signal 9 \\(SIGKILL\\), last heard from "
                           "[0-9.]+ s ago, in [^\n]+; ending the others\n"));
  EXPECT_TRUE(all_end(ranks));
}

TEST(Runs, EndOnInterrupt) {
  const testing::TemporaryDirectory folder;
  Program program({"train", write_run(folder, kManySteps), "--ranks", "2"});
  ASSERT_TRUE(program.prints("step ")) << program.err();
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2u);
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), kSignalBase + SIGINT);
  EXPECT_EQ(program.err(), "trireme: interrupted by SIGINT; ending all ranks\n");
  EXPECT_TRUE(all_end(ranks));
}

TEST(Runs, SayOnceWhatIsWrongWithTheirFiles) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  const json config = json::parse(std::ifstream(run)).at("model").at("config");
  testing::write_text(folder / "model/config.json", config.dump());
  // A fault that only the ranks find, once they build the model.
  core::SafetensorsWriter writer(folder / "model/model.safetensors", {{"other", core::DType::u8, {1}}});
  writer.write("other", std::vector<std::byte>(1));
  writer.finish();
  const std::string model = R"(model={"path": ")" + (folder / "model").string() + "\"}";
  Program program({"train", run, "--ranks", "2", "--set", model});
  EXPECT_EQ(program.wait(), kUserError);
  EXPECT_EQ(count(program.err(), "error: "), 1u) << program.err();
  EXPECT_THAT(program.err(), AllOf(HasSubstr(" of 2 ended with exit code 2"), Not(HasSubstr("\x01"))));
}

/// Options of a run whose weights overflow in its first step.
std::vector<std::string> diverging(const testing::TemporaryDirectory& folder) {
  return {"train", write_run(folder, 5), "--set", "optimizer.params.lr=1e38"};
}

TEST(Runs, FailOnceWhereTheGradientIsNotFinite) {
  const testing::TemporaryDirectory folder;
  auto arguments = diverging(folder);
  arguments.insert(arguments.end(), {"--ranks", "2"});
  Program program(arguments);
  EXPECT_EQ(program.wait(), kFailure);
  EXPECT_EQ(count(program.err(), "error: "), 1u) << program.err();
  EXPECT_THAT(program.err(),
              AllOf(ContainsRegex("\\[train\\] the gradient norm must be finite; got (nan|inf) at "
                                  "step [2-5]; lower the learning rate"),
                    HasSubstr(" of 2 ended with exit code 1")));
}

TEST(Runs, LetOneRankOfAMachineSayWhatAllFind) {
  const testing::TemporaryDirectory folder;
  const auto variables = [](const std::string& rank) {
    return Variables{{"OMPI_COMM_WORLD_RANK", rank},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", "diverging-" + std::to_string(getpid())}};
  };
  Program first(diverging(folder), variables("0")), second(diverging(folder), variables("1"));
  EXPECT_EQ(first.wait(), kFailure);
  EXPECT_EQ(second.wait(), kFailure);
  EXPECT_EQ(count(first.err(), "error: [train] the gradient norm must be finite"), 1u) << first.err();
  EXPECT_EQ(second.err(), "");
}

TEST(Runs, CanBeRunAgainFromTheirRecord) {
  const testing::TemporaryDirectory folder;
  Program program({"train", write_run(folder, 2), "--ranks", "2", "--set", "scheduler.type=WarmupLR"});
  ASSERT_EQ(program.wait(), kSuccess) << program.err();
  EXPECT_EQ(count(program.out(), "note: scheduler.params.warmup_num_steps, 1000, is more"), 1u)
      << program.out();
  EXPECT_EQ(count(program.out(), " % padding\n"), 1u) << program.out();
  const auto expected = losses(folder);
  const std::string record = folder / "out/options.json";
  Program again({"train", record, "--ranks", "2"});
  ASSERT_EQ(again.wait(), kSuccess) << again.err();
  EXPECT_EQ(losses(folder), expected);
}

TEST(Runs, SayWhichRanksAreMissing) {
  const testing::TemporaryDirectory folder;
  Program program({"train", write_run(folder, 1), "--set", "timeout_seconds=1"},
                  {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"PMIX_NAMESPACE", "missing-" + std::to_string(getpid())}});
  EXPECT_EQ(program.wait(), kFailure);
  EXPECT_EQ(count(program.err(), "error: [comm]"), 1u) << program.err();
}

}  // namespace
}  // namespace trireme::cli
