#include "trireme/zero/unit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "trireme/core/check.h"
#include "trireme/zero/storage.h"

namespace trireme::zero {
namespace {

using at::Tensor;

// Runs right after autograd has accumulated a parameter's gradient.
class CollectGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  CollectGradient(Unit& unit, size_t index) : unit_(unit), index_(index) {}
  void operator()(const Tensor& parameter) override {
    Tensor gradient = std::move(parameter.mutable_grad());
    parameter.mutable_grad().reset();
    unit_.collect(index_, gradient);
  }

 private:
  Unit& unit_;
  size_t index_;
};

Tensor part(const Tensor& flat, const Range& range) { return flat.narrow(0, range.begin, range.count()); }

// Zeroes what no gradient has filled: padding, and parameters that were not used.
void fill_gaps(const Tensor& flat, const FlatLayout& layout, const std::vector<bool>& filled) {
  int64_t place = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    const Range range = layout.parameter(i);
    if (!filled[i]) continue;
    flat.narrow(0, place, range.begin - place).zero_();
    place = range.end;
  }
  flat.narrow(0, place, layout.padded() - place).zero_();
}

}  // namespace

std::string_view name_of(State state) {
  switch (state) {
    case State::not_available:
      return "not_available";
    case State::in_flight:
      return "in_flight";
    case State::available:
      return "available";
  }
  return "unknown";
}

Unit::Unit(std::string name, std::vector<ParameterSpec> specs, const Options& options, comm::Group group,
           std::shared_ptr<core::BufferPool> pool)
    : name_(std::move(name)),
      layout_(std::move(specs), group.size()),
      options_(options),
      group_(std::move(group)),
      pool_(std::move(pool)),
      collected_(layout_.size(), false) {
  const auto values = at::TensorOptions(options.dtype).device(options.device);
  if (options_.partitions_parameters()) {
    shard_ = at::zeros({layout_.shard_size()}, values);
  } else {
    flat_ = at::zeros({layout_.padded()}, values);
    shard_ = part(flat_, own_range());
  }
  const Tensor& updated = options_.partitions_optimizer() ? shard_ : flat_;
  master_ = options_.dtype == options_.master_dtype() ? updated : updated.to(options_.master_dtype());
  for (size_t i = 0; i < layout_.size(); ++i) {
    Tensor tensor = tensor_without_memory(layout_.specs()[i].shape, options.dtype, options.device,
                                          partitioned_message(i));
    tensor.requires_grad_(true);
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<CollectGradient>(*this, i));
    parameters_.push_back(std::move(tensor));
  }
  if (!options_.partitions_parameters()) {
    for (size_t i = 0; i < layout_.size(); ++i)
      lend_memory(parameters_[i], flat_, layout_.parameter(i).begin);
    state_ = State::available;
  }
}

