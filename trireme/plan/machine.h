// Whether a run fits into a machine.
#pragma once

#include <cstdint>
#include <limits>

#include "trireme/plan/memory_plan.h"

namespace trireme::plan {

/// What a CUDA context and NCCL's buffers take of a GPU beside the allocator's bytes: an assumption, about
/// 0.5 GiB of it the context.
inline constexpr int64_t kContextBytes = int64_t{768} << 20;

struct Machine {
  int64_t device_bytes;  ///< of each rank's device
  int64_t taken = 0;     ///< of these: by what is no tensor, such as the context or the process itself
  int64_t ranks = 1;     ///< that share the host's memory
  int64_t host_bytes = std::numeric_limits<int64_t>::max();  ///< of the whole machine

  int64_t device_share() const { return device_bytes - taken; }
  int64_t host_share() const { return host_bytes / ranks; }
};

/// `plan` as plan_memory gives it: what the process holds before the run is in `machine.taken`.
bool fits(const MemoryPlan& plan, const Machine& machine);

enum class Limit { device, host, none };

struct LongestSequence {
  int64_t tokens = 0;           ///< a multiple of the ranks that share a sequence; 0: none
  Limit limit = Limit::device;  ///< what the next longer one has too little of; none: `kMostTokens` fit
};

LongestSequence longest_sequence(const Setting& setting, const Machine& machine);

}  // namespace trireme::plan
