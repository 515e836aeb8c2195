// How the coordinator gathers ahead, keeps and reduces, along the trace of the pass before.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "support/ranks.h"
#include "support/units.h"
#include "trireme/zero/coordinator.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

constexpr int64_t kLayers = 4, kWidth = 4;

Tensor weight(int64_t layer) {
  return (at::arange(kWidth * kWidth, at::kDouble).view({kWidth, kWidth}) + double(layer)).sin();
}
Tensor apply(const Tensor& x, const Tensor& w) { return at::tanh(at::matmul(x, w)); }
Tensor input_of(int64_t rank) { return (at::arange(8, at::kDouble).view({2, 4}) * double(rank + 1)).cos(); }

// Layers y = tanh(x w), each a unit, used in the order that a pass is told.
struct Model {
  std::shared_ptr<core::BufferPool> pool = std::make_shared<core::BufferPool>();
  comm::Group group;
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<std::string> faults;
  Coordinator coordinator;

  Model(const comm::Group& world, Schedule schedule)
      : group(world), coordinator(reported(std::move(schedule))) {
    for (int64_t i = 0; i < kLayers; ++i) {
      units.push_back(std::make_unique<Unit>("layer." + std::to_string(i),
                                             std::vector<ParameterSpec>{{"w", {kWidth, kWidth}}},
                                             Options{.dtype = at::kDouble}, group, pool));
      units.back()->write(0, 0, weight(i));
      units.back()->publish();
    }
  }
  Schedule reported(Schedule schedule) {
    schedule.on_changed_order = [this](const std::string& fault) { faults.push_back(fault); };
    return schedule;
  }

  Tensor forward(const std::vector<int64_t>& order) {
    Tensor y = input_of(group.rank());
    for (int64_t i : order)
      y = coordinator.around({units[size_t(i)].get()}, BackwardNeeds::values, y,
                             [&](const Tensor& in) { return apply(in, units[size_t(i)]->parameter(0)); });
    return y.sum();
  }

  // Checks every gradient of one forward and backward pass.
  void train(const std::vector<int64_t>& order) {
    torch::autograd::backward({forward(order)});
    coordinator.end_pass();
    std::vector<Tensor> leaves;
    for (int64_t i = 0; i < kLayers; ++i) leaves.push_back(weight(i).requires_grad_(true));
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      Tensor y = input_of(rank);
      for (int64_t i : order) y = apply(y, leaves[size_t(i)]);
      torch::autograd::backward({y.sum()});
    }
    for (size_t i = 0; i < units.size(); ++i) {
      units[i]->finish_gradients();
      const Tensor expected = leaves[i].grad().defined() ? leaves[i].grad() : at::zeros_like(leaves[i]);
      EXPECT_LT((tests::whole_gradient(*units[i], 0) - expected).abs().max().item<double>(), 1e-13)
          << "unit " << i;
      units[i]->clear_gradients();
    }
  }
  void evaluate(const std::vector<int64_t>& order) {
    at::NoGradGuard evaluation;
    forward(order);
    coordinator.end_pass();
  }

  void expect_nothing_is_there() {
    EXPECT_EQ(coordinator.live_parameters(), 0);
    for (const auto& unit : units) EXPECT_EQ(unit->state(), State::not_available) << unit->name();
  }
};

const std::vector<int64_t> kOrder{0, 1, 2, 3};

TEST(Schedule, FromTheSecondPassOnUnitsAreGatheredAheadAndKept) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), {});
    model.train(kOrder);
    EXPECT_EQ(model.coordinator.statistics().gathers, 8);  // forward and backward each
    EXPECT_EQ(model.coordinator.statistics().gathered_ahead, 0);
    model.expect_nothing_is_there();
    model.train(kOrder);
    const auto& second = model.coordinator.statistics();
    EXPECT_EQ(second.gathers, 8 + 4);  // all are kept for the backward pass
    EXPECT_EQ(second.gathered_ahead, 3);
    EXPECT_EQ(second.kept, 4);
    EXPECT_EQ(second.unused, 0);
    EXPECT_TRUE(model.faults.empty());
    model.expect_nothing_is_there();
  });
}

TEST(Schedule, NothingIsKeptBeyondTheReuseDistance) {
  run_ranks(2, [](const comm::Connection& connection) {
    const int64_t one = FlatLayout({{"w", {kWidth, kWidth}}}, 2).padded();
    for (int64_t distance : {int64_t{0}, one, 5 * one}) {
      Model model(world_of(connection), {.max_reuse_distance = distance});
      model.train(kOrder);
      model.train(kOrder);
      // The last layer is used again at once, the one before after two uses of another, and so on.
      const int64_t kept = distance == 0 ? 0 : distance == one ? 1 : 3;
      EXPECT_EQ(model.coordinator.statistics().kept, kept) << distance;
      EXPECT_EQ(model.coordinator.statistics().gathers, 8 + 8 - kept) << distance;
    }
  });
}

