// When units are gathered, released and reduced: four events around each use of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <vector>

#include "trireme/zero/unit.h"

namespace trireme::zero {

/// What a unit's backward pass reads of it.
enum class BackwardNeeds {
  values,     ///< parameters: gathered again
  gradients,  ///< nothing: gradients only arrive, as for an embedding, or a loss that formed its gradients
              ///< forward
};

/// Counts the uses of each unit: gathered at the first, released after the last; gradients are reduced once,
/// after the last backward use. One a rank; every rank must raise the same events in the same order. Not
/// thread-safe. Whoever raises events by hand, as hooks of another language do, pairs before and after.
class Coordinator {
 public:
  using Units = std::vector<Unit*>;

  void before_forward(const Units& units);
  /// `backward_follows`: a backward pass will raise `after_backward` for these units.
  void after_forward(const Units& units, bool backward_follows);
  void before_backward(const Units& units);
  void after_backward(const Units& units);

  /// When a backward pass is over: releases and reduces what raised no `after_backward`, since its input
  /// needed no gradient.
  void end_backward();

  /// `output = body(input)` between the forward events, with nodes in the graph that raise the backward
  /// events: output's gradient arrives before the units' backward pass, input's gradient leaves after it.
  /// [any shape] -> [any shape]. Without grad mode there are no nodes. The units must outlive the graph.
  at::Tensor around(const Units& units, BackwardNeeds needs, const at::Tensor& input,
                    const std::function<at::Tensor(const at::Tensor&)>& body);

 private:
  struct Use {
    int64_t holds = 0;           // forward and backward passes that are inside the unit now
    int64_t backward_holds = 0;  // of these, backward passes
    int64_t awaited = 0;         // backward passes to come
    bool touched = false;        // did this backward pass reach it?
  };
  void hold(Unit& unit);
  void let_go(Unit& unit);

  std::vector<Unit*> order_;  // of first use: the same on every rank, as addresses are not
  std::map<Unit*, Use> uses_;
  Use& use_of(Unit& unit);
};

}  // namespace trireme::zero
