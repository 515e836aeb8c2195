#include "trireme/alst/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/ranks.h"
#include "trireme/comm/collectives.h"

#include "support/autocast.h"

namespace trireme::alst {
namespace {

using at::Tensor;

Tensor numbers(int64_t seed) { return (at::arange(12, at::kDouble).view({3, 4}) + double(seed)).sin(); }

TEST(Checkpoint, GradientsAreThoseOfThePlainRun) {
  for (bool checkpointed : {false, true}) {
    Tensor x = numbers(0).requires_grad_(true), w = numbers(1).requires_grad_(true);
    int runs = 0;
    const Region region = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
      ++runs;
      return {(in[0] * w).tanh(), in[0].sum(0)};
    };
    Kept kept;
    auto out = checkpointed ? checkpoint(region, {x}) : region({x}, kept);
    torch::autograd::backward({(out[0] * numbers(2)).sum() + (out[1] * 3).sum()});
    Tensor y = numbers(0).requires_grad_(true), v = numbers(1).requires_grad_(true);
    torch::autograd::backward({((y * v).tanh() * numbers(2)).sum() + (y.sum(0) * 3).sum()});
    EXPECT_TRUE(at::equal(x.grad(), y.grad()));
    EXPECT_TRUE(at::equal(w.grad(), v.grad()));
    EXPECT_EQ(runs, checkpointed ? 2 : 1);
  }
}

TEST(Checkpoint, ArgumentsOfAnyKindPassThrough) {
  Tensor x = numbers(0).requires_grad_(true);
  Tensor mask = numbers(3).gt(0), ids = at::tensor({2, 0, 1});
  const Region region = [](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    EXPECT_EQ(in.size(), 4u);
    EXPECT_FALSE(in[1].defined());
    EXPECT_EQ(in[2].scalar_type(), at::kBool);
    return {in[0].index_select(0, in[3]).masked_fill(in[2], 0)};
  };
  torch::autograd::backward({checkpoint(region, {x, Tensor(), mask, ids})[0].sum()});
  Tensor y = numbers(0).requires_grad_(true);
  torch::autograd::backward({y.index_select(0, ids).masked_fill(mask, 0).sum()});
  EXPECT_TRUE(at::equal(x.grad(), y.grad()));
}

TEST(Checkpoint, RandomNumbersAreDrawnAgain) {
  Tensor x = at::ones({1000}).requires_grad_(true);
  const Region region = [](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {at::dropout(in[0], 0.5, true)};
  };
  at::manual_seed(5);
  Tensor out = checkpoint(region, {x})[0];
  Tensor after = at::rand({4});
  torch::autograd::backward({out.sum()});
  EXPECT_TRUE(at::equal(x.grad(), out.detach()));  // d(dropout)/dx where x is 1
  // And the stream goes on as if nothing had been replayed.
  Tensor next = at::rand({4});
  at::manual_seed(5);
  at::dropout(x, 0.5, true);
  EXPECT_TRUE(at::equal(after, at::rand({4})));
  EXPECT_TRUE(at::equal(next, at::rand({4})));
}

TEST(Checkpoint, AFrozenInputLeavesTheParametersInTheGraph) {
  Tensor x = numbers(0), w = numbers(1).requires_grad_(true);
  const Region region = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {in[0] * w};
  };
  Tensor out = checkpoint(region, {x})[0];
  ASSERT_TRUE(out.requires_grad());
  torch::autograd::backward({out.sum()});
  EXPECT_TRUE(at::equal(w.grad(), x));
}

TEST(Checkpoint, WhatIsKeptIsThereInTheReplay) {
  Tensor x = numbers(0).requires_grad_(true);
  int computed = 0;
  const Region region = [&](const std::vector<Tensor>& in, Kept& kept) -> std::vector<Tensor> {
    if (!kept.replaying) {
      ++computed;
      kept.tensors = {in[0].exp().detach(), at::tensor({7})};
    }
    EXPECT_EQ(kept.tensors.at(1).item<int64_t>(), 7);
    return {in[0] * kept.tensors.at(0)};
  };
  torch::autograd::backward({checkpoint(region, {x})[0].sum()});
  EXPECT_EQ(computed, 1);
  EXPECT_TRUE(at::equal(x.grad(), numbers(0).exp()));
}

