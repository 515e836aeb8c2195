// Building a model whose parameters are partitioned from the moment that they exist.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/zero/unit.h"

namespace trireme::zero {

/// Makes units, each rank holding its shards alone: no rank ever holds more whole values than the one
/// parameter that is being filled.
class PartitionedInit {
 public:
  struct Settings {
    bool enabled = true;  ///< false: every rank holds the values whole, as under stage 2
    core::Residence remote_device = core::Residence::device;  ///< where shards live between their gathers
  };

  /// `options.parameters_on` gives way to `settings.remote_device`.
  PartitionedInit(const Settings& settings, Options options, comm::Group group, Memory memory);

  /// Fills one parameter of the spec's shape, in fp32 or wider, on the host.
  using Initializer = std::function<void(const ParameterSpec& spec, at::Tensor& values)>;

  /// A unit of zeros, to be written.
  std::unique_ptr<Unit> make(const std::string& name, const std::vector<ParameterSpec>& specs) const;

  /// A unit of the values that `initializer` makes, on the group's rank 0 for all. Every rank must call it.
  std::unique_ptr<Unit> make(const std::string& name, const std::vector<ParameterSpec>& specs,
                             const Initializer& initializer) const;

 private:
  Options options_;
  comm::Group group_;
  Memory memory_;
};

}  // namespace trireme::zero
