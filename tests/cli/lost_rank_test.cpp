// What the others do, and what the user is told, when a rank is stopped or killed in the middle of its work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/exit_codes.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Clock = std::chrono::steady_clock;

// Ranks start this long apart at most, and wait this long for one that is lost.
constexpr auto kTimeout = 5s;
// From there to the end of all ranks: two seconds for signs of life and one for other causes, on a busy
// machine.
constexpr auto kMargin = 12s;

struct Phase {
  const char* name;
  const char* operations;  // of the trap
  const char* place;       // where the rank is told to have been
  bool on_disk = false;    // are states kept there?
};

void PrintTo(const Phase& phase, std::ostream* out) { *out << phase.name; }

constexpr Phase kGather{"Gather", "allgather", "step 1, forward"};
constexpr Phase kBackward{"Backward", "Backward", "step 1, backward"};
constexpr Phase kOptimizer{"Optimizer", "_fused_adamw_", "step 1, optimizer"};
// The second piece is updated while the first one is being written.
constexpr Phase kDiskWrite{"DiskWrite", "_fused_adamw_ _fused_adamw_", "step 1, optimizer", true};
constexpr Phase kSave{"Save", "_fused_adamw_ allgather", "save"};

std::string trap(int rank, int signal, const Phase& phase) {
  return core::concatenate(rank, ' ', signal, ' ', phase.operations);
}

std::vector<std::string> arguments_for(const testing::TemporaryDirectory& folder) {
  return {"train", write_run(folder, 1), "--set", core::concatenate("timeout_seconds=", kTimeout.count())};
}

Program launch(const testing::TemporaryDirectory& folder, const std::string& trap, bool on_disk = false) {
  auto arguments = arguments_for(folder);
  arguments.insert(arguments.end(), {"--ranks", "2"});
  if (on_disk) {
    std::filesystem::create_directory(folder / "disk");
    const std::string place = R"(={"device": "nvme", "nvme_path": ")" + (folder / "disk").string() + R"("})";
    for (const char* what : {"offload_param", "offload_optimizer"})
      arguments.insert(arguments.end(), {"--set", std::string("zero_optimization.") + what + place});
  }
  return Program(arguments, {{"TRAP", trap}});
}

