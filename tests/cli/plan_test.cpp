// `trireme plan` as a user starts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "tests/cli/program.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int64_t sum(const json& parts) {
  int64_t total = 0;
  for (const auto& [name, bytes] : parts.items()) total += bytes.get<int64_t>();
  return total;
}

std::string planned(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  Program program(arguments);
  EXPECT_EQ(program.wait(), kSuccess) << program.err();
  EXPECT_EQ(program.err(), "");
  return program.out();
}

TEST(Plan, TellsEveryPartWithoutATokenFile) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  std::filesystem::remove(folder / "corpus.safetensors");
  const std::string text = planned({run, "--ranks", "2", "--set", "data.path=null", "steps=null"});
  EXPECT_THAT(text, AllOf(HasSubstr("2 ranks on CPUs"), HasSubstr("\nparameters "),
                          HasSubstr("\nkept activations "), HasSubstr("\nprocess "), HasSubstr("\ntotal "),
                          Not(HasSubstr("host")), Not(HasSubstr("longest"))));
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Plan, GivesBytesAsJson) {
  const testing::TemporaryDirectory folder;
  const json plan = json::parse(planned({write_run(folder, 1), "--ranks", "2", "--json"}));
  EXPECT_EQ(plan.at("ranks"), 2);
  EXPECT_EQ(plan.at("sequence_length"), 8);
  EXPECT_EQ(plan.at("device").size(), 10u);
  for (const char* where : {"device", "host"})
    EXPECT_EQ(plan.at(where + std::string("_total")), sum(plan.at(where)));
  // q, k and v 3 x 16 x 16, the output 16 x 16, the MLP 3 x 16 x 16, two norms of 16; the embedding and the
  // head 8 x 16 each; the last norm's 16 are padded to 32: 2112 elements of 4 bytes over 2 ranks.
  EXPECT_EQ(plan.at("device").at("parameters"), 2112 * 4 / 2);
  EXPECT_GT(plan.at("device").at("process"), 1 << 20);
  EXPECT_EQ(plan.at("host_total"), 0);
  EXPECT_EQ(plan.at("disk"), 0);
  EXPECT_FALSE(plan.contains("longest_sequence"));
}

TEST(Plan, FindsTheLongestSequence) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"--model", "meta-llama-8b", "--ranks", "16", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(planned(arguments));
  };
  const int64_t by_device = plan({"--memory", "80GiB"}).at("longest_sequence");
  const json limited = plan({"--memory", "80GiB", "--host-memory", "1TiB"});
  const int64_t by_host = limited.at("longest_sequence");
  EXPECT_EQ(by_host % 16, 0);
  EXPECT_GT(by_host, 1'000'000);
  EXPECT_LT(by_host, by_device);
  // 8 ranks share a machine, and the parts are those of the longest sequence.
  EXPECT_EQ(limited.at("sequence_length"), by_host);
  EXPECT_LE(limited.at("host_total"), int64_t{128} << 30);
  EXPECT_GT(limited.at("host_total"), int64_t{127} << 30);
  EXPECT_GT(
      plan({"--memory", "80GiB", "--host-memory", "1TiB", "--ranks-per-node", "4"}).at("longest_sequence"),
      by_host);
  const json given = plan({"--memory", "80GiB", "--sequence", "65536"});
  EXPECT_EQ(given.at("sequence_length"), 65536);
  EXPECT_EQ(given.at("longest_sequence"), by_device);
  EXPECT_EQ(given.at("limited_by"), "device");
  EXPECT_EQ(limited.at("limited_by"), "host");
  EXPECT_THAT(planned({run, "--memory", "1MiB"}),
              HasSubstr("\nlongest    none: a sequence of 1 token takes more than "));
  EXPECT_THAT(planned({run, "--memory", "1GiB"}), HasSubstr(" of memory a rank\n"));
}

