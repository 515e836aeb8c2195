#include "trireme/alst/tiled_compute.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/errors.h"
#include "support/recording_allocator.h"
#include "support/tiled.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::value_error;
using tests::expect_close;
using tests::expect_same;
using tests::numbers;
using tests::Reads;

// Tokens of size 6 in batches, whichever dimension they are along. Reads a float, a mask, ids, something that
// is not there, two whole tensors and two parameters.
struct Mixed {
  int64_t dim;  // of three

  std::vector<int64_t> shape(int64_t batch, int64_t tokens, int64_t size) const {
    if (dim == 0) return {tokens, batch, size};
    if (dim == 1) return {batch, tokens, size};
    return {batch, size, tokens};
  }
  Reads reads(int64_t batch, int64_t tokens) const {
    // Not contiguous: the values lie in another order.
    Tensor x = numbers({6, tokens, batch}, 1);
    x = dim == 0 ? x.permute({1, 2, 0}) : dim == 1 ? x.permute({2, 1, 0}) : x.permute({2, 0, 1});
    Tensor mask = numbers(shape(batch, tokens, 1), 2).gt(0.5);
    Tensor ids = at::arange(batch * tokens).remainder(5).view(shape(batch, tokens, 1));
    Tensor frozen = numbers(shape(batch, tokens, 6), 3);
    return {{{x.requires_grad_(true), mask, ids, Tensor(), frozen},
             {numbers({6}, 4).requires_grad_(true), Tensor(), numbers({6}, 5)}},
            {numbers({6, 6}, 6).requires_grad_(true), numbers({5, 6}, 7).requires_grad_(true)}};
  }
  // Outputs: as long as the input; two per batch; sums, one of them a parameter's alone; a mean; a count.
  TileFunction function(const std::vector<Tensor>& parameters) const {
    return [*this, parameters](const TileInputs& in) -> std::vector<Tensor> {
      EXPECT_FALSE(in.tiled[3].defined());
      EXPECT_FALSE(in.whole[1].defined());
      const auto last = [&](const Tensor& t) { return dim == 0 || dim == 1 ? t : t.transpose(1, 2); };
      Tensor x = last(in.tiled[0]) * in.whole[0] + last(in.tiled[4]) * in.whole[2];
      Tensor y =
          at::tanh(at::matmul(x, parameters[0]) + parameters[1].index({last(in.tiled[2]).squeeze(-1)}));
      y = y.masked_fill(last(in.tiled[1]), 0) * in.whole[0];
      const double count = double(std::max<int64_t>(1, y.size(0) * y.size(1)));
      return {last(y), (y * y).sum(at::IntArrayRef{0, 1}), y.sum(at::IntArrayRef{0, 1}) / count,
              in.tiled[1].sum(), x.detach().exp().sum()};
    };
  }
};

TEST(TiledCompute, OutputsAndEveryGradientAreThoseOfTheWhole) {
  const std::vector<Combine> combine{Combine::concatenate(), Combine::sum(), Combine::mean(), Combine::sum(),
                                     Combine::sum()};
  for (auto [tokens, tiles] : tests::kTokensAndTiles)
    for (int64_t batch : {1, 2})
      for (int64_t dim : {0, 1, 2, -1})
        for (bool given : {false, true}) {
          const Mixed mixed{dim};
          expect_same(
              mixed.reads(batch, tokens),
              [&](const Reads& reads) {
                const Tiling tiling{tiles, dim, given ? reads.parameters : std::vector<Tensor>(), {}};
                auto outputs = tiled_compute(mixed.function(reads.parameters), reads.inputs, tiling, combine);
                EXPECT_FALSE(outputs[3].requires_grad());
                outputs[4] = outputs[4].detach();
                return outputs;
              },
              [&](const Reads& reads) { return mixed.function(reads.parameters)(reads.inputs); },
              core::concatenate(tokens, " tokens, ", tiles, " tiles, batch ", batch, ", dim ", dim,
                                ", given ", given));
        }
}

