#include "trireme/train/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/support/errors.h"

namespace trireme::train {
namespace {

using core::Residence;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr ModelSizes kSizes{.all = 10'000'000, .largest_unit = 1'000'000, .two_largest_units = 2'000'000};
constexpr int64_t kHalf = 5'200'000, kTwo = 2'100'000, kOne = 1'100'000;  // with room for padding

Options options_of_stage(int64_t stage) {
  return parse_options({{"model", {{"path", "m"}}},
                        {"data", {{"path", "d"}, {"sequence_length", 64}}},
                        {"steps", 5},
                        {"zero_optimization", {{"stage", stage}}}});
}

Measurement measured(double seconds, int64_t mebibytes) { return {seconds, mebibytes * kMiB, ""}; }

// A machine on which gathered parameters take memory, gathering them again takes time, and a disk takes more.
Measurement plain_machine(const TunedOptions& options) {
  const int64_t live = std::min(options.max_live_parameters, kSizes.all);
  const int64_t ahead = std::min(options.prefetch_bucket_size, live);
  Measurement result = measured(1.0, 400);
  result.step_seconds += 0.3 * (1 - double(live) / 1e7) + (ahead == 0 ? 0.2 : 0);
  result.peak_memory_bytes += (live * 20 + std::min(ahead, kTwo) * 10);
  if (options.optimizer == Residence::disk) {
    result.step_seconds += 0.5;
    result.peak_memory_bytes -= 120 * kMiB;
  }
  if (options.parameters == Residence::disk) {
    result.step_seconds += 0.25;
    result.peak_memory_bytes -= 40 * kMiB;
  }
  return result;
}

/// One search on a machine that `measure` plays.
struct Search {
  TuneSpace space;
  std::vector<TunedOptions> measured;
  std::ostringstream out;

  explicit Search(int64_t stage = 3, const std::string& nvme_path = "")
      : space(options_of_stage(stage), kSizes, {.nvme_path = nvme_path}) {}

