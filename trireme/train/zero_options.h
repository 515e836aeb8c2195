// The options under "zero_optimization".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "trireme/core/async_file.h"
#include "trireme/core/residence.h"
#include "trireme/train/json_reader.h"
#include "trireme/zero/schedule.h"

namespace trireme::train {

/// Where partitioned states are kept between their uses.
struct OffloadOptions {
  core::Residence device = core::Residence::device;
  std::string nvme_path;                             ///< with `disk`: an existing directory
  core::IoEngine io = core::IoEngine::automatic;     ///< with `disk`
  bool pin_memory = false;                           ///< page-locked buffers, where there is a GPU
  int64_t buffer_count = 0;                          ///< with `disk`: buffers in memory,
  int64_t buffer_size = 0;                           ///< each of so many elements
  bool pipeline_read = true, pipeline_write = true;  ///< the optimizer's: beside its computation
};

/// What is partitioned over the ranks, and when it comes and goes.
struct ZeroOptions {
  int64_t stage = 3;
  zero::Schedule schedule;
  int64_t persistence_threshold = 100'000;  ///< smaller parameters are replicated under stage 3 too
  bool log_trace_cache_warnings = false;    ///< tell where the order of units changed
  OffloadOptions parameters{.buffer_count = 5, .buffer_size = 100'000'000};
  OffloadOptions optimizer{.buffer_count = 12, .buffer_size = 10'000'000};
};

/// Reads the object under "zero_optimization" of `options`. Throws as `parse_options`.
ZeroOptions read_zero_options(const ObjectReader& options);

nlohmann::json zero_options_to_json(const ZeroOptions& zero);

/// Throws `ValueError` where a directory that options name is none.
void check_offload_paths(const ZeroOptions& options);

}  // namespace trireme::train