// Top-1 routing over three experts: tokens' outputs, the load-balancing loss, and how many tokens went where.
TEST(TiledCompute, AMixtureOfExpertsWithItsRouterLoss) {
  const auto function = [](const std::vector<Tensor>& p) {
    return [p](const TileInputs& in) -> std::vector<Tensor> {
      const Tensor& x = in.tiled[0];
      Tensor probability = at::softmax(at::matmul(x, p[0]), -1), choice = probability.argmax(-1);
      Tensor output = at::zeros_like(x);
      for (int64_t e = 0; e < 3; ++e) {
        Tensor who = choice.eq(e).nonzero();
        if (who.size(0) == 0) continue;  // a parameter that not every tile reaches
        auto rows = who.unbind(1);
        Tensor h = at::silu(at::matmul(x.index({rows[0], rows[1]}), p[size_t(1 + e)]));
        output = output.index_put({rows[0], rows[1]},
                                  h * probability.index({rows[0], rows[1]}).select(1, e).unsqueeze(1));
      }
      return {output, (probability * probability).mean(at::IntArrayRef{0, 1}).sum(), choice.eq(1).sum()};
    };
  };
  std::vector<Tensor> parameters{numbers({6, 3}, 1).requires_grad_(true)};
  for (int e = 0; e < 3; ++e) parameters.push_back(numbers({6, 6}, 2 + e).requires_grad_(true));
  for (auto [tokens, tiles] : {std::pair{7, 4}, {13, 5}, {2, 4}})
    expect_same(
        {{{numbers({2, tokens, 6}, 9).requires_grad_(true)}, {}}, parameters},
        [&](const Reads& reads) {
          return tiled_compute(function(reads.parameters), reads.inputs, {.tiles = tiles, .dim = 1},
                               {Combine::concatenate(1), Combine::mean(), Combine::sum()});
        },
        [&](const Reads& reads) { return function(reads.parameters)(reads.inputs); },
        core::concatenate(tokens, " tokens"));
}

TEST(TiledCompute, RunsForwardWithoutAGraphAndOnceMoreBackward) {
  Tensor x = numbers({7, 3}, 0).requires_grad_(true);
  std::vector<bool> with_graph;
  const auto y = tiled_compute(
      [&](const TileInputs& in) -> std::vector<Tensor> {
        with_graph.push_back(at::GradMode::is_enabled());
        return {in.tiled[0].sin()};
      },
      {{x}, {}}, {.tiles = 3});
  EXPECT_EQ(with_graph, std::vector<bool>(3, false));
  torch::autograd::backward({y[0].sum()});
  EXPECT_EQ(with_graph, (std::vector<bool>{false, false, false, true, true, true}));
  expect_close(x.grad(), x.detach().cos(), "dx");
}

// An output need not have a row for each token: two of them, or as many as a mask says.
TEST(TiledCompute, OutputsOfAnyLengthAreConcatenated) {
  Tensor mask = numbers({13}, 5).gt(0);
  for (bool selects : {false, true}) {
    const TileFunction function = [&](const TileInputs& in) -> std::vector<Tensor> {
      const Tensor& x = in.tiled[0];
      if (!selects) return {at::repeat_interleave(x.sin(), 2, 0).t()};
      return {x.index({in.tiled[1]}).cos().t()};
    };
    for (int64_t tiles : {1, 4, 5, 20})
      expect_same(
          {{{numbers({13, 3}, 1).requires_grad_(true), mask}, {}}, {}},
          [&](const Reads& reads) {
            return tiled_compute(function, reads.inputs, {.tiles = tiles}, {Combine::concatenate(-1)});
          },
          [&](const Reads& reads) { return function(reads.inputs); },
          core::concatenate("selects ", selects, ", ", tiles, " tiles"));
  }
}

