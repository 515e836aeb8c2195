// Whole values of partitioned parameters, to read or to change, outside of training's own passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/zero/unit.h"

namespace trireme::zero {

/// Parameter `index` of a unit.
struct ParameterReference {
  Unit* unit;
  size_t index;
};

/// All parameters of `units`.
std::vector<ParameterReference> parameters_of(const std::vector<Unit*>& units);

/// For its scope, parameters of any units are whole on every rank, through `Unit::parameter`. Every rank of
/// their group opens and ends it at the same point. Scopes may be nested, and opened inside forward and
/// backward passes.
///
/// With a `modifier_rank`, what that rank wrote becomes every rank's values at the end: shards, and masters
/// where an element changed, so that the next optimizer step starts from them. Graphs made before are refused
/// from then on. Without one, a write by any rank is a `ValueError` on every rank at the end, and partitioned
/// values go back to what they were.
class GatheredParameters {
 public:
  explicit GatheredParameters(std::vector<ParameterReference> parameters,
                              std::optional<int64_t> modifier_rank = std::nullopt);

  /// Ends the scope, unless `finish` did or an exception is on its way: then nothing is kept.
  ~GatheredParameters() noexcept(false);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

  /// Ends the scope.
  void finish();

 private:
  struct Seen {
    uint64_t checksum;
    int64_t generation;
  };
  const comm::Group& group() const { return units_.front()->group(); }
  void close();
  void publish();
  std::optional<size_t> first_written() const;

  std::vector<ParameterReference> parameters_;
  std::vector<Unit*> units_;  // each once
  std::vector<std::unique_ptr<Gathered>> gathered_;
  std::optional<int64_t> modifier_rank_;
  std::vector<Seen> seen_;  // of each parameter, where there is no modifier
  int exceptions_;
  bool open_ = true;
};

/// Runs `initializer` on every parameter, whole, one unit at a time, on rank 0: as on a model that is not
/// partitioned. `values` has the parameter's shape and may be changed in place.
void initialize(const std::vector<Unit*>& units,
                const std::function<void(const ParameterSpec& spec, at::Tensor& values)>& initializer);

}  // namespace trireme::zero
