// Why a collective did not finish, told from where every rank was.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/position.h"

namespace trireme::comm {

/// What is known of one rank.
struct Sighting {
  std::optional<Heartbeat> last;  ///< nothing: there never was one
  bool is_alive = false;          ///< there were heartbeats while somebody looked for them
};

/// "step 12, backward", "barrier of group 'world' for the end of the run (saving)".
std::string place_of(const Whereabouts& whereabouts);

/// "last heard from 0.3 s ago, in step 12, backward". `now` are seconds since 1970, as everywhere here, and
/// tell how long ago that was as well as the machines' clocks agree.
std::string last_seen(const Heartbeat& heartbeat, double now);

/// A text of several lines: what `reporter` met with (`reason`), each rank's whereabouts, those first that
/// did not come to the collective, and what to do. `sightings` is by rank.
std::string diagnose(const std::vector<Sighting>& sightings, size_t reporter, const std::string& reason,
                     double now);

}  // namespace trireme::comm
