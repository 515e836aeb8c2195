#include "trireme/comm/position.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace trireme::comm {
namespace {

using State = Whereabouts::State;

TEST(Position, IsNowhereAtFirst) {
  const Whereabouts now = Position().now();
  EXPECT_EQ(now.state, State::working);
  EXPECT_EQ(now.place, "");
  EXPECT_EQ(now.collective, "");
}

TEST(Position, NestsScopes) {
  const Position position;
  const auto step = position.enter("step 12");
  {
    const auto pass = position.enter("backward");
    EXPECT_EQ(position.now().place, "step 12, backward");
    const auto wait = position.wait_in("barrier of group 'world' for a test");
    const Whereabouts now = position.now();
    EXPECT_EQ(now.state, State::waiting);
    EXPECT_EQ(now.place, "step 12, backward");
    EXPECT_EQ(now.collective, "barrier of group 'world' for a test");
  }
  EXPECT_EQ(position.now().place, "step 12");
  EXPECT_EQ(position.now().state, State::working);
}

TEST(Position, TakesTheEndsOfScopesInAnyOrder) {
  const Position position;
  auto first = position.enter("first"), second = position.enter("second");
  first = {};
  EXPECT_EQ(position.now().place, "second");
  second = position.enter("third");
  EXPECT_EQ(position.now().place, "third");
  const Position::Scope moved = std::move(second);
  EXPECT_EQ(position.now().place, "third");
}

TEST(Position, CountsTheTimeSinceItMoved) {
  const Position position;
  const auto here = position.enter("here");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(position.now().seconds, 0.05);
  const double before = position.now().seconds;
  { const auto there = position.enter("there"); }
  EXPECT_LT(position.now().seconds, before);
}

TEST(Position, KeepsWhereAnErrorCameFrom) {
  const Position position;
  try {
    const auto step = position.enter("step 3");
    const auto pass = position.enter("forward");
    throw std::runtime_error("out of memory");
  } catch (const std::exception&) {
    EXPECT_EQ(position.now().state, State::failed);
    EXPECT_EQ(position.now().place, "step 3, forward");
  }
  const auto again = position.enter("step 4");
  EXPECT_EQ(position.now().state, State::working);
  EXPECT_EQ(position.now().place, "step 4");
}

TEST(Position, TakesNoErrorForItsOwnThatBeganBefore) {
  const Position position;
  struct AtEnd {
    const Position& position;
    ~AtEnd() { const auto here = position.enter("cleaning up"); }
  };
  try {
    const AtEnd at_end{position};
    throw std::runtime_error("no matter what");
  } catch (const std::exception&) {
    EXPECT_EQ(position.now().state, State::working);
  }
}

TEST(Heartbeat, IsReadAsItWasWritten) {
  const Heartbeat heartbeat{
      .whereabouts = {State::waiting, "step 1, \"forward\"", "all_gather of group 'world' for a\nb", 1.5},
      .count = 7,
      .time = 1.75e9};
  EXPECT_EQ(parse_heartbeat(to_text(heartbeat)), heartbeat);
}

TEST(Heartbeat, IsNotMadeOfOtherTexts) {
  for (const char* text : {"", "{", "[]", "{}", R"({"count": 1, "time": 2, "state": "asleep", "place": "",
                                                   "collective": "", "seconds": 0})"})
    EXPECT_FALSE(parse_heartbeat(text)) << text;
}

}  // namespace
}  // namespace trireme::comm
