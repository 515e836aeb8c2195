// AdamW on the flat masters of units, and the global gradient norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/zero/unit.h"

namespace trireme::zero {

/// Decoupled weight decay (arXiv:1711.05101, algorithm 2), as torch.optim.AdamW has it.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< of parameters whose spec says so
};

/// Holds both moments of every unit's optimizer range, in the masters' dtype. The units must outlive it.
class AdamW {
 public:
  explicit AdamW(std::vector<Unit*> units);

  /// Updates the masters from `gradient()` and publishes them; gradients are cleared. Call after
  /// `finish_gradients` of every unit. Gradients are taken times `gradient_scale`. Options may change from
  /// step to step, as schedules have it.
  void step(const AdamWOptions& options, double learning_rate, double gradient_scale);

  /// Steps taken.
  int64_t steps() const { return steps_; }

 private:
  struct Moments {
    at::Tensor first, second;  // like the unit's master
  };
  void update(Unit& unit, const Moments& moments, const AdamWOptions& options, double learning_rate);

  std::vector<Unit*> units_;
  std::vector<Moments> moments_;
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
