// Units with known values, and whole gradients gathered from shards.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "trireme/zero/unit.h"

namespace trireme::tests {

/// Elements of parameter `index` of every rank's gradient, put together: the parameter's shape.
inline at::Tensor whole_gradient(const zero::Unit& unit, size_t index) {
  at::Tensor flat = unit.gradient();
  if (unit.options().partitions_optimizer()) flat = unit.group().all_gather(flat, "a test").view({-1});
  const auto range = unit.layout().parameter(index);
  return flat.narrow(0, range.begin, range.count()).view(unit.layout().specs()[index].shape).clone();
}

/// The values of parameter `index`. Every rank of the group must call it.
inline at::Tensor whole_value(zero::Unit& unit, size_t index) {
  zero::Gathered gathered(unit);
  return unit.parameter(index).detach().clone();
}

}  // namespace trireme::tests
