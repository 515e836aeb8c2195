#include "trireme/model/config.h"

#include <algorithm>
#include <array>
#include <string>
#include <system_error>
#include <vector>

#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/text.h"
#include "trireme/model/config_fields.h"

namespace trireme::model {
namespace {

using detail::Fields;
using nlohmann::json;

struct Known {
  Architecture architecture;
  std::string_view model_type;
  std::string_view class_name;
};
constexpr std::array kKnown{
    Known{Architecture::llama, "llama", "LlamaForCausalLM"},
    Known{Architecture::mistral, "mistral", "MistralForCausalLM"},
    Known{Architecture::qwen2, "qwen2", "Qwen2ForCausalLM"},
    Known{Architecture::qwen3, "qwen3", "Qwen3ForCausalLM"},
};

const Known& known(Architecture architecture) {
  for (const auto& entry : kKnown)
    if (entry.architecture == architecture) return entry;
  core::check_internal(false, "[model] unknown architecture ", static_cast<int>(architecture));
  return kKnown[0];
}

bool is_qwen(Architecture architecture) {
  return architecture == Architecture::qwen2 || architecture == Architecture::qwen3;
}

/// What Transformers takes for fields that are not there. (RoPE's defaults are in rope_options.)
json defaults(Architecture architecture) {
  json result = {{"vocab_size", 32000},         {"hidden_size", 4096},
                 {"intermediate_size", 11008},  {"num_hidden_layers", 32},
                 {"num_attention_heads", 32},   {"num_key_value_heads", nullptr},
                 {"hidden_act", "silu"},        {"max_position_embeddings", 2048},
                 {"initializer_range", 0.02},   {"rms_norm_eps", 1e-6},
                 {"tie_word_embeddings", false}};
  if (architecture == Architecture::mistral)
    result.update({{"intermediate_size", 14336},
                   {"num_key_value_heads", 8},
                   {"max_position_embeddings", 131072},
                   {"sliding_window", 4096}});
  if (is_qwen(architecture))
    result.update({{"vocab_size", 151936},
                   {"intermediate_size", 22016},
                   {"num_key_value_heads", 32},
                   {"max_position_embeddings", 32768},
                   {"use_sliding_window", false},
                   {"sliding_window", 4096},
                   {"max_window_layers", 28}});
  if (architecture == Architecture::qwen3) result["head_dim"] = 128;
  return result;
}

/// From `model_type`, or where that lacks from the class in `architectures`; both must agree.
Architecture parse_architecture(const Fields& fields) {
  constexpr std::string_view kRule =
      "the architectures are llama, mistral, qwen2 and qwen3, as causal language models";
  const Known* found = nullptr;
  const bool has_classes = fields.has("architectures") && !fields.array("architectures").empty();
  if (fields.has("model_type")) {
    for (const auto& entry : kKnown)
      if (fields.text("model_type") == entry.model_type) found = &entry;
    if (!found) fields.refuse("model_type", kRule);
  } else if (has_classes) {
    for (const auto& entry : kKnown)
      if (fields.array("architectures").front() == entry.class_name) found = &entry;
    if (!found) fields.refuse("architectures", kRule);
  } else {
    fields.refuse("model_type", kRule);
  }
  if (has_classes)
    for (const json& name : fields.array("architectures"))
      if (name != found->class_name)
        fields.refuse("architectures",
                      core::concatenate("a ", found->model_type, " model is a ", found->class_name));
  return found->architecture;
}

/// Options that change what is computed, and the one value that stands for what is computed here.
void refuse_other_computations(const json& config, const Fields& fields, Architecture architecture) {
  const auto only = [&](const char* key, const json& neutral) {
    if (fields.has(key) && config[key] != neutral)
      fields.refuse(key, core::concatenate("only ", neutral.dump(), " is supported here"));
  };
  if (fields.text("hidden_act") != "silu") fields.refuse("hidden_act", "only silu is supported here");
  only("attention_dropout", 0);
  only("pretraining_tp", 1);
  only("is_causal", true);
  only("is_encoder_decoder", false);
  only("add_cross_attention", false);
  only("quantization_config", nullptr);
  only("per_layer_config", nullptr);
  if (architecture == Architecture::llama || architecture == Architecture::qwen3) {
    only("attention_bias", false);
    only("mlp_bias", false);
  }
}

/// How large a head is: what the file says, or else its share of the hidden size.
int64_t parse_head_size(const Config& config, const Fields& fields) {
  // Qwen3's default is 128, whatever the hidden size; null is an error there, and in the others "not given".
  const bool is_given = fields.has("head_dim") || config.architecture == Architecture::qwen3;
  const bool divides = config.hidden_size % config.heads == 0;
  const bool must_divide = !is_given || config.architecture == Architecture::llama;  // as in Transformers
  const auto sizes =
      core::concatenate("hidden_size ", config.hidden_size, ", num_attention_heads ", config.heads);
  if (!divides && must_divide)
    fields.refuse_together(core::concatenate("hidden_size must be a multiple of num_attention_heads",
                                             is_given ? " in a llama model" : " unless head_dim is given"),
                           sizes, "change one of them");
  const int64_t size = is_given ? fields.size("head_dim") : config.hidden_size / config.heads;
  if (size % 2 != 0)
    fields.refuse_together("a head must have an even size, since RoPE turns pairs of its numbers",
                           is_given ? core::concatenate("head_dim ", size)
                                    : core::concatenate(sizes, ", which make heads of ", size),
                           "change the sizes");
  return size;
}

void parse_sizes(Config& config, const Fields& fields) {
  config.hidden_size = fields.size("hidden_size");
  config.intermediate_size = fields.size("intermediate_size");
  config.layers = fields.size("num_hidden_layers", 1 << 16);
  config.heads = fields.size("num_attention_heads");
  config.kv_heads = fields.has("num_key_value_heads") ? fields.size("num_key_value_heads") : config.heads;
  config.vocabulary_size = fields.size("vocab_size");
  config.max_positions = fields.size("max_position_embeddings", int64_t{1} << 40);
  if (config.heads % config.kv_heads != 0)
    fields.refuse_together(
        "num_attention_heads must be a multiple of num_key_value_heads",
        core::concatenate("num_attention_heads ", config.heads, ", num_key_value_heads ", config.kv_heads),
        "change one of them");
  config.head_size = parse_head_size(config, fields);
  if (config.heads > Fields::kLargestSize / config.head_size)
    fields.refuse("num_attention_heads",
                  core::concatenate("heads times the head size are at most ", Fields::kLargestSize));
}

/// The layers' names where the file lists them, one a layer; empty where it does not.
std::vector<std::string> parse_layer_types(const Fields& fields, int64_t layers) {
  std::vector<std::string> types;
  if (!fields.has("layer_types")) return types;
  for (const json& type : fields.array("layer_types")) {
    if (type == "full_attention" || type == "attention") {  // the second is an older name
      types.emplace_back("full_attention");
    } else if (type == "sliding_attention") {
      types.emplace_back("sliding_attention");
    } else {
      fields.refuse("layer_types", "the layer types are full_attention and sliding_attention");
    }
  }
  if (static_cast<int64_t>(types.size()) != layers)
    fields.refuse("layer_types", core::concatenate("one type a layer is needed, ", layers, " in all"));
  return types;
}

/// Llama sees everything, Mistral has one window for all layers, Qwen has it where the layer's type says so.
void parse_windows(Config& config, const Fields& fields) {
  const bool qwen = is_qwen(config.architecture);
  const bool windowed =
      qwen ? fields.flag("use_sliding_window") : config.architecture == Architecture::mistral;
  const int64_t window =
      windowed && fields.has("sliding_window") ? fields.size("sliding_window", int64_t{1} << 40) : 0;
  const int64_t first = qwen ? fields.integer("max_window_layers") : 0;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    config.windows.push_back(layer >= first ? window : 0);

  const auto types = parse_layer_types(fields, config.layers);
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const bool sliding = types[layer] == "sliding_attention";
    if (sliding && window == 0)
      fields.refuse("layer_types", "a sliding layer needs a window, which the other fields do not give");
    if (!sliding && window != 0 && !qwen)
      fields.refuse("layer_types", "every layer has the window here: set `sliding_window` to null");
    config.windows[layer] = sliding ? window : 0;
  }
}

void parse_rest(Config& config, const Fields& fields) {
  config.norm_epsilon = fields.number("rms_norm_eps");
  if (config.norm_epsilon < 0) fields.refuse("rms_norm_eps", "it is not negative");
  config.initializer_range = fields.number("initializer_range");
  if (config.initializer_range < 0) fields.refuse("initializer_range", "it is not negative");
  config.tied_embeddings = fields.flag("tie_word_embeddings");
  if (fields.has("pad_token_id")) {
    const int64_t token = fields.integer("pad_token_id");
    if (token < -config.vocabulary_size || token >= config.vocabulary_size)
      fields.refuse("pad_token_id", "it must lie in the vocabulary");
    config.padding_token = token < 0 ? token + config.vocabulary_size : token;
  }
  const char* dtype = fields.has("dtype") ? "dtype" : "torch_dtype";
  if (!fields.has(dtype)) return;
  config.dtype = fields.text(dtype);
  if (config.dtype != "float32" && config.dtype != "bfloat16" && config.dtype != "float16")
    fields.refuse(dtype, "weights are float32, bfloat16 or float16");
}

}  // namespace

