#include "trireme/sp/local_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include "trireme/core/capsule.h"
#include "trireme/sp/tiled_attention.h"

namespace trireme::sp {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct FusedAttention : Function<FusedAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key, const Tensor& value,
                        const AttentionContext& context) {
    auto result = attend(query, key, value, context);
    ctx->save_for_backward({query, key, value, result.output, result.logsumexp});
    ctx->saved_data["context"] = core::to_capsule(context);
    return result.output;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& context = core::from_capsule<AttentionContext>(ctx->saved_data["context"]);
    auto result = attend_backward(gradients[0], saved[0], saved[1], saved[2],
                                  {.output = saved[3], .delta = {}, .logsumexp = saved[4]}, context);
    return {result.query, result.key, result.value, Tensor()};
  }
};

}  // namespace

Tensor fused_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionContext& context) {
  return FusedAttention::apply(query, key, value, context);
}

}  // namespace trireme::sp
