#include "trireme/comm/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/comm/diagnosis.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using State = Whereabouts::State;

using StorePtr = c10::intrusive_ptr<c10d::Store>;

Watch::Options options_for(StorePtr store, int64_t rank, int64_t size,
                           std::chrono::milliseconds patience = 60s) {
  return {.store = std::move(store), .rank = rank, .size = size, .period = 20ms, .patience = patience};
}

/// Waits for a heartbeat of `rank` that `wanted` likes; false after a long time without.
template <class Predicate>
bool beats(c10d::Store& store, int64_t rank, const Predicate& wanted) {
  for (int tries = 0; tries < 1000; ++tries) {
    const auto last = last_heartbeat(store, rank);
    if (last && wanted(*last)) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

/// What the other ranks last saw of one that was stopped.
void leave_behind(c10d::Store& store, int64_t rank) {
  store.set(heartbeat_key(rank), to_text({.whereabouts = {State::working, "step 2, backward", "", 0.5},
                                          .count = 9,
                                          .time = seconds_since_1970() - 30}));
}

TEST(Watch, TellsWhereItsRankIs) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Watch watch(options_for(store, 1, 2));
  EXPECT_TRUE(beats(*store, 1, [](const Heartbeat& last) { return last.whereabouts.place.empty(); }));
  const auto here = watch.position().enter("step 1");
  EXPECT_TRUE(beats(*store, 1, [](const Heartbeat& last) { return last.whereabouts.place == "step 1"; }));
  EXPECT_TRUE(beats(*store, 1, [](const Heartbeat& last) { return last.count > 10; }));
  EXPECT_FALSE(last_heartbeat(*store, 0));
}

TEST(Watch, TellsOfItsEnd) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  { const Watch watch(options_for(store, 0, 2)); }
  EXPECT_EQ(last_heartbeat(*store, 0)->whereabouts.state, State::ended);
  try {
    const Watch watch(options_for(store, 1, 2));
    const auto here = watch.position().enter("step 7");
    throw std::runtime_error("a reason of its own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(last_heartbeat(*store, 1)->whereabouts.state, State::failed);
  EXPECT_EQ(last_heartbeat(*store, 1)->whereabouts.place, "step 7");
}

TEST(Watch, GivesAllRanksTheSameDiagnosis) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  leave_behind(*store, 1);
  const auto rank_main = [&](int64_t rank) {
    const Watch watch(options_for(store, rank, 4, 500ms));
    const auto step = watch.position().enter("step 2");
    const auto here = watch.position().wait_in("all_gather of group 'world' for unit 'a'");
    return watch.diagnose("Timed out");
  };
  auto second = std::async(std::launch::async, rank_main, 2);
  auto third = std::async(std::launch::async, rank_main, 3);
  const std::string text = rank_main(0);
  EXPECT_THAT(text, AllOf(HasSubstr("  rank 1 was last heard from 3"),
                          HasSubstr(" s ago, in step 2, backward, for 0.5 s\n"),
                          HasSubstr(" wait in all_gather of group 'world' for unit 'a' (step 2), for ")));
  EXPECT_EQ(second.get(), text);
  EXPECT_EQ(third.get(), text);
  EXPECT_EQ(rank_main(0), text);  // also later
}

TEST(Watch, WaitsForNoneThatHasEnded) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  { const Watch ended(options_for(store, 1, 3)); }
  const Watch elsewhere(options_for(store, 2, 3)), watch(options_for(store, 0, 3));
  const auto here = elsewhere.position().enter("step 3, optimizer");
  const auto waiting = watch.position().wait_in("barrier of group 'world' for a test");
  ASSERT_TRUE(beats(*store, 2, [](const Heartbeat& last) { return !last.whereabouts.place.empty(); }));
  const auto begin = Clock::now();
  EXPECT_THAT(
      watch.diagnose("Connection closed by peer"),
      AllOf(HasSubstr("  rank 1 has ended\n"), HasSubstr("  rank 2 is elsewhere, in step 3, optimizer"),
            HasSubstr("  rank 0 waits in barrier of group 'world' for a test")));
  EXPECT_LT(Clock::now() - begin, 30s);  // half of its patience
}