TEST(Schedule, LimitsHold) {
  run_ranks(2, [](const comm::Connection& connection) {
    const int64_t one = FlatLayout({{"w", {kWidth, kWidth}}}, 2).padded();
    Model on_demand(world_of(connection), {.prefetch_bucket_size = 0, .max_reuse_distance = 0});
    Model one_alive(world_of(connection), {.max_live_parameters = 1});
    Model one_ahead(world_of(connection), {.prefetch_bucket_size = 1, .max_reuse_distance = 0});
    for (int pass = 0; pass < 2; ++pass)
      for (Model* model : {&on_demand, &one_alive, &one_ahead}) model->train(kOrder);
    EXPECT_EQ(on_demand.coordinator.statistics().gathered_ahead, 0);
    EXPECT_EQ(one_alive.coordinator.statistics().gathered_ahead, 0);
    EXPECT_EQ(one_alive.coordinator.statistics().kept, 0);
    EXPECT_EQ(one_ahead.coordinator.statistics().gathered_ahead, 6);
    one_ahead.forward(kOrder);
    EXPECT_LE(one_ahead.coordinator.live_parameters(), 2 * one);
  });
}

TEST(Schedule, AnyOtherOrderIsRightAllTheSame) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), {});
    model.train(kOrder);
    model.train({0, 2, 3});  // skipped
    EXPECT_THAT(model.faults, testing::ElementsAre(testing::HasSubstr(
                                  "use 2 of a pass was expected to be unit 'layer.1'; got unit 'layer.2'")));
    model.expect_nothing_is_there();
    model.train({0, 2, 3});
    EXPECT_EQ(model.faults.size(), 1u);
    model.train({0, 1, 0, 2});  // used twice
    model.evaluate(kOrder);
    model.expect_nothing_is_there();
    model.train(kOrder);
    model.evaluate({3});
    model.expect_nothing_is_there();
    model.train({3, 2, 1, 0});
    model.train({3, 2, 1, 0});
    model.expect_nothing_is_there();
    EXPECT_GT(model.coordinator.statistics().unused, 0);
  });
}

TEST(Schedule, ASecondForwardInsideAPassAndTwoBackwardsAreRight) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), {});
    for (int pass = 0; pass < 3; ++pass) {
      if (pass == 1) {
        at::NoGradGuard evaluation;
        model.forward(kOrder);  // without ending the pass
      }
      model.train(kOrder);
      model.expect_nothing_is_there();
    }
    Tensor loss = model.forward(kOrder);
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
    torch::autograd::backward({loss});
    model.coordinator.end_pass();
    model.expect_nothing_is_there();
    Tensor leaf = weight(3).requires_grad_(true);
    for (int64_t rank = 0; rank < 2; ++rank) {
      Tensor y = input_of(rank);
      for (int64_t i : {0, 1, 2}) y = apply(y, weight(i));
      torch::autograd::backward({apply(y, leaf).sum() * 2});
    }
    model.units[3]->finish_gradients();
    EXPECT_LT(tests::relative_difference(tests::whole_gradient(*model.units[3], 0), leaf.grad()), 1e-13);
  });
}

TEST(Schedule, ReductionsMayOverlapOrNot) {
  run_ranks(3, [](const comm::Connection& connection) {
    for (const Schedule& schedule : {Schedule{.overlap_reductions = false}, Schedule{.reduce_bucket_size = 0},
                                     Schedule{.reduce_bucket_size = 1}, Schedule{}}) {
      Model model(world_of(connection), schedule);
      for (int pass = 0; pass < 3; ++pass) model.train(kOrder);
    }
  });
}

TEST(Schedule, AStepSendsTwoGathersAndOneReductionOfTheParameters) {
  run_ranks(2, [](const comm::Connection& connection) {
    const int64_t one = FlatLayout({{"w", {kWidth, kWidth}}}, 2).padded() * 8 / 2;  // bytes that a rank sends
    for (const bool reuse : {false, true}) {
      Model model(world_of(connection), {.max_reuse_distance = reuse ? 1000 : 0});
      const auto& traffic = model.group.traffic();
      model.train(kOrder);
      const auto sent = [&](comm::Collective c) { return traffic.bytes(c); };
      const int64_t gathered = sent(comm::Collective::all_gather),
                    reduced = sent(comm::Collective::reduce_scatter);
      torch::autograd::backward({model.forward(kOrder)});
      model.coordinator.end_pass();
      EXPECT_EQ(sent(comm::Collective::all_gather) - gathered, (reuse ? 4 : 8) * one);
      EXPECT_EQ(sent(comm::Collective::reduce_scatter) - reduced, 4 * one);
    }
  });
}

}  // namespace
}  // namespace trireme::zero
