#include "trireme/alst/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <utility>

#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The default generators that a region on `device` may draw from.
class RandomState {
 public:
  explicit RandomState(at::Device device) {
    add(at::kCPU);
    if (!device.is_cpu()) add(device);
  }

  void restore() const {
    for (const auto& [generator, state] : states_) {
      auto mine = generator;
      std::lock_guard lock(mine.mutex());
      mine.set_state(state);
    }
  }

 private:
  void add(at::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, Tensor>> states_;
};

// Replays under an earlier random state, and then goes on from the present one.
class ReplayedRandomState {
 public:
  ReplayedRandomState(const RandomState& earlier, at::Device device) : present_(device) { earlier.restore(); }
  ~ReplayedRandomState() { present_.restore(); }
  ReplayedRandomState(const ReplayedRandomState&) = delete;
  ReplayedRandomState& operator=(const ReplayedRandomState&) = delete;

 private:
  RandomState present_;
};

struct Plan {
  Region region;
  std::shared_ptr<Keeper> keeper;
  std::vector<bool> defined;  // which inputs are
};

// Undefined tensors cannot cross autograd: they are left out on the way in and put back here.
variable_list with_undefined(const std::vector<bool>& defined, const Tensor* next) {
  variable_list all;
  for (bool is_defined : defined) all.push_back(is_defined ? *next++ : Tensor());
  return all;
}

struct Checkpoint : Function<Checkpoint> {
  struct Saved {
    Plan plan;
    RandomState random;
    at::Device device;
    std::vector<bool> trained;  // which of the defined inputs require a gradient
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& anchor, at::TensorList inputs,
                               const Plan& plan) {
    Saved saved{plan, RandomState(anchor.device()), anchor.device(), {}};
    for (const auto& input : inputs) saved.trained.push_back(input.requires_grad());
    Kept kept;
    auto outputs = plan.region(with_undefined(plan.defined, inputs.data()), kept);
    if (plan.keeper) {
      ctx->save_for_backward({core::to_owning_tensor(plan.keeper->keep(inputs.vec(), kept.tensors))});
    } else {
      variable_list to_save(inputs.begin(), inputs.end());
      to_save.insert(to_save.end(), kept.tensors.begin(), kept.tensors.end());
      ctx->save_for_backward(to_save);
    }
    ctx->saved_data["saved"] = core::to_capsule(std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    auto all = ctx->get_saved_variables();
    if (saved.plan.keeper) all = core::from_owning_tensor<KeptTensors>(all[0]).get();
    variable_list inputs;
    for (size_t i = 0; i < saved.trained.size(); ++i)
      inputs.push_back(all[i].detach().requires_grad_(saved.trained[i]));
    Kept kept{.replaying = true, .tensors = {all.begin() + int64_t(saved.trained.size()), all.end()}};
    all.clear();
    variable_list outputs;
    {
      ReplayedRandomState random(saved.random, saved.device);
      at::AutoGradMode with_graph(true);  // a backward function starts without
      outputs = saved.plan.region(with_undefined(saved.plan.defined, inputs.data()), kept);
    }
    core::check_internal(outputs.size() == gradients.size(),
                         "[alst] a region must return as many outputs when replayed; got ", outputs.size(),
                         " for ", gradients.size());
    variable_list roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      root_gradients.push_back(std::move(gradients[i]));
    }
    kept.tensors.clear();
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    variable_list result{Tensor()};
    for (auto& input : inputs) result.push_back(input.grad());
    result.emplace_back();
    return result;
  }
};

}  // namespace

std::vector<Tensor> checkpoint(const Region& region, const std::vector<Tensor>& inputs,
                               const std::shared_ptr<Keeper>& keeper) {
  if (!at::GradMode::is_enabled()) {
    Kept kept;
    return region(inputs, kept);
  }
  Plan plan{region, keeper, {}};
  variable_list defined;
  for (const auto& input : inputs) {
    plan.defined.push_back(input.defined());
    if (input.defined()) defined.push_back(input);
  }
  const auto device = defined.empty() ? at::Device(at::kCPU) : defined[0].device();
  // Parameters are not inputs of the node: this alone keeps it in the graph where no input requires a
  // gradient.
  Tensor anchor = at::zeros({}, at::TensorOptions(device)).requires_grad_(true);
  return Checkpoint::apply(anchor, at::TensorList(defined), plan);
}

}  // namespace trireme::alst
