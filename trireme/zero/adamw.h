// AdamW on the flat masters of units, and the global gradient norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/core/stored_tensor.h"
#include "trireme/core/timeline.h"
#include "trireme/zero/unit.h"

namespace trireme::zero {

/// Decoupled weight decay (arXiv:1711.05101, algorithm 2), as torch.optim.AdamW has it: the numbers of one
/// group of parameters.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

/// Two groups: the numbers given, and the same without weight decay, as norms and biases have it.
std::vector<AdamWOptions> decayed_and_not(const AdamWOptions& options);

/// How states that are on a disk pass through memory: a piece of gradient, master and both moments at a time.
struct Streaming {
  int64_t elements = 10'000'000;  ///< of a piece
  int64_t ahead = 1;              ///< pieces that are read while one is updated
};

/// Holds both moments of every unit's trainable parameters, of this rank's optimizer range, in the masters'
/// dtype and where the units' options keep optimizer states. The units must outlive it.
class AdamW {
 public:
  /// `timeline`, if given, is told of every update.
  explicit AdamW(const std::vector<Unit*>& units, const Streaming& streaming = {},
                 std::shared_ptr<core::Timeline> timeline = nullptr);

  /// Updates the masters from the gradients and publishes them; gradients are cleared. Call after
  /// `finish_gradients` of every unit. Gradients are taken times `gradient_scale`. A parameter takes the
  /// numbers of its spec's group; they may change from step to step, as schedules have it. Bit for bit the
  /// same wherever the states are.
  void step(const std::vector<AdamWOptions>& groups, double gradient_scale);

  /// Steps taken.
  int64_t steps() const { return steps_; }

 private:
  struct Moments {
    std::unique_ptr<core::StoredTensor> first, second;  // like the flat's master
  };
  // Elements [first, first + count) of one flat's optimizer range.
  struct Piece {
    Unit* unit;
    FlatParameters* flat;
    Moments* moments;
    int64_t first, count;
    bool ends_unit;
  };
  struct Incoming {
    core::Reading gradient, master, first, second;
  };
  void add_pieces(Unit& unit, FlatParameters& flat, const Streaming& streaming);
  Incoming start(const Piece& piece) const;
  void update(const Piece& piece, Incoming incoming, const std::vector<AdamWOptions>& groups,
              double gradient_scale);
  void check(const std::vector<AdamWOptions>& groups) const;

  std::vector<std::unique_ptr<Moments>> moments_;
  std::vector<Piece> pieces_;
  int64_t ahead_;
  std::shared_ptr<core::Timeline> timeline_;
  at::Tensor step_;  // [], what the fused kernel reads
  int64_t steps_ = 0;
};

/// The 2-norm of all units' finished gradients together, over the whole model: the same number on every rank
/// of `world`. One small all-reduce where gradients are partitioned.
double gradient_norm(const std::vector<Unit*>& units, const comm::Group& world);

/// What gradients of norm `norm` are multiplied by so that theirs is at most `limit`; 1 where limit is 0.
/// As torch.nn.utils.clip_grad_norm_ computes it.
double clipping_factor(double norm, double limit);

}  // namespace trireme::zero
