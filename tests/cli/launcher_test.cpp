#include "cli/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/exit_codes.h"
#include "tests/cli/processes.h"
#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

struct Result {
  int exit_code = -1;
  std::string out, err;
};

LaunchOptions options_for(int64_t ranks, const std::vector<std::string>& scripts) {
  LaunchOptions options;
  options.command = {FAKE_RANK, {"fake_rank"}};
  options.command.arguments.insert(options.command.arguments.end(), scripts.begin(), scripts.end());
  options.ranks = ranks;
  options.port = 4321;
  return options;
}

Result run(const LaunchOptions& options) {
  std::ostringstream out, err;
  const int exit_code = launch(options, out, err);
  return {exit_code, out.str(), err.str()};
}

Result run(int64_t ranks, const std::vector<std::string>& scripts) {
  return run(options_for(ranks, scripts));
}

std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (size_t at = text.find("pid "); at != text.npos; at = text.find("pid ", at + 1))
    pids.push_back(std::stoi(text.substr(at + 4)));
  return pids;
}

TEST(Launcher, RunsAllRanksToTheirEnd) {
  const Result result = run(3, {"0:line zero", "1:line one", "2:sleep 200;out two"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("zero\n"), HasSubstr("[rank 1] one\n"), HasSubstr("[rank 2] two\n")));
  EXPECT_THAT(result.out, Not(HasSubstr("[rank 0]")));
  EXPECT_EQ(result.err, "");
}

TEST(Launcher, SetsTorchrunsVariables) {
  setenv("TORCHELASTIC_RESTART_COUNT", "5", 1);  // of whoever started the launcher: not the ranks'
  const Result result =
      run(2, {"1:env RANK;env WORLD_SIZE;env LOCAL_RANK;env LOCAL_WORLD_SIZE;env MASTER_ADDR;env MASTER_PORT;"
              "env TORCHELASTIC_USE_AGENT_STORE;env TORCHELASTIC_RESTART_COUNT;env TRIREME_PROGRESS"});
  unsetenv("TORCHELASTIC_RESTART_COUNT");
  EXPECT_EQ(result.out,
            "[rank 1] RANK=1\n[rank 1] WORLD_SIZE=2\n[rank 1] LOCAL_RANK=1\n[rank 1] LOCAL_WORLD_SIZE=2\n"
            "[rank 1] MASTER_ADDR=127.0.0.1\n[rank 1] MASTER_PORT=4321\n"
            "[rank 1] TORCHELASTIC_USE_AGENT_STORE=True\n[rank 1] TORCHELASTIC_RESTART_COUNT=\n"
            "[rank 1] TRIREME_PROGRESS=lines\n");
}

TEST(Launcher, SharesOutTheCoresUnlessTold) {
  unsetenv("OMP_NUM_THREADS");
  LaunchOptions options = options_for(1, {});
  EXPECT_EQ(rank_variables(options, 0).at("OMP_NUM_THREADS"),
            std::to_string(std::thread::hardware_concurrency()));
  options.ranks = 100000;
  EXPECT_EQ(rank_variables(options, 0).at("OMP_NUM_THREADS"), "1");
  options.rewrites_progress = true;
  EXPECT_EQ(rank_variables(options, 0).at("TRIREME_PROGRESS"), "tty");
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_FALSE(rank_variables(options, 0).contains("OMP_NUM_THREADS"));
  unsetenv("OMP_NUM_THREADS");
}

TEST(Launcher, PassesRankZerosOutputAsItComes) {
  EXPECT_EQ(run(2, {"0:rewrite step 1;sleep 50;rewrite step 2;line  end"}).out, "\rstep 1\rstep 2end\n");
}

