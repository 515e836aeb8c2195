#include "trireme/alst/captured_gradients.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/arrivals.h"
#include "support/autocast.h"
#include "support/errors.h"
#include "support/tiled.h"
#include "trireme/alst/checkpoint.h"
#include "trireme/alst/replay_state.h"
#include "trireme/alst/tiled_compute.h"
#include "trireme/alst/tiled_loss.h"
#include "trireme/alst/tiled_mlp.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using tests::arrivals_at;
using tests::expect_close;
using tests::expect_same;
using tests::numbers;
using tests::Reads;

// Ways to run y = tanh(x w) + w by tiles, in one another. w is captured.
using Layer = std::function<Tensor(const Tensor& x, const Tensor& w)>;

Tensor plain(const Tensor& x, const Tensor& w) { return at::tanh(at::matmul(x, w)) + w.select(0, 1); }

Layer tiled(const Layer& inner, int64_t tiles, bool given = false) {
  return [=](const Tensor& x, const Tensor& w) {
    const Tiling tiling{tiles, -2, given ? std::vector<Tensor>{w} : std::vector<Tensor>(), {}};
    return tiled_compute([=](const TileInputs& in) -> std::vector<Tensor> { return {inner(in.tiled[0], w)}; },
                         {{x}, {}}, tiling)[0];
  };
}

