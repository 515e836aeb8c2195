#include "trireme/model/parameters.h"

#include <fnmatch.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "trireme/core/check.h"

namespace trireme::model {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// A parameter that is one Hugging Face tensor, or several with their rows one after the other.
ParameterPlan parameter(std::string name, Initial initial, ParameterGroup group,
                        std::vector<TensorPiece> pieces) {
  std::vector<int64_t> shape = pieces[0].shape;
  int64_t place = 0;
  shape[0] = 0;
  for (auto& piece : pieces) {
    piece.first = place;
    place += piece.count();
    shape[0] += piece.shape[0];
  }
  return {{.name = std::move(name), .shape = std::move(shape), .group = group, .dtype = {}},
          initial,
          std::move(pieces)};
}

ParameterPlan matrix(std::string name, std::vector<TensorPiece> pieces) {
  return parameter(std::move(name), Initial::normal, kDecayed, std::move(pieces));
}

ParameterPlan vector(std::string name, Initial initial, std::vector<TensorPiece> pieces) {
  return parameter(std::move(name), initial, kUndecayed, std::move(pieces));
}

bool matches(const std::string& pattern, const TensorPiece& piece) {
  return fnmatch(pattern.c_str(), piece.name.c_str(), 0) == 0;
}

// Calls change(spec) for each parameter that a pattern matches.
template <class Change>
void each_match(const std::vector<std::string>& patterns, std::vector<UnitPlan>& plans,
                const Change& change) {
  std::vector<bool> used(patterns.size(), false);
  const auto is_matched = [&](const TensorPiece& piece) {
    bool found = false;
    for (size_t i = 0; i < patterns.size(); ++i)
      if (matches(patterns[i], piece)) used[i] = found = true;
    return found;
  };
  for (auto& plan : plans)
    for (auto& parameter : plan.parameters) {
      const auto hits = std::count_if(parameter.pieces.begin(), parameter.pieces.end(), is_matched);
      if (hits == 0) continue;
      core::check_value(hits == int64_t(parameter.pieces.size()), "[model] the tensors of '",
                        parameter.spec.name, "' are one parameter and go together; got patterns that match ",
                        hits, " of ", parameter.pieces.size(), "; match '", parameter.pieces.front().name,
                        "' and the others too");
      change(parameter.spec);
    }
  for (size_t i = 0; i < patterns.size(); ++i)
    core::check_value(used[i], "[model] a pattern must match a tensor's name; got '", patterns[i],
                      "', which matches none; names are such as '",
                      plans.front().parameters[0].pieces[0].name,
                      "' and 'model.layers.0.mlp.down_proj.weight'");
}

}  // namespace

void apply_rules(const TensorRules& rules, std::vector<UnitPlan>& plans) {
  each_match(rules.frozen, plans, [](zero::ParameterSpec& spec) { spec.trainable = false; });
  const auto is_trained = [](const UnitPlan& plan) {
    return std::any_of(plan.parameters.begin(), plan.parameters.end(),
                       [](const ParameterPlan& parameter) { return parameter.spec.trainable; });
  };
  core::check_value(std::any_of(plans.begin(), plans.end(), is_trained),
                    "[model] something must be left to train; got patterns that freeze every tensor; freeze "
                    "fewer");
  for (size_t i = 0; i < rules.groups.size(); ++i)
    each_match(rules.groups[i], plans, [&](zero::ParameterSpec& spec) {
      spec.group = 2 + 2 * i + (spec.group % 2);  // decayed or not, whichever group it was in
    });
}

int64_t TensorPiece::count() const { return product(shape); }

std::vector<zero::ParameterSpec> UnitPlan::specs() const {
  std::vector<zero::ParameterSpec> all;
  for (const auto& parameter : parameters) all.push_back(parameter.spec);
  return all;
}

UnitPlan plan_embedding(const Config& config) {
  const std::string name = "model.embed_tokens.weight";
  return {"embedding", {matrix(name, {{name, {config.vocabulary_size, config.hidden_size}}})}};
}

UnitPlan plan_layer(const Config& c, int64_t index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  const int64_t E = c.hidden_size, I = c.intermediate_size, queries = c.heads * c.head_size,
                keys = c.kv_heads * c.head_size;
  UnitPlan plan{"layers." + std::to_string(index), {}};
  auto& p = plan.parameters;
  p.push_back(matrix(attention + "qkv_proj.weight", {{attention + "q_proj.weight", {queries, E}},
                                                     {attention + "k_proj.weight", {keys, E}},
                                                     {attention + "v_proj.weight", {keys, E}}}));
  p.push_back(matrix(attention + "o_proj.weight", {{attention + "o_proj.weight", {E, queries}}}));
  p.push_back(matrix(mlp + "gate_up_proj.weight",
                     {{mlp + "gate_proj.weight", {I, E}}, {mlp + "up_proj.weight", {I, E}}}));
  p.push_back(matrix(mlp + "down_proj.weight", {{mlp + "down_proj.weight", {E, I}}}));
  for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
    p.push_back(vector(layer + norm, Initial::ones, {{layer + norm, {E}}}));
  if (c.qkv_bias)
    p.push_back(vector(attention + "qkv_proj.bias", Initial::zeros,
                       {{attention + "q_proj.bias", {queries}},
                        {attention + "k_proj.bias", {keys}},
                        {attention + "v_proj.bias", {keys}}}));
  if (c.qk_norm)
    for (const char* norm : {"q_norm.weight", "k_norm.weight"})
      p.push_back(vector(attention + norm, Initial::ones, {{attention + norm, {c.head_size}}}));
  return plan;
}

UnitPlan plan_norm(const Config& config) {
  return {"norm",
          {vector("model.norm.weight", Initial::ones, {{"model.norm.weight", {config.hidden_size}}})}};
}

UnitPlan plan_head(const Config& config) {
  if (config.tied_embeddings) return {"head", {}};
  return {"head",
          {matrix("lm_head.weight", {{"lm_head.weight", {config.vocabulary_size, config.hidden_size}}})}};
}

std::vector<UnitPlan> plan_units(const Config& config) {
  std::vector<UnitPlan> plans{plan_embedding(config)};
  for (int64_t index = 0; index < config.layers; ++index) plans.push_back(plan_layer(config, index));
  plans.push_back(plan_norm(config));
  if (!config.tied_embeddings) plans.push_back(plan_head(config));
  return plans;
}

}  // namespace trireme::model
