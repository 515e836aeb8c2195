// The program as a user starts it: exit codes, messages, help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "trireme/data/token_file.h"
#include "trireme/train/option_list.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Result {
  int exit_code = -1;
  std::string out, err;
};

Result run(const std::vector<std::string>& arguments, const Variables& variables = {}) {
  Program program(arguments, variables);
  const int exit_code = program.wait();
  return {exit_code, program.out(), program.err()};
}

class Commands : public ::testing::Test {
 protected:
  std::string write_options() const { return write_run(folder_, 1); }

  const testing::TemporaryDirectory folder_;
};

TEST_F(Commands, HelpReadsWell) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"train", "--help"},
                                             {"tune", "--help"},
                                             {"plan", "--help"},
                                             {"prepare", "--help"},
                                             {"info", "--help"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, kSuccess) << arguments[0];
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("Usage: trireme"), HasSubstr("Example"), HasSubstr("\n  trireme ")));
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(Commands, HelpListsEveryOption) {
  const Result result = run({"train", "--help-options"});
  EXPECT_EQ(result.exit_code, kSuccess);
  for (const auto& option : train::list_options())
    EXPECT_THAT(result.out, HasSubstr("\n  " + std::string(option.path)));
}

TEST_F(Commands, VersionAndInfo) {
  EXPECT_EQ(run({"--version"}).out, "trireme " TRIREME_VERSION "\n");
  const Result info = run({"info"}, {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(info.exit_code, kSuccess);
  for (const char* part :
       {"LibTorch", "processor", "memory", "accelerators", "gloo", "NCCL", "threads        1 "})
    EXPECT_THAT(info.out, HasSubstr(part));
}

TEST_F(Commands, WrongUseIsAUserError) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"trian"},
                                             {"train", "--bogus"},
                                             {"train", "a.json", "--ranks", "0"},
                                             {"train", "a.json", "--ranks", "two"},
                                             {"prepare"},
                                             {"prepare", "x"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, kUserError) << ::testing::PrintToString(arguments);
    EXPECT_THAT(result.err, StartsWith("error: [cli] "));
    EXPECT_EQ(count(result.err, "\n"), 1u);
    EXPECT_EQ(result.out, "");
  }
  EXPECT_THAT(run({"train"}).err, StartsWith("error: [cli] an options file must be given"));
}

TEST_F(Commands, WrongUseIsExplained) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{},
       "a command must be given, one of train, tune, plan, prepare, info; it is missing; see `trireme "
       "--help`"},
      {{"trian", "run.json"},
       "the command must be one of train, tune, plan, prepare, info; got trian (did you mean train?); see "
       "`trireme "
       "--help`"},
      {{"--verison"}, "--verison is not a known option (did you mean --version?); see `trireme --help`"},
      {{"train", "run.json", "--rnaks=2"},
       "--rnaks is not a known option (did you mean --ranks?); see `trireme train --help`"},
      {{"train", "run.json", "--frobnicate", "2"},
       "--frobnicate is not a known option; see `trireme train --help`"},
      {{"train", "run.json", "--ranks"},
       "--ranks must have a value; it is missing; see `trireme train --help`"},
      {{"train", "run.json", "--ranks", "two"},
       "--ranks must be an integer of at least 1; got two; see `trireme train --help`"},
      {{"train", "run.json", "--ranks", "99999999999999999999"},
       "--ranks must be an integer from 1 to 1048576; got 99999999999999999999; see `trireme train --help`"},
      {{"train", "run.json", "other.json"},
       "other.json is one argument too many; see `trireme train --help`"},
      {{"prepare", "docs", "--outptu", "x"},
       "--outptu is not a known option (did you mean --output?); see `trireme prepare --help`"},
      {{"prepare", "docs"}, "--output must be given; it is missing; see `trireme prepare --help`"},
      {{"prepare", "--output", "x"}, "PATHS must be given; it is missing; see `trireme prepare --help`"}};
  for (const auto& [arguments, message] : cases) {
    const Result result = run(arguments);
    EXPECT_EQ(result.err, "error: [cli] " + message + "\n");
    EXPECT_EQ(result.exit_code, kUserError);
  }
}

