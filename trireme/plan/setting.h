// What the memory of a run depends on.
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/core/residence.h"
#include "trireme/model/config.h"
#include "trireme/model/parameters.h"
#include "trireme/model/recompute.h"

namespace trireme::plan {

/// Where what checkpoints keep waits, see alst/activation_offload.h.
struct ActivationPlace {
  core::Residence on = core::Residence::device;
  bool inputs_only = false;
  int64_t min_bytes = 1024;
  int64_t leaving_at_once = 2;
  int64_t keep_last = 1;
};

inline constexpr int64_t kWide = 4;  ///< bytes of fp32

struct Setting {
  model::Config config;
  model::TensorRules rules;
  bool on_cpu = true;   ///< then the device's memory is the host's
  int64_t threads = 1;  ///< that compute, on a CPU

  int64_t ranks = 1;           ///< of the whole run
  int64_t sequence_ranks = 1;  ///< that share a sequence
  int64_t batch = 1;           ///< B, rows of a micro-batch
  int64_t sequence = 0;        ///< S, tokens of a row over all its ranks
  int64_t micro_batches = 1;   ///< of an optimizer step

  bool bf16 = false;         ///< parameters and activations
  bool stored_fp32 = false;  ///< with bf16: shards in fp32, see zero::Options
  int64_t stage = 3;         ///< of ZeRO
  int64_t persistence_threshold = 0;
  int64_t max_live_parameters = 0, max_reuse_distance = 0, prefetch = 0;
  bool overlap_reductions = true;
  core::Residence parameters_on = core::Residence::device, optimizer_on = core::Residence::device;
  int64_t optimizer_buffers = 0;  ///< elements of all buffers of an optimizer on a disk
  int64_t read_ahead = 0;         ///< elements of shards read ahead of their gather from a disk

  model::Recompute recompute = model::Recompute::layer;
  int64_t recompute_every = 1;
  std::optional<int64_t> mlp_tiles, loss_tiles;  ///< as in model::ForwardOptions
  ActivationPlace activations;

  int64_t element_bytes() const { return bf16 ? 2 : kWide; }
  int64_t slice() const { return (sequence + sequence_ranks - 1) / sequence_ranks; }  ///< s
  int64_t tokens() const { return batch * slice(); }                                  ///< N = B s
};

}  // namespace trireme::plan
