// Units with known values, and whole gradients gathered from shards.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "trireme/zero/unit.h"

namespace trireme::tests {

/// Elements of parameter `index` of every rank's gradient, put together: the parameter's shape.
inline at::Tensor whole_gradient(const zero::Unit& unit, size_t index) {
  const auto& [flat, place] = unit.place(index);
  at::Tensor values = flat->gradient().read().wait();
  if (unit.options().partitions_optimizer()) values = unit.group().all_gather(values, "a test").view({-1});
  const auto range = flat->layout().parameter(place);
  return values.narrow(0, range.begin, range.count()).view(unit.spec(index).shape).clone();
}

/// Changes every master of this rank by `change`, as an optimizer would.
inline void change_masters(zero::Unit& unit, const std::function<void(at::Tensor&)>& change) {
  for (const auto& flat : unit.flats()) {
    at::Tensor master = flat->read_master(0, flat->optimizer_range().count()).wait();
    change(master);
    flat->write_back_master(0, master);
  }
  unit.publish();
}

/// The values of parameter `index`. Every rank of the group must call it.
inline at::Tensor whole_value(zero::Unit& unit, size_t index) {
  zero::Gathered gathered(unit);
  return unit.parameter(index).detach().clone();
}

}  // namespace trireme::tests
