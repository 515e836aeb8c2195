// One optimizer step of a decoder: micro-batches forward and backward, reduction, clipping, update.
#pragma once

#include <vector>

#include "trireme/comm/mesh.h"
#include "trireme/model/decoder.h"
#include "trireme/model/forward_options.h"
#include "trireme/sp/slice.h"
#include "trireme/zero/adamw.h"

namespace trireme::train {

/// What a step reports, the same on every rank.
struct StepResult {
  double loss = 0;           ///< mean over the real targets of all ranks and micro-batches
  double gradient_norm = 0;  ///< of the whole model, before clipping
  int64_t targets = 0;       ///< labels that count
};

/// The loss is the sum of token losses over the count of real targets, over SP x DP x micro-batches: a step's
/// numbers do not depend on how its rows are spread, beyond rounding. `decoder` and what the mesh refers to
/// must outlive the engine.
class Engine {
 public:
  /// Gradients of a norm above `gradient_clipping` are scaled down to it; 0: never. `streaming`: of optimizer
  /// states that are on a disk. `timeline`, if given, is told of every update.
  Engine(model::Decoder& decoder, const comm::Mesh& mesh, const model::ForwardOptions& forward,
         double gradient_clipping, const zero::Streaming& streaming = {},
         std::shared_ptr<core::Timeline> timeline = nullptr);

  /// Forward and backward of this rank's slices of a step's micro-batches, as many on every rank. The units
  /// then hold the step's reduced gradient, which `update` takes.
  StepResult accumulate(const std::vector<sp::SlicedBatch>& micro_batches);

  /// Clips the gradient and takes one optimizer step, each parameter with the numbers of its group. Returns
  /// the norm before clipping. Throws `core::RunError` on every rank, and changes no parameter, where the
  /// norm is not finite.
  double update(const std::vector<zero::AdamWOptions>& groups);

  /// Both.
  StepResult step(const std::vector<sp::SlicedBatch>& micro_batches,
                  const std::vector<zero::AdamWOptions>& groups);

 private:
  model::Decoder& decoder_;
  comm::Mesh mesh_;
  model::ForwardOptions forward_;
  zero::AdamW optimizer_;
  double gradient_clipping_;
};

}  // namespace trireme::train
