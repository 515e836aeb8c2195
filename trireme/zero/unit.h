// A set of parameters that is gathered and released together.
//   N elements of the flat buffer, n = N / world of a shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/core/buffer_pool.h"
#include "trireme/zero/flat_layout.h"
#include "trireme/zero/options.h"

namespace trireme::zero {

/// Are a unit's values there?
///   not_available -> in_flight (gather begins) -> available (gather ends) -> not_available (release)
enum class State { not_available, in_flight, available };

std::string_view name_of(State state);

/// Parameters of one flat buffer, the group's ranks each owning one equal shard of it. Parameters keep their
/// shape always.
///
/// Under stage 3 their values are there only between `gather` and `release`; otherwise any use of them is an
/// error that names the parameter. Under the other stages they are always there, and both do nothing.
/// Gradients are taken from parameters as soon as autograd has accumulated them. Every rank must call gather,
/// start_reduction, finish_gradients and publish in the same order. Neither copied nor moved: parameters
/// point here.
class Unit {
 public:
  /// Values are zero until `write`. `pool` lends the flat buffers that come and go.
  Unit(std::string name, std::vector<ParameterSpec> specs, const Options& options, comm::Group group,
       std::shared_ptr<core::BufferPool> pool);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const FlatLayout& layout() const { return layout_; }
  const Options& options() const { return options_; }
  const comm::Group& group() const { return group_; }
  State state() const { return state_; }

  /// The parameters, in the order of their specs, of the specs' shapes.
  const at::Tensor& parameter(size_t index) const { return parameters_[index]; }

  // Values.

  /// The elements of parameter `index`, counted from its own first, that this rank stores: all of them or its
  /// shard's.
  Range stored(size_t index) const;

  /// Sets elements [first, first + values.numel()) of parameter `index`, of which the rank stores what it
  /// owns. `values` may be of any dtype and shape. The masters keep their full precision. Not while the unit
  /// is gathered.
  void write(size_t index, int64_t first, const at::Tensor& values);

  /// Starts filling the flat buffer; `wait_gathered` ends it. An error unless the unit is not_available.
  void start_gather();
  /// Returns when the values travelled.
  core::Interval wait_gathered();
  void gather();

  /// Lets the values go. An error unless the unit is available.
  void release();

  // Gradients.

  /// Adds this rank's gradient of parameter `index` to those collected since the last reduction.
  void collect(size_t index, const at::Tensor& gradient);

  /// After a backward pass through the unit: where gradients are partitioned, starts reducing what was
  /// collected (zeros where nothing was). `finish_reduction` ends it and adds this rank's part to
  /// `gradient()`; so does the next reduction's start. Gradients may be collected in between.
  void start_reduction();
  /// Returns when the gradients travelled; nothing where there was no reduction.
  std::optional<core::Interval> finish_reduction();
  /// Whether `finish_reduction` need not wait. Ranks may differ.
  bool reduction_is_done() const { return !pending_reduction_ || pending_reduction_->is_done(); }

  /// Before the optimizer's step: makes `gradient()` the reduced gradient, zeros where there was none.
  void finish_gradients();

  /// fp32 or wider, of the elements in `optimizer_range()`. Defined between `finish_gradients` and
  /// `clear_gradients`.
  const at::Tensor& gradient() const { return gradient_; }
  void clear_gradients() { gradient_.reset(); }

  // The optimizer's side.

  /// The part of the flat buffer that this rank's optimizer updates: its shard, or all of it under stage 0.
  Range optimizer_range() const;

  /// Values of `optimizer_range()` in fp32 or wider: what the optimizer updates in place, before `publish`.
  const at::Tensor& master() const { return master_; }

  /// Makes the masters the parameters' values, on every rank. Graphs made before are refused from now on.
  void publish();

  /// Counts `publish`es.
  int64_t generation() const { return generation_; }

 private:
  bool accumulates_whole() const;  // gradients are added up unreduced until the step
  Range own_range() const { return layout_.shard(group_.rank()); }
  std::string partitioned_message(size_t index) const;
  void move_to(State next, std::string_view action);

  std::string name_;
  FlatLayout layout_;
  Options options_;
  comm::Group group_;
  std::shared_ptr<core::BufferPool> pool_;
  std::vector<at::Tensor> parameters_;
  State state_ = State::not_available;

  at::Tensor flat_;    // [N] in the parameters' dtype: while gathered, or always
  at::Tensor shard_;   // [n] in the parameters' dtype; part of flat_ where that is always there
  at::Tensor master_;  // [n] or [N]; shares memory with the values where dtypes agree
  std::optional<comm::Pending> pending_gather_;

  at::Tensor flat_gradient_;      // [N] in the parameters' dtype, while gradients arrive
  std::vector<bool> collected_;   // is the parameter's part of the gradient buffer filled?
  at::Tensor reducing_gradient_;  // what flat_gradient_ was, while it is reduced
  std::optional<comm::Pending> pending_reduction_;
  at::Tensor gradient_;  // [n] or [N] in the master's dtype
  int64_t generation_ = 0;
};

/// Gathers a unit for a scope in which nothing else gathers or releases it.
class Gathered {
 public:
  explicit Gathered(Unit& unit) : unit_(unit) { unit_.gather(); }
  ~Gathered() { unit_.release(); }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  Unit& unit_;
};

}  // namespace trireme::zero
