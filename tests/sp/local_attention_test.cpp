#include "trireme/sp/local_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/attention_reference.h"

namespace trireme::sp {
namespace {

using at::Tensor;

struct Inputs {
  Tensor query, key, value, upstream;
};

Inputs inputs(int64_t B, int64_t S, int64_t H, int64_t K, at::ScalarType dtype = at::kDouble) {
  at::manual_seed(7);
  const int64_t D = 8;
  // Strided views of one buffer, as the exchange delivers them.
  Tensor packed = at::randn({B, S, H + 2 * K, D}, at::kDouble).to(dtype);
  auto parts = packed.split_with_sizes({H, K, K}, 2);
  return {parts[0].detach(), parts[1].detach(), parts[2].detach(),
          at::randn({B, S, H, D}, at::kDouble).to(dtype)};
}

template <class Attend>
std::vector<Tensor> output_and_gradients(const Inputs& in, const Attend& attend) {
  Tensor q = in.query.detach().requires_grad_(true), k = in.key.detach().requires_grad_(true);
  Tensor v = in.value.detach().requires_grad_(true);
  Tensor output = attend(q, k, v);
  torch::autograd::backward({(output * in.upstream).sum()});
  return {output.detach(), q.grad(), k.grad(), v.grad()};
}

void compare(const Inputs& in, const AttentionContext& context, double tolerance = 1e-12) {
  auto fused =
      output_and_gradients(in, [&](auto& q, auto& k, auto& v) { return fused_attention(q, k, v, context); });
  const Inputs exact{in.query.to(at::kDouble), in.key.to(at::kDouble), in.value.to(at::kDouble),
                     in.upstream.to(at::kDouble)};
  auto reference = output_and_gradients(
      exact, [&](auto& q, auto& k, auto& v) { return tests::reference_attention(q, k, v, context); });
  for (size_t i = 0; i < fused.size(); ++i) {
    EXPECT_EQ(fused[i].scalar_type(), in.query.scalar_type());
    EXPECT_LT((fused[i].to(at::kDouble) - reference[i]).abs().max().item<double>(), tolerance)
        << "result " << i;
  }
}

TEST(FusedAttention, EqualsTheDefinition) {
  for (auto [H, K] : {std::pair{4, 4}, {4, 2}, {3, 1}}) {
    compare(inputs(2, 37, H, K), {});
    compare(inputs(2, 37, H, K), {.causal = false});
    compare(inputs(2, 37, H, K), {.document_lengths = {{5, 30, 2}, {37}}});
    compare(inputs(2, 37, H, K), {.document_lengths = {{1, 1, 35}, {36, 1}}, .causal = false});
    compare(inputs(1, 200, H, K), {.document_lengths = {{150, 50}}, .window = 9});
    compare(inputs(2, 37, H, K), {.document_lengths = {{5, 20}, {}}});  // the rest is padding
  }
}

TEST(FusedAttention, BlockLayoutLeavesQueriesThatReadNothingZero) {
  const BlockLayout blocks{8, {{0}, {0, 1}, {0, 2}, {1, 3}, {}}};
  const AttentionContext context{.blocks = blocks};
  const auto in = inputs(2, 37, 4, 2);
  compare(in, context);
  EXPECT_TRUE(fused_attention(in.query, in.key, in.value, context).narrow(1, 32, 5).eq(0).all().item<bool>());
}

TEST(FusedAttention, LowerPrecision) {
  compare(inputs(1, 65, 4, 2, at::kFloat), {.document_lengths = {{40, 25}}}, 2e-6);
  compare(inputs(1, 65, 4, 2, at::kBFloat16), {.document_lengths = {{40, 25}}}, 5e-2);
  compare(inputs(1, 165, 4, 2, at::kBFloat16), {.window = 50}, 5e-2);
}

TEST(FusedAttention, NoHeadsIsNoWork) {
  Tensor none = at::zeros({1, 5, 0, 8}).requires_grad_(true);
  Tensor output = fused_attention(none, none, none, {});
  EXPECT_EQ(output.sizes(), none.sizes());
  torch::autograd::backward({output.sum()});
}

}  // namespace
}  // namespace trireme::sp
