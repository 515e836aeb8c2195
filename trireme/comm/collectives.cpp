#include "trireme/comm/collectives.h"

#include <torch/csrc/autograd/custom_function.h>

#include "trireme/core/capsule.h"
#include "trireme/core/check.h"

namespace trireme::comm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a collective's backward pass needs: the group, and what to call the way back.
struct WayBack {
  Group group;
  std::string purpose;
};

void remember(AutogradContext* ctx, const Group& group, std::string_view purpose) {
  ctx->saved_data["way_back"] = core::to_capsule(WayBack{group, "the gradient of " + std::string(purpose)});
}

const WayBack& recall(AutogradContext* ctx) {
  return core::from_capsule<WayBack>(ctx->saved_data["way_back"]);
}

Tensor sum_scatter(const Tensor& whole, const Group& group, std::string_view purpose) {  // [P, ...] -> [...]
  core::check_value(whole.dim() > 0 && whole.size(0) == group.size(),
                    "[comm] reduce_scatter needs one part per rank; got ", whole.sizes(), " in a group of ",
                    group.size());
  return group.reduce_scatter(whole.reshape({-1}), whole.scalar_type(), purpose).view(whole.sizes().slice(1));
}

struct AllToAll : Function<AllToAll> {
  static Tensor forward(AutogradContext* ctx, const Tensor& parts, const Group& group,
                        std::string_view purpose) {
    remember(ctx, group, purpose);
    return group.all_to_all(parts, purpose);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [group, purpose] = recall(ctx);
    return {group.all_to_all(gradients[0], purpose), Tensor(), Tensor()};
  }
};

struct AllGather : Function<AllGather> {
  static Tensor forward(AutogradContext* ctx, const Tensor& part, const Group& group,
                        std::string_view purpose) {
    remember(ctx, group, purpose);
    return group.all_gather(part, purpose);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [group, purpose] = recall(ctx);
    return {sum_scatter(gradients[0], group, purpose), Tensor(), Tensor()};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static Tensor forward(AutogradContext* ctx, const Tensor& whole, const Group& group,
                        std::string_view purpose) {
    remember(ctx, group, purpose);
    return sum_scatter(whole, group, purpose);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [group, purpose] = recall(ctx);
    return {group.all_gather(gradients[0], purpose), Tensor(), Tensor()};
  }
};

struct AllReduce : Function<AllReduce> {
  static Tensor forward(AutogradContext* ctx, const Tensor& tensor, const Group& group,
                        std::string_view purpose) {
    remember(ctx, group, purpose);
    return group.all_reduce(tensor.clone(), purpose);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [group, purpose] = recall(ctx);
    return {group.all_reduce(gradients[0].clone(), purpose), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor all_to_all_with_gradient(const Tensor& parts, const Group& group, std::string_view purpose) {
  return AllToAll::apply(parts, group, purpose);
}

Tensor all_gather_with_gradient(const Tensor& part, const Group& group, std::string_view purpose) {
  return AllGather::apply(part, group, purpose);
}

Tensor reduce_scatter_with_gradient(const Tensor& whole, const Group& group, std::string_view purpose) {
  return ReduceScatter::apply(whole, group, purpose);
}

Tensor all_reduce_with_gradient(const Tensor& tensor, const Group& group, std::string_view purpose) {
  return AllReduce::apply(tensor, group, purpose);
}

}  // namespace trireme::comm
