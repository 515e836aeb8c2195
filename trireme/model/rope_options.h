// How positions become rotations, as a Hugging Face config.json says it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace trireme::model {

/// `standard` is what config.json calls "default".
enum class RopeType { standard, linear, dynamic, llama3, yarn };

/// The values that Transformers computes the frequencies from, defaults filled in. A field that the type does
/// not use keeps the value below. Base and head size in hand, frequency i of D/2 starts as `theta^(-2i/D)`.
struct RopeOptions {
  RopeType type = RopeType::standard;
  double theta = 10000.0;
  double factor = 1.0;                 ///< linear, dynamic, llama3, yarn
  int64_t original_max_positions = 0;  ///< llama3, yarn: positions before scaling
  double low_frequency_factor = 1.0;   ///< llama3
  double high_frequency_factor = 4.0;  ///< llama3; above `low_frequency_factor`
  double beta_fast = 32.0;             ///< yarn
  double beta_slow = 1.0;              ///< yarn
  std::optional<double>
      attention_factor;         ///< yarn; where nothing, it follows from factor and the two mscales
  double mscale = 0.0;          ///< yarn; 0 is "not given"
  double mscale_all_dim = 0.0;  ///< yarn; 0 is "not given"
  bool truncate = true;         ///< yarn: round the range of corrected dimensions outwards
};

/// Reads `rope_parameters`, or the older `rope_scaling` and `rope_theta`, of a whole config.json.
/// `max_positions` and `head_size` are the config's. Throws `ValueError`, naming key and value, for other
/// types ("longrope", ...), parameters by layer type, a partial rotation, missing fields, and values that
/// give no frequencies.
RopeOptions parse_rope_options(const nlohmann::json& config, int64_t max_positions, int64_t head_size,
                               std::string_view file_name);

}  // namespace trireme::model
