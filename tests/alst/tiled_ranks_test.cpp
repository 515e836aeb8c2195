// Functions of tiles on several ranks: collectives inside of them, and parameters that are partitioned.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/ranks.h"
#include "support/tiled.h"
#include "support/units.h"
#include "trireme/alst/checkpoint.h"
#include "trireme/alst/tiled_compute.h"
#include "trireme/alst/tiled_loss.h"
#include "trireme/comm/collectives.h"
#include "trireme/zero/coordinator.h"

namespace trireme::alst {
namespace {

using at::Tensor;
using tests::expect_close;
using tests::numbers;
using tests::run_ranks;
using tests::world_of;

constexpr int64_t kTiles = 4;

Tensor tokens_of(int64_t rank, const std::vector<int64_t>& counts) {
  return numbers({counts[size_t(rank)], 3}, double(rank));
}

// Each token times the sum of all ranks' tokens of the tile: L = sum over tiles of |sum over ranks of sum(x
// w)|^2.
std::vector<Tensor> reference_gradients(const std::vector<int64_t>& counts, int64_t tiles) {
  std::vector<Tensor> leaves{numbers({3}, 9).requires_grad_(true)};
  for (int64_t rank = 0; rank < 2; ++rank) leaves.push_back(tokens_of(rank, counts).requires_grad_(true));
  Tensor loss = at::zeros({}, at::kDouble);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    Tensor sum = at::zeros({}, at::kDouble);
    for (size_t rank = 0; rank < 2; ++rank) {
      const auto [first, count] = tile_at(counts[rank], tiles, tile);
      sum = sum + (leaves[1 + rank].narrow(0, first, count) * leaves[0]).sum();
    }
    loss = loss + sum * sum;
  }
  torch::autograd::backward({loss});
  return {leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

TEST(TiledRanks, AgreeOnTheNumberOfTilesSoThatCollectivesPairUp) {
  for (const auto& [counts, tiles] :
       std::vector<std::pair<std::vector<int64_t>, int64_t>>{{{1, 9}, kTiles}, {{0, 9}, kTiles}, {{2, 3}, 3}})
    for (bool given : {false, true})
      for (bool in_checkpoint : {false, true})
        run_ranks(2, [&, &counts = counts, &tiles = tiles](const comm::Connection& connection) {
          const auto group = world_of(connection);
          Tensor x = tokens_of(connection.rank(), counts).requires_grad_(true);
          Tensor w = numbers({3}, 9).requires_grad_(true);
          std::vector<int64_t> seen;
          const TileFunction function = [&](const TileInputs& in) -> std::vector<Tensor> {
            seen.push_back(in.tiled[0].size(0));
            Tensor y = in.tiled[0] * w;
            return {y * comm::all_reduce_with_gradient(y.sum(), group, "a test")};
          };
          const Tiling tiling{tiles, 0, given ? std::vector<Tensor>{w} : std::vector<Tensor>(), group};
          const Region region = [&](const std::vector<Tensor>& in, Kept&) {
            return tiled_compute(function, {in, {}}, tiling);
          };
          Kept kept;
          const auto out = in_checkpoint ? checkpoint(region, {x}) : region({x}, kept);
          EXPECT_EQ(int64_t(seen.size()), tiles);
          for (int64_t tile = 0; tile < tiles; ++tile)
            EXPECT_EQ(seen[size_t(tile)], tile_at(x.size(0), tiles, tile).count);
          torch::autograd::backward({out[0].sum()});
          EXPECT_EQ(int64_t(seen.size()), (in_checkpoint ? 3 : 2) * tiles);
          const auto expected = reference_gradients(counts, tiles);
          expect_close(x.grad(), expected[size_t(1 + connection.rank())], "dx");
          expect_close(group.all_reduce(w.grad().clone(), "a test"), expected[0], "dw");
        });
}

// An output that one rank makes no use of: its collectives' backward passes pair up all the same.
TEST(TiledRanks, AnOutputThatOneRankLeavesUnused) {
  const std::vector<int64_t> counts{2, 3};
  std::vector<Tensor> leaves;
  for (int64_t rank = 0; rank < 2; ++rank) leaves.push_back(tokens_of(rank, counts).requires_grad_(true));
  Tensor loss = leaves[0].sin().sum() + leaves[1].sin().sum();
  for (int64_t tile = 0; tile < 3; ++tile)
    for (int64_t rank = 0; rank < 2; ++rank) {
      const auto [first, count] = tile_at(counts[size_t(rank)], 3, tile);
      loss = loss + leaves[size_t(rank)].narrow(0, first, count).pow(2).sum();
    }
  torch::autograd::backward({loss});
  run_ranks(2, [&](const comm::Connection& connection) {
    const auto group = world_of(connection);
    Tensor x = tokens_of(connection.rank(), counts).requires_grad_(true);
    const auto out = tiled_compute(
        [&](const TileInputs& in) -> std::vector<Tensor> {
          const Tensor& tile = in.tiled[0];
          return {tile.sin(), comm::all_reduce_with_gradient(tile.pow(2).sum(), group, "a test")};
        },
        {{x}, {}}, {.tiles = 3, .group = group}, {Combine::concatenate(), Combine::sum()});
    torch::autograd::backward({connection.rank() == 0 ? out[0].sum() + out[1] : out[0].sum()});
    expect_close(x.grad(), leaves[size_t(connection.rank())].grad(), "dx");
  });
}

TEST(TiledRanks, NoMoreTilesThanTheLongestRankHasTokens) {
  run_ranks(2, [&](const comm::Connection& connection) {
    int runs = 0;
    const auto out = tiled_compute(
        [&](const TileInputs& in) -> std::vector<Tensor> {
          ++runs;
          return {in.tiled[0].sin(), in.tiled[0].mean()};
        },
        {{tokens_of(connection.rank(), {1, 3})}, {}}, {.tiles = 100, .group = world_of(connection)},
        {Combine::concatenate(), Combine::mean()});
    EXPECT_EQ(runs, 3);
    // The mean of no tokens, which is no number, counts for nothing.
    expect_close(out[1].detach(), tokens_of(connection.rank(), {1, 3}).mean(), "mean");
  });
}

TEST(TiledRanks, ALossOfRanksOfWhichOneHasNoTarget) {
  const std::vector<int64_t> counts{9, 5};
  const auto token_loss = [](const Tensor& x, const Tensor& w, const Tensor& good) {
    return ((x * w).sum(1).sin() * good).sum();
  };
  const auto good_of = [&](int64_t rank) {
    Tensor good = at::zeros({counts[size_t(rank)]}, at::kDouble);
    if (rank == 0) good.narrow(0, 2, 3).fill_(1);
    return good;
  };
  Tensor v = numbers({3}, 9).requires_grad_(true), first = tokens_of(0, counts).requires_grad_(true);
  torch::autograd::backward({token_loss(first, v, good_of(0)) / 3});
  run_ranks(2, [&](const comm::Connection& connection) {
    const auto group = world_of(connection);
    Tensor x = tokens_of(connection.rank(), counts).requires_grad_(true);
    Tensor w = numbers({3}, 9).requires_grad_(true);
    Tensor targets = group.all_reduce(good_of(connection.rank()).sum(), "a test");
    Tensor loss = tiled_loss(
        [&](const TileInputs& in) {
          Tensor of_all =
              comm::all_reduce_with_gradient(token_loss(in.tiled[0], w, in.tiled[1]), group, "a test");
          return of_all / (2 * targets);  // each rank counts the sum
        },
        {{x, good_of(connection.rank())}, {}}, {.tiles = kTiles, .group = group});
    torch::autograd::backward({loss});
    expect_close(x.grad(), connection.rank() == 0 ? first.grad() : at::zeros_like(x), "dx");
    expect_close(group.all_reduce(w.grad().clone(), "a test"), v.grad(), "dw");
  });
}

// Parameters of a unit, found by the tiles: gathered for the region, not for a tile, and reduced once.
TEST(TiledRanks, AUnitIsGatheredAndReducedOnceForAllTiles) {
  const Tensor weight = numbers({4, 4}, 1);
  const auto layer = [](const Tensor& x, const Tensor& w) { return at::tanh(at::matmul(x, w)); };
  const auto input_of = [](int64_t rank) { return numbers({7, 4}, double(rank)); };
  Tensor reference = weight.clone().requires_grad_(true);
  for (int64_t rank = 0; rank < 2; ++rank)
    torch::autograd::backward({layer(input_of(rank), reference).sum()});
  enum class Way { found, given, checkpointed, loss };
  for (Way way : {Way::found, Way::given, Way::checkpointed, Way::loss})
    run_ranks(2, [&](const comm::Connection& connection) {
      zero::Coordinator coordinator;
      zero::Unit unit("unit", {{"w", {4, 4}}}, {.stage = zero::Stage::parameters, .dtype = at::kDouble},
                      world_of(connection), std::make_shared<core::BufferPool>());
      unit.write(0, 0, weight);
      unit.publish();
      Tensor x = input_of(connection.rank()).requires_grad_(true);
      const TileFunction function = [&](const TileInputs& in) -> std::vector<Tensor> {
        return {layer(in.tiled[0], unit.parameter(0))};
      };
      Tensor y = coordinator.around({&unit}, zero::BackwardNeeds::values, x, [&](const Tensor& in) {
        if (way == Way::loss)
          return tiled_loss([&](const TileInputs& tile) { return function(tile)[0].sum(); }, {{in}, {}},
                            {.tiles = 3});
        Tiling tiling{.tiles = 3};
        if (way == Way::given) tiling.parameters = {unit.parameter(0)};
        const Region region = [&function, tiling](const std::vector<Tensor>& inputs, Kept&) {
          return tiled_compute(function, {inputs, {}}, tiling);
        };
        Kept kept;
        return way == Way::checkpointed ? checkpoint(region, {in})[0] : region({in}, kept)[0];
      });
      EXPECT_EQ(unit.state(), zero::State::not_available);
      torch::autograd::backward({y.sum()});
      EXPECT_EQ(unit.state(), zero::State::not_available);
      EXPECT_EQ(coordinator.statistics().gathers, 2);  // forward, backward
      coordinator.end_pass();
      EXPECT_EQ(unit.group().traffic().bytes(comm::Collective::reduce_scatter),
                unit.gradient_elements() * 8 / 2);  // half, once
      unit.finish_gradients();
      expect_close(tests::whole_gradient(unit, 0), reference.grad(), "dw");
      Tensor z = input_of(connection.rank()).requires_grad_(true);
      torch::autograd::backward({layer(z, weight).sum()});
      expect_close(x.grad(), z.grad(), "dx");
    });
}

}  // namespace
}  // namespace trireme::alst
