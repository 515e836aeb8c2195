#include "trireme/alst/tiled_mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "trireme/alst/tiles.h"

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

class CountArrivals : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CountArrivals(int& count) : count_(count) {}
  void operator()(const Tensor&) override { ++count_; }

 private:
  int& count_;
};

TEST(TiledMlp, HandsEachGradientOverOnce) {
  const Weights w = weights();
  int arrivals = 0;
  for (const auto& parameter : {w.scale, w.up, w.down})
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<CountArrivals>(arrivals));
  torch::autograd::backward(
      {tiled_mlp(at::randn({9, 6}, at::kDouble).requires_grad_(true), w.mlp(), 4).sum()});
  EXPECT_EQ(arrivals, 3);
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
