#include "trireme/alst/tiled_loss.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/arrivals.h"
#include "support/errors.h"
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

// Hidden states [B, T, 6], frozen weights of tokens, and labels, through a whole scale, a captured bias and a
// captured head, to the cross entropy of the labels that are not -100.
Reads reads_of(int64_t batch, int64_t tokens, const std::vector<int64_t>& good) {
  Tensor labels = at::full({batch, tokens}, -100, at::kLong);
  for (int64_t token : good)
    if (token < tokens) labels.select(1, token).fill_(token % 5);
  return {{{numbers({batch, tokens, 6}, 1).requires_grad_(true), labels, Tensor(),
            numbers({batch, tokens}, 2).abs()},
           {numbers({6}, 3).requires_grad_(true), Tensor()}},
          {numbers({5, 6}, 4).requires_grad_(true), numbers({5}, 5).requires_grad_(true)}};
}

Tensor token_losses(const TileInputs& in, const std::vector<Tensor>& parameters) {
  Tensor logits = at::matmul(in.tiled[0] * in.whole[0], parameters[0].t()) + parameters[1];
  Tensor losses = at::cross_entropy_loss(logits.reshape({-1, 5}), in.tiled[1].reshape({-1}), {},
                                         at::Reduction::None, -100);
  return losses * in.tiled[3].reshape({-1});
}

TileLoss sum_loss(const std::vector<Tensor>& parameters, double scale) {
  return [=](const TileInputs& in) { return token_losses(in, parameters).sum() * scale; };
}

TileLoss mean_loss(const std::vector<Tensor>& parameters) {
  return [=](const TileInputs& in) {
    Tensor losses = token_losses(in, parameters);
    return losses.sum() / double(std::max<int64_t>(1, losses.numel()));
  };
}

TEST(TiledLoss, EveryGradientIsThatOfTheWhole) {
  for (auto [tokens, tiles] : tests::kTokensAndTiles)
    for (int64_t batch : {1, 2})
      for (bool mean : {false, true})
        for (bool given : {false, true}) {
          const auto by_tiles = [&](const Reads& r) -> std::vector<Tensor> {
            const Tiling tiling{tiles, 1, given ? r.parameters : std::vector<Tensor>(), {}};
            return {tiled_loss(mean ? mean_loss(r.parameters) : sum_loss(r.parameters, 0.3), r.inputs, tiling,
                               mean ? Combine::mean() : Combine::sum()) *
                    0.7};
          };
          const auto plain = [&](const Reads& r) -> std::vector<Tensor> {
            return {(mean ? mean_loss(r.parameters) : sum_loss(r.parameters, 0.3))(r.inputs) * 0.7};
          };
          expect_same(reads_of(batch, tokens, {0, 1, 4, 5, 12}), by_tiles, plain,
                      core::concatenate(tokens, " tokens, ", tiles, " tiles, batch ", batch, ", mean ", mean,
                                        ", given ", given));
        }
}

// Tiles with 1, 3 and 0 tokens that count: a mean of the tiles' means would weigh them wrongly.
TEST(TiledLoss, TilesWithUnlikeNumbersOfTargets) {
  const std::vector<int64_t> good{1, 4, 5, 6};
  for (double upstream : {1.0, -2.5})
    expect_same(
        reads_of(1, 12, good),
        [&](const Reads& r) -> std::vector<Tensor> {
          return {tiled_loss(sum_loss(r.parameters, 1.0 / 4), r.inputs, {.tiles = 3, .dim = 1}) * upstream};
        },
        [&](const Reads& r) -> std::vector<Tensor> {
          Tensor losses = token_losses(r.inputs, r.parameters);
          return {losses.index({r.inputs.tiled[1].reshape({-1}).ne(-100)}).mean() * upstream};
        },
        core::concatenate("upstream ", upstream));
}

