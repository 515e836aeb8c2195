#include "trireme/comm/pending.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>

#include "trireme/comm/reason.h"
#include "trireme/core/check.h"

namespace trireme::comm {

struct Pending::State {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor input, output;
  std::string description;
  std::shared_ptr<Traffic> traffic;
  Finish finish;
};

Pending::Pending(at::Tensor result) : state_(std::make_shared<State>()) {
  state_->output = std::move(result);
}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor input, at::Tensor output,
                 std::string description, std::shared_ptr<Traffic> traffic, Finish finish)
    : state_(std::make_shared<State>(State{std::move(work), std::move(input), std::move(output),
                                           std::move(description), std::move(traffic), std::move(finish)})) {}

Pending Pending::then(Finish finish) && {
  state_->finish = std::move(finish);
  return std::move(*this);
}

bool Pending::is_done() const { return !state_->work || state_->work->isCompleted(); }

at::Tensor Pending::wait() {
  if (!state_->work) return state_->output;
  const auto start = std::chrono::steady_clock::now();
  try {
    state_->work->wait();
  } catch (const std::exception& error) {
    throw core::CommunicationError(core::concatenate("[comm] ", state_->description,
                                                     " did not finish: ", reason_of(error),
                                                     "; see which rank ended or waits elsewhere"));
  }
  state_->traffic->add_wait(std::chrono::steady_clock::now() - start);
  if (state_->finish) state_->output = state_->finish(state_->output);
  state_->work.reset();
  state_->input.reset();
  return state_->output;
}

}  // namespace trireme::comm
