#include "trireme/train/checkpoint_options.h"

#include "trireme/core/check.h"
#include "trireme/core/scratch_file.h"
#include "trireme/train/option_names.h"

namespace trireme::train {
namespace {

using core::Residence;
using nlohmann::json;

constexpr int64_t kMostLayers = int64_t{1} << 20;
constexpr Choices<CheckpointPolicy, 3> kPolicies{{{"none", CheckpointPolicy::none},
                                                  {"layer", CheckpointPolicy::layer},
                                                  {"keep_attention", CheckpointPolicy::keep_attention}}};
constexpr Choices<bool, 2> kOffloaded{{{"all", false}, {"inputs", true}}};

CheckpointOffload read_offload(const ObjectReader& checkpointing) {
  const ObjectReader reader = checkpointing.object(
      "offload", {"device", "nvme_path", "io", "what", "use_pin_memory", "use_streams", "min_offload_bytes",
                  "max_fwd_stash_count", "max_cpu_buffer_pool_count", "keep_last_count"});
  CheckpointOffload offload;
  offload.device = reader.choice<Residence>("device", offload.device, kResidences);
  offload.nvme_path = reader.text("nvme_path", "");
  offload.io = reader.choice<core::IoEngine>("io", offload.io, kEngines);
  offload.inputs_only = reader.choice<bool>("what", offload.inputs_only, kOffloaded);
  offload.use_pin_memory = reader.boolean("use_pin_memory", offload.use_pin_memory);
  offload.use_streams = reader.boolean("use_streams", offload.use_streams);
  offload.min_offload_bytes = reader.integer("min_offload_bytes", offload.min_offload_bytes, 0);
  offload.max_fwd_stash_count =
      reader.integer("max_fwd_stash_count", offload.max_fwd_stash_count, 0, kMostLayers);
  offload.max_cpu_buffer_pool_count =
      reader.integer("max_cpu_buffer_pool_count", offload.max_cpu_buffer_pool_count, 0, kMostLayers);
  offload.keep_last_count = reader.integer("keep_last_count", offload.keep_last_count, 0, kMostLayers);
  core::check_value(offload.device != Residence::disk || !offload.nvme_path.empty(), "[options] ",
                    reader.path_of("nvme_path"), " must name a directory where device is \"nvme\"; got none");
  return offload;
}

json offload_to_json(const CheckpointOffload& offload) {
  json out{{"device", name_of(offload.device, kResidences)},
           {"io", name_of(offload.io, kEngines)},
           {"what", name_of(offload.inputs_only, kOffloaded)},
           {"use_pin_memory", offload.use_pin_memory},
           {"use_streams", offload.use_streams},
           {"min_offload_bytes", offload.min_offload_bytes},
           {"max_fwd_stash_count", offload.max_fwd_stash_count},
           {"max_cpu_buffer_pool_count", offload.max_cpu_buffer_pool_count},
           {"keep_last_count", offload.keep_last_count}};
  if (!offload.nvme_path.empty()) out["nvme_path"] = offload.nvme_path;
  return out;
}

}  // namespace

model::Recompute recompute(CheckpointPolicy policy) {
  switch (policy) {
    case CheckpointPolicy::none:
      return model::Recompute::nothing;
    case CheckpointPolicy::layer:
      return model::Recompute::layer;
    case CheckpointPolicy::keep_attention:
      return model::Recompute::all_but_attention;
  }
  return {};
}

CheckpointOptions read_checkpoint_options(const ObjectReader& options) {
  const ObjectReader reader = options.object("activation_checkpointing", {"policy", "every", "offload"});
  CheckpointOptions checkpoint;
  checkpoint.policy = reader.choice<CheckpointPolicy>("policy", checkpoint.policy, kPolicies);
  checkpoint.every = reader.integer("every", checkpoint.every, 1, kMostLayers);
  checkpoint.offload = read_offload(reader);
  core::check_value(
      checkpoint.policy != CheckpointPolicy::none || checkpoint.offload.device == Residence::device,
      "[options] activation_checkpointing.offload moves what checkpoints keep; got policy \"none\", under "
      "which there are none; set activation_checkpointing.policy to \"layer\" or \"keep_attention\"");
  return checkpoint;
}

json checkpoint_options_to_json(const CheckpointOptions& checkpoint) {
  return {{"policy", name_of(checkpoint.policy, kPolicies)},
          {"every", checkpoint.every},
          {"offload", offload_to_json(checkpoint.offload)}};
}

void check_offload_path(const CheckpointOptions& checkpoint) {
  core::check_value(checkpoint.offload.device != Residence::disk ||
                        core::can_hold_scratch_files(checkpoint.offload.nvme_path),
                    "[options] activation_checkpointing.offload.nvme_path must be a directory in which files "
                    "can be made; got ",
                    checkpoint.offload.nvme_path, "; make it, on a disk with room for the activations");
}

}  // namespace trireme::train
