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

}  // namespace
}  // namespace trireme::cli
