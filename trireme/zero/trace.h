// The order in which units are used.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/zero/unit.h"

namespace trireme::zero {

/// Records the uses of one pass (a forward and backward pass, or an evaluation) and follows them in the next.
/// Where another unit comes than expected, what has passed stays right, nothing is predicted for the rest of
/// the pass, and the pass is recorded in place of the old trace. Every rank that makes the same calls makes
/// the same predictions.
class Trace {
 public:
  /// A unit is used, that was not in use already. Returns what was wrong about the prediction, or nothing.
  std::string visit(Unit& unit);

  /// The pass is over. Returns what was wrong about the prediction: less came than expected, or nothing.
  std::string end_pass();

  /// The uses that this pass still has before it, in order; none while a pass is recorded.
  std::span<Unit* const> upcoming() const;

 private:
  std::vector<Unit*> uses_;
  size_t place_ = 0;        // uses of this pass so far
  bool following_ = false;  // is uses_ a whole pass, which agreed with this one so far?
};

}  // namespace trireme::zero