// What is returned may be what came in, or what was captured, and a gradient may be the upstream one itself.
TEST(TiledCompute, OutputsMayBeInputsAndGradientsShareNoMemory) {
  Tensor x = numbers({5, 2}, 0).requires_grad_(true), w = numbers({2}, 1).requires_grad_(true);
  Tensor p = numbers({2}, 2).requires_grad_(true), kept = w.detach().clone();
  const auto outputs = tiled_compute(
      [&](const TileInputs& in) -> std::vector<Tensor> {
        return {in.tiled[0], in.whole[0], p};
      },
      {{x}, {w}}, {.tiles = 3}, {Combine::concatenate(), Combine::sum(), Combine::sum()});
  expect_close(outputs[0].detach(), x.detach(), "x");
  expect_close(outputs[1].detach(), kept * 3, "w");
  Tensor of_x = numbers({5, 2}, 3), of_w = numbers({2}, 4), of_p = numbers({2}, 5);
  const Tensor given_x = of_x.clone(), given_w = of_w.clone(), given_p = of_p.clone();
  torch::autograd::backward(outputs, {of_x, of_w, of_p});
  expect_close(x.grad(), given_x, "dx");
  expect_close(w.grad(), given_w * 3, "dw");
  expect_close(p.grad(), given_p * 3, "dp");
  EXPECT_TRUE(at::equal(of_x, given_x) && at::equal(of_w, given_w) && at::equal(of_p, given_p));
  EXPECT_TRUE(at::equal(w, kept));
}

// Memory that nobody wrote to holds no numbers, while it lives.
class NoLuck {
 public:
  NoLuck() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~NoLuck() { at::globalContext().setDeterministicAlgorithms(false, false); }
  NoLuck(const NoLuck&) = delete;
  NoLuck& operator=(const NoLuck&) = delete;
};

TEST(TiledCompute, AnUnusedInputHasNoGradient) {
  NoLuck no_luck;
  Tensor x = numbers({5, 2}, 0).requires_grad_(true), y = numbers({5, 2}, 1).requires_grad_(true);
  Tensor z = numbers({5, 2}, 2).requires_grad_(true);
  int64_t tile = 0;
  const auto out = tiled_compute(
      [&](const TileInputs& in) -> std::vector<Tensor> {
        // z in the second and the third of four tiles only.
        const bool uses_z = tile % 4 == 1 || tile % 4 == 2;
        ++tile;
        return {uses_z ? in.tiled[0] * in.tiled[2] : in.tiled[0] * 2};
      },
      {{x, y, z}, {}}, {.tiles = 4});
  torch::autograd::backward({out[0].sum()});
  EXPECT_FALSE(y.grad().defined());
  Tensor expected = x.detach().clone();
  expected.narrow(0, 0, 2).zero_();
  expected.narrow(0, 4, 1).zero_();
  expect_close(z.grad(), expected, "dz");
}

TEST(TiledCompute, AFrozenInputLeavesTheParametersInTheGraph) {
  Tensor x = numbers({5, 2}, 0), w = numbers({2}, 1).requires_grad_(true);
  for (bool given : {false, true}) {
    w.mutable_grad().reset();
    const Tiling tiling{4, 0, given ? std::vector<Tensor>{w} : std::vector<Tensor>(), {}};
    const auto out = tiled_compute(
        [&](const TileInputs& in) -> std::vector<Tensor> { return {in.tiled[0] * w}; }, {{x}, {}}, tiling);
    ASSERT_TRUE(out[0].requires_grad());
    torch::autograd::backward({out[0].sum()});
    expect_close(w.grad(), x.sum(0), "dw");
  }
}

TEST(TiledCompute, TilesDrawTheSameRandomNumbersAgain) {
  Tensor x = at::ones({7, 100}).requires_grad_(true);
  const TileFunction function = [](const TileInputs& in) -> std::vector<Tensor> {
    return {at::dropout(in.tiled[0], 0.5, true)};
  };
  at::manual_seed(5);
  Tensor out = tiled_compute(function, {{x}, {}}, {.tiles = 3})[0];
  Tensor after = at::rand({4});
  torch::autograd::backward({out.sum()});
  EXPECT_TRUE(at::equal(x.grad(), out.detach()));  // d(dropout)/dx where x is 1
  EXPECT_GT(out.detach().eq(0).sum().item<int64_t>(), 200);
  // And the stream goes on as if nothing had been replayed.
  Tensor next = at::rand({4});
  at::manual_seed(5);
  for (int64_t rows : {3, 2, 2}) at::dropout(at::ones({rows, 100}), 0.5, true);
  EXPECT_TRUE(at::equal(after, at::rand({4})));
  EXPECT_TRUE(at::equal(next, at::rand({4})));
}

