// The options under "activation_checkpointing".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "trireme/core/async_file.h"
#include "trireme/core/residence.h"
#include "trireme/model/recompute.h"
#include "trireme/train/json_reader.h"

namespace trireme::train {

/// Which of a layer's activations outlive its forward pass.
enum class CheckpointPolicy {
  none,            ///< all
  layer,           ///< the layer's input: the rest is computed again
  keep_attention,  ///< also the attention's output: its quadratic part is not computed again
};

/// Where they wait for the backward pass. Names and defaults are those of DeepSpeed's activation offload.
struct CheckpointOffload {
  core::Residence device = core::Residence::device;
  std::string nvme_path;                          ///< with `disk`: an existing directory
  core::IoEngine io = core::IoEngine::automatic;  ///< with `disk`
  bool inputs_only = false;                       ///< of all that is kept, the layers' inputs alone
  bool use_pin_memory = true;                     ///< page-locked buffers, where there is a GPU
  bool use_streams = true;                        ///< copy beside the computation, where there is a GPU
  int64_t min_offload_bytes = 1024;               ///< smaller tensors stay
  int64_t max_fwd_stash_count = 2;                ///< layers that are on their way at once
  int64_t max_cpu_buffer_pool_count = 64;         ///< buffers that wait for the next tensor
  int64_t keep_last_count = 1;                    ///< newest layers that stay
};

struct CheckpointOptions {
  CheckpointPolicy policy = CheckpointPolicy::layer;
  int64_t every = 1;  ///< the policy is that of each so many-th layer, from the first; others keep all
  CheckpointOffload offload;
};

/// As model::ForwardOptions has it.
model::Recompute recompute(CheckpointPolicy policy);

/// Reads the object under "activation_checkpointing" of `options`. Throws as `parse_options`.
CheckpointOptions read_checkpoint_options(const ObjectReader& options);

nlohmann::json checkpoint_options_to_json(const CheckpointOptions& checkpoint);

/// Throws `ValueError` where a directory that options name is none.
void check_offload_path(const CheckpointOptions& checkpoint);

}  // namespace trireme::train
