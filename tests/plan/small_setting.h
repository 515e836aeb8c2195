// A model whose parameters can be counted by hand.
#pragma once

#include <string>

#include "trireme/plan/setting.h"

namespace trireme::plan {

// q, k and v 3 x 64 x 64, the output 64 x 64, gate and up 2 x 128 x 64, down 64 x 128, two norms of 64.
inline constexpr int64_t kLayerElements = 3 * 4096 + 4096 + 2 * 8192 + 8192 + 2 * 64;
// Two layers, embedding and head 64 x 64 each, a norm of 64. No unit needs padding on 1, 2 or 4 ranks.
inline constexpr int64_t kElements = 2 * kLayerElements + 2 * 4096 + 64;

/// On one rank of a CPU, in fp32, ZeRO stage 3, everything partitioned.
inline Setting small_setting(const std::string& type = "llama") {
  const nlohmann::json config{
      {"model_type", type},       {"vocab_size", 64},       {"hidden_size", 64},
      {"intermediate_size", 128}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
      {"num_key_value_heads", 4}, {"head_dim", 16},         {"tie_word_embeddings", false}};
  return {.config = model::parse_config(config), .rules = {}, .sequence = 256};
}

}  // namespace trireme::plan
