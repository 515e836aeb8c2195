#include "trireme/zero/coordinator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Clock = std::chrono::steady_clock;

bool are_trained(const Coordinator::Units& units) {
  return std::any_of(units.begin(), units.end(), [](const Unit* unit) { return unit->is_trainable(); });
}

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

// The identity, whose backward pass is the end of the units'. `anchor` requires a gradient, so that the
// units' parameters stay in the graph of an input that does not.
struct EnterUnits : Function<EnterUnits> {
  struct Saved {
    Coordinator* coordinator;
    std::shared_ptr<Coordinator::Units> units;  // all of them once the forward pass is over
  };
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& anchor, const Saved& saved) {
    ctx->saved_data["saved"] = core::to_capsule(saved);
    return at::alias(input);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    saved.coordinator->leave_backward(*saved.units);
    return {gradients[0], Tensor(), Tensor()};
  }
};

// The identity, whose backward pass is the beginning of the units'.
struct LeaveUnits : Function<LeaveUnits> {
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
    saved.coordinator->enter_backward(saved.units);
    return {gradients[0], Tensor()};
  }
};

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
  ++statistics_.gathers;
}

int64_t Coordinator::live_parameters() const {
  int64_t live = 0;
  for (const Unit* unit : order_)
    if (unit->state() != State::not_available) live += unit->gathered_elements();
  return live;
}

void Coordinator::adopt(const Units& units) {
  for (Unit* unit : units) {
    use_of(*unit);
    unit->watch(this);
  }
}

void Coordinator::register_external_parameter(Unit& user, Unit& owner) {
  auto& externals = externals_[&user];
  if (&user != &owner && std::find(externals.begin(), externals.end(), &owner) == externals.end())
    externals.push_back(&owner);
}

Coordinator::Units Coordinator::with_externals(const Units& units) const {
  Units all = units;
  for (Unit* unit : units) {
    const auto found = externals_.find(unit);
    if (found == externals_.end()) continue;
    for (Unit* owner : found->second)
      if (std::find(all.begin(), all.end(), owner) == all.end()) all.push_back(owner);
  }
  return all;
}

void Coordinator::before_read(Unit& unit) {
  if (frames_.empty() || !unit.is_partitioned()) return;
  for (const Frame& frame : frames_)
    if (std::find(frame.units.begin(), frame.units.end(), &unit) != frame.units.end()) return;
  Frame& frame = frames_.back();
  if (frame.declared.empty()) return;
  register_external_parameter(*frame.declared.front(), unit);
  hold(unit);
  frame.units.push_back(&unit);
}

void Coordinator::note(std::string_view lane, std::string_view what, const Unit& unit,
                       const core::Interval& interval) {
  if (timeline_) timeline_->add(lane, core::concatenate(what, unit.name()), interval);
}

void Coordinator::wait_gathered(Unit& unit, Clock::time_point needed) {
  const auto interval = unit.wait_gathered();
  if (interval.end != core::Interval{}.end)
    note("gather", "", unit, interval);  // one rank alone sends nothing
  statistics_.gathered_elements += unit.gathered_elements();
  if (interval.end <= needed) statistics_.hidden_elements += unit.gathered_elements();
}

void Coordinator::hold(Unit& unit) {
  auto& use = use_of(unit);
  unit.begin_use();
  if (use.holds++ > 0) return;
  use.here = unit.group().position().enter("unit '" + unit.name() + "'");
  const auto needed = Clock::now();
  if (unit.is_partitioned()) {
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
    if (unit.state() == State::in_flight) wait_gathered(unit, needed);
  }
  use.entered = Clock::now();
}

void Coordinator::let_go(Unit& unit, std::string_view pass) {
  auto& use = use_of(unit);
  unit.end_use();
  if (--use.holds > 0) return;
  use.here = {};
  note("compute", pass, unit, {use.entered, Clock::now()});
  if (!unit.is_partitioned() || unit.is_used()) return;
  if (live_parameters() > schedule_.max_live_parameters || !is_used_soon(unit)) unit.release();
}

void Coordinator::gather_ahead() {
  int64_t in_flight = 0, live = live_parameters();
  for (const auto& [unit, use] : uses_)
    if (unit->state() == State::in_flight && use.holds == 0) in_flight += unit->gathered_elements();
  for (Unit* next : trace_.upcoming()) {
    if (next->state() != State::not_available) continue;
    live += next->gathered_elements();
    if (in_flight >= schedule_.prefetch_bucket_size || live > schedule_.max_live_parameters) break;
    start_gather(*next);
    use_of(*next).ahead = true;
    in_flight += next->gathered_elements();
  }
  read_ahead();
}