Program start_under_open_mpi(const testing::TemporaryDirectory& folder, int rank, int size,
                             const std::string& trap) {
  return Program(arguments_for(folder), {{"TRAP", trap},
                                         {"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                                         {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(size)},
                                         {"PMIX_NAMESPACE", "lost-" + std::to_string(getpid())}});
}

/// Waits until one of a program's processes stands still; false after a long time without.
template <class Processes>
bool one_stops(const Processes& processes) {
  for (const auto limit = Clock::now() + 60s; Clock::now() < limit; std::this_thread::sleep_for(20ms))
    for (const pid_t process : processes())
      if (state_of(process) == 'T') return true;
  return false;
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

void expect_no_traces(const testing::TemporaryDirectory& folder, const std::vector<pid_t>& ranks) {
  EXPECT_TRUE(all_end(ranks));
  EXPECT_EQ(names_in(folder / "out"), (std::set<std::string>{"metrics.jsonl", "options.json"}));
  if (std::filesystem::exists(folder / "disk")) EXPECT_EQ(names_in(folder / "disk"), std::set<std::string>());
}

class LostRank : public ::testing::TestWithParam<std::tuple<int, Phase>> {
 protected:
  const int lost_ = std::get<0>(GetParam());
  const Phase phase_ = std::get<1>(GetParam());
  const testing::TemporaryDirectory folder_;
};

TEST_P(LostRank, ThatIsStoppedIsToldOf) {
  Program program = launch(folder_, trap(lost_, SIGSTOP, phase_), phase_.on_disk);
  ASSERT_TRUE(one_stops([&] { return program.children(); })) << program.err();
  const auto ranks = program.children();
  const auto begin = Clock::now();
  EXPECT_EQ(program.wait(), kFailure);
  EXPECT_LT(Clock::now() - begin, kTimeout + kMargin);
  const std::string& err = program.err();
  EXPECT_EQ(count(err, "error: [comm] all ranks must come to a collective in time; got \""), 1u) << err;
  EXPECT_THAT(err,
              ContainsRegex(core::concatenate("rank ", lost_, " was last heard from [0-9.]+ s ago, in [^\n]*",
                                              phase_.place, ".*, for [0-9.]+ s\n")));
  EXPECT_THAT(err, ContainsRegex(core::concatenate(
                       "rank ", 1 - lost_, " waits in [a-z_]+ of group 'world' for .*, for [0-9.]+ s\n")));
  EXPECT_EQ(count(err, "see whether rank "), 1u) << err;
  expect_no_traces(folder_, ranks);
}

TEST_P(LostRank, ThatIsKilledIsToldOf) {
  Program program = launch(folder_, trap(lost_, SIGKILL, phase_), phase_.on_disk);
  EXPECT_EQ(program.wait(), kSignalBase + SIGKILL);
  EXPECT_THAT(program.err(),
              MatchesRegex(core::concatenate(
                  "trireme: rank ", lost_,
                  " of 2 ended with signal 9 \\(SIGKILL\\), last heard from [0-9.]+ s ago, in [^\n]*",
                  phase_.place, "[^\n]*; ending the others\n")));
  expect_no_traces(folder_, {});
}

INSTANTIATE_TEST_SUITE_P(Phases, LostRank,
                         ::testing::Combine(::testing::Values(1),
                                            ::testing::Values(kGather, kBackward, kOptimizer, kDiskWrite,
                                                              kSave)));
INSTANTIATE_TEST_SUITE_P(RankZero, LostRank,
                         ::testing::Combine(::testing::Values(0), ::testing::Values(kGather, kSave)));

TEST(LostRanks, ThatLiveAreToldOfAsElsewhere) {
  const testing::TemporaryDirectory folder;
  Program program = launch(folder, trap(1, 0, kOptimizer));
  EXPECT_EQ(program.wait(), kFailure);
  EXPECT_THAT(program.err(),
              AllOf(ContainsRegex("rank 1 is elsewhere, in step 1, optimizer, unit .*, for [0-9.]+ s\n"),
                    HasSubstr("see what keeps rank 1, and raise timeout_seconds")));
  expect_no_traces(folder, {});
}

TEST(LostRanks, AreToldOfAlikeByAllRanksWithoutALauncher) {
  const testing::TemporaryDirectory folder;
  const std::string stop = trap(1, SIGSTOP, kBackward);
  Program first = start_under_open_mpi(folder, 0, 3, stop), lost = start_under_open_mpi(folder, 1, 3, stop),
          third = start_under_open_mpi(folder, 2, 3, stop);
  EXPECT_EQ(first.wait(), kFailure);
  EXPECT_EQ(third.wait(), kFailure);
  EXPECT_THAT(first.err(),
              AllOf(ContainsRegex("\n  rank 1 was last heard from [0-9.]+ s ago, in step 1, backward"),
                    ContainsRegex("\n  ranks 0, 2 wait in ")));
  EXPECT_EQ(third.err(), first.err());
}

TEST(LostRanks, ThatTakeTheStoreAlongHoldNobodyUp) {
  const testing::TemporaryDirectory folder;
  const std::string stop = trap(0, SIGSTOP, kGather);
  Program lost = start_under_open_mpi(folder, 0, 2, stop), other = start_under_open_mpi(folder, 1, 2, stop);
  ASSERT_TRUE(one_stops([&] { return std::vector{lost.id()}; }));
  const auto begin = Clock::now();
  EXPECT_EQ(other.wait(), kFailure);
  EXPECT_LT(Clock::now() - begin, kTimeout + kMargin);
  EXPECT_THAT(other.err(), AllOf(HasSubstr("error: [comm] all_gather of group 'world' for "),
                                 HasSubstr(" on rank 1 of 2 did not finish: "),
                                 HasSubstr("the store, which rank 0 serves, does not answer either")));
  EXPECT_EQ(count(other.err(), "\n"), 1u) << other.err();
}

}  // namespace
}  // namespace trireme::cli
