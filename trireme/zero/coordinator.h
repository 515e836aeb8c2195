// When units are gathered, released and reduced: four events around each use of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/position.h"
#include "trireme/core/timeline.h"
#include "trireme/zero/schedule.h"
#include "trireme/zero/trace.h"
#include "trireme/zero/unit.h"

namespace trireme::zero {

/// What a unit's backward pass reads of it.
enum class BackwardNeeds {
  values,     ///< parameters: gathered again
  gradients,  ///< nothing: gradients only arrive, as for an embedding, or a loss that formed its gradients
              ///< forward
};

/// Counts the uses of each unit: gathered for the first, let go after the last; gradients are reduced once,
/// after the last backward use. From the second pass on, units are gathered ahead of their use, kept where
/// they are soon used again, and gradients are reduced, beside computation, as the schedule says. A pass that
/// takes another order is right all the same, and gathers on demand.
///
/// A partitioned parameter that is read, by `Unit::parameter`, inside a unit that does not own it is gathered
/// with that unit: at once the first time, and from then on together with it, forward and backward, as if it
/// had been registered.
///
/// One a rank; every rank must raise the same events in the same order. Not thread-safe. Whoever raises
/// events by hand, as hooks of another language do, pairs before and after, and ends passes.
class Coordinator : private ParameterReader {
 public:
  using Units = std::vector<Unit*>;

  /// `timeline`, if given, is told of every use, gather and reduction.
  explicit Coordinator(Schedule schedule = {}, std::shared_ptr<core::Timeline> timeline = nullptr)
      : schedule_(std::move(schedule)), timeline_(std::move(timeline)) {}

  /// Makes the units known, in an order that is the same on every rank, and watches what is read of them.
  /// They must outlive the coordinator, or be read no more.
  void adopt(const Units& units);

  /// `user`'s forward and backward pass read a parameter of `owner`: both are gathered for them.
  void register_external_parameter(Unit& user, Unit& owner);

  void before_forward(const Units& units);
  /// `backward_follows`: a backward pass will raise `after_backward` for these units.
  void after_forward(const Units& units, bool backward_follows);
  void before_backward(const Units& units);
  void after_backward(const Units& units);

  /// When a forward and backward pass, or an evaluation, is over: releases and reduces what raised no
  /// `after_backward`, since its input needed no gradient, and whatever was gathered ahead or kept. Gradients
  /// are whole after it.
  void end_pass();

  /// `output = body(input)` between the forward events, with nodes in the graph that raise the backward
  /// events: output's gradient arrives before the units' backward pass, input's gradient leaves after it.
  /// [any shape] -> [any shape]. Without grad mode there are no nodes. The units must outlive the graph.
  at::Tensor around(const Units& units, BackwardNeeds needs, const at::Tensor& input,
                    const std::function<at::Tensor(const at::Tensor&)>& body);

  struct Statistics {
    int64_t gathers = 0;            ///< of units, ahead or not
    int64_t gathered_ahead = 0;     ///< of these, units that were in flight, or there, when they were needed
    int64_t kept = 0;               ///< uses of a unit that was there still
    int64_t unused = 0;             ///< units gathered ahead or kept in vain
    int64_t hidden_elements = 0;    ///< gathered ahead, and there before they were needed
    int64_t gathered_elements = 0;  ///< of all gathers that were used
  };
  const Statistics& statistics() const { return statistics_; }

  /// Elements of units that are gathered, or in flight.
  int64_t live_parameters() const;

 private:
  struct Use {
    int64_t holds = 0;           // forward and backward passes that are inside the unit now
    int64_t backward_holds = 0;  // of these, backward passes
    int64_t awaited = 0;         // backward passes to come
    bool touched = false;        // did this backward pass reach it?
    bool ahead = false;          // gathered ahead, not used yet
    std::chrono::steady_clock::time_point entered;  // by the first of the holds
    comm::Position::Scope here;                     // says so, while there are holds
  };
  // A forward pass that is inside its units now.
  struct Frame {
    Units declared;
    Units units;  // and those of external parameters
  };
  void before_read(Unit& unit) override;
  Units with_externals(const Units& units) const;
  void enter_backward(const Units& units);
  void leave_backward(const Units& units);
  Use& use_of(Unit& unit);
  void hold(Unit& unit);
  void let_go(Unit& unit, std::string_view pass);
  void wait_gathered(Unit& unit, std::chrono::steady_clock::time_point needed);
  void note(std::string_view lane, std::string_view what, const Unit& unit, const core::Interval& interval);
  void start_gather(Unit& unit);
  void gather_ahead();
  void read_ahead();
  void release_idle();  // all that nothing is inside of
  bool is_used_soon(const Unit& unit) const;
  void reduce(Unit& unit);
  void finish_reductions(int64_t in_flight_allowed);
  void report(const std::string& fault) const;

  Schedule schedule_;
  std::shared_ptr<core::Timeline> timeline_;
  Trace trace_;
  Statistics statistics_;
  std::vector<Frame> frames_;  // innermost last
  std::map<Unit*, Units> externals_;
  std::deque<Unit*> reducing_;  // oldest first
  int64_t reducing_elements_ = 0;
  std::vector<Unit*> order_;  // of first use: the same on every rank, as addresses are not
  std::map<Unit*, Use> uses_;

  friend struct EnterUnits;
  friend struct LeaveUnits;
};

}  // namespace trireme::zero