// A gather waits for its shard first: that is to be there by then.
void Coordinator::read_ahead() {
  int64_t reading = 0;
  for (Unit* next : trace_.upcoming()) {
    if (next->state() != State::not_available) continue;
    reading += next->gathered_elements() / next->group().size();
    if (reading > schedule_.read_ahead_size) return;
    next->start_read();
  }
}

void Coordinator::release_idle() {
  for (Unit* unit : order_) {
    unit->drop_read();
    auto& use = uses_.at(unit);
    if (unit->is_used() || !unit->is_partitioned()) continue;
    if (unit->state() == State::not_available) continue;
    if (unit->state() == State::in_flight) unit->wait_gathered();
    unit->release();
    ++statistics_.unused;
    use.ahead = false;
  }
}

bool Coordinator::is_used_soon(const Unit& unit) const {
  if (schedule_.max_reuse_distance <= 0) return false;
  int64_t distance = 0;
  for (const Unit* next : trace_.upcoming()) {
    if (next == &unit) return true;
    distance += next->gathered_elements();
    if (distance > schedule_.max_reuse_distance) return false;
  }
  return false;
}

void Coordinator::reduce(Unit& unit) {
  if (!unit.is_trainable()) return;
  unit.start_reduction();
  reducing_.push_back(&unit);
  reducing_elements_ += unit.gradient_elements();
  finish_reductions(schedule_.overlap_reductions ? schedule_.reduce_bucket_size : 0);
}

void Coordinator::finish_reductions(int64_t in_flight_allowed) {
  while (!reducing_.empty() &&
         (reducing_elements_ > in_flight_allowed || reducing_.front()->reduction_is_done())) {
    Unit* oldest = reducing_.front();
    reducing_.pop_front();
    reducing_elements_ -= oldest->gradient_elements();
    if (const auto interval = oldest->finish_reduction()) note("reduction", "", *oldest, *interval);
  }
}

void Coordinator::before_forward(const Units& units) {
  frames_.push_back({units, with_externals(units)});
  for (Unit* unit : with_externals(units)) hold(*unit);
}

void Coordinator::after_forward(const Units& units, bool backward_follows) {
  core::check_value(!frames_.empty() && frames_.back().declared == units,
                    "[zero] a forward pass ends the units that it began last; got the end of unit '",
                    units.empty() ? "" : units.front()->name(), "' before its beginning; pair the events");
  const Frame frame = std::move(frames_.back());
  frames_.pop_back();
  for (Unit* unit : frame.units) {
    let_go(*unit, "forward of ");
    use_of(*unit).awaited += backward_follows;
  }
}

void Coordinator::before_backward(const Units& units) { enter_backward(with_externals(units)); }

void Coordinator::after_backward(const Units& units) { leave_backward(with_externals(units)); }

void Coordinator::enter_backward(const Units& units) {
  for (Unit* unit : units) {
    hold(*unit);
    ++use_of(*unit).backward_holds;
    use_of(*unit).touched = true;
  }
}

void Coordinator::leave_backward(const Units& units) {
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
  const auto needs_graph = [&] {
    return at::GradMode::is_enabled() && (input.requires_grad() || are_trained(with_externals(units)));
  };
  if (!needs_graph()) {
    Tensor output;
    {
      at::NoGradGuard no_graph;
      ForwardScope scope(*this, units);
      output = body(input);
    }
    // Again where the body turned out to read a parameter that is trained, of another unit.
    if (!needs_graph()) return output;
  }
  ForwardScope scope(*this, units);
  const auto used = std::make_shared<Units>();
  Tensor inside = input;
  if (at::isFloatingType(input.scalar_type())) {  // token ids have no gradient
    Tensor anchor = at::zeros({}, input.options().requires_grad(false)).requires_grad_(true);
    inside = EnterUnits::apply(input, anchor, EnterUnits::Saved{this, used});
  }
  Tensor output = body(inside);
  *used = frames_.back().units;
  if (needs == BackwardNeeds::values) {
    std::vector<int64_t> generations;
    for (const Unit* unit : *used) generations.push_back(unit->generation());
    output = LeaveUnits::apply(output, LeaveUnits::Saved{this, *used, generations});
  }
  scope.backward_follows = true;
  return output;
}

}  // namespace trireme::zero
