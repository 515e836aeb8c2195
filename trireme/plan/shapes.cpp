#include "trireme/plan/shapes.h"

#include <array>

#include "trireme/core/check.h"
#include "trireme/model/parameters.h"

namespace trireme::plan {
namespace {

using nlohmann::json;

struct Shape {
  std::string_view name, type;
  int64_t hidden, inner, layers, heads, kv_heads, vocabulary;
};

// meta-llama/Llama-3.1-8B, meta-llama/Llama-3.3-70B-Instruct, Qwen/Qwen3-8B and Qwen/Qwen3-32B.
constexpr std::array kShapes{Shape{"meta-llama-8b", "llama", 4096, 14336, 32, 32, 8, 128256},
                             Shape{"meta-llama-70b", "llama", 8192, 28672, 80, 64, 8, 128256},
                             Shape{"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 151936},
                             Shape{"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 151936}};
constexpr int64_t kHeadSize = 128;  // of all of them

json fields(const Shape& shape) {
  return {{"model_type", shape.type},
          {"hidden_size", shape.hidden},
          {"intermediate_size", shape.inner},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads},
          {"num_key_value_heads", shape.kv_heads},
          {"head_dim", kHeadSize},
          {"vocab_size", shape.vocabulary},
          {"tie_word_embeddings", false}};
}

}  // namespace

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

json shape(std::string_view name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return fields(shape);
    known += core::concatenate(known.empty() ? "" : ", ", shape.name);
  }
  core::check_value(false, "[plan] a model's name must be one of ", known, "; got ", name,
                    "; describe another one by model.path or model.config");
  return {};
}

json gpt_shape(int64_t layers, int64_t hidden_size) {
  core::check_internal(hidden_size % kHeadSize == 0, "[plan] the hidden size must be a multiple of ",
                       kHeadSize, "; got ", hidden_size);
  const int64_t heads = hidden_size / kHeadSize, inner = (8 * heads + 1) / 3 * kHeadSize;
  json config = fields({"", "llama", hidden_size, inner, layers, heads, heads, 50304});
  config["tie_word_embeddings"] = true;
  return config;
}

int64_t parameter_count(const model::Config& config) {
  int64_t count = 0;
  for (const auto& unit : model::plan_units(config))
    for (const auto& spec : unit.specs()) count += spec.numel();
  return count;
}

}  // namespace trireme::plan