TEST(Checkpoint, TwoBackwardPassesAddUpAndNeedTheGraphRetained) {
  Tensor x = numbers(0).requires_grad_(true), w = numbers(1).requires_grad_(true);
  const Region region = [&](const std::vector<Tensor>& in, Kept& kept) -> std::vector<Tensor> {
    if (!kept.replaying) kept.tensors = {at::ones({1})};
    return {(in[0] * w).sin() * kept.tensors.at(0)};
  };
  Tensor out = checkpoint(region, {x})[0].sum();
  torch::autograd::backward({out}, {}, /*retain_graph=*/true);
  Tensor once = w.grad().clone();
  torch::autograd::backward({out});
  EXPECT_TRUE(at::allclose(w.grad(), once * 2));
  EXPECT_ANY_THROW(torch::autograd::backward({out}));
}

TEST(Checkpoint, Nests) {
  Tensor x = numbers(0).requires_grad_(true), w = numbers(1).requires_grad_(true);
  const Region inner = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {(in[0] * w).tanh()};
  };
  const Region outer = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {checkpoint(inner, {in[0] + 1})[0] * w};
  };
  torch::autograd::backward({checkpoint(outer, {x})[0].sum()});
  Tensor y = numbers(0).requires_grad_(true), v = numbers(1).requires_grad_(true);
  torch::autograd::backward({(((y + 1) * v).tanh() * v).sum()});
  EXPECT_TRUE(at::allclose(x.grad(), y.grad()));
  EXPECT_TRUE(at::allclose(w.grad(), v.grad()));
}

TEST(Checkpoint, AReplayIsCastAsTheFirstRunWas) {
  std::vector<at::ScalarType> computed_in;
  const auto run = [&](bool checkpointed) {
    Tensor x = numbers(0).to(at::kFloat).requires_grad_(true), w = numbers(1).to(at::kFloat).t();
    w = w.contiguous().requires_grad_(true);
    const Region region = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
      Tensor y = at::matmul(in[0], w);
      computed_in.push_back(y.scalar_type());
      return {at::softmax(y, -1), at::matmul(in[0], w).cos()};  // fp32, bf16
    };
    Tensor loss;
    {
      tests::Autocast autocast;
      Kept kept;
      const auto out = checkpointed ? checkpoint(region, {x}) : region({x}, kept);
      // Casts of w that the region made belong to it.
      loss = (out[0] * at::matmul(x, w)).sum() + out[1].sum();
    }
    torch::autograd::backward({loss});
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return std::pair(x.grad(), w.grad());
  };
  const auto [dx, dw] = run(true);
  EXPECT_EQ(computed_in, std::vector<at::ScalarType>(2, at::kBFloat16));
  const auto [expected_x, expected_w] = run(false);
  EXPECT_TRUE(at::allclose(dx, expected_x, 1e-2, 1e-2));
  EXPECT_TRUE(at::allclose(dw, expected_w, 1e-2, 1e-2));

  // Nor does a region that ran without autocast take it over from the backward pass.
  computed_in.clear();
  Tensor x = numbers(0).to(at::kFloat).requires_grad_(true);
  const Region region = [&](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    Tensor y = at::matmul(in[0], in[0].t());
    computed_in.push_back(y.scalar_type());
    return {y};
  };
  Tensor out = checkpoint(region, {x})[0].sum();
  tests::Autocast autocast;
  torch::autograd::backward({out});
  EXPECT_EQ(computed_in, std::vector<at::ScalarType>(2, at::kFloat));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Checkpoint, EvaluationJustRuns) {
  at::NoGradGuard evaluation;
  Tensor x = numbers(0);
  const Region region = [](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
    return {in[0] * 2};
  };
  Tensor out = checkpoint(region, {x})[0];
  EXPECT_FALSE(out.requires_grad());
  EXPECT_TRUE(at::equal(out, x * 2));
}

// Two checkpointed regions with a collective each, run backward in another order on one rank.
TEST(Checkpoint, RanksThatReplayInAnotherOrderAreToldSo) {
  tests::run_ranks(
      2,
      [](const comm::Connection& connection) {
        const comm::Group group = tests::world_of(connection);
        Tensor x = at::ones({2, 3}, at::kDouble).requires_grad_(true);
        const auto block = [&](const char* name) {
          const Region region = [&group, name](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
            return {comm::all_to_all_with_gradient(in[0] * 2, group, name)};
          };
          return checkpoint(region, {x})[0].sum();
        };
        Tensor a = block("block A"), b = block("block B");
        if (connection.rank() == 1) std::swap(a, b);
        std::string told;
        try {
          torch::autograd::backward({a});
          torch::autograd::backward({b});
        } catch (const std::exception& error) {
          told = error.what();
        }
        EXPECT_NE(told.find("block A on its rank 0 and all_to_all for block B on its rank 1"),
                  std::string::npos)
            << told;
      },
      /*checks_order=*/true);
}

}  // namespace
}  // namespace trireme::alst