  TunedOptions run(const Tuner::Measure& measure, std::optional<int64_t> mebibytes = {}) {
    const auto limit = mebibytes ? std::optional(*mebibytes * kMiB) : std::nullopt;
    const auto remember = [&](const TunedOptions& options) {
      measured.push_back(options);
      return measure(options);
    };
    return Tuner(space, limit, remember, out).run();
  }
  std::string refusal(const Tuner::Measure& measure, int64_t mebibytes) {
    return testing::text_of<std::runtime_error>([&] { run(measure, mebibytes); }, "nothing was thrown");
  }
  TunedOptions given() const { return space.given(); }
  TunedOptions with(int64_t live, int64_t ahead = 50'000'000) const {
    TunedOptions options = given();
    options.max_live_parameters = live;
    options.prefetch_bucket_size = ahead;
    return options;
  }
};

TEST(Tuners, TurnOneKnobAfterTheOther) {
  Search search(3, "/nvme");
  EXPECT_EQ(search.run(plain_machine), search.given());
  TunedOptions optimizer = search.given(), parameters = search.given();
  optimizer.optimizer = Residence::disk;
  parameters.parameters = Residence::disk;
  EXPECT_THAT(search.measured,
              ElementsAre(search.given(), search.with(kHalf), search.with(kTwo), search.with(kOne),
                          search.with(1'000'000'000, kTwo), search.with(1'000'000'000, kOne),
                          search.with(1'000'000'000, 0), optimizer, parameters));
  EXPECT_THAT(
      search.out.str(),
      AllOf(HasSubstr("kept       the defaults\n           nothing else that fits is faster\n"),
            HasSubstr("         1000000000              50000000               none           none     "
                      "1.000      611 MiB  (the defaults)\n")));
}

TEST(Tuners, GoOnFromTheBestSoFar) {
  Search search;
  const auto measure = [&](const TunedOptions& options) {
    double seconds = options.max_live_parameters == kTwo ? 0.8 : 1.0;
    if (options.prefetch_bucket_size == kOne) seconds -= 0.2;
    return measured(seconds, 100);
  };
  const TunedOptions best = search.with(kTwo, kOne);
  EXPECT_EQ(search.run(measure), best);
  const TunedOptions given = search.given();
  EXPECT_THAT(search.measured,
              ElementsAre(given, search.with(kHalf), search.with(kTwo), search.with(kOne),
                          search.with(kTwo, kTwo), best, search.with(kTwo, 0),  // ... and in turns
                          given, best, given, best, given, best));
  EXPECT_THAT(
      search.out.str(),
      HasSubstr("chosen     stage3_max_live_parameters 2100000, stage3_prefetch_bucket_size 1100000\n"
                "           0.600 s a step and 100 MiB; the defaults took 1.000 s a step and 100 MiB\n"
                "           40 % less time; runs of the same options differed by up to 0 %\n"));
}

TEST(Tuners, TakeTheFastestThatFits) {
  Search search;
  const TunedOptions chosen = search.run(plain_machine, 540);
  EXPECT_EQ(chosen, search.with(kHalf));
  EXPECT_THAT(search.out.str(),
              AllOf(HasSubstr("611 MiB  too much  (the defaults)"),
                    HasSubstr("s a step and 611 MiB\n           the defaults do not fit into 540 MiB: ")));
}

TEST(Tuners, TurnKnobsBackOnceThereIsMemory) {
  Search search(3, "/nvme");
  // Only the disk makes it fit; then there is room for more units at once, which costs less time.
  const TunedOptions chosen = search.run(plain_machine, 400);
  EXPECT_EQ(chosen.optimizer, Residence::disk);
  EXPECT_EQ(chosen.parameters, Residence::device);
  EXPECT_EQ(chosen.max_live_parameters, kHalf);
}

TEST(Tuners, SayWhatCameNearestWhereNothingFits) {
  Search search;
  EXPECT_EQ(search.refusal(plain_machine, 100),
            "[tune] a run must fit into 100 MiB a rank; got 421 MiB at least, with "
            "stage3_max_live_parameters 1100000, stage3_prefetch_bucket_size 0; let states wait on a disk "
            "(--nvme-path DIR), start more ranks, shorten data.sequence_length, set "
            "activation_checkpointing.policy to \"layer\", or raise --memory");
  Search with_disk(3, "/nvme");
  EXPECT_THAT(with_disk.refusal(plain_machine, 100),
              AllOf(HasSubstr("offload_optimizer nvme, offload_param nvme"), Not(HasSubstr("--nvme-path"))));
}

TEST(Tuners, GoOnAfterAFailure) {
  Search search;
  const auto measure = [&](const TunedOptions& options) {
    if (options == search.given()) return Measurement{.failure = "signal 9 (SIGKILL)"};
    return plain_machine(options);
  };
  EXPECT_EQ(search.run(measure), search.with(kHalf));
  EXPECT_THAT(search.out.str(), AllOf(HasSubstr("  failed: signal 9 (SIGKILL)  (the defaults)\n"),
                                      HasSubstr(" MiB\n           the defaults failed\n")));
  EXPECT_EQ(std::count(search.measured.begin(), search.measured.end(), search.given()), 1);
}

TEST(Tuners, EndWhereEveryRunFails) {
  Search search;
  EXPECT_THAT(search.refusal([](const TunedOptions&) { return Measurement{.failure = "it rains"}; }, 100),
              AllOf(HasSubstr("[tune] a run must come to its end; got"), HasSubstr("it rains")));
}

TEST(Tuners, KeepTheGivenOptionsWhereTheBestDoesNotBeatThem) {
  Search search;
  size_t runs = 0;
  const auto measure = [&](const TunedOptions& options) {
    // Fast by luck, once.
    return measured(options.max_live_parameters == kTwo && ++runs == 1 ? 0.5 : 1.0, 100);
  };
  EXPECT_EQ(search.run(measure), search.given());
  EXPECT_THAT(
      search.out.str(),
      HasSubstr("kept       the defaults\n           the best, stage3_max_live_parameters 2100000,\n"
                "           took 1.000 s a step and 100 MiB; the defaults took 1.000 s a step and 100 MiB\n"
                "           not clearly faster; runs of the same options differed by up to 0 %\n"));
}

TEST(Tuners, TakeLessMemoryInTheSameTime) {
  Search search;
  size_t runs = 0;
  const auto measure = [&](const TunedOptions& options) {
    const bool low = options.max_live_parameters == kTwo;
    return measured(low && ++runs == 1 ? 0.5 : 1.0, low ? 80 : 100);
  };
  EXPECT_EQ(search.run(measure), search.with(kTwo));
  EXPECT_THAT(search.out.str(), HasSubstr("as fast, within the noise, in 20 % less memory"));
}

TEST(Tuners, PassOverWhatFitsOnlyOnce) {
  Search search;
  size_t runs = 0;
  const auto measure = [&](const TunedOptions& options) {
    if (options.max_live_parameters == kTwo) return measured(0.5, ++runs == 1 ? 90 : 110);
    return measured(options.max_live_parameters == kOne ? 0.7 : 1.0, 90);
  };
  EXPECT_EQ(search.run(measure, 100).max_live_parameters, kOne);
}

TEST(Tuners, ShowNoUnitsBelowStage3) {
  Search search(1, "/nvme");
  search.run(plain_machine);
  EXPECT_EQ(search.measured.size(), 2u);
  EXPECT_THAT(search.out.str(), HasSubstr("\n                  -                     -               nvme"));
}

}  // namespace
}  // namespace trireme::train
