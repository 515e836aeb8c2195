// A set of parameters that is gathered and released together.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/core/buffer_pool.h"
#include "trireme/zero/flat_parameters.h"
#include "trireme/zero/options.h"

namespace trireme::zero {

/// Are a unit's partitioned values there?
///   not_available -> in_flight (gather begins) -> available (gather ends) -> not_available (release)
enum class State { not_available, in_flight, available };

std::string_view name_of(State state);

/// Who is told that a unit's parameter is about to be read.
class ParameterReader {
 public:
  virtual ~ParameterReader() = default;
  virtual void before_read(class Unit& unit) = 0;
};

/// Parameters of any kinds: each kind in a flat buffer of its own, see flat_parameters.h. Where some are
/// partitioned (stage 3), their values are there only between `gather` and `release`; the others' always,
/// and a unit of which none is partitioned is always available.
///
/// Every rank must call gather, start_reduction, finish_gradients and publish in the same order. Neither
/// copied nor moved.
class Unit {
 public:
  /// Values are zero until `write`. `memory` lends the flat buffers that come and go.
  Unit(std::string name, const std::vector<ParameterSpec>& specs, const Options& options, comm::Group group,
       const Memory& memory);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const Options& options() const { return options_; }
  const comm::Group& group() const { return group_; }
  State state() const { return state_; }

  /// The number of parameters, and each one's spec, in the order that they were given.
  size_t size() const { return places_.size(); }
  const ParameterSpec& spec(size_t index) const;

  /// Of the parameters alone, without padding.
  int64_t numel() const;

  /// Elements of the flat buffers that come and go; 0: none is partitioned.
  int64_t gathered_elements() const;
  bool is_partitioned() const { return gathered_elements() > 0; }

  /// Elements of the flat gradients; 0: nothing here is trained.
  int64_t gradient_elements() const;
  bool is_trainable() const { return gradient_elements() > 0; }

  /// Parameter `index`, of its spec's shape. Whoever watches is told first, and may gather the unit.
  const at::Tensor& parameter(size_t index) const;

  /// `reader`, if any, is told of each `parameter` call. It must outlive the unit, or be taken off.
  void watch(ParameterReader* reader) { reader_ = reader; }

  /// One flat buffer for each kind of parameter, and where parameter `index` is: in which, as which.
  const std::vector<std::unique_ptr<FlatParameters>>& flats() const { return flats_; }
  struct Place {
    FlatParameters* flat;
    size_t index;
  };
  const Place& place(size_t index) const { return places_[index]; }

  // Values. See flat_parameters.h.

  Range stored(size_t index) const { return places_[index].flat->stored(places_[index].index); }

  /// Not while the unit is gathered.
  void write(size_t index, int64_t first, const at::Tensor& values);

  /// Makes what was written or updated the parameters' values, on every rank. Graphs made before are refused
  /// from now on.
  void publish();

  /// Counts `publish`es.
  int64_t generation() const { return generation_; }

  /// Starts bringing shards from their disk, ahead of `start_gather`; nothing where they are not on one.
  void start_read();
  /// Ends that, unless the unit is being gathered.
  void drop_read();

  /// Starts filling the flat buffers; `wait_gathered` ends it. An error unless the unit is not_available.
  void start_gather();
  /// Returns when the values travelled: from the first to the last.
  core::Interval wait_gathered();

  /// Lets the values go. An error unless the unit is available, and nobody uses it.
  void release();

  /// Somebody, such as a forward or backward pass, is inside the unit from `begin_use` to `end_use`.
  void begin_use() { ++uses_; }
  void end_use();
  bool is_used() const { return uses_ > 0; }

  // Gradients, of trainable parameters. See flat_parameters.h.

  /// After a backward pass through the unit: where gradients are partitioned, starts reducing what was
  /// collected (zeros where nothing was). `finish_reduction` ends it; so does the next reduction's start.
  /// Gradients may be collected in between.
  void start_reduction();
  /// Returns when the gradients travelled; nothing where there was no reduction.
  std::optional<core::Interval> finish_reduction();
  /// Whether `finish_reduction` need not wait. Ranks may differ.
  bool reduction_is_done() const;

  /// Before the optimizer's step: makes every flat's `gradient()` the reduced gradient, zeros where there was
  /// none.
  void finish_gradients();
  void clear_gradients();

 private:
  void check_move(State next, std::string_view action) const;
  std::string first_partitioned() const;

  std::string name_;
  Options options_;
  comm::Group group_;
  std::vector<std::unique_ptr<FlatParameters>> flats_;
  std::vector<Place> places_;
  ParameterReader* reader_ = nullptr;
  State state_ = State::not_available;
  int64_t uses_ = 0;
  int64_t generation_ = 0;
};

/// Uses a unit for a scope, gathered; releases it at the end unless somebody else uses it still.
class Gathered {
 public:
  explicit Gathered(Unit& unit);
  ~Gathered();
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  Unit& unit_;
};

}  // namespace trireme::zero
