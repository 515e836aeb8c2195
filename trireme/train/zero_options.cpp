#include "trireme/train/zero_options.h"

#include "trireme/core/check.h"
#include "trireme/core/scratch_file.h"
#include "trireme/train/option_names.h"

namespace trireme::train {
namespace {

using core::IoEngine;
using core::Residence;
using nlohmann::json;

constexpr int64_t kMostBuffers = 1 << 16;

int64_t read_stage(const ObjectReader& zero, int64_t otherwise) {
  const json* stage = zero.any("stage");
  if (!stage) return otherwise;
  if (!stage->is_number_integer() || *stage < 0 || *stage > 3) zero.refuse("stage", "0, 1, 2 or 3");
  return stage->get<int64_t>();
}

// What DeepSpeed's users may have written down although it is always so here.
void expect_true(const ObjectReader& zero, std::string_view key, std::string_view because) {
  const json* value = zero.any(key);
  if (value && *value != true) zero.refuse(key, core::concatenate("true: ", because));
}

OffloadOptions read_offload(const ObjectReader& zero, std::string_view key, OffloadOptions offload,
                            bool has_pipeline) {
  Keys keys{"device", "nvme_path", "io", "pin_memory", "buffer_count", "buffer_size"};
  if (has_pipeline) keys.insert(keys.end(), {"pipeline_read", "pipeline_write"});
  const ObjectReader reader = zero.object(key, keys);
  offload.device = reader.choice<Residence>("device", offload.device, kResidences);
  offload.nvme_path = reader.text("nvme_path", "");
  offload.io = reader.choice<IoEngine>("io", offload.io, kEngines);
  offload.pin_memory = reader.boolean("pin_memory", offload.pin_memory);
  offload.buffer_count = reader.integer("buffer_count", offload.buffer_count, 1, kMostBuffers);
  offload.buffer_size = reader.integer("buffer_size", offload.buffer_size, 1, int64_t{1} << 40);
  if (has_pipeline) {
    offload.pipeline_read = reader.boolean("pipeline_read", offload.pipeline_read);
    offload.pipeline_write = reader.boolean("pipeline_write", offload.pipeline_write);
  }
  core::check_value(offload.device != Residence::disk || !offload.nvme_path.empty(), "[options] ",
                    reader.path_of("nvme_path"), " must name a directory where device is \"nvme\"; got none");
  return offload;
}

json offload_to_json(const OffloadOptions& offload, bool has_pipeline) {
  json out{{"device", name_of(offload.device, kResidences)},
           {"io", name_of(offload.io, kEngines)},
           {"pin_memory", offload.pin_memory},
           {"buffer_count", offload.buffer_count},
           {"buffer_size", offload.buffer_size}};
  if (!offload.nvme_path.empty()) out["nvme_path"] = offload.nvme_path;
  if (has_pipeline) {
    out["pipeline_read"] = offload.pipeline_read;
    out["pipeline_write"] = offload.pipeline_write;
  }
  return out;
}

void check_stages(const ZeroOptions& zero) {
  core::check_value(zero.parameters.device == Residence::device || zero.stage == 3,
                    "[options] zero_optimization.offload_param needs stage 3, which alone partitions "
                    "parameters; got stage ",
                    zero.stage, "; set zero_optimization.stage to 3, or leave offload_param out");
  core::check_value(zero.optimizer.device == Residence::device || zero.stage > 0,
                    "[options] zero_optimization.offload_optimizer needs stage 1, 2 or 3, which partition "
                    "the optimizer's states; got stage 0; raise zero_optimization.stage");
}

}  // namespace

ZeroOptions read_zero_options(const ObjectReader& options) {
  const ObjectReader reader = options.object(
      "zero_optimization",
      {"stage", "stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance",
       "stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save",
       "contiguous_gradients", "overlap_comm", "reduce_bucket_size", "log_trace_cache_warnings",
       "offload_param", "offload_optimizer"});
  ZeroOptions zero;
  zero.stage = read_stage(reader, zero.stage);
  auto& schedule = zero.schedule;
  schedule.prefetch_bucket_size =
      reader.integer("stage3_prefetch_bucket_size", schedule.prefetch_bucket_size, 0);
  schedule.max_live_parameters =
      reader.integer("stage3_max_live_parameters", schedule.max_live_parameters, 0);
  schedule.max_reuse_distance = reader.integer("stage3_max_reuse_distance", schedule.max_reuse_distance, 0);
  schedule.overlap_reductions = reader.boolean("overlap_comm", schedule.overlap_reductions);
  schedule.reduce_bucket_size = reader.integer("reduce_bucket_size", schedule.reduce_bucket_size, 0);
  zero.persistence_threshold =
      reader.integer("stage3_param_persistence_threshold", zero.persistence_threshold, 0);
  zero.log_trace_cache_warnings = reader.boolean("log_trace_cache_warnings", zero.log_trace_cache_warnings);
  expect_true(reader, "contiguous_gradients", "gradients always lie in one buffer");
  expect_true(reader, "stage3_gather_16bit_weights_on_model_save", "a saved model is always whole");
  zero.parameters = read_offload(reader, "offload_param", zero.parameters, false);
  zero.optimizer = read_offload(reader, "offload_optimizer", zero.optimizer, true);
  schedule.read_ahead_size = zero.parameters.buffer_count * zero.parameters.buffer_size;
  check_stages(zero);
  return zero;
}

json zero_options_to_json(const ZeroOptions& zero) {
  return {{"stage", zero.stage},
          {"stage3_prefetch_bucket_size", zero.schedule.prefetch_bucket_size},
          {"stage3_max_live_parameters", zero.schedule.max_live_parameters},
          {"stage3_max_reuse_distance", zero.schedule.max_reuse_distance},
          {"stage3_param_persistence_threshold", zero.persistence_threshold},
          {"overlap_comm", zero.schedule.overlap_reductions},
          {"reduce_bucket_size", zero.schedule.reduce_bucket_size},
          {"log_trace_cache_warnings", zero.log_trace_cache_warnings},
          {"offload_param", offload_to_json(zero.parameters, false)},
          {"offload_optimizer", offload_to_json(zero.optimizer, true)}};
}

void check_offload_paths(const ZeroOptions& options) {
  const auto check = [](const OffloadOptions& offload, std::string_view name) {
    core::check_value(offload.device != Residence::disk || core::can_hold_scratch_files(offload.nvme_path),
                      "[options] zero_optimization.", name,
                      ".nvme_path must be a directory in which files can be made; got ", offload.nvme_path,
                      "; make it, on a disk with room for the states");
  };
  check(options.parameters, "offload_param");
  check(options.optimizer, "offload_optimizer");
}

}  // namespace trireme::train