TEST(TiledLoss, RunsEachTileOnceAndTellsHooksOnce) {
  Tensor x = numbers({7, 3}, 0).requires_grad_(true), w = numbers({3}, 1).requires_grad_(true);
  const auto at_w = tests::arrivals_at(w), at_x = tests::arrivals_at(x);
  int runs = 0;
  Tensor loss = tiled_loss(
      [&](const TileInputs& in) {
        ++runs;
        return (in.tiled[0] * w).sin().sum();
      },
      {{x}, {}}, {.tiles = 4});
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(at_w->gradients + at_w->accumulations, 0);
  torch::autograd::backward({loss * 2});
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(at_w->gradients, 1);
  EXPECT_EQ(at_w->accumulations, 1);
  EXPECT_EQ(at_x->gradients, 1);
  expect_close(w.grad(), ((x * w).cos() * x).sum(0).detach() * 2, "dw");
  expect_close(x.grad(), ((x * w).cos() * w).detach() * 2, "dx");
}

TEST(TiledLoss, FoundParametersAreInputsOfTheNode) {
  Tensor x = numbers({7, 3}, 0), w = numbers({3}, 1).requires_grad_(true);
  const auto run = [&] {
    return tiled_loss([&](const TileInputs& in) { return (in.tiled[0] * w).sin().sum(); }, {{x}, {}},
                      {.tiles = 4});
  };
  const Tensor expected = ((x * w).cos() * x).sum(0).detach();
  expect_close(torch::autograd::grad({run()}, {w})[0], expected, "dw");
  EXPECT_FALSE(w.grad().defined());
  Tensor loss = run();
  torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
  torch::autograd::backward({loss});
  expect_close(w.grad(), expected * 2, "dw twice");
  EXPECT_ANY_THROW(torch::autograd::backward({loss}));
  loss = run();
  EXPECT_THAT(value_error([&] { torch::autograd::grad({loss}, {w}, {}, {}, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
  // The value may be worked with in place, as any other.
  loss = run();
  loss.mul_(3);
  expect_close(torch::autograd::grad({loss}, {w})[0], expected * 3, "dw of a loss scaled in place");
}

TEST(TiledLoss, WhatIsFrozenNeedsNoGraph) {
  Tensor x = numbers({7, 3}, 0), w = numbers({3}, 1);
  const auto run = [&] {
    return tiled_loss([&](const TileInputs& in) { return (in.tiled[0] * w).sum(); }, {{x}, {}}, {.tiles = 4});
  };
  EXPECT_FALSE(run().requires_grad());
  expect_close(run(), (x * w).sum(), "loss");
  w.requires_grad_(true);
  EXPECT_TRUE(run().requires_grad());
  at::NoGradGuard evaluation;
  EXPECT_FALSE(run().requires_grad());
  expect_close(run(), (x * w).sum(), "loss");
}

TEST(TiledLoss, SumsBf16InFp32) {
  const auto leaf = [] { return at::zeros({1}, at::kBFloat16).requires_grad_(true); };
  Tensor whole = leaf(), given = leaf(), found = leaf();
  Tensor loss = tiled_loss(
      [&](const TileInputs& in) { return (in.tiled[0] * (1 + in.whole[0] + given + found)).sum(); },
      {{at::ones({300, 1}, at::kBFloat16)}, {whole}}, {.tiles = 300, .parameters = {given}});
  EXPECT_EQ(loss.item<float>(), 300);
  torch::autograd::backward({loss});
  for (const Tensor& parameter : {whole, given, found}) EXPECT_EQ(parameter.grad().item<float>(), 300);
}

TEST(TiledLoss, MistakesHaveNames) {
  Tensor x = numbers({7, 3}, 0).requires_grad_(true);
  const TileLoss rows = [](const TileInputs& in) { return in.tiled[0].sum(1); };
  EXPECT_THAT(value_error([&] {
                tiled_loss(rows, {{x}, {}}, {});
              }),
              HasSubstr("must be a floating scalar; got [7]"));
  const TileLoss sum = [](const TileInputs& in) { return in.tiled[0].sum(); };
  EXPECT_THAT(value_error([&] {
                tiled_loss(sum, {{x}, {}}, {}, Combine::concatenate());
              }),
              HasSubstr("is a sum or a mean"));
}

}  // namespace
}  // namespace trireme::alst
