#include "trireme/sp/distributed_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/attention_reference.h"
#include "support/ranks.h"
#include "trireme/core/check.h"
#include "trireme/sp/head_exchange.h"

namespace trireme::sp {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

struct Case {
  int64_t ranks, batch, heads, key_heads;
  std::vector<int64_t> lengths;  // tokens of each rank
};

// Whole sequences with their gradients by the definition: [B, S, ..].
struct Whole {
  Tensor query, key, value, upstream, output;
};

Whole reference(const Case& c, const AttentionContext& context) {
  at::manual_seed(3);
  const int64_t S = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0}), D = 4;
  Whole all;
  all.query = at::randn({c.batch, S, c.heads, D}, at::kDouble).requires_grad_(true);
  all.key = at::randn({c.batch, S, c.key_heads, D}, at::kDouble).requires_grad_(true);
  all.value = at::randn({c.batch, S, c.key_heads, D}, at::kDouble).requires_grad_(true);
  all.upstream = at::randn({c.batch, S, c.heads, D}, at::kDouble);
  all.output = tests::reference_attention(all.query, all.key, all.value, context);
  torch::autograd::backward({(all.output * all.upstream).sum()});
  return all;
}

void expect_close(const Tensor& actual, const Tensor& expected, const char* what) {
  EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-12) << what;
}

class Attention : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, Attention,
    testing::Values(Case{1, 2, 4, 2, {7}}, Case{2, 1, 4, 4, {6, 6}}, Case{2, 2, 4, 2, {5, 5}},
                    Case{2, 2, 4, 1, {4, 4}},          // multi-query: K < P
                    Case{4, 1, 8, 2, {3, 3, 3, 3}},    // grouped: K < P
                    Case{2, 2, 6, 3, {4, 3}},          // heads share keys unevenly; uneven slices
                    Case{3, 1, 4, 2, {5, 1, 3}},       // heads do not divide
                    Case{4, 2, 2, 1, {2, 3, 2, 2}},    // fewer heads than ranks
                    Case{4, 2, 4, 4, {1, 1, 1, 1}}));  // S == H

TEST_P(Attention, OutputAndEveryGradientAreThoseOfTheWholeSequence) {
  const Case& c = GetParam();
  AttentionContext context{.slice_lengths = c.lengths};
  const int64_t S = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  context.document_lengths = std::vector<std::vector<int64_t>>(size_t(c.batch), {S});
  context.document_lengths.back() = {S / 3, S - S / 3};
  const Whole all = reference(c, context);
  run_ranks(c.ranks, [&](const comm::Connection& connection) {
    const comm::Group group = world_of(connection);
    const auto rank = size_t(group.rank());
    const int64_t first = std::accumulate(c.lengths.begin(), c.lengths.begin() + int64_t(rank), int64_t{0});
    const auto slice = [&](const Tensor& whole) { return whole.detach().narrow(1, first, c.lengths[rank]); };
    Tensor q = slice(all.query).requires_grad_(true), k = slice(all.key).requires_grad_(true);
    Tensor v = slice(all.value).requires_grad_(true);
    for (bool packed : {false, true}) {
      for (const auto& leaf : {q, k, v}) leaf.mutable_grad() = Tensor();
      Tensor output = packed ? ulysses_attention(at::cat({q, k, v}, 2), q.size(2), context, group)
                             : ulysses_attention({q, k, v}, context, group);
      expect_close(output, slice(all.output), "output");
      torch::autograd::backward({(output * slice(all.upstream)).sum()});
      expect_close(q.grad(), slice(all.query.grad()), "query");
      expect_close(k.grad(), slice(all.key.grad()), "key");
      expect_close(v.grad(), slice(all.value.grad()), "value");
    }
  });
}

TEST_P(Attention, AnyLocalAttentionInAnyLayout) {
  const Case& c = GetParam();
  const Whole all = reference(c, {});
  for (AttentionLayout layout : {AttentionLayout{2, 1}, {2, 0}, {1, 2}, {3, 0}}) {
    run_ranks(c.ranks, [&](const comm::Connection& connection) {
      const comm::Group group = world_of(connection);
      const DistributedAttention attention(tests::reference_attention, group, layout);
      const auto rank = size_t(group.rank());
      const int64_t first = std::accumulate(c.lengths.begin(), c.lengths.begin() + int64_t(rank), int64_t{0});
      // [B, s, H, D] in the layout's order, and back.
      std::vector<int64_t> order(4, -1), free;
      order[size_t(layout.token_dim)] = 1;
      order[size_t(layout.head_dim)] = 2;
      int64_t rest[] = {0, 3}, *next = rest;
      for (auto& dim : order)
        if (dim < 0) dim = *next++;
      const auto slice = [&](const Tensor& whole) {
        return whole.detach().narrow(1, first, c.lengths[rank]).permute(order);
      };
      Tensor q = slice(all.query).requires_grad_(true), k = slice(all.key).requires_grad_(true);
      Tensor v = slice(all.value).requires_grad_(true);
      Tensor output = attention(q, k, v, {});
      expect_close(output, slice(all.output), "output");
      torch::autograd::backward({(output * slice(all.upstream)).sum()});
      expect_close(q.grad(), slice(all.query.grad()), "query");
      expect_close(k.grad(), slice(all.key.grad()), "key");
      expect_close(v.grad(), slice(all.value.grad()), "value");
    });
  }
}

