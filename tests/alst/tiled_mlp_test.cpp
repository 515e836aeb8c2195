#include "trireme/alst/tiled_mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "support/arrivals.h"
#include "support/autocast.h"
#include "trireme/alst/checkpoint.h"
#include "trireme/alst/tiled_compute.h"

namespace trireme::alst {
namespace {

using at::Tensor;

struct Weights {
  Tensor scale, up, down;
  Mlp mlp() const {
    return {[*this](const Tensor& tile) { return at::silu(at::matmul(tile * scale, up.t())); },
            {scale, up},
            down};
  }
  Tensor plain(const Tensor& x) const {
    return x + at::matmul(at::silu(at::matmul(x * scale, up.t())), down.t());
  }
};

Weights weights(at::ScalarType dtype = at::kDouble) {
  at::manual_seed(2);
  const auto leaf = [&](at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).to(dtype).requires_grad_(true);
  };
  return {leaf({6}), leaf({10, 6}), leaf({6, 10})};
}

TEST(TiledMlp, EveryGradientIsThatOfTheWholeAtAnyNumberOfTiles) {
  for (auto [rows, tiles] : {std::pair{5, 4}, {2, 4}, {7, 4}, {8, 4}, {14, 3}, {9, 1}, {1, 1}}) {
    at::manual_seed(rows);
    Tensor x = at::randn({rows, 6}, at::kDouble).requires_grad_(true),
           upstream = at::randn({rows, 6}, at::kDouble);
    const Weights tiled = weights(), whole = weights();
    Tensor y = tiled_mlp(x, tiled.mlp(), tiles);
    Tensor z = x.detach().requires_grad_(true), expected = whole.plain(z);
    EXPECT_LT((y - expected).abs().max().item<double>(), 1e-13);
    torch::autograd::backward({(y * upstream).sum()});
    torch::autograd::backward({(expected * upstream).sum()});
    EXPECT_LT((x.grad() - z.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_LT((tiled.scale.grad() - whole.scale.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_LT((tiled.up.grad() - whole.up.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_LT((tiled.down.grad() - whole.down.grad()).abs().max().item<double>(), 1e-12);
  }
}

TEST(TiledMlp, HandsEachGradientOverOnce) {
  const Weights w = weights();
  std::vector<std::shared_ptr<const tests::Arrivals>> arrivals;
  for (const auto& parameter : {w.scale, w.up, w.down}) arrivals.push_back(tests::arrivals_at(parameter));
  torch::autograd::backward(
      {tiled_mlp(at::randn({9, 6}, at::kDouble).requires_grad_(true), w.mlp(), 4).sum()});
  for (const auto& arrived : arrivals) {
    EXPECT_EQ(arrived->gradients, 1);
    EXPECT_EQ(arrived->accumulations, 1);
  }
}

// Whatever the activations are made with: what it captures comes here too.
TEST(TiledMlp, NodesThatCaptureParametersWithinIt) {
  using Gate = std::function<Tensor(const Tensor& tile, const Tensor& up)>;
  const Gate checkpointed = [](const Tensor& tile, const Tensor& up) {
    const Region region = [up](const std::vector<Tensor>& in, Kept&) -> std::vector<Tensor> {
      return {at::silu(at::matmul(in[0], up.t()))};
    };
    return checkpoint(region, {tile})[0];
  };
  const Gate tiled = [](const Tensor& tile, const Tensor& up) {
    const TileFunction function = [up](const TileInputs& in) -> std::vector<Tensor> {
      return {at::silu(at::matmul(in.tiled[0], up.t()))};
    };
    return tiled_compute(function, {{tile}, {}}, {.tiles = 2})[0];
  };
  at::manual_seed(3);
  const Tensor x = at::randn({9, 6}, at::kDouble);
  for (const Gate& gate : {checkpointed, tiled}) {
    const Weights w = weights(), whole = weights();
    const auto arrived = tests::arrivals_at(w.up);
    const Mlp mlp{[&](const Tensor& tile) { return gate(tile * w.scale, w.up); }, {w.scale, w.up}, w.down};
    const Tensor y = x.clone().requires_grad_(true), z = x.clone().requires_grad_(true);
    torch::autograd::backward({tiled_mlp(y, mlp, 4).square().sum()});
    torch::autograd::backward({whole.plain(z).square().sum()});
    EXPECT_EQ(arrived->accumulations, 1);
    EXPECT_LT((y.grad() - z.grad()).abs().max().item<double>(), 1e-11);
    EXPECT_LT((w.scale.grad() - whole.scale.grad()).abs().max().item<double>(), 1e-11);
    EXPECT_LT((w.up.grad() - whole.up.grad()).abs().max().item<double>(), 1e-11);
    EXPECT_LT((w.down.grad() - whole.down.grad()).abs().max().item<double>(), 1e-11);
  }
}

TEST(TiledMlp, AutocastLeavesItExact) {
  const auto gradients = [](bool forward_cast, bool backward_cast) {
    at::manual_seed(3);
    const Weights w = weights(at::kFloat);
    Tensor x = at::randn({9, 6}).requires_grad_(true), loss;
    {
      std::optional<tests::Autocast> cast;
      if (forward_cast) cast.emplace();
      loss = tiled_mlp(x, w.mlp(), 2).square().sum();
    }
    std::optional<tests::Autocast> cast;
    if (backward_cast) cast.emplace();
    torch::autograd::backward({loss});
    return at::cat({loss.detach().view({1}), x.grad().flatten(), w.scale.grad(), w.up.grad().flatten(),
                    w.down.grad().flatten()});
  };
  const Tensor plain = gradients(false, false);
  EXPECT_TRUE(at::equal(gradients(true, false), plain));
  EXPECT_TRUE(at::equal(gradients(false, true), plain));
}

TEST(TiledMlp, FrozenWeightsAndInputs) {
  Weights w = weights();
  w.up = w.up.detach();
  w.down = w.down.detach();
  torch::autograd::backward({tiled_mlp(at::randn({9, 6}, at::kDouble), w.mlp(), 4).sum()});
  EXPECT_TRUE(w.scale.grad().defined());
  EXPECT_FALSE(w.up.grad().defined());
}

TEST(TiledMlp, AReplayNeedsNoValue) {
  const Weights w = weights(), v = weights();
  Tensor x = at::randn({9, 6}, at::kDouble).requires_grad_(true), y = x.detach().requires_grad_(true);
  torch::autograd::backward({tiled_mlp(x, w.mlp(), 4, /*value_needed=*/false)},
                            {at::ones({9, 6}, at::kDouble)});
  torch::autograd::backward({v.plain(y).sum()});
  EXPECT_TRUE(at::allclose(x.grad(), y.grad()));
  EXPECT_TRUE(at::allclose(w.down.grad(), v.down.grad()));
}

TEST(TiledMlp, SumsBf16GradientsOfTilesInFp32) {
  // 300 tiles give a gradient of 1 each: in bf16 the sum would stop at 256.
  Mlp mlp{[](const Tensor& tile) { return tile; }, {}, at::zeros({1, 1}, at::kBFloat16).requires_grad_(true)};
  torch::autograd::backward({tiled_mlp(at::ones({300, 1}, at::kBFloat16), mlp, 300).sum()});
  EXPECT_EQ(mlp.down.grad().item<float>(), 300);
}

}  // namespace
}  // namespace trireme::alst