Config parse_config(const json& source, std::string_view file_name) {
  const Fields given(source, file_name);
  Config config;
  config.architecture = parse_architecture(given);
  config.source = source;
  json whole = defaults(config.architecture);
  whole.update(source);
  const Fields fields(whole, file_name);
  refuse_other_computations(whole, fields, config.architecture);
  parse_sizes(config, fields);
  parse_rest(config, fields);
  parse_windows(config, fields);
  config.rope = parse_rope_options(whole, config.max_positions, config.head_size, file_name);
  config.qkv_bias = config.architecture == Architecture::qwen2;
  config.qk_norm = config.architecture == Architecture::qwen3;
  return config;
}

void refuse_misspelt_keys(const json& source, std::string_view file_name) {
  std::vector<std::string> known{"model_type",      "architectures", "dtype",        "torch_dtype",
                                 "head_dim",        "layer_types",   "rope_theta",   "rope_scaling",
                                 "rope_parameters", "pad_token_id",  "bos_token_id", "eos_token_id",
                                 "attention_bias",  "mlp_bias",      "use_cache",    "attention_dropout"};
  for (const auto architecture : {Architecture::mistral, Architecture::qwen3}) {
    const json fields = defaults(architecture);  // `items` of a temporary would outlive it
    for (const auto& [key, value] : fields.items()) known.push_back(key);
  }
  constexpr size_t kSlip = 2;  // letters that a slip of the finger changes
  for (const auto& [key, value] : source.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string_view meant = core::nearest(key, known);
    core::check_value(meant.empty() || core::edit_distance(key, meant) > kSlip, "[model] ",
                      core::printable(key), " is not a known key of ", file_name, "; got ",
                      core::printable(value.dump()), "; did you mean ", meant, "?");
  }
}