TEST_F(Commands, BadOptionsAreRefusedOnceBeforeRanksStart) {
  const std::string path = write_options();
  for (const char* ranks : {"1", "2"}) {
    const Result unknown = run({"train", path, "--ranks", ranks, "--set", "zero_optimization.stge=3"});
    EXPECT_EQ(unknown.exit_code, kUserError);
    EXPECT_EQ(unknown.err,
              "error: [options] zero_optimization.stge is not a known key; got 3; did you mean "
              "zero_optimization.stage?\n");
    EXPECT_EQ(unknown.out, "");
    const Result input = run({"train", path, "--ranks", ranks, "--set", "data.path=nowhere"});
    EXPECT_EQ(input.exit_code, kUserError);
    EXPECT_THAT(input.err, StartsWith("error: [options] data.path must be a token file ("));
    EXPECT_THAT(input.err, HasSubstr("got nowhere: there is no such file"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(Commands, MoreRanksThanAMachineCanBearAreRefused) {
  const Result result = run({"train", write_options(), "--ranks", "100000"});
  EXPECT_EQ(result.exit_code, kUserError);
  EXPECT_THAT(result.err, HasSubstr("--ranks must be at most"));
}

TEST_F(Commands, AnOutputThatCannotBeIsRefusedBeforeRanksStart) {
  const std::string path = write_options(), output = path + "/below";
  for (const char* ranks : {"1", "2"}) {
    const Result result = run({"train", path, "--ranks", ranks, "--set", "output=" + output});
    EXPECT_EQ(result.exit_code, kUserError);
    EXPECT_EQ(result.err, "error: [options] output must be a directory that a run can write into; got " +
                              output + ": Not a directory; set output to another\n");
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Commands, RanksMustFitTheOptions) {
  const Result result = run({"train", write_options(), "--ranks", "3", "--set", "sequence_parallel_size=2"});
  EXPECT_EQ(result.exit_code, kUserError);
  EXPECT_THAT(result.err, HasSubstr("got 3 ranks and sequence_parallel_size 2"));
}

TEST_F(Commands, OverridesMayStandBeforeTheFile) {
  const std::string path = write_options();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"train", "--set", "seed=3", "steps=0", path},
                                             {"train", path, "--set", "seed=3", "steps=0"},
                                             {"train", "--set", "seed=3", path, "--set", "steps=0"}})
    EXPECT_THAT(run(arguments).err, StartsWith("error: [options] steps must be an integer of at least 1"))
        << ::testing::PrintToString(arguments);
}

TEST_F(Commands, ARankStartsNoRanks) {
  const Variables torchrun{{"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "0"},
                           {"LOCAL_WORLD_SIZE", "1"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", "1"}};
  const Result result = run({"train", write_options(), "--ranks", "2"}, torchrun);
  EXPECT_EQ(result.exit_code, kUserError);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--ranks must be left out"), HasSubstr("rank 1 of 2 (torchrun)")));
}

TEST_F(Commands, OneRankOfAMachineSaysThatOptionsAreBad) {
  Variables torchrun{{"RANK", "1"},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", "1"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", "1"}};
  const std::string path = write_options();
  const std::string nothing_there = R"(model={"path": ")" + folder_.path().string() + "\"}";
  for (const std::string& mistake : {std::string("steps=0"), nothing_there}) {
    torchrun["RANK"] = torchrun["LOCAL_RANK"] = "1";
    const Result second = run({"train", path, "--set", mistake}, torchrun);
    EXPECT_EQ(second.exit_code, kUserError);
    EXPECT_EQ(second.err, "");
    torchrun["RANK"] = torchrun["LOCAL_RANK"] = "0";
    EXPECT_THAT(run({"train", path, "--set", mistake}, torchrun).err, StartsWith("error: ["));
  }
}

TEST_F(Commands, BadVariablesAreAUserError) {
  const Result result = run({"train", write_options()}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(result.exit_code, kUserError);
  EXPECT_THAT(result.err, StartsWith("error: [comm] the variable RANK must be"));
}

TEST_F(Commands, PrepareMakesATokenFile) {
  testing::write_text(folder_ / "texts/b.txt", "bc");
  testing::write_text(folder_ / "texts/a.txt", "a");
  testing::write_text(folder_ / "texts/empty.txt", "");
  testing::write_text(folder_ / "texts/other.md", "xyz");
  const std::string output = folder_ / "new" / "tokens.safetensors";
  const Result result = run({"prepare", folder_ / "texts", "--suffix", ".txt", "--output", output});
  EXPECT_EQ(result.exit_code, kSuccess) << result.err;
  EXPECT_THAT(result.out,
              AllOf(StartsWith(output + ": 5 tokens of 2 documents"), HasSubstr("left out 1 empty")));
  EXPECT_EQ(data::TokenFile(output).token_count(), 5);
}

TEST_F(Commands, PrepareSaysThatAFileWasGivenTwice) {
  const std::string text = testing::write_text(folder_ / "texts/a.txt", "a");
  const Result result = run({"prepare", folder_ / "texts", text, "--output", folder_ / "t.safetensors"});
  EXPECT_EQ(result.exit_code, kSuccess) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr(": 2 tokens of 1 document ("), HasSubstr("; left out 1 file given twice\n")));
}

TEST_F(Commands, PrepareRefusesAnOutputThatCannotBe) {
  const std::string text = testing::write_text(folder_ / "texts/a.txt", "a");
  const Result directory = run({"prepare", folder_ / "texts", "--output", folder_ / "texts"});
  EXPECT_EQ(directory.exit_code, kUserError);
  EXPECT_THAT(directory.err, StartsWith("error: [data] the output must be a file; got"));
  const Result below = run({"prepare", text, "--output", text + "/t.safetensors"});
  EXPECT_EQ(below.exit_code, kUserError);
  EXPECT_EQ(below.err, "error: [cli] --output must lie in a directory that is there or can be made; got " +
                           text + ": Not a directory\n");
}

TEST_F(Commands, PrepareRefusesWhatIsNotThere) {
  const Result result = run({"prepare", folder_ / "none", "--output", folder_ / "t.safetensors"});
  EXPECT_EQ(result.exit_code, kUserError);
  EXPECT_THAT(result.err, StartsWith("error: [data] an input is a file or a directory; got"));
  EXPECT_FALSE(fs::exists(folder_ / "t.safetensors"));
}

}  // namespace
}  // namespace trireme::cli
