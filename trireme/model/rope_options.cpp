#include "trireme/model/rope_options.h"

#include <array>
#include <string>

#include "trireme/core/check.h"
#include "trireme/core/text.h"
#include "trireme/model/config_fields.h"

namespace trireme::model {
namespace {

using detail::Fields;
using nlohmann::json;

struct TypeName {
  std::string_view name;
  RopeType type;
};
constexpr std::array kTypeNames{TypeName{"default", RopeType::standard}, TypeName{"linear", RopeType::linear},
                                TypeName{"dynamic", RopeType::dynamic}, TypeName{"llama3", RopeType::llama3},
                                TypeName{"yarn", RopeType::yarn}};

/// The object that holds the parameters: an older `rope_scaling` goes before `rope_parameters`, as in
/// Transformers.
json parameters_of(const json& config, const Fields& fields) {
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (fields.has(key) && !fields.object(key).empty()) return config[key];
  return json::object();
}

RopeType parse_type(const Fields& parameters) {
  const char* key = parameters.contains("rope_type") ? "rope_type" : "type";
  if (!parameters.contains(key)) return RopeType::standard;
  for (const auto& [name, type] : kTypeNames)
    if (parameters.text(key) == name) return type;
  parameters.refuse(key, "the RoPE types are default, linear, dynamic, llama3 and yarn");
}

/// What zero or null stand for, the way Python's `value or fallback` reads it.
double positive_or(const Fields& parameters, const char* key, double fallback) {
  if (!parameters.has(key) || parameters.number(key) == 0) return fallback;
  return parameters.positive(key);
}

void parse_yarn(RopeOptions& options, const Fields& parameters, int64_t max_positions) {
  options.beta_fast = positive_or(parameters, "beta_fast", options.beta_fast);
  options.beta_slow = positive_or(parameters, "beta_slow", options.beta_slow);
  options.mscale = positive_or(parameters, "mscale", 0.0);
  options.mscale_all_dim = positive_or(parameters, "mscale_all_dim", 0.0);
  if (parameters.has("attention_factor")) options.attention_factor = parameters.number("attention_factor");
  options.truncate = parameters.flag_or("truncate", options.truncate);
  if (!parameters.has("factor"))  // null: as much as the positions have grown
    options.factor = static_cast<double>(max_positions) / static_cast<double>(options.original_max_positions);
}

void parse_llama3(RopeOptions& options, const Fields& parameters) {
  options.low_frequency_factor = parameters.positive("low_freq_factor");
  options.high_frequency_factor = parameters.positive("high_freq_factor");
  if (options.high_frequency_factor <= options.low_frequency_factor)
    parameters.refuse("high_freq_factor", "it must be above `low_freq_factor`");
}

void check_whole_rotation(const Fields& fields) {
  if (fields.has("partial_rotary_factor") && fields.number("partial_rotary_factor") != 1.0)
    fields.refuse("partial_rotary_factor", "only whole heads are rotated");
}

}  // namespace

RopeOptions parse_rope_options(const json& config, int64_t max_positions, int64_t head_size,
                               std::string_view file_name) {
  const Fields fields(config, file_name);
  const json object = parameters_of(config, fields);
  const std::string where = core::concatenate("the RoPE parameters of ", file_name);
  const Fields parameters(object, where);
  for (const auto& [key, value] : object.items())
    if (value.is_object()) parameters.refuse(key.c_str(), "RoPE parameters by layer type are not supported");
  check_whole_rotation(fields);
  check_whole_rotation(parameters);

  RopeOptions options;
  options.type = parse_type(parameters);
  const Fields& theta = object.contains("rope_theta") ? parameters : fields;
  if (object.contains("rope_theta") || config.contains("rope_theta"))
    options.theta = theta.positive("rope_theta");
  if (options.theta <= 1.0) theta.refuse("rope_theta", "a base above 1 is needed");
  if (options.type == RopeType::standard) return options;

  const bool null_factor = object.contains("factor") && object["factor"].is_null();
  if (options.type != RopeType::yarn || !null_factor) options.factor = parameters.positive("factor");
  if (options.type == RopeType::dynamic && head_size <= 2)
    parameters.refuse("rope_type", "dynamic RoPE needs a head size above 2");
  if (options.type == RopeType::llama3 || options.type == RopeType::yarn) {
    constexpr const char* kKey = "original_max_position_embeddings";
    options.original_max_positions = fields.has(kKey)       ? fields.size(kKey)
                                     : parameters.has(kKey) ? parameters.size(kKey)
                                                            : max_positions;
  }
  if (options.type == RopeType::yarn) parse_yarn(options, parameters, max_positions);
  if (options.type == RopeType::llama3) parse_llama3(options, parameters);
  return options;
}

}  // namespace trireme::model
