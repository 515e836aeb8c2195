// A collective that has been started.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "trireme/comm/traffic.h"
#include "trireme/core/timeline.h"

namespace c10d {
class Work;
}

namespace trireme::comm {

class Watch;

/// What an asynchronous collective returns. Keeps its inputs and outputs alive until it is done, so dropping
/// it without waiting is safe. Copies share one state.
class Pending {
 public:
  /// Nothing to wait for: `result` is there.
  explicit Pending(at::Tensor result);

  /// Makes the result from what arrived; runs once, inside the first `wait`.
  using Finish = std::function<at::Tensor(const at::Tensor&)>;

  struct Context {
    std::string description;             ///< which collective, of which group, for what
    std::shared_ptr<Traffic> traffic;    ///< is told how long was waited
    std::shared_ptr<const Watch> watch;  ///< is told of the wait, and asked why it was in vain
  };

  /// Without `finish` the result is `output`.
  Pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor input, at::Tensor output, Context context,
          Finish finish = {});

  /// The same collective, whose result is `finish` of this one's.
  Pending then(Finish finish) &&;

  /// Whether `wait` would return at once. Ranks may differ: nothing that others take part in may depend on
  /// it.
  bool is_done() const;

  /// From the start to the end of the collective, which may lie long before `wait`; an end after now is not
  /// known yet. On devices, the end is when `wait` returned.
  core::Interval interval() const;

  /// The result, usable on the current stream. May be called again.
  /// Throws `core::CommunicationError` when the time limit passes or another rank has ended: the text says
  /// where every rank is.
  at::Tensor wait();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