// Graphs may outlive the unit: what they hold of it must not call back.
Unit::~Unit() {
  for (const auto& parameter : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

std::string Unit::partitioned_message(size_t index) const {
  return core::concatenate(
      "[zero] parameter '", layout_.specs()[index].name, "' is partitioned over ", group_.size(),
      " ranks and its values are not here; got a use of them while unit '", name_,
      "' is not gathered; use it inside the unit's forward or backward pass, or gather it first");
}

bool Unit::accumulates_whole() const { return !options_.partitions_gradients() || group_.size() == 1; }

Range Unit::optimizer_range() const {
  return options_.partitions_optimizer() ? own_range() : Range{0, layout_.padded()};
}

Range Unit::stored(size_t index) const {
  const Range all = layout_.parameter(index);
  const Range mine = options_.partitions_parameters() ? intersection(all, own_range()) : all;
  return mine.count() == 0 ? Range{} : Range{mine.begin - all.begin, mine.end - all.begin};
}

void Unit::write(size_t index, int64_t first, const Tensor& values) {
  core::check_value(!options_.partitions_parameters() || state_ == State::not_available,
                    "[zero] values of unit '", name_, "' are written while it is not gathered; got state ",
                    name_of(state_), "; release it first");
  const Range all = layout_.parameter(index);
  const Range written{all.begin + first, all.begin + first + values.numel()};
  core::check_value(first >= 0 && written.end <= all.end, "[zero] values must lie inside parameter '",
                    layout_.specs()[index].name, "' of ", all.count(), " elements; got ", values.numel(),
                    " from ", first);
  const Tensor source = values.detach().reshape({-1});
  const auto copy = [&](const Tensor& target, const Range& held) {
    const Range common = intersection(written, held);
    if (common.count() == 0) return;
    part(target, {common.begin - held.begin, common.end - held.begin})
        .copy_(part(source, {common.begin - written.begin, common.end - written.begin}));
  };
  if (options_.partitions_parameters())
    copy(shard_, own_range());
  else
    copy(flat_, {0, layout_.padded()});
  copy(master_, optimizer_range());
}

void Unit::move_to(State next, std::string_view action) {
  static constexpr std::pair<State, State> allowed[] = {{State::not_available, State::in_flight},
                                                        {State::in_flight, State::available},
                                                        {State::available, State::not_available}};
  for (const auto& [from, to] : allowed)
    if (from == state_ && to == next) {
      state_ = next;
      return;
    }
  throw core::ValueError(core::concatenate("[zero] unit '", name_, "' cannot ", action, "; got state ",
                                           name_of(state_),
                                           "; gather a unit once, and release it once after its last use"));
}

void Unit::start_gather() {
  if (!options_.partitions_parameters()) return;
  move_to(State::in_flight, "be gathered");
  flat_ = group_.size() == 1 ? shard_ : pool_->take(layout_.padded(), options_.dtype, options_.device);
  pending_gather_ = group_.all_gather_into_async(flat_, shard_, "gather of unit '" + name_ + "'");
}

core::Interval Unit::wait_gathered() {
  if (!options_.partitions_parameters()) return {};
  core::Interval interval;
  if (pending_gather_) {
    pending_gather_->wait();
    interval = pending_gather_->interval();
  }
  move_to(State::available, "end its gather");
  pending_gather_.reset();
  for (size_t i = 0; i < layout_.size(); ++i) lend_memory(parameters_[i], flat_, layout_.parameter(i).begin);
  return interval;
}

void Unit::gather() {
  start_gather();
  wait_gathered();
}

void Unit::release() {
  if (!options_.partitions_parameters()) return;
  move_to(State::not_available, "be released");
  for (size_t i = 0; i < layout_.size(); ++i) drop_memory(parameters_[i], partitioned_message(i));
  if (group_.size() > 1) pool_->give_back(std::move(flat_));
  flat_.reset();
}

void Unit::collect(size_t index, const Tensor& gradient) {
  core::check_internal(gradient.sizes() == parameters_[index].sizes(), "[zero] the gradient of parameter '",
                       layout_.specs()[index].name, "' must have its shape; got ", gradient.sizes(), " for ",
                       parameters_[index].sizes());
  // Whole gradients wait in the masters' dtype and from step to step; partitioned ones only until the
  // reduction.
  Tensor& buffer = accumulates_whole() ? gradient_ : flat_gradient_;
  if (!buffer.defined())
    buffer = accumulates_whole()
                 ? at::empty({layout_.padded()},
                             at::TensorOptions(options_.master_dtype()).device(options_.device))
                 : pool_->take(layout_.padded(), options_.dtype, options_.device);
  Tensor place = part(buffer, layout_.parameter(index)).view(gradient.sizes());
  collected_[index] ? place.add_(gradient) : place.copy_(gradient);
  collected_[index] = true;
}

void Unit::start_reduction() {
  if (accumulates_whole()) return;
  finish_reduction();
  if (!flat_gradient_.defined())
    flat_gradient_ = pool_->take(layout_.padded(), options_.dtype, options_.device);
  fill_gaps(flat_gradient_, layout_, collected_);
  collected_.assign(layout_.size(), false);
  const auto sum_dtype = c10::promoteTypes(options_.dtype, options_.reduction_dtype);
  reducing_gradient_ = std::exchange(flat_gradient_, {});
  pending_reduction_ =
      group_.reduce_scatter_async(reducing_gradient_, sum_dtype, "the gradient of unit '" + name_ + "'");
}

std::optional<core::Interval> Unit::finish_reduction() {
  if (!pending_reduction_) return {};
  Tensor mine = pending_reduction_->wait();
  const auto interval = pending_reduction_->interval();
  pending_reduction_.reset();
  pool_->give_back(std::exchange(reducing_gradient_, {}));
  gradient_ = gradient_.defined() ? gradient_.add_(mine) : mine.to(options_.master_dtype());
  return interval;
}

void Unit::finish_gradients() {
  finish_reduction();
  if (!gradient_.defined()) {
    const int64_t count = accumulates_whole() ? layout_.padded() : layout_.shard_size();
    gradient_ = at::zeros({count}, at::TensorOptions(options_.master_dtype()).device(options_.device));
  }
  if (accumulates_whole()) {
    fill_gaps(gradient_, layout_, collected_);
    collected_.assign(layout_.size(), false);
    const std::string purpose = "the gradient of unit '" + name_ + "'";
    if (options_.partitions_optimizer())
      gradient_ = group_.reduce_scatter(gradient_, options_.master_dtype(), purpose);
    else
      group_.all_reduce(gradient_, purpose);
  }
  if (options_.reduction == GradientReduction::mean) gradient_.div_(double(group_.size()));
}

void Unit::publish() {
  ++generation_;
  const bool shares = options_.dtype == options_.master_dtype();
  if (!options_.partitions_optimizer()) {
    if (!shares) flat_.copy_(master_);
    return;
  }
  if (!shares) shard_.copy_(master_);
  if (!options_.partitions_parameters())
    group_.all_gather_into(flat_, shard_, "the updated values of unit '" + name_ + "'");
}

}  // namespace trireme::zero