TEST(UlyssesAttention, SendsWhatTheoryAsks) {
  const int64_t P = 4, s = 6, H = 8, D = 4;
  run_ranks(P, [&](const comm::Connection& connection) {
    const comm::Group group = world_of(connection);
    const auto sent = [&] {
      return group.traffic().bytes(comm::Collective::all_to_all) / int64_t(sizeof(double));
    };
    const auto forward_and_backward = [&](int64_t K) {
      Tensor q = at::randn({1, s, H, D}, at::kDouble).requires_grad_(true);
      Tensor k = at::randn({1, s, K, D}, at::kDouble).requires_grad_(true);
      const int64_t before = sent();
      Tensor output = ulysses_attention({q, k, k * 2}, {}, group);
      const int64_t forward = sent() - before;
      torch::autograd::backward({output.sum()});
      return std::pair{forward, sent() - before - forward};
    };
    // q, k, v and the output, of s * E elements each, of which 1 / P stays: 4 * S * E / P * (P - 1) / P.
    const int64_t all_heads = 4 * s * H * D * (P - 1) / P;
    // The backward pass also sends one number a query and head.
    const int64_t deltas = s * H * (P - 1) / P;
    EXPECT_EQ(forward_and_backward(H), std::pair(all_heads, all_heads + deltas));
    // One key head goes to every other rank, and nothing more.
    const int64_t one_key = 2 * s * H * D * (P - 1) / P + 2 * s * D * (P - 1);
    EXPECT_EQ(forward_and_backward(1), std::pair(one_key, one_key + deltas));
  });
}

TEST(UlyssesAttention, WhatIsKeptSparesAttentionAndTheOutputsExchange) {
  for (int64_t P : {1, 2})
    run_ranks(P, [P](const comm::Connection& connection) {
      const comm::Group group = world_of(connection);
      at::manual_seed(3 + connection.rank());
      const Tensor values = at::randn({2, 3, 4 + 2 * 2, 4}, at::kDouble);
      const Tensor upstream = at::randn({2, 3, 4, 4}, at::kDouble);
      KeptAttention kept;
      const auto run = [&] {
        Tensor qkv = values.detach().requires_grad_(true);
        const int64_t before = group.traffic().total();
        Tensor output = ulysses_attention(qkv, 4, {}, group, &kept);
        const int64_t sent = group.traffic().total() - before;
        torch::autograd::backward({(output * upstream).sum()});
        return std::tuple{output.detach().clone(), qkv.grad(), sent};
      };
      const auto [first, first_gradient, first_sent] = run();
      const auto [again, gradient, sent] = run();
      EXPECT_TRUE(at::equal(first, again));
      EXPECT_TRUE(at::equal(first_gradient, gradient));
      EXPECT_EQ(sent, P == 1 ? 0 : 2 * 3 * (4 + 2 * 2) * 4 * 8 / 2);  // q, k and v alone
      EXPECT_EQ(kept.output.sizes(), upstream.sizes());
      // And nothing is attended again: another kept output comes back as it is.
      kept.output = at::full_like(kept.output, 3);
      EXPECT_TRUE(ulysses_attention(values, 4, {}, group, &kept).eq(3).all().item<bool>());
    });
}

// What stands in for the output where only its products with the gradient are known.
TEST(UlyssesAttention, GradientsOfAnySizeAreThoseOfOneRank) {
  at::manual_seed(5);
  const Tensor exact_values = at::randn({1, 26, 2 + 2 * 2, 8}, at::kDouble);
  Tensor exact_upstream = at::randn({1, 26, 2, 8}, at::kDouble);
  exact_upstream.select(1, 7).zero_();
  run_ranks(2, [&](const comm::Connection& connection) {
    const comm::Group group = world_of(connection), alone;
    for (auto [dtype, tolerance] :
         {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 3e-2}})
      for (double size : {1.0, 1e-12, 1e-25, 1e-38, 1e-40, 1e-42, 0.0})
        for (int64_t window : {0, 5}) {
          const Tensor values = exact_values.to(dtype), upstream = (exact_upstream * size).to(dtype);
          const auto gradient = [&](int64_t first, int64_t count, const comm::Group& ranks) {
            Tensor qkv = values.narrow(1, first, count).clone().requires_grad_(true);
            torch::autograd::backward({ulysses_attention(qkv, 2, {.window = window}, ranks)},
                                      {upstream.narrow(1, first, count)});
            return qkv.grad();
          };
          const int64_t first = 13 * group.rank();
          const Tensor whole = gradient(0, 26, alone).narrow(1, first, 13);
          const Tensor difference = (gradient(first, 13, group) - whole).to(at::kDouble).abs().max();
          // Of the least ones no digit is promised, but that they are numbers, and as small.
          EXPECT_LE(difference.item<double>(), size < 1e-30 ? 10 * size : tolerance * size)
              << dtype << ' ' << size << ' ' << window;
        }
  });
}

TEST(DistributedAttention, RefusesShapesThatDisagree) {
  const DistributedAttention attention([](auto& q, auto&, auto&, auto&) { return q; }, comm::Group());
  Tensor q = at::zeros({1, 3, 4, 2});
  EXPECT_THROW(attention(q, at::zeros({1, 3, 3, 2}), at::zeros({1, 3, 3, 2}), {}), core::ValueError);
  EXPECT_THROW(attention(q, at::zeros({1, 2, 4, 2}), at::zeros({1, 2, 4, 2}), {}), core::ValueError);
  EXPECT_THROW(DistributedAttention({}, comm::Group(), {2, 2}), core::ValueError);
}

}  // namespace
}  // namespace trireme::sp
