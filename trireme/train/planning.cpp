#include "trireme/train/planning.h"

namespace trireme::train {

plan::Setting plan_setting(const Options& options, const model::Config& config, int64_t ranks, bool on_cpu,
                           int64_t threads) {
  const auto& zero = options.zero;
  const auto& offload = options.checkpoint.offload;
  return {.config = config,
          .rules = tensor_rules(options),
          .on_cpu = on_cpu,
          .threads = threads,
          .ranks = ranks,
          .sequence_ranks = options.sequence_parallel_size,
          .batch = options.micro_batch_size,
          .sequence = options.data.sequence_length,
          .micro_batches = options.gradient_accumulation_steps,
          .bf16 = computes_in_bf16(options),
          .stored_fp32 = options.autocast,
          .stage = zero.stage,
          .persistence_threshold = zero.persistence_threshold,
          .max_live_parameters = zero.schedule.max_live_parameters,
          .max_reuse_distance = zero.schedule.max_reuse_distance,
          .prefetch = zero.schedule.prefetch_bucket_size,
          .overlap_reductions = zero.schedule.overlap_reductions,
          .parameters_on = zero.parameters.device,
          .optimizer_on = zero.optimizer.device,
          .optimizer_buffers = zero.optimizer.buffer_count * zero.optimizer.buffer_size,
          .read_ahead = zero.schedule.read_ahead_size,
          .recompute = recompute(options.checkpoint.policy),
          .recompute_every = options.checkpoint.every,
          .mlp_tiles = options.tiling.mlp_count(),
          .loss_tiles = options.tiling.loss_count(),
          .activations = {.on = offload.device,
                          .inputs_only = offload.inputs_only,
                          .min_bytes = offload.min_offload_bytes,
                          .leaving_at_once = offload.max_fwd_stash_count,
                          .keep_last = offload.keep_last_count}};
}

}  // namespace trireme::train
