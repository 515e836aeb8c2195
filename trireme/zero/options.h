// What ZeRO partitions over the ranks.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace trireme::zero {

/// ZeRO's stages (arXiv:1910.02054, section 3) are three switches of one mechanism; each includes the one
/// above it.
enum class Stage {
  replicated = 0,        ///< every rank holds everything; gradients are summed
  optimizer_states = 1,  ///< masters and moments are partitioned
  gradients = 2,         ///< and the gradients that wait for the step
  parameters = 3,        ///< and the parameters themselves
};

/// How gradients of the ranks are combined.
enum class GradientReduction {
  sum,   ///< where each rank's loss is its share of one global loss, as in the native trainer
  mean,  ///< where each rank's loss is a mean of its own, as scripts written for DeepSpeed assume
};

struct Options {
  Stage stage = Stage::parameters;
  at::ScalarType dtype = at::kFloat;  ///< of parameters and of their gradients
  at::ScalarType reduction_dtype =
      at::kFloat;  ///< gradients of the ranks are added up in this, or the dtype if wider
  GradientReduction reduction = GradientReduction::sum;
  at::Device device = at::kCPU;

  bool partitions_optimizer() const { return stage >= Stage::optimizer_states; }
  bool partitions_gradients() const { return stage >= Stage::gradients; }
  bool partitions_parameters() const { return stage >= Stage::parameters; }

  /// Masters, moments and accumulated gradients: fp32, or wider where parameters are.
  at::ScalarType master_dtype() const { return c10::promoteTypes(dtype, at::kFloat); }
};

}  // namespace trireme::zero
