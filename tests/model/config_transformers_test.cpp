// The same config.json files read here and by Transformers: config_check.py holds the cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/python.h"
#include "trireme/core/check.h"
#include "trireme/model/config.h"

namespace trireme::model {
namespace {

using nlohmann::json;

std::vector<json> lines_of(const std::string& arguments) {
  const auto result = testing::run_python("config_check.py", arguments);
  EXPECT_EQ(result.status, 0) << result.output;
  std::vector<json> lines;
  std::istringstream text(result.output);
  for (std::string line; std::getline(text, line);)
    if (line.starts_with('{')) lines.push_back(json::parse(line));
  return lines;
}

/// The rotary frequencies, straight from the formulas, in double.
std::vector<double> frequencies(const Config& config) {
  const RopeOptions& rope = config.rope;
  const auto size = static_cast<double>(config.head_size);
  const auto original = static_cast<double>(rope.original_max_positions);
  const auto turn_dimension = [&](double turns) {
    return size * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = turn_dimension(rope.beta_fast), high = turn_dimension(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  std::vector<double> result;
  for (int64_t i = 0; i < config.head_size / 2; ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / size),
                 scaled = plain / rope.factor;
    const double turns = original * plain / (2 * std::numbers::pi);
    const double smooth = std::clamp(
        (turns - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor), 0.0,
        1.0);
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    switch (rope.type) {
      case RopeType::standard:
      case RopeType::dynamic:
        result.push_back(plain);
        break;  // dynamic: as plain up to max_positions
      case RopeType::linear:
        result.push_back(scaled);
        break;
      case RopeType::llama3:
        result.push_back((1 - smooth) * scaled + smooth * plain);
        break;
      case RopeType::yarn:
        result.push_back(ramp * scaled + (1 - ramp) * plain);
        break;
    }
  }
  return result;
}

double scaling(const RopeOptions& rope) {
  const auto scale = [&](double weight) {
    return rope.factor <= 1 ? 1.0 : 0.1 * weight * std::log(rope.factor) + 1;
  };
  if (rope.type != RopeType::yarn) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  return rope.mscale != 0 && rope.mscale_all_dim != 0 ? scale(rope.mscale) / scale(rope.mscale_all_dim)
                                                      : scale(1.0);
}

void expect_same(const Config& config, const json& expected) {
  const json mine{{"hidden_size", config.hidden_size},
                  {"intermediate_size", config.intermediate_size},
                  {"layers", config.layers},
                  {"heads", config.heads},
                  {"kv_heads", config.kv_heads},
                  {"head_size", config.head_size},
                  {"vocabulary_size", config.vocabulary_size},
                  {"max_positions", config.max_positions},
                  {"norm_epsilon", config.norm_epsilon},
                  {"initializer_range", config.initializer_range},
                  {"tied_embeddings", config.tied_embeddings},
                  {"windows", config.windows},
                  {"dtype", config.dtype}};
  for (const auto& [key, value] : mine.items()) EXPECT_EQ(value, expected[key]) << key;
  EXPECT_EQ(config.padding_token ? json(*config.padding_token) : json(), expected["padding_token"]);
  EXPECT_EQ(config.rope.theta, expected["rope"]["theta"]);
  EXPECT_NEAR(scaling(config.rope), expected["scaling"], 1e-12);
  const auto mine_frequencies = frequencies(config);
  ASSERT_EQ(mine_frequencies.size(), expected["frequencies"].size());
  for (size_t i = 0; i < mine_frequencies.size(); ++i)
    EXPECT_NEAR(mine_frequencies[i] / expected["frequencies"][i].get<double>(), 1.0, 2e-5) << i;
}

/// Transformers refuses null for these two; here null means that they are not given.
bool null_is_milder_here(const json& config) {
  const auto null_in = [&](const char* type, const char* key) {
    return config["model_type"] == type && config.contains(key) && config[key].is_null();
  };
  return null_in("qwen2", "head_dim") || null_in("mistral", "num_key_value_heads");
}

TEST(ConfigAgainstTransformers, ReadsAndWritesAlike) {
  const testing::TemporaryDirectory directory;
  const auto cases = lines_of("expected");
  ASSERT_GT(cases.size(), 150u);
  std::vector<json> expected;
  std::string directories;
  for (const json& one : cases) {
    SCOPED_TRACE(one["config"].dump());
    if (one["expected"].is_null() && !null_is_milder_here(one["config"])) {
      EXPECT_THROW(parse_config(one["config"]), core::ValueError) << one["reason"];
      continue;
    }
    Config config;
    ASSERT_NO_THROW(config = parse_config(one["config"]));
    if (!one["expected"].is_null()) expect_same(config, one["expected"]);
    const auto saved = directory / std::to_string(expected.size());
    testing::write_text(saved / "config.json", exported_config(config, "bfloat16").dump());
    directories += " " + saved.string();
    expected.push_back(one["expected"]);
    if (!expected.back().is_null()) expected.back()["dtype"] = "bfloat16";
  }

  const auto loaded = lines_of("load" + directories);
  ASSERT_EQ(loaded.size(), expected.size());
  for (size_t i = 0; i < loaded.size(); ++i) {
    if (expected[i].is_null()) continue;
    EXPECT_EQ(loaded[i], expected[i]);
  }
}

TEST(ConfigAgainstTransformers, TakesWhatFewHandWrittenFieldsBecome) {
  const testing::TemporaryDirectory directory;
  const json config{{"architectures", {"LlamaForCausalLM"}},
                    {"hidden_size", 64},
                    {"num_hidden_layers", 1},
                    {"num_attention_heads", 4},
                    {"vocab_size", 257},
                    {"intermediate_size", 96},
                    {"rms_norm_eps", 1},
                    {"initializer_range", 0}};
  testing::write_text(directory / "config.json", exported_config(parse_config(config), "float32").dump());
  const auto loaded = lines_of("load " + directory.path().string());
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0]["vocabulary_size"], 257);
  EXPECT_EQ(loaded[0]["norm_epsilon"], 1.0);
}

}  // namespace
}  // namespace trireme::model
