// The parameters of a decoder: how they are grouped into units, and what Hugging Face calls them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/model/config.h"
#include "trireme/zero/flat_layout.h"

namespace trireme::model {

/// A Hugging Face tensor inside a parameter: consecutive rows of it, so that its elements are consecutive
/// too.
struct TensorPiece {
  std::string name;  ///< as in model.safetensors
  std::vector<int64_t> shape;
  int64_t first = 0;  ///< element of the parameter at which it begins
  int64_t count() const;
};

/// The optimizer's groups, unless a run says otherwise: matrices take weight decay, norms and biases do not.
enum ParameterGroup : size_t { kDecayed, kUndecayed };

enum class Initial { normal, ones, zeros };

struct ParameterPlan {
  zero::ParameterSpec spec;
  Initial initial = Initial::normal;
  std::vector<TensorPiece> pieces;  ///< in order; they make up the parameter
};

/// One unit: what is gathered and released together.
struct UnitPlan {
  std::string name;
  std::vector<ParameterPlan> parameters;
  std::vector<zero::ParameterSpec> specs() const;
};

/// Places of a layer's parameters in its unit. q, k and v are one matrix, as are gate and up: one product
/// each. Those from kQkvBias on are there only where the config has them.
enum LayerParameter : size_t { kQkv, kOutput, kGateUp, kDown, kInputNorm, kPostNorm, kOptional };

UnitPlan plan_embedding(const Config& config);
UnitPlan plan_layer(const Config& config, int64_t index);
UnitPlan plan_norm(const Config& config);
/// No parameters where the head is the embedding's matrix.
UnitPlan plan_head(const Config& config);

/// Every unit, in the order of the forward pass; the head only where it has parameters.
std::vector<UnitPlan> plan_units(const Config& config);

/// What a run says about single tensors, by patterns of their names as in model.safetensors: `*` is any
/// text, `?` any character.
struct TensorRules {
  std::vector<std::string> frozen;  ///< not trained
  /// Tensors of the optimizer's further groups: set i's matrices become group 2 + 2 i, its norms and biases
  /// the next one. A later set wins.
  std::vector<std::vector<std::string>> groups;
};

/// Applies `rules` to `plans`. Throws `ValueError` for a pattern that matches no tensor, where tensors that
/// are one parameter here (q, k and v; gate and up) fall apart, and where nothing is left to train.
void apply_rules(const TensorRules& rules, std::vector<UnitPlan>& plans);

}  // namespace trireme::model