// 300 tiles give a gradient of 1 each: in bf16 the sum would stop at 256.
TEST(TiledCompute, SumsBf16GradientsOfTilesInFp32) {
  const auto leaf = [] { return at::zeros({1}, at::kBFloat16).requires_grad_(true); };
  Tensor whole = leaf(), given = leaf(), found = leaf();
  const auto out = tiled_compute(
      [&](const TileInputs& in) -> std::vector<Tensor> {
        return {in.tiled[0] * (in.whole[0] + given + found), in.tiled[0].sum()};
      },
      {{at::ones({300, 1}, at::kBFloat16)}, {whole}}, {.tiles = 300, .parameters = {given}},
      {Combine::concatenate(), Combine::sum()});
  torch::autograd::backward({out[0].sum()});
  for (const Tensor& parameter : {whole, given, found}) EXPECT_EQ(parameter.grad().item<float>(), 300);
  EXPECT_EQ(out[1].item<float>(), 300);
  EXPECT_EQ(found.grad().scalar_type(), at::kBFloat16);
}

// Inside, a token is 64 times as wide as at either end.
TEST(TiledCompute, HoldsTheInsideOfOneTileAndKeepsNoneOfIt) {
  constexpr int64_t kTokens = 4096, kTiles = 16, kEnd = kTokens * 16 * 8, kInside = 64 * kEnd;
  const Tensor up = numbers({16, 1024}, 1).requires_grad_(true), down = numbers({1024, 16}, 2);
  Tensor x = numbers({kTokens, 16}, 0).requires_grad_(true), upstream = numbers({kTokens, 16}, 3);
  tests::RecordingAllocator memory;
  {
    auto out = tiled_compute(
        [&](const TileInputs& in) -> std::vector<Tensor> {
          return {at::matmul(at::tanh(at::matmul(in.tiled[0], up)), down)};
        },
        {{x}, {}}, {.tiles = kTiles});
    EXPECT_LT(memory.live(), kEnd + kEnd / 8);                         // the output
    EXPECT_LT(memory.peak(), kEnd + 2 * kInside / kTiles + kEnd / 2);  // one tile before and after tanh
    memory.reset();
    torch::autograd::backward(out, {upstream});
  }
  EXPECT_LT(memory.peak(), 3 * kEnd + 3 * kInside / kTiles);
  EXPECT_LT(memory.live(), kEnd + kEnd / 2);  // dx, and that of up
  up.mutable_grad().reset();
  x.mutable_grad().reset();
}

