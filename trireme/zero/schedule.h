// How far ahead units are gathered and how long they are kept. Names and defaults are DeepSpeed's, without
// "stage3_".
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace trireme::zero {

struct Schedule {
  /// Elements that may be in flight ahead of their use: a gather begins while fewer are. 0: none ahead.
  int64_t prefetch_bucket_size = 50'000'000;
  /// Elements of shards that may be brought from their disk ahead of that.
  int64_t read_ahead_size = 500'000'000;
  /// Elements that may be gathered at once, what is used now aside: no gather ahead and no keeping beyond it.
  int64_t max_live_parameters = 1'000'000'000;
  /// A unit is kept where it is used again before so many elements of others are. 0: released after each use.
  int64_t max_reuse_distance = 1'000'000'000;
  /// Gradients are reduced beside the rest of the backward pass, so many elements at a time at most.
  bool overlap_reductions = true;
  int64_t reduce_bucket_size = 500'000'000;
  /// Told in one line what was expected and what came, where the order of units changed.
  std::function<void(const std::string&)> on_changed_order;
};

}  // namespace trireme::zero