TEST(Launcher, PutsWarningsBetweenProgress) {
  // Standard error goes to a line of its own, also where the progress line is not ended; once, though all say
  // it.
  const Result result = run(3, {"all:err careful", "0:out step 1;sleep 600;line  done"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(count(result.err, "careful"), 1u) << result.err;
  EXPECT_EQ(result.out, "step 1\ndone\n");
}

TEST(Launcher, KeepsWhatOneRankSaysTwice) {
  EXPECT_EQ(run(2, {"1:err again;err again"}).err, "[rank 1] again\n[rank 1] again\n");
}

TEST(Launcher, EndsAllRanksWhenOneFails) {
  const auto begin = Clock::now();
  const Result result =
      run(3, {"all:pid", "1:sleep 100;err no such file;exit 7", "0:sleep 60000", "2:sleep 60000"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.err,
            "[rank 1] no such file\ntrireme: rank 1 of 3 ended with exit code 7; ending the others\n");
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_EQ(pids_in(result.out).size(), 3u);
  EXPECT_TRUE(all_end(pids_in(result.out)));
}

TEST(Launcher, NamesTheSignalThatEndedARank) {
  const Result result = run(2, {"1:kill 9", "0:sleep 60000"});
  EXPECT_EQ(result.exit_code, kSignalBase + SIGKILL);
  EXPECT_EQ(result.err, "trireme: rank 1 of 2 ended with signal 9 (SIGKILL); ending the others\n");
}

TEST(Launcher, KillsRanksThatDoNotListen) {
  LaunchOptions options = options_for(2, {"0:ignore-term;pid;sleep 60000", "1:sleep 300;exit 1"});
  options.grace = 200ms;
  const auto begin = Clock::now();
  const Result result = run(options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_TRUE(all_end(pids_in(result.out)));
}

TEST(Launcher, PrintsTheSameErrorOnce) {
  const Result result = run(4, {"all:err bad option;exit 2"});
  EXPECT_EQ(result.exit_code, kUserError);
  EXPECT_EQ(count(result.err, "bad option"), 1u) << result.err;
  EXPECT_EQ(count(result.err, "ended with exit code 2"), 1u) << result.err;
}

TEST(Launcher, PrintsTheCauseNotWhatFollowed) {
  // Rank 0 is first to end, because it lost rank 1; rank 1 takes its time to say why.
  const Result result =
      run(2, {"0:err connection closed by peer;exit 3", "1:err out of memory;sleep 400;exit 1"});
  EXPECT_EQ(result.exit_code, kFailure);
  EXPECT_THAT(result.err, HasSubstr("[rank 1] out of memory\n"));
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 2 ended with exit code 1"));
  EXPECT_THAT(result.err, Not(HasSubstr("connection closed")));
}

TEST(Launcher, HoldsReasonsUntilItKnowsTheCause) {
  // Both have said why long before they end, rank 0 ends long before rank 1, and rank 1 is the cause all the
  // same.
  LaunchOptions options = options_for(
      3, {"0:fail 3 connection closed;err by peer;sleep 500;exit 3",
          "1:err a warning;fail 1 out of memory;err for good;sleep 1200;exit 1", "2:sleep 60000"});
  options.suspicion = 200ms;
  const Result result = run(options);
  EXPECT_EQ(result.exit_code, kFailure);
  EXPECT_EQ(result.err,
            "[rank 1] a warning\n[rank 1] out of memory\n[rank 1] for good\n"
            "trireme: rank 1 of 3 ended with exit code 1; ending the others\n");
}

TEST(Launcher, PrintsAReasonThatEndsWell) {
  EXPECT_EQ(run(2, {"1:fail 1 never mind;sleep 500"}).err, "[rank 1] never mind\n");
}

TEST(Launcher, BlamesARankThatLostAnotherWhereNoneFailed) {
  LaunchOptions options = options_for(2, {"0:err all_gather waited for 600 s;exit 3", "1:sleep 60000"});
  options.suspicion = 100ms;
  const Result result = run(options);
  EXPECT_EQ(result.exit_code, kFailure);
  EXPECT_EQ(result.err,
            "[rank 0] all_gather waited for 600 s\ntrireme: rank 0 of 2 had no answer from another "
            "rank, which hangs or is elsewhere; ending the others\n");
}

TEST(Launcher, DoesNotWaitForSuspectsWhenAllHaveEnded) {
  LaunchOptions options = options_for(2, {"all:err lost;exit 3"});
  options.suspicion = 60s;
  const Result result = run(options);
  EXPECT_EQ(result.exit_code, kFailure);
  EXPECT_EQ(count(result.err, "lost"), 1u) << result.err;
}

TEST(Launcher, PrintsLinesWithoutAnEnd) {
  EXPECT_THAT(run(2, {"1:out half a line"}).out, HasSubstr("[rank 1] half a line\n"));
}

TEST(Launcher, RefusesAProgramThatCannotBeRun) {
  LaunchOptions options = options_for(2, {});
  options.command.program = "/nowhere/trireme";
  EXPECT_THROW(run(options), core::ValueError);
  options.ranks = 0;
  EXPECT_THROW(run(options), core::ValueError);
}

TEST(Ending, SaysHow) {
  EXPECT_EQ(Ending{.code = 3}.text(), "exit code 3");
  EXPECT_EQ((Ending{.code = 0, .signal = SIGSEGV}).text(), "signal 11 (SIGSEGV)");
  EXPECT_EQ(signal_name(SIGRTMIN + 3), "signal " + std::to_string(SIGRTMIN + 3));
}

/// A launcher in a process of its own, and what it has printed so far.
class LauncherProcess {
 public:
  explicit LauncherProcess(std::vector<std::string> scripts)
      : process_({FAKE_RANK, arguments(std::move(scripts))}, {}) {}

  /// Reads until `part` has been printed; false after a long time without.
  bool prints(const std::string& part) {
    for (int tries = 0; tries < 200 && text.find(part) == text.npos; ++tries) {
      read_some();
      std::this_thread::sleep_for(50ms);
    }
    return text.find(part) != text.npos;
  }

  std::optional<Ending> end() {
    for (int tries = 0; tries < 200 && !process_.poll(); ++tries) std::this_thread::sleep_for(50ms);
    read_some();
    return process_.poll();
  }

  void send(int signal) { process_.send(signal); }

  std::string text;

 private:
  static std::vector<std::string> arguments(std::vector<std::string> scripts) {
    scripts.insert(scripts.begin(), {"fake_rank", "--launch", "2"});
    return scripts;
  }

  void read_some() {
    read_available(process_.output(), text);
    read_available(process_.errors(), text);
  }

  Process process_;
};

class Interrupt : public ::testing::TestWithParam<int> {};

TEST_P(Interrupt, EndsAllRanks) {
  LauncherProcess launcher({"0:pid;sleep 60000", "1:sleep 200;pid;sleep 60000"});
  ASSERT_TRUE(launcher.prints("[rank 1] pid ")) << launcher.text;
  launcher.send(GetParam());
  const auto ending = launcher.end();
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->code, kSignalBase + GetParam()) << ending->text();
  EXPECT_EQ(count(launcher.text, "interrupted by " + signal_name(GetParam()) + "; ending all ranks"), 1u)
      << launcher.text;
  EXPECT_THAT(launcher.text, Not(HasSubstr("ended with")));
  EXPECT_EQ(pids_in(launcher.text).size(), 2u);
  EXPECT_TRUE(all_end(pids_in(launcher.text)));
}

INSTANTIATE_TEST_SUITE_P(Signals, Interrupt, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(Interrupt, TwiceKillsAtOnce) {
  LauncherProcess launcher({"0:ignore-term;pid;sleep 60000", "1:sleep 300;pid;sleep 60000"});
  ASSERT_TRUE(launcher.prints("[rank 1] pid ")) << launcher.text;
  launcher.send(SIGTERM);
  ASSERT_TRUE(launcher.prints("interrupted"));
  launcher.send(SIGTERM);
  ASSERT_TRUE(launcher.end());
  EXPECT_TRUE(all_end(pids_in(launcher.text)));
}

TEST(Launcher, TakesItsRanksAlongWhenItIsKilled) {
  LauncherProcess launcher({"0:ignore-term;pid;sleep 60000", "1:ignore-term;sleep 300;pid;sleep 60000"});
  ASSERT_TRUE(launcher.prints("[rank 1] pid ")) << launcher.text;
  launcher.send(SIGKILL);
  ASSERT_TRUE(launcher.end());
  EXPECT_EQ(pids_in(launcher.text).size(), 2u);
  EXPECT_TRUE(all_end(pids_in(launcher.text)));
}

}  // namespace
}  // namespace trireme::cli
