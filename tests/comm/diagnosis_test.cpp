#include "trireme/comm/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::comm {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using State = Whereabouts::State;

constexpr double kNow = 1000;

Sighting seen(State state, const std::string& place, const std::string& collective = "", double seconds = 0) {
  return {.last = Heartbeat{{state, place, collective, seconds}, 3, kNow}, .is_alive = true};
}

Sighting waiting(double seconds = 600) {
  return seen(State::waiting, "step 12, forward", "all_gather of group 'world' for unit 'layers.3'", seconds);
}

Sighting lost() {
  Sighting sighting = seen(State::working, "step 12, backward", "", 0.24);
  sighting.last->time = kNow - 601.4;
  sighting.is_alive = false;
  return sighting;
}

std::string told(const std::vector<Sighting>& sightings) {
  return diagnose(sightings, 0, "Timed out waiting 600000ms for recv operation to complete", kNow);
}

TEST(Diagnosis, TellsWhoIsLostAndWhoWaits) {
  EXPECT_EQ(
      told({waiting(), lost(), waiting(599), waiting(), waiting()}),
      "[comm] all ranks must come to a collective in time; got \"Timed out waiting 600000ms for recv "
      "operation to complete\" on rank 0 of 5:\n"
      "  rank 1 was last heard from 601 s ago, in step 12, backward, for 0.2 s\n"
      "  ranks 0, 2-4 wait in all_gather of group 'world' for unit 'layers.3' (step 12, forward), for 600 "
      "s\n"
      "see whether rank 1 was stopped or killed, for lack of memory perhaps, or cannot be reached any "
      "more");
}

TEST(Diagnosis, TellsWhoIsElsewhere) {
  const std::string text = told({waiting(), seen(State::working, "step 12, optimizer", "", 3), waiting()});
  EXPECT_THAT(text, HasSubstr("  rank 1 is elsewhere, in step 12, optimizer, for 3 s\n"));
  EXPECT_THAT(text, EndsWith("see what keeps rank 1, and raise timeout_seconds where it is only slow"));
}

TEST(Diagnosis, TellsWhereRanksPart) {
  const std::string text =
      told({waiting(), seen(State::waiting, "", "barrier of group 'world' for the end", 2), waiting()});
  EXPECT_THAT(text, HasSubstr("  ranks 0, 2 wait in all_gather"));
  EXPECT_THAT(text, HasSubstr("  rank 1 waits in barrier of group 'world' for the end, for 2 s\n"));
  EXPECT_THAT(text, EndsWith("all ranks must make the same calls in the same order: see where they part"));
}

TEST(Diagnosis, TellsWhoFailedOrEnded) {
  std::string text = told({waiting(), seen(State::failed, "step 12, save"), seen(State::ended, "")});
  EXPECT_THAT(text, HasSubstr("  rank 1 failed in step 12, save\n  rank 2 has ended\n"));
  EXPECT_THAT(text, EndsWith("\nsee what rank 1 said"));
  text = told({waiting(), seen(State::ended, ""), seen(State::ended, "")});
  EXPECT_THAT(text, HasSubstr("  ranks 1, 2 have ended\n"));
}

TEST(Diagnosis, TellsWhoNeverCame) {
  EXPECT_THAT(told({waiting(), Sighting{}}), HasSubstr("  rank 1 was never heard from\n"));
}

TEST(Diagnosis, DoesNotAccuseAnyoneWhereAllWait) {
  EXPECT_THAT(told({waiting(), waiting()}), EndsWith("see that the ranks can reach each other"));
}

TEST(Diagnosis, StaysShort) {
  std::vector<Sighting> sightings{waiting()};
  for (int rank = 1; rank < 100; ++rank)
    sightings.push_back(seen(State::working, "file " + std::to_string(rank)));
  const std::string text = told(sightings);
  EXPECT_THAT(text, HasSubstr("\n  and 91 more such lines\n"));
  EXPECT_THAT(text, HasSubstr("\n  rank 0 waits in "));
  EXPECT_THAT(text, HasSubstr("see what keeps ranks 1-99,"));
}

TEST(Diagnosis, TellsOfOneRank) {
  EXPECT_EQ(last_seen(*lost().last, kNow), "last heard from 601 s ago, in step 12, backward");
  EXPECT_EQ(place_of({}), "no collective");
}

}  // namespace
}  // namespace trireme::comm
