// How ranks are laid out: SP ranks are neighbours, and the rest is data parallelism.
#pragma once

#include <cstdint>

#include "trireme/comm/connection.h"
#include "trireme/comm/group.h"

namespace trireme::comm {

/// Three groups that this rank belongs to. Rank r has SP rank `r % sp` and DP rank `r / sp`.
struct Mesh {
  Group world;     ///< every rank: ZeRO partitions over all of them
  Group sequence;  ///< ranks that share one sequence
  Group data;      ///< ranks that hold the same slice of different sequences

  /// Connects all ranks. `sp` must divide their number, else `core::ValueError`.
  static Mesh create(const Connection& connection, int64_t sp);
};

}  // namespace trireme::comm
