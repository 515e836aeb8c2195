#include "trireme/train/option_list.h"

#include <ostream>

namespace trireme::train {

const std::vector<OptionInfo>& list_options() {
  static const std::vector<OptionInfo> options{
      {"model.path", "text", "required unless model.config is given",
       "Hugging Face model directory to start from"},
      {"model.config", "object", "required unless model.path is given",
       "fields of a config.json: the model starts from random weights"},
      {"data.path", "text", "required", "token file, made by `trireme prepare`"},
      {"data.sequence_length", "integer", "required", "tokens of a row, over all ranks that share it"},
      {"data.shuffle", "true | false", "true",
       "mix the documents anew in each epoch; the order depends on the seed, not on the number of ranks"},
      {"steps", "integer", "required", "optimizer steps"},
      {"seed", "integer", "1", "of random weights and of the order of documents"},
      {"output", "text", "runs/NAME for NAME.json", "directory of metrics.jsonl and the trained model"},
      {"device", "auto | cpu | cuda", "auto", "auto: an accelerator where there is one"},
      {"sequence_parallel_size", "integer", "1", "ranks that share each sequence"},
      {"train_micro_batch_size_per_gpu", "integer", "1", "rows at once of the ranks that share a sequence"},
      {"gradient_accumulation_steps", "integer", "1", "micro-batches of an optimizer step"},
      {"train_batch_size", "integer", "computed",
       "rows of an optimizer step; if given, it must be train_micro_batch_size_per_gpu x "
       "gradient_accumulation_steps x (ranks / sequence_parallel_size)"},
      {"gradient_clipping", "number", "1.0", "largest gradient norm; 0: no clipping"},
      {"optimizer.type", "AdamW | Adam", "AdamW", "both decouple the weight decay, as in DeepSpeed"},
      {"optimizer.params.lr", "number", "1e-4", "learning rate"},
      {"optimizer.params.betas", "[number, number]", "[0.9, 0.95]", "decay rates of the two moments"},
      {"optimizer.params.eps", "number", "1e-8", "added to the root of the second moment"},
      {"optimizer.params.weight_decay", "number", "0.1", "of matrices, not of norms and biases"},
      {"scheduler.type", "WarmupLR | WarmupDecayLR | WarmupCosineLR | OneCycle", "constant rate",
       "how the learning rate moves, as in DeepSpeed"},
      {"scheduler.params.warmup_min_lr", "number", "0", "WarmupLR, WarmupDecayLR: first and last rate"},
      {"scheduler.params.warmup_max_lr", "number", "optimizer.params.lr for WarmupLR, 1e-3 for WarmupDecayLR",
       "WarmupLR, WarmupDecayLR: largest rate"},
      {"scheduler.params.warmup_min_ratio", "number", "0", "WarmupCosineLR: first rate, as a share of lr"},
      {"scheduler.params.cos_min_ratio", "number", "1e-4", "WarmupCosineLR: last rate, as a share of lr"},
      {"scheduler.params.warmup_num_steps", "integer", "1000", "Warmup...: steps of the rise"},
      {"scheduler.params.warmup_type", "log | linear", "log", "Warmup...: shape of the rise"},
      {"scheduler.params.total_num_steps", "integer", "the option steps",
       "WarmupDecayLR, WarmupCosineLR: end of the decay"},
      {"scheduler.params.cycle_min_lr", "number", "cycle_max_lr / 10",
       "OneCycle: rate at both ends of the cycle"},
      {"scheduler.params.cycle_max_lr", "number", "optimizer.params.lr",
       "OneCycle: rate at the top of the cycle"},
      {"scheduler.params.cycle_first_step_size", "integer", "2000", "OneCycle: steps up"},
      {"scheduler.params.cycle_second_step_size", "integer", "cycle_first_step_size", "OneCycle: steps down"},
      {"scheduler.params.cycle_first_stair_count", "integer", "0",
       "OneCycle: flat stairs going up; 0: a line"},
      {"scheduler.params.cycle_second_stair_count", "integer", "cycle_first_stair_count",
       "OneCycle: flat stairs going down"},
      {"scheduler.params.decay_step_size", "integer", "0", "OneCycle: unit of the decay after it; 0: none"},
      {"scheduler.params.decay_lr_rate", "number", "0",
       "OneCycle: rate / (1 + this x units after the cycle)"},
      {"scheduler.params.cycle_momentum", "true | false", "true", "OneCycle: move beta 1 against the rate"},
      {"scheduler.params.cycle_min_mom", "number", "0.8", "OneCycle: beta 1 at the top of the cycle"},
      {"scheduler.params.cycle_max_mom", "number", "0.9", "OneCycle: beta 1 at the ends of the cycle"},
      {"scheduler.params.decay_mom_rate", "number", "0",
       "OneCycle: beta 1 x (1 + this x units after the cycle)"},
      {"bf16.enabled", "true | false", "false", "bf16 parameters and activations, fp32 masters"},
      {"fp16.enabled", "false", "false", "fp16 is not supported: use bf16"},
      {"communication_data_type", "fp32 | bf16", "fp32",
       "dtype that gradients are reduced in; bf16 needs bf16"},
      {"zero_optimization.stage", "0 | 1 | 2 | 3", "3",
       "partition: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters"},
      {"zero_optimization.stage3_prefetch_bucket_size", "integer", "5e7",
       "elements in flight ahead of their use; 0: none"},
      {"zero_optimization.stage3_max_live_parameters", "integer", "1e9",
       "elements gathered at once; beyond, nothing ahead and nothing kept"},
      {"zero_optimization.stage3_max_reuse_distance", "integer", "1e9",
       "keep what is used again within so many elements; 0: nothing"},
      {"zero_optimization.overlap_comm", "true | false", "true",
       "reduce gradients beside the rest of the backward pass"},
      {"zero_optimization.reduce_bucket_size", "integer", "5e8",
       "elements of gradients that may be in reduction at once"},
      {"zero_optimization.log_trace_cache_warnings", "true | false", "false",
       "tell when units are used in another order than before"},
      {"activation_checkpointing.policy", "none | layer | keep_attention", "layer",
       "recompute nothing, whole layers, or layers but for their attention"},
      {"tiling.mlp", "auto | off | integer", "auto", "tiles of the MLP over the tokens"},
      {"tiling.loss", "auto | off | integer", "auto", "tiles of logits and loss over the tokens"},
      {"timeout_seconds", "number", "600", "longest wait for the other ranks"},
  };
  return options;
}

void print_options(std::ostream& out) {
  out << "Options of run.json, and of --set KEY=VALUE:\n";
  for (const OptionInfo& option : list_options()) {
    const bool required = option.otherwise.starts_with("required");
    out << "\n  " << option.path << "  (" << option.type << "; " << (required ? "" : "default: ")
        << option.otherwise << ")\n      " << option.meaning << '\n';
  }
}

}  // namespace trireme::train