Config read_config(const std::filesystem::path& directory) {
  std::error_code failed;
  core::check_value(std::filesystem::is_directory(directory, failed),
                    "[model] a model is a directory with config.json and weights; got ", directory.string());
  const auto path = directory / "config.json";
  return parse_config(core::read_json(path), path.string());
}

json exported_config(const Config& config, std::string_view dtype) {
  core::check_value(dtype == "float32" || dtype == "bfloat16" || dtype == "float16",
                    "[model] weights are saved as float32, bfloat16 or float16; got ", dtype);
  json result = defaults(config.architecture);
  result.update(config.source);
  result["model_type"] = known(config.architecture).model_type;
  result["architectures"] = {known(config.architecture).class_name};
  result["dtype"] = dtype;
  result.erase("torch_dtype");
  result["num_key_value_heads"] = config.kv_heads;
  if (config.architecture != Architecture::qwen2 || result.contains("head_dim"))
    result["head_dim"] = config.head_size;
  // Transformers refuses a whole number where it declares a float.
  result["rms_norm_eps"] = config.norm_epsilon;
  result["initializer_range"] = config.initializer_range;
  const bool says_rope =
      result.contains("rope_parameters") || result.contains("rope_scaling") || result.contains("rope_theta");
  if (!says_rope) result["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", config.rope.theta}};
  return result;
}

std::string_view architecture_name(Architecture architecture) { return known(architecture).model_type; }

}  // namespace trireme::model
