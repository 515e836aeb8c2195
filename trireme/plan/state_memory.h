// Bytes of parameters, gradients and optimizer states on one rank, as zero/ keeps them.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/core/residence.h"
#include "trireme/plan/setting.h"

namespace trireme::plan {

/// Bytes by where they are.
struct Places {
  int64_t device = 0, host = 0, disk = 0;

  /// On a CPU the host is the device.
  void add(core::Residence where, bool on_cpu, int64_t bytes);
};

/// What one unit holds.
struct UnitMemory {
  Places parameters;           ///< values, or shards of them
  Places optimizer;            ///< masters and both moments
  Places gradients;            ///< that are there from the first step on
  int64_t whole_gradient = 0;  ///< stage 1: that comes with the backward pass and goes with the step
  int64_t gathered_elements = 0, gathered = 0;  ///< while it is gathered, beyond its shard
  int64_t collected = 0;  ///< stage 2 and 3: gradients of a pass, until they are reduced
  int64_t received = 0;   ///< the same, as they arrive from the other ranks
};

/// In the order of the forward pass, as model::plan_units names them.
std::vector<UnitMemory> unit_memory(const Setting& setting);

/// Bytes of units that are gathered at once, at most, by the schedule.
int64_t gathered_at_once(const Setting& setting, const std::vector<UnitMemory>& units);

}  // namespace trireme::plan
