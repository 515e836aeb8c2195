#include "trireme/comm/pending.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <limits>

#include "trireme/comm/reason.h"
#include "trireme/comm/watch.h"
#include "trireme/core/check.h"

namespace trireme::comm {

namespace {

using Clock = std::chrono::steady_clock;

// When a collective ended, told by the thread that ran it.
class End {
 public:
  void set(Clock::time_point time) { time_.store(time.time_since_epoch().count()); }
  void set_if_unknown(Clock::time_point time) {
    auto unknown = kUnknown;
    time_.compare_exchange_strong(unknown, time.time_since_epoch().count());
  }
  Clock::time_point get() const { return Clock::time_point(Clock::duration(time_.load())); }

 private:
  static constexpr Clock::rep kUnknown = std::numeric_limits<Clock::rep>::max();
  std::atomic<Clock::rep> time_ = kUnknown;
};

}  // namespace

struct Pending::State {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor input, output;
  Context context;
  Finish finish;
  Clock::time_point begin = Clock::now();
  std::shared_ptr<End> end = std::make_shared<End>();
};

Pending::Pending(at::Tensor result) : state_(std::make_shared<State>()) {
  state_->output = std::move(result);
  state_->end->set(state_->begin);
}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor input, at::Tensor output, Context context,
                 Finish finish)
    : state_(std::make_shared<State>(State{std::move(work), std::move(input), std::move(output),
                                           std::move(context), std::move(finish)})) {
  if (!state_->output.defined() || !state_->output.is_cpu())
    return;  // a device's work ends later than its call
  if (const auto future = state_->work->getFuture())
    future->addCallback([end = state_->end](c10::ivalue::Future&) { end->set(Clock::now()); });
}

Pending Pending::then(Finish finish) && {
  state_->finish = std::move(finish);
  return std::move(*this);
}

core::Interval Pending::interval() const { return {state_->begin, state_->end->get()}; }

bool Pending::is_done() const { return !state_->work || state_->work->isCompleted(); }

at::Tensor Pending::wait() {
  if (!state_->work) return state_->output;
  const auto start = Clock::now();
  const Watch& watch = *state_->context.watch;
  auto waiting = watch.position().wait_in(state_->context.description);
  try {
    state_->work->wait();
  } catch (const std::exception& error) {
    throw core::CommunicationError(watch.diagnose(reason_of(error)));
  }
  waiting = {};
  const auto now = Clock::now();
  state_->context.traffic->add_wait(now - start);
  state_->end->set_if_unknown(now);
  if (state_->finish) state_->output = state_->finish(state_->output);
  state_->work.reset();
  state_->input.reset();
  return state_->output;
}

}  // namespace trireme::comm
