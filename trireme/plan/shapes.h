// Models by name, for plans without a model directory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "trireme/model/config.h"

namespace trireme::plan {

/// The names that `shape` knows.
std::vector<std::string_view> shape_names();

/// The fields of the model's config.json, those that matter here. Throws `ValueError` for a name that is none
/// of `shape_names`.
nlohmann::json shape(std::string_view name);

/// A decoder of GPT's proportions: heads of 128, 50304 tokens in the vocabulary, tied. Its MLP has three
/// matrices where GPT's has two, and is two thirds as wide, so that a layer has GPT's 12 E^2 parameters.
/// `hidden_size` is a multiple of 128.
nlohmann::json gpt_shape(int64_t layers, int64_t hidden_size);

/// Of all tensors; a tied head counts once.
int64_t parameter_count(const model::Config& config);

}  // namespace trireme::plan
