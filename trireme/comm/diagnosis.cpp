#include "trireme/comm/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/core/check.h"

namespace trireme::comm {
namespace {

using State = Whereabouts::State;

constexpr size_t kMostLines = 8;  // of a kind; more are counted

// What sets ranks apart, the most telling first.
enum class Kind { unheard, failed, ended, elsewhere, waiting };

// Ranks of which the same is told.
struct Party {
  Kind kind = Kind::waiting;
  std::string place;
  std::vector<size_t> ranks;
  double seconds = 0;  // there; the longest of the ranks
  double silence = 0;  // since the last heartbeat; the longest
};

Kind kind_of(const Sighting& sighting) {
  if (!sighting.last) return Kind::unheard;
  switch (sighting.last->whereabouts.state) {
    case State::failed:
      return Kind::failed;
    case State::ended:
      return Kind::ended;
    case State::working:
      return sighting.is_alive ? Kind::elsewhere : Kind::unheard;
    case State::waiting:
      break;
  }
  return sighting.is_alive ? Kind::waiting : Kind::unheard;
}

std::vector<Party> parties_of(const std::vector<Sighting>& sightings, double now) {
  std::map<std::pair<Kind, std::string>, Party> parties;
  for (size_t rank = 0; rank < sightings.size(); ++rank) {
    const auto& last = sightings[rank].last;
    const Kind kind = kind_of(sightings[rank]);
    const std::string place = last ? place_of(last->whereabouts) : "";
    Party& party = parties[{kind, place}];
    party.kind = kind;
    party.place = place;
    party.ranks.push_back(rank);
    if (!last) continue;
    party.seconds = std::max(party.seconds, last->whereabouts.seconds);
    party.silence = std::max(party.silence, now - last->time);
  }
  std::vector<Party> sorted;
  for (auto& [key, party] : parties) sorted.push_back(std::move(party));
  return sorted;
}

std::vector<size_t> ranks_of(const std::vector<Party>& parties, Kind kind) {
  std::vector<size_t> ranks;
  for (const Party& party : parties)
    if (party.kind == kind) ranks.insert(ranks.end(), party.ranks.begin(), party.ranks.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// "rank 3", "ranks 0, 2-7".
std::string named(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += core::concatenate(first ? ", " : "", ranks[first]);
    if (last > first) text += core::concatenate(last == first + 1 ? ", " : "-", ranks[last]);
    first = last + 1;
  }
  return text;
}

// "0.3 s", "12 s".
std::string duration(double seconds) {
  const double shown = std::max(0.0, seconds);
  return core::concatenate(shown < 9.95 ? std::round(shown * 10) / 10 : std::round(shown), " s");
}

std::string last_heard(double silence, const std::string& place) {
  return core::concatenate("last heard from ", duration(silence), " ago, in ", place);
}

std::string sentence(const Party& party) {
  const bool one = party.ranks.size() == 1;
  const std::string who = named(party.ranks), lasting = ", for " + duration(party.seconds);
  switch (party.kind) {
    case Kind::unheard:
      if (party.place.empty()) return who + (one ? " was never heard from" : " were never heard from");
      return core::concatenate(who, one ? " was " : " were ", last_heard(party.silence, party.place),
                               lasting);
    case Kind::failed:
      return core::concatenate(who, " failed in ", party.place);
    case Kind::ended:
      return who + (one ? " has ended" : " have ended");
    case Kind::elsewhere:
      return core::concatenate(who, one ? " is" : " are", " elsewhere, in ", party.place, lasting);
    case Kind::waiting:
      break;
  }
  return core::concatenate(who, one ? " waits in " : " wait in ", party.place, lasting);
}

std::string advice(const std::vector<Party>& parties) {
  if (const auto ranks = ranks_of(parties, Kind::failed); !ranks.empty())
    return "see what " + named(ranks) + " said";
  if (const auto ranks = ranks_of(parties, Kind::unheard); !ranks.empty())
    return "see whether " + named(ranks) + (ranks.size() == 1 ? " was" : " were") +
           " stopped or killed, for lack of memory perhaps, or cannot be reached any more";
  if (const auto ranks = ranks_of(parties, Kind::ended); !ranks.empty())
    return "see why " + named(ranks) + " ended before the others";
  if (const auto ranks = ranks_of(parties, Kind::elsewhere); !ranks.empty())
    return "see what keeps " + named(ranks) + ", and raise timeout_seconds where it is only slow";
  if (parties.size() > 1) return "all ranks must make the same calls in the same order: see where they part";
  return "see that the ranks can reach each other";
}

}  // namespace

std::string place_of(const Whereabouts& whereabouts) {
  const std::string& place = whereabouts.place;
  if (whereabouts.collective.empty()) return place.empty() ? "no collective" : place;
  return place.empty() ? whereabouts.collective : whereabouts.collective + " (" + place + ")";
}

std::string last_seen(const Heartbeat& heartbeat, double now) {
  return last_heard(now - heartbeat.time, place_of(heartbeat.whereabouts));
}

std::string diagnose(const std::vector<Sighting>& sightings, size_t reporter, const std::string& reason,
                     double now) {
  const auto parties = parties_of(sightings, now);
  std::string text = core::concatenate("[comm] all ranks must come to a collective in time; got \"", reason,
                                       "\" on rank ", reporter, " of ", sightings.size(), ":");
  std::map<Kind, size_t> lines;
  for (const Party& party : parties)
    if (++lines[party.kind] <= kMostLines) text += "\n  " + sentence(party);
  for (const auto& [kind, count] : lines)
    if (count > kMostLines) text += core::concatenate("\n  and ", count - kMostLines, " more such lines");
  return text + "\n" + advice(parties);
}

}  // namespace trireme::comm
