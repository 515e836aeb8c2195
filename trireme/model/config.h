// The shape of a decoder, as a Hugging Face config.json describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/model/rope_options.h"

namespace trireme::model {

enum class Architecture { llama, mistral, qwen2, qwen3 };

/// A config.json with every default filled in, as Transformers fills it for that architecture.
struct Config {
  Architecture architecture = Architecture::llama;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;   ///< divides `heads`
  int64_t head_size = 0;  ///< even; `heads * head_size` need not be `hidden_size`
  int64_t vocabulary_size = 0;
  int64_t max_positions = 0;  ///< what the model was made for; `dynamic` RoPE scales beyond it
  double norm_epsilon = 0;
  double initializer_range = 0;  ///< standard deviation of new weights
  bool tied_embeddings = false;  ///< the head is the embedding's matrix
  bool qkv_bias = false;
  bool qk_norm = false;
  RopeOptions rope;
  /// Per layer: how many tokens a token sees, itself among them; 0: all before it.
  std::vector<int64_t> windows;
  /// The token whose embedding row gets no gradient through lookups (a tied head still gives it one).
  std::optional<int64_t> padding_token;
  std::string dtype;  ///< of the weights: "float32", "bfloat16", "float16", or "" where the file does not say
  nlohmann::json source;  ///< the whole object, to be written back
};

/// Reads today's form and the older one (`rope_scaling`, `rope_theta`, `torch_dtype`, `type`). Throws
/// `ValueError` with the key and its value for everything that would compute something else than the decoder
/// here does: another architecture, activation or RoPE type, biases, dropout, quantization, odd head sizes,
/// and wrong JSON types. Keys that change nothing pass. `file_name` is what errors call the file.
Config parse_config(const nlohmann::json& source, std::string_view file_name = "config.json");

/// Throws `ValueError` where `source` holds a key that is nearly, but not quite, one that matters: for a
/// config that somebody wrote by hand. (In a model's own config.json any other key may stand.)
void refuse_misspelt_keys(const nlohmann::json& source, std::string_view file_name);

/// `parse_config` of `directory`/config.json.
Config read_config(const std::filesystem::path& directory);

/// The config.json to save beside weights of `dtype` ("float32", "bfloat16", "float16"): the source, with
/// what it left to defaults written out, so that AutoModelForCausalLM builds the same model from it.
nlohmann::json exported_config(const Config& config, std::string_view dtype);

/// As `model_type` spells it: "llama", "mistral", "qwen2", "qwen3".
std::string_view architecture_name(Architecture architecture);

}  // namespace trireme::model