Layer checkpointed(const Layer& inner) {
  return [=](const Tensor& x, const Tensor& w) {
    return checkpoint(
        [=](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> { return {inner(in[0], w)}; },
        {x})[0];
  };
}

// A loss takes the gradients of its tiles in the forward pass: of the sum of squares, per row.
Layer with_loss(const Layer& inner) {
  return [=](const Tensor& x, const Tensor& w) {
    return tiled_loss([=](const TileInputs& in) { return inner(in.tiled[0], w).pow(2).sum(); }, {{x}, {}},
                      {.tiles = 3, .dim = -2})
               .view({1, 1}) +
           inner(x, w);
  };
}

Tensor plain_with_loss(const Tensor& x, const Tensor& w) {
  return plain(x, w).pow(2).sum().view({1, 1}) + plain(x, w);
}

TEST(CapturedGradients, FunctionsInOneAnotherHandEachGradientOverOnce) {
  const std::vector<std::tuple<const char*, Layer, Layer>> cases{
      {"found", tiled(plain, 4), plain},
      {"given", tiled(plain, 4, true), plain},
      {"in itself", tiled(tiled(plain, 3), 4), plain},
      {"given, in found", tiled(tiled(plain, 3, true), 4), plain},
      {"found, in given", tiled(tiled(plain, 3), 4, true), plain},
      {"three deep", tiled(tiled(tiled(plain, 2), 2), 3), plain},
      {"in a checkpoint", checkpointed(tiled(plain, 4)), plain},
      {"around a checkpoint", tiled(checkpointed(plain), 4), plain},
      {"around a checkpoint, given", tiled(checkpointed(plain), 4, true), plain},
      {"around a checkpoint in a checkpoint", tiled(checkpointed(checkpointed(plain)), 4), plain},
      {"in a checkpoint in itself", tiled(checkpointed(tiled(plain, 2)), 3), plain},
  };
  for (const auto& [name, layer, reference] : cases)
    for (bool input_needs_gradient : {false, true}) {
      const Reads reads{{{numbers({2, 7, 4}, 0).requires_grad_(input_needs_gradient)}, {}},
                        {numbers({4, 4}, 1).requires_grad_(true)}};
      const auto run = [](const Layer& by) {
        return [&by](const Reads& r) { return std::vector<Tensor>{by(r.inputs.tiled[0], r.parameters[0])}; };
      };
      expect_same(reads, run(layer), run(reference), name);
      const Tensor w = reads.parameters[0].detach().requires_grad_(true);
      const auto arrivals = arrivals_at(w);
      tests::run_backward({layer(reads.inputs.tiled[0], w)});
      EXPECT_EQ(arrivals->gradients, 1) << name;
      EXPECT_EQ(arrivals->accumulations, 1) << name;
    }
}

TEST(CapturedGradients, LossesWithinFunctions) {
  for (const auto& [name, layer] :
       std::vector<std::pair<const char*, Layer>>{{"alone", with_loss(plain)},
                                                  {"of tiles", with_loss(tiled(plain, 2))},
                                                  {"of checkpoints", with_loss(checkpointed(plain))},
                                                  {"in a checkpoint", checkpointed(with_loss(plain))}}) {
    const Layer& by = layer;
    expect_same(
        {{{numbers({7, 4}, 0).requires_grad_(true)}, {}}, {numbers({4, 4}, 1).requires_grad_(true)}},
        [&](const Reads& r) { return std::vector<Tensor>{by(r.inputs.tiled[0], r.parameters[0])}; },
        [&](const Reads& r) {
          return std::vector<Tensor>{plain_with_loss(r.inputs.tiled[0], r.parameters[0])};
        },
        name);
  }
  // In tiles: the loss of a tile, added up.
  expect_same(
      {{{numbers({7, 4}, 0).requires_grad_(true)}, {}}, {numbers({4, 4}, 1).requires_grad_(true)}},
      [&](const Reads& r) {
        return tiled_compute(
            [&](const TileInputs& in) -> std::vector<Tensor> {
              return {tiled_loss(
                  [&](const TileInputs& inner) { return plain(inner.tiled[0], r.parameters[0]).sum(); }, in,
                  {.tiles = 2})};
            },
            r.inputs, {.tiles = 3}, {Combine::sum()});
      },
      [&](const Reads& r) { return std::vector<Tensor>{plain(r.inputs.tiled[0], r.parameters[0]).sum()}; },
      "in tiles");
}

TEST(CapturedGradients, AParameterThatIsUsedTwiceAndElsewhere) {
  for (bool given : {false, true})
    expect_same(
        {{{numbers({7, 4}, 0).requires_grad_(true)}, {}}, {numbers({4, 4}, 1).requires_grad_(true)}},
        [&](const Reads& r) -> std::vector<Tensor> {
          const Tensor &x = r.inputs.tiled[0], w = r.parameters[0];
          Tensor y =
              tiled([](const Tensor& a, const Tensor& b) { return plain(plain(a, b), b); }, 3, given)(x, w);
          return {tiled(plain, 2, given)(y, w) + at::matmul(x, w), w * 2};
        },
        [&](const Reads& r) -> std::vector<Tensor> {
          const Tensor &x = r.inputs.tiled[0], w = r.parameters[0];
          return {plain(plain(plain(x, w), w), w) + at::matmul(x, w), w * 2};
        },
        core::concatenate("given ", given));
}

// An inner function may capture what the outer one got as its input.
TEST(CapturedGradients, AnInnerFunctionCapturesAnOuterInput) {
  for (bool by_checkpoint : {false, true})
    expect_same(
        {{{numbers({7, 4}, 0).requires_grad_(true)}, {}}, {numbers({4, 4}, 1).requires_grad_(true)}},
        [&](const Reads& r) {
          return tiled_compute(
              [&](const TileInputs& in) -> std::vector<Tensor> {
                const Tensor& x = in.tiled[0];
                const Layer inner = [&x](const Tensor& y, const Tensor& w) { return plain(y, w) * x; };
                const Layer whole = by_checkpoint ? checkpointed(inner) : tiled(inner, 1);
                return {whole(x, r.parameters[0])};
              },
              r.inputs, {.tiles = 3});
        },
        [&](const Reads& r) -> std::vector<Tensor> {
          const Tensor& x = r.inputs.tiled[0];
          return {plain(x, r.parameters[0]) * x};
        },
        core::concatenate("by checkpoint ", by_checkpoint));
}

TEST(CapturedGradients, GivenTensorsMayBeMadeFromOthers) {
  expect_same(
      {{{numbers({7, 4}, 0).requires_grad_(true)}, {}}, {numbers({4, 4}, 1).requires_grad_(true)}},
      [](const Reads& r) -> std::vector<Tensor> {
        return {tiled(plain, 3, true)(r.inputs.tiled[0], r.parameters[0].t().sin())};
      },
      [](const Reads& r) -> std::vector<Tensor> {
        return {plain(r.inputs.tiled[0], r.parameters[0].t().sin())};
      },
      "a view");
  // Not given, they would have to be run backward once for each tile.
  Tensor x = numbers({7, 4}, 0).requires_grad_(true), w = numbers({4, 4}, 1).requires_grad_(true);
  const auto refusal = [&](const Layer& layer) {
    return testing::value_error([&] { torch::autograd::backward({layer(x, w.sin()).sum()}); });
  };
  for (const Layer& layer : {tiled(plain, 3), tiled(checkpointed(plain), 3), with_loss(plain)})
    EXPECT_THAT(refusal(layer), ::testing::HasSubstr("got one that SinBackward0 made"));
}

TEST(CapturedGradients, APassForSomeInputsLeavesFoundParametersAlone) {
  Tensor x = numbers({7, 4}, 0).requires_grad_(true), w = numbers({4, 4}, 1).requires_grad_(true);
  Tensor v = w.detach().requires_grad_(true);
  const auto expected = torch::autograd::grad({plain(x, v).sum()}, {x, v});
  for (const Layer& layer : {tiled(plain, 3), tiled(tiled(plain, 2), 3), tiled(checkpointed(plain), 3)})
    expect_close(torch::autograd::grad({layer(x, w).sum()}, {x})[0], expected[0], "dx");
  EXPECT_FALSE(w.grad().defined());
  const auto given = torch::autograd::grad({tiled(plain, 3, true)(x, w).sum()}, {x, w});
  expect_close(given[0], expected[0], "dx");
  expect_close(given[1], expected[1], "dw");
  expect_close(torch::autograd::grad({tiled(plain, 3, true)(x, w).sum()}, {w})[0], expected[1], "dw alone");
  EXPECT_FALSE(w.grad().defined() || x.grad().defined());
}

TEST(CapturedGradients, FrozenParametersGetNone) {
  Tensor x = numbers({7, 4}, 0).requires_grad_(true), w = numbers({4, 4}, 1);
  torch::autograd::backward({tiled(plain, 3, /*given=*/true)(x, w).sum()});
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(CapturedGradients, ATiledMlpInsideOfTiles) {
  expect_same(
      {{{numbers({7, 4}, 0).requires_grad_(true)}, {}},
       {numbers({6, 4}, 1).requires_grad_(true), numbers({4, 6}, 2).requires_grad_(true)}},
      [](const Reads& r) {
        return tiled_compute(
            [&](const TileInputs& in) -> std::vector<Tensor> {
              const Tensor up = r.parameters[0];
              return {tiled_mlp(
                  in.tiled[0],
                  {[up](const Tensor& t) { return at::silu(at::matmul(t, up.t())); }, {up}, r.parameters[1]},
                  2)};
            },
            r.inputs, {.tiles = 3});
      },
      [](const Reads& r) -> std::vector<Tensor> {
        const Tensor& x = r.inputs.tiled[0];
        return {x + at::matmul(at::silu(at::matmul(x, r.parameters[0].t())), r.parameters[1].t())};
      },
      "tiled_mlp");
}

TEST(CapturedGradients, AutocastIsThatOfTheForwardPass) {
  const auto gradients = [](const Layer& layer, bool elsewhere) {
    Tensor x = numbers({64, 8}, 0).to(at::kFloat).requires_grad_(true);
    Tensor w = numbers({8, 8}, 1).to(at::kFloat).requires_grad_(true), loss;
    {
      tests::Autocast autocast;
      Tensor before = at::matmul(x, w);  // a cast of w that autocast keeps
      Tensor y = layer(x, w);
      EXPECT_EQ(at::matmul(x, w).scalar_type(), at::kBFloat16);
      loss = y.to(at::kFloat).pow(2).sum();
      // A cast of w without a graph must not have been kept either.
      if (elsewhere) loss = loss + before.sum() + at::matmul(x, w).sum();
    }
    torch::autograd::backward({loss});
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return std::pair(x.grad(), w.grad());
  };
  const Layer product = [](const Tensor& x, const Tensor& w) {
    Tensor y = at::matmul(x, w);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return y;
  };
  const Layer whole_loss = [&](const Tensor& x, const Tensor& w) {
    return tiled_loss([&](const TileInputs& in) { return product(in.tiled[0], w).to(at::kFloat).sum(); },
                      {{x}, {}}, {.tiles = 4});
  };
  const Layer plain_loss = [&](const Tensor& x, const Tensor& w) {
    return product(x, w).to(at::kFloat).sum();
  };
  for (bool elsewhere : {false, true})
    for (const auto& [layer, reference] :
         std::vector<std::pair<Layer, Layer>>{{tiled(product, 4), product},
                                              {tiled(product, 4, true), product},
                                              {checkpointed(product), product},
                                              {tiled(checkpointed(product), 4), product},
                                              {whole_loss, plain_loss}}) {
      const auto [dx, dw] = gradients(layer, elsewhere);
      const auto [ex, ew] = gradients(reference, elsewhere);
      // Plain autograd rounds and adds up in bf16.
      expect_close(dx, ex, "dx", 1e-2 * ex.abs().max().item<double>());
      expect_close(dw, ew, "dw", 1e-2 * ew.abs().max().item<double>());
    }
}

// What a function computes outside of autocast has its backward pass outside of it too, in a loss's forward
// pass.
TEST(CapturedGradients, AutocastStaysOutOfALossThatLeftIt) {
  Tensor x = numbers({64, 8}, 0).to(at::kFloat).requires_grad_(true);
  Tensor w = numbers({8, 8}, 1).to(at::kFloat).requires_grad_(true), loss;
  {
    tests::Autocast autocast;
    loss = tiled_loss(
        [&](const TileInputs& in) {
          const AutocastOff exact(at::kCPU);
          return at::matmul(in.tiled[0], w).pow(2).sum();
        },
        {{x}, {}}, {.tiles = 4});
  }
  torch::autograd::backward({loss});
  Tensor y = x.detach().requires_grad_(true), v = w.detach().requires_grad_(true);
  torch::autograd::backward({at::matmul(y, v).pow(2).sum()});
  expect_close(x.grad(), y.grad(), "dx", 1e-5 * y.grad().abs().max().item<double>());
  expect_close(w.grad(), v.grad(), "dw", 1e-5 * v.grad().abs().max().item<double>());
}

}  // namespace
}  // namespace trireme::alst