TEST(TiledCompute, TwoBackwardPassesAddUpAndNeedTheGraphRetained) {
  Tensor x = numbers({5, 2}, 0).requires_grad_(true), w = numbers({2}, 1).requires_grad_(true);
  const auto run = [&] {
    return tiled_compute(
               [&](const TileInputs& in) -> std::vector<Tensor> { return {(in.tiled[0] * w).sin()}; },
               {{x}, {}}, {.tiles = 3})[0]
        .sum();
  };
  Tensor out = run();
  torch::autograd::backward({out}, {}, /*retain_graph=*/true);
  const Tensor once = w.grad().clone(), once_x = x.grad().clone();
  torch::autograd::backward({out});
  expect_close(w.grad(), once * 2, "dw");
  expect_close(x.grad(), once_x * 2, "dx");
  EXPECT_ANY_THROW(torch::autograd::backward({out}));
  out = run();
  EXPECT_THAT(value_error([&] { torch::autograd::grad({out}, {x}, {}, {}, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
}

TEST(TiledCompute, EvaluationJustRuns) {
  at::NoGradGuard evaluation;
  Tensor x = numbers({5, 2}, 0).requires_grad_(true);
  const auto out = tiled_compute(
      [](const TileInputs& in) -> std::vector<Tensor> {
        return {in.tiled[0] * 2, in.tiled[0].mean()};
      },
      {{x}, {}}, {.tiles = 3}, {Combine::concatenate(), Combine::mean()});
  EXPECT_FALSE(out[0].requires_grad());
  expect_close(out[0], x.detach() * 2, "y");
  expect_close(out[1], x.detach().mean(), "mean");
}

TEST(TiledCompute, MistakesHaveNames) {
  Tensor x = numbers({5, 2}, 0), other = numbers({6, 2}, 0);
  const TileFunction same = [](const TileInputs& in) -> std::vector<Tensor> { return {in.tiled[0]}; };
  const auto error = [&](const TileFunction& function, const TileInputs& inputs, const Tiling& tiling,
                         const std::vector<Combine>& combine) {
    return value_error([&] { tiled_compute(function, inputs, tiling, combine); });
  };
  const std::vector<Combine> rows{Combine::concatenate()};
  EXPECT_THAT(error(same, {{x, Tensor(), other}, {}}, {.tiles = 2}, rows), HasSubstr("got 6 in input 2"));
  EXPECT_THAT(error(same, {{x}, {}}, {.tiles = 2, .dim = 2}, rows), HasSubstr("got dimension 2 and input 0"));
  EXPECT_THAT(error(same, {{x}, {}}, {.tiles = 2, .dim = -3}, rows), HasSubstr("got dimension -3"));
  EXPECT_THAT(error(same, {{Tensor()}, {x}}, {.tiles = 2}, rows), HasSubstr("needs a tiled input"));
  EXPECT_THAT(error(same, {{x}, {}}, {.tiles = 0}, rows), HasSubstr("must be 1 or more; got 0"));
  EXPECT_THAT(error(same, {{x}, {}}, {}, {Combine::sum(), Combine::sum()}), HasSubstr("got 2 ways for 1"));
  EXPECT_THAT(error(same, {{x}, {}}, {.tiles = 2}, {Combine::sum()}), HasSubstr("must have one shape"));
  EXPECT_THAT(error(same, {{x}, {}}, {}, {Combine::concatenate(2)}), HasSubstr("got dimension 2"));
  const TileFunction count = [](const TileInputs& in) -> std::vector<Tensor> {
    return {at::tensor({in.tiled[0].size(0)})};
  };
  EXPECT_THAT(error(count, {{x}, {}}, {}, {Combine::mean()}), HasSubstr("a mean is one of floating numbers"));
  int calls = 0;
  const TileFunction changing = [&](const TileInputs&) -> std::vector<Tensor> {
    return {at::ones({}, calls++ == 0 ? at::kLong : at::kFloat)};
  };
  EXPECT_THAT(error(changing, {{x}, {}}, {.tiles = 2}, {Combine::sum()}), HasSubstr("one shape and dtype"));
  const TileFunction uneven = [](const TileInputs& in) -> std::vector<Tensor> {
    return std::vector<Tensor>(size_t(in.tiled[0].size(0)), in.tiled[0]);
  };
  EXPECT_THAT(error(uneven, {{x}, {}}, {.tiles = 2}, rows), HasSubstr("as many outputs for each tile"));
  const TileFunction nothing = [](const TileInputs&) -> std::vector<Tensor> { return {Tensor()}; };
  EXPECT_THAT(error(nothing, {{x}, {}}, {.tiles = 2}, rows), HasSubstr("must return tensors"));
  const TileFunction wider = [](const TileInputs& in) -> std::vector<Tensor> {
    return {at::zeros({in.tiled[0].size(0), in.tiled[0].size(0)})};
  };
  EXPECT_THAT(error(wider, {{x}, {}}, {.tiles = 2}, rows), HasSubstr("must be alike but for their length"));
}

}  // namespace
}  // namespace trireme::alst
