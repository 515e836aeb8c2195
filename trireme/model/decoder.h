// A decoder-only transformer over ranks that share sequences and partition parameters.
//   B batch, S sequence, s this rank's slice, N = B s, E hidden size, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trireme/comm/mesh.h"
#include "trireme/core/buffer_pool.h"
#include "trireme/model/config.h"
#include "trireme/model/decoder_layer.h"
#include "trireme/model/forward_options.h"
#include "trireme/model/parameters.h"
#include "trireme/sp/slice.h"
#include "trireme/zero/coordinator.h"
#include "trireme/zero/options.h"
#include "trireme/zero/unit.h"

namespace trireme::model {

/// Llama, Mistral, Qwen2 and Qwen3, with the numbers of Transformers. Parameters are partitioned from the
/// beginning: see weights.h for their values, which are zero at first. Neither copied nor moved: graphs point
/// here.
class Decoder {
 public:
  /// What may be left as it is.
  struct Settings {
    zero::Schedule schedule;
    TensorRules rules;
    std::shared_ptr<core::Timeline> timeline;
    zero::Memory memory = std::make_shared<core::BufferPool>();
  };
  Decoder(Config config, const zero::Options& options, const comm::Mesh& mesh, const Settings& settings);
  Decoder(Config config, const zero::Options& options, const comm::Mesh& mesh);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// The sum of this rank's token losses (`options.loss`) times `scale`, as a graph: [] in fp32 at least.
  /// `batch` is this rank's slice. Run it backward, then call `coordinator().end_pass()`.
  at::Tensor loss(const sp::SlicedBatch& batch, double scale, const ForwardOptions& options);

  /// Scores of this rank's tokens, [N, V], soft-capped where `options.loss` says so: for evaluation of few
  /// tokens, since nothing here is tiled.
  at::Tensor logits(const sp::SlicedBatch& batch, const ForwardOptions& options);

  const Config& config() const { return config_; }
  zero::Coordinator& coordinator() { return coordinator_; }

  /// Every unit, in the order of the forward pass, and its plan.
  const std::vector<UnitPlan>& plans() const { return plans_; }
  const std::vector<zero::Unit*>& units() const { return order_; }

 private:
  at::Tensor hidden(const sp::SlicedBatch& batch,
                    const ForwardOptions& options);  // [N, E], after the last norm
  zero::Unit& head() { return config_.tied_embeddings ? *units_.front() : *units_.back(); }
  zero::Unit& norm() { return *units_[size_t(config_.layers) + 1]; }

  Config config_;
  zero::Options options_;
  comm::Mesh mesh_;
  std::vector<UnitPlan> plans_;
  std::vector<std::unique_ptr<zero::Unit>> units_;
  std::vector<zero::Unit*> order_;
  std::vector<DecoderLayer> layers_;
  zero::Coordinator coordinator_;
};

}  // namespace trireme::model
