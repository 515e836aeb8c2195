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
using Clock = std::chrono::steady_clock;

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

void Coordinator::report(const std::string& fault) const {
  if (!fault.empty() && schedule_.on_changed_order) schedule_.on_changed_order(fault);
}

void Coordinator::start_gather(Unit& unit) {
  unit.start_gather();
  live_ += unit.layout().padded();
  ++statistics_.gathers;
}

void Coordinator::release(Unit& unit) {
  unit.release();
  live_ -= unit.layout().padded();
}

void Coordinator::note(std::string_view lane, std::string_view what, const Unit& unit,
                       const core::Interval& interval) {
  if (timeline_) timeline_->add(lane, core::concatenate(what, unit.name()), interval);
}

void Coordinator::wait_gathered(Unit& unit) {
  const auto needed = Clock::now();
  const auto interval = unit.wait_gathered();
  note("gather", "", unit, interval);
  statistics_.gathered_elements += unit.layout().padded();
  if (interval.end <= needed) statistics_.hidden_elements += unit.layout().padded();
}

void Coordinator::hold(Unit& unit) {
  auto& use = use_of(unit);
  if (use.holds++ > 0) return;
  if (unit.options().partitions_parameters()) {
    if (const std::string fault = trace_.visit(unit); !fault.empty()) {
      report(fault);
      release_idle();
    }
    if (unit.state() == State::not_available)
      start_gather(unit);
    else
      ++(use.ahead ? statistics_.gathered_ahead : statistics_.kept);
    use.ahead = false;
    gather_ahead();  // before waiting: the next ones travel behind this one
    if (unit.state() == State::in_flight) wait_gathered(unit);
  }
  use.entered = Clock::now();
}

void Coordinator::let_go(Unit& unit, std::string_view pass) {
  auto& use = use_of(unit);
  if (--use.holds > 0) return;
  note("compute", pass, unit, {use.entered, Clock::now()});
  if (!unit.options().partitions_parameters()) return;
  if (live_ > schedule_.max_live_parameters || !is_used_soon(unit)) release(unit);
}

void Coordinator::gather_ahead() {
  int64_t in_flight = 0;
  for (const auto& [unit, use] : uses_)
    if (unit->state() == State::in_flight && use.holds == 0) in_flight += unit->layout().padded();
  for (Unit* next : trace_.upcoming()) {
    if (next->state() != State::not_available) continue;
    if (in_flight >= schedule_.prefetch_bucket_size ||
        live_ + next->layout().padded() > schedule_.max_live_parameters)
      return;
    start_gather(*next);
    use_of(*next).ahead = true;
    in_flight += next->layout().padded();
  }
}

void Coordinator::release_idle() {
  for (Unit* unit : order_) {
    auto& use = uses_.at(unit);
    if (use.holds > 0 || !unit->options().partitions_parameters()) continue;
    if (unit->state() == State::not_available) continue;
    if (unit->state() == State::in_flight) unit->wait_gathered();
    release(*unit);
    ++statistics_.unused;
    use.ahead = false;
  }
}

bool Coordinator::is_used_soon(const Unit& unit) const {
  if (schedule_.max_reuse_distance <= 0) return false;
  int64_t distance = 0;
  for (const Unit* next : trace_.upcoming()) {
    if (next == &unit) return true;
    distance += next->layout().padded();
    if (distance > schedule_.max_reuse_distance) return false;
  }
  return false;
}

void Coordinator::reduce(Unit& unit) {
  unit.start_reduction();
  reducing_.push_back(&unit);
  reducing_elements_ += unit.layout().padded();
  finish_reductions(schedule_.overlap_reductions ? schedule_.reduce_bucket_size : 0);
}

void Coordinator::finish_reductions(int64_t in_flight_allowed) {
  while (!reducing_.empty() &&
         (reducing_elements_ > in_flight_allowed || reducing_.front()->reduction_is_done())) {
    Unit* oldest = reducing_.front();
    reducing_.pop_front();
    reducing_elements_ -= oldest->layout().padded();
    if (const auto interval = oldest->finish_reduction()) note("reduction", "", *oldest, *interval);
  }
}

void Coordinator::before_forward(const Units& units) {
  for (Unit* unit : units) hold(*unit);
}

void Coordinator::after_forward(const Units& units, bool backward_follows) {
  for (Unit* unit : units) {
    let_go(*unit, "forward of ");
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
      let_go(*unit, "backward of ");
    }
    if (use.awaited > 0 && --use.awaited == 0) {
      reduce(*unit);
      use.touched = false;
    }
  }
}

void Coordinator::end_pass() {
  for (Unit* unit : order_) {
    auto& use = uses_.at(unit);
    for (; use.backward_holds > 0; --use.backward_holds) let_go(*unit, "backward of ");
    if (use.touched || use.awaited > 0) reduce(*unit);
    use.touched = false;
    use.awaited = 0;
  }
  report(trace_.end_pass());
  release_idle();
  finish_reductions(0);
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