TEST(Watch, StaysUntilTheOthersKnowWhereItServesTheStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto options = options_for(store, 0, 2);
  options.store_on_rank_0 = true;
  const Watch server(options), other(options_for(store, 1, 2));
  const auto here = server.position().wait_in("barrier"), there = other.position().wait_in("barrier");
  ASSERT_TRUE(beats(*store, 1, [](const Heartbeat& last) { return !last.whereabouts.collective.empty(); }));
  auto first = std::async(std::launch::async, [&] { return server.diagnose("Timed out"); });
  EXPECT_EQ(first.wait_for(300ms), std::future_status::timeout);
  const std::string text = other.diagnose("Connection closed by peer");
  EXPECT_EQ(first.get(), text);
}

TEST(Watch, TellsOfItsOwnRankWhereNobodyElseIs) {
  const Watch watch(Watch::Options{.store = {}, .rank = 1, .size = 2});
  const auto here = watch.position().wait_in("barrier of group 'world' for a test");
  EXPECT_EQ(
      watch.diagnose("Timed out"),
      "[comm] barrier of group 'world' for a test on rank 1 of 2 did not finish: Timed out; see which rank "
      "ended or waits elsewhere");
}

/// A store whose server is gone.
struct GoneStore : c10d::HashStore {
  void set(const std::string&, const std::vector<uint8_t>&) override { throw std::runtime_error("gone"); }
  bool check(const std::vector<std::string>&) override { throw std::runtime_error("gone"); }
};

TEST(Watch, NeedsNoStoreThatIsGone) {
  Watch::Options options = options_for(c10::make_intrusive<GoneStore>(), 1, 2);
  options.store_on_rank_0 = true;
  const Watch watch(options);
  const auto here = watch.position().wait_in("barrier of group 'world' for a test");
  const auto begin = Clock::now();
  EXPECT_THAT(watch.diagnose("Connection closed by peer"),
              AllOf(HasSubstr("barrier of group 'world' for a test on rank 1 of 2 did not finish"),
                    HasSubstr("the store, which rank 0 serves, does not answer either")));
  EXPECT_LT(Clock::now() - begin, 30s);
}

/// A store from which one rank is cut off in the middle.
struct TornStore : c10d::HashStore {
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    if (!torn.exchange(true)) throw std::runtime_error("gone");
    return c10d::HashStore::compareSet(key, expected, desired);
  }
  std::atomic<bool> torn = false;
};

TEST(Watch, LooksItselfWhereTheFirstThatAskedIsLost) {
  const auto store = c10::make_intrusive<TornStore>();
  const Watch first(options_for(store, 0, 2, 100ms)), second(options_for(store, 1, 2, 100ms));
  const auto here = first.position().wait_in("barrier"), there = second.position().wait_in("barrier");
  EXPECT_THAT(first.diagnose("Timed out"), HasSubstr("does not answer either"));
  EXPECT_THAT(second.diagnose("Timed out"), HasSubstr("on rank 1 of 2:\n  rank 0 was last heard from"));
}

/// A store whose server was stopped: what waits for an answer hangs, until the test is over.
struct HangingStore : c10d::HashStore {
  explicit HangingStore(std::shared_future<void> end) : end(std::move(end)) {}
  bool check(const std::vector<std::string>& keys) override {
    end.wait();
    return c10d::HashStore::check(keys);
  }
  std::shared_future<void> end;
};

TEST(Watch, DoesNotHangWithItsStore) {
  std::promise<void> end;
  const auto begin = Clock::now();
  {
    const Watch watch(options_for(c10::make_intrusive<HangingStore>(end.get_future().share()), 1, 2, 100ms));
    const auto here = watch.position().wait_in("barrier of group 'world' for a test");
    EXPECT_THAT(watch.diagnose("Timed out"), HasSubstr("does not answer either"));
  }
  EXPECT_LT(Clock::now() - begin, 10s);
  end.set_value();
}

}  // namespace
}  // namespace trireme::comm