TEST(Plan, TakesAModelByName) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  const json alone =
      json::parse(planned({"--model", "meta-llama-8b", "--ranks", "8", "--sequence", "131072", "--json"}));
  EXPECT_NEAR(alone.at("device").at("parameters").get<double>(), 8'030'261'248 * 2 / 8, 2e6);
  EXPECT_EQ(alone.at("device").at("process"), 0);
  EXPECT_GT(alone.at("host_total"), 0);
  // The file's options, with another model.
  const json in_file = json::parse(planned({run, "--model", "meta-llama-8b", "--device", "cpu", "--json"}));
  EXPECT_NEAR(in_file.at("device").at("parameters").get<double>(), 8'030'261'248.0 * 4, 1e6);
  EXPECT_EQ(in_file.at("sequence_length"), 8);
  EXPECT_EQ(in_file.at("host_total"), 0);
  EXPECT_THAT(planned({run, "--model", "qwen3-8b"}), HasSubstr("plan       qwen3-8b as in "));
}

TEST(Plan, ComparesWithWhatWasPublished) {
  EXPECT_THAT(planned({"--table"}), AllOf(HasSubstr("\n32 GPUs "), HasSubstr("\nworking set "),
                                          HasSubstr(": fits; "), HasSubstr("1.01T")));
}

TEST(Plan, RefusesWrongArguments) {
  const testing::TemporaryDirectory folder;
  const std::string run = write_run(folder, 1);
  const auto refusal = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "plan");
    Program program(arguments);
    EXPECT_EQ(program.wait(), kUserError);
    EXPECT_EQ(program.out(), "");
    return program.err();
  };
  EXPECT_THAT(refusal({}),
              StartsWith("error: [cli] an options file, such as run.json, or --model must be given"));
  EXPECT_THAT(refusal({"--model", "gpt-5", "--sequence", "8"}),
              StartsWith("error: [plan] a model's name must be one of meta-llama-8b, "));
  EXPECT_THAT(refusal({"--table", "--sequence", "8"}),
              StartsWith("error: [cli] --table must be given alone"));
  EXPECT_THAT(refusal({run, "--table"}), StartsWith("error: [cli] --table must be given alone"));
  EXPECT_THAT(refusal({"--model", "qwen3-8b"}), StartsWith("error: [cli] a sequence's tokens must be given"));
  EXPECT_THAT(refusal({run, "--set", "data.sequence_length=null"}),
              StartsWith("error: [cli] a sequence's tokens must be given"));
  EXPECT_THAT(
      refusal({run, "--ranks", "3", "--set", "sequence_parallel_size=2"}),
      StartsWith("error: [options] the number of ranks must be a multiple of sequence_parallel_size"));
  EXPECT_THAT(refusal({run, "--memory", "80"}),
              StartsWith("error: [cli] --memory must be a number of bytes, fewer than 2^60, "));
  EXPECT_THAT(refusal({run, "--host-memory", "8GiB"}),
              StartsWith("error: [cli] --host-memory must be given with --memory"));
  EXPECT_THAT(refusal({run, "--memory", "8GiB", "--host-memory", "8GiB"}),
              StartsWith("error: [cli] --host-memory is of machines with GPUs"));
  EXPECT_THAT(refusal({run, "--memory", "8GiB", "--ranks-per-node", "1"}),
              StartsWith("error: [cli] --ranks-per-node must be given with --host-memory"));
  EXPECT_THAT(refusal({run, "--device", "cuda", "--memory", "8GiB", "--host-memory", "8GiB",
                       "--ranks-per-node", "2"}),
              StartsWith("error: [cli] --ranks-per-node must be at most --ranks; got 2 of 1 rank"));
  EXPECT_THAT(refusal({run, "--device", "tpu"}),
              StartsWith("error: [cli] --device must be cpu or cuda; got tpu"));
  EXPECT_THAT(refusal({run, "--set", "model.config.hidden_sise=8"}), HasSubstr("hidden_sise"));
}

}  // namespace
}  // namespace trireme::cli
