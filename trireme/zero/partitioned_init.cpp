#include "trireme/zero/partitioned_init.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace trireme::zero {

PartitionedInit::PartitionedInit(const Settings& settings, Options options, comm::Group group, Memory memory)
    : options_(std::move(options)), group_(std::move(group)), memory_(std::move(memory)) {
  if (!settings.enabled) options_.stage = std::min(options_.stage, Stage::gradients);
  options_.parameters_on = settings.remote_device;
}

std::unique_ptr<Unit> PartitionedInit::make(const std::string& name,
                                            const std::vector<ParameterSpec>& specs) const {
  return std::make_unique<Unit>(name, specs, options_, group_, memory_);
}

std::unique_ptr<Unit> PartitionedInit::make(const std::string& name, const std::vector<ParameterSpec>& specs,
                                            const Initializer& initializer) const {
  auto unit = make(name, specs);
  for (size_t i = 0; i < unit->size(); ++i) {
    const auto dtype = unit->place(i).flat->master_dtype();
    at::Tensor values = at::zeros(unit->spec(i).shape, at::TensorOptions(dtype));
    if (group_.rank() == 0) initializer(unit->spec(i), values);
    values = values.to(options_.device);
    if (group_.size() > 1 && values.numel() > 0)
      group_.broadcast(values, 0, "the first values of '" + unit->spec(i).name + "'");
    unit->write(i, 0, values);
  }
  unit->publish();
  return unit;
}

}  // namespace trireme::zero
