#include "trireme/zero/coordinator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The identity, whose backward pass is the end of the units'. `anchor` requires a gradient, so that the
// units' parameters stay in the graph of an input that does not.
struct Enter : Function<Enter> {
  struct Saved {
    Coordinator* coordinator;
    Coordinator::Units units;
  };
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& anchor, const Saved& saved) {
    ctx->saved_data["saved"] = core::to_capsule(saved);
    return at::alias(input);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    saved.coordinator->after_backward(saved.units);
    return {gradients[0], Tensor(), Tensor()};
  }
};

// The identity, whose backward pass is the beginning of the units'.
struct Leave : Function<Leave> {
  struct Saved {
    Coordinator* coordinator;
    Coordinator::Units units;
    std::vector<int64_t> generations;
  };
  static Tensor forward(AutogradContext* ctx, const Tensor& output, const Saved& saved) {
    ctx->saved_data["saved"] = core::to_capsule(saved);
    return at::alias(output);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    for (size_t i = 0; i < saved.units.size(); ++i)
      core::check_value(saved.units[i]->generation() == saved.generations[i],
                        "[zero] a graph must be run backward before "
                        "the parameters change; got one made before the last optimizer step for unit '",
                        saved.units[i]->name(), "'; run forward again");
    saved.coordinator->before_backward(saved.units);
    return {gradients[0], Tensor()};
  }
};

// Raises `after` unless told that all went well: an exception must not leave units held.
class ForwardScope {
 public:
  ForwardScope(Coordinator& coordinator, const Coordinator::Units& units)
      : coordinator_(coordinator), units_(units) {
    coordinator_.before_forward(units_);
  }
  ~ForwardScope() { coordinator_.after_forward(units_, backward_follows); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  bool backward_follows = false;

 private:
  Coordinator& coordinator_;
  const Coordinator::Units& units_;
};

}  // namespace

Coordinator::Use& Coordinator::use_of(Unit& unit) {
  const auto [place, is_new] = uses_.try_emplace(&unit);
  if (is_new) order_.push_back(&unit);
  return place->second;
}

void Coordinator::hold(Unit& unit) {
  if (use_of(unit).holds++ == 0) unit.gather();
}

void Coordinator::let_go(Unit& unit) {
  if (--use_of(unit).holds == 0) unit.release();
}

void Coordinator::before_forward(const Units& units) {
  for (Unit* unit : units) hold(*unit);
}

void Coordinator::after_forward(const Units& units, bool backward_follows) {
  for (Unit* unit : units) {
    let_go(*unit);
    use_of(*unit).awaited += backward_follows;
  }
}

void Coordinator::before_backward(const Units& units) {
  for (Unit* unit : units) {
    hold(*unit);
    ++use_of(*unit).backward_holds;
    use_of(*unit).touched = true;
  }
}

void Coordinator::after_backward(const Units& units) {
  for (Unit* unit : units) {
    auto& use = use_of(*unit);
    use.touched = true;
    if (use.backward_holds > 0) {
      --use.backward_holds;
      let_go(*unit);
    }
    if (use.awaited > 0 && --use.awaited == 0) {
      unit->reduce_gradients();
      use.touched = false;
    }
  }
}

void Coordinator::end_backward() {
  for (Unit* unit : order_) {
    auto& use = uses_.at(unit);
    for (; use.backward_holds > 0; --use.backward_holds) let_go(*unit);
    if (use.touched || use.awaited > 0) unit->reduce_gradients();
    use.touched = false;
    use.awaited = 0;
  }
}

Tensor Coordinator::around(const Units& units, BackwardNeeds needs, const Tensor& input,
                           const std::function<Tensor(const Tensor&)>& body) {
  ForwardScope scope(*this, units);
  if (!at::GradMode::is_enabled()) return body(input);
  const bool can_enter = at::isFloatingType(input.scalar_type());  // token ids have no gradient
  Tensor inside = input;
  if (can_enter) {
    Tensor anchor = at::zeros({}, input.options().requires_grad(false)).requires_grad_(true);
    inside = Enter::apply(input, anchor, Enter::Saved{this, units});
  }
  Tensor output = body(inside);
  if (needs == BackwardNeeds::values) {
    std::vector<int64_t> generations;
    for (const Unit* unit : units) generations.push_back(unit->generation());
    output = Leave::apply(output, Leave::Saved{this, units, generations});
  }
  scope.backward_follows = true;
  return output;
}

}  // namespace trireme::zero
