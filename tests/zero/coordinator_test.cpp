#include "trireme/zero/coordinator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/ranks.h"
#include "support/units.h"
#include "trireme/alst/checkpoint.h"
#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

// Two layers y = tanh(x w), and a last one that shares the first one's weight.
struct Model {
  std::shared_ptr<core::BufferPool> pool = std::make_shared<core::BufferPool>();
  Coordinator coordinator;
  Unit first, second;

  Model(const comm::Group& group, Stage stage)
      : first("first", {{"w", {4, 4}}}, {.stage = stage, .dtype = at::kDouble}, group, pool),
        second("second", {{"w", {4, 4}}}, {.stage = stage, .dtype = at::kDouble}, group, pool) {
    first.write(0, 0, weight(0));
    second.write(0, 0, weight(1));
    first.publish();
    second.publish();
  }
  static Tensor weight(int64_t index) {
    return (at::arange(16, at::kDouble).view({4, 4}) + double(index)).sin();
  }
  static Tensor layer(const Tensor& x, const Tensor& w) { return at::tanh(at::matmul(x, w)); }

  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (Unit* unit : {&first, &second, &first})
      y = coordinator.around({unit}, BackwardNeeds::values, y,
                             [&](const Tensor& in) { return layer(in, unit->parameter(0)); });
    return y.sum();
  }
  static std::vector<Tensor> reference_gradients(const std::vector<Tensor>& inputs) {
    Tensor a = weight(0).requires_grad_(true), b = weight(1).requires_grad_(true);
    for (const auto& x : inputs) torch::autograd::backward({layer(layer(layer(x, a), b), a).sum()});
    return {a.grad(), b.grad()};
  }
  void finish() {
    coordinator.end_pass();
    first.finish_gradients();
    second.finish_gradients();
  }
};

Tensor input_of(int64_t rank) { return (at::arange(8, at::kDouble).view({2, 4}) * double(rank + 1)).cos(); }

TEST(Coordinator, EveryGradientIsThatOfOneProcess) {
  for (int stage = 0; stage < 4; ++stage)
    for (bool input_needs_gradient : {false, true})
      run_ranks(2, [&](const comm::Connection& connection) {
        Model model(world_of(connection), Stage(stage));
        Tensor x = input_of(connection.rank()).requires_grad_(input_needs_gradient);
        torch::autograd::backward({model.forward(x)});
        model.finish();
        auto expected = Model::reference_gradients({input_of(0), input_of(1)});
        EXPECT_LT((tests::whole_gradient(model.first, 0) - expected[0]).abs().max().item<double>(), 1e-13);
        EXPECT_LT((tests::whole_gradient(model.second, 0) - expected[1]).abs().max().item<double>(), 1e-13);
      });
}

TEST(Coordinator, UnitsAreThereOnlyWhileTheyAreUsed) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    Tensor loss = model.forward(input_of(0));
    EXPECT_EQ(model.first.state(), State::not_available);
    EXPECT_EQ(model.second.state(), State::not_available);
    torch::autograd::backward({loss});
    EXPECT_EQ(model.first.state(), State::not_available);
    EXPECT_EQ(model.second.state(), State::not_available);
    model.coordinator.end_pass();
  });
}

TEST(Coordinator, AUnitThatIsUsedTwiceIsReducedOnce) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    const auto& group = model.first.group();
    const auto reduced = [&] {
      return model.first.group().traffic().bytes(comm::Collective::reduce_scatter);
    };
    torch::autograd::backward({model.forward(input_of(0).requires_grad_(true))});
    model.coordinator.end_pass();
    EXPECT_EQ(reduced(), 2 * model.first.gathered_elements() * 8 / 2);  // two units, half of each
    EXPECT_EQ(group.traffic().bytes(comm::Collective::all_gather),
              6 * model.first.gathered_elements() / 2 * 8);
  });
}

TEST(Coordinator, ARankThatLeavesAUnitUnusedDoesNotHang) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    // Both ranks pass through the unit, one makes no use of its parameter.
    Tensor y =
        model.coordinator.around({&model.first}, BackwardNeeds::values, input_of(0), [&](const Tensor& x) {
          return connection.rank() == 0 ? Model::layer(x, model.first.parameter(0)) : x * 2;
        });
    torch::autograd::backward({y.sum()});
    model.finish();
    Tensor w = Model::weight(0).requires_grad_(true);
    torch::autograd::backward({Model::layer(input_of(0), w).sum()});
    EXPECT_TRUE(at::allclose(tests::whole_gradient(model.first, 0), w.grad()));
    EXPECT_TRUE(tests::whole_gradient(model.second, 0).eq(0).all().item<bool>());
  });
}

TEST(Coordinator, EvaluationLeavesNothingBehind) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    {
      at::NoGradGuard evaluation;
      EXPECT_FALSE(model.forward(input_of(0)).requires_grad());
    }
    const auto before = model.first.group().traffic().total();
    model.coordinator.end_pass();  // nothing is awaited
    EXPECT_EQ(model.first.group().traffic().total(), before);
    torch::autograd::backward({model.forward(input_of(connection.rank()))});
    model.finish();
    auto expected = Model::reference_gradients({input_of(0), input_of(1)});
    EXPECT_TRUE(at::allclose(tests::whole_gradient(model.first, 0), expected[0]));
  });
}

// A pass that reads one unit's parameter in two regions that are run again in the backward pass.
TEST(Coordinator, AUnitThatTwoRecomputedRegionsShareIsReducedOnce) {
  for (int stage : {2, 3})
    run_ranks(2, [&](const comm::Connection& connection) {
      Model model(world_of(connection), Stage(stage));
      Tensor y = input_of(connection.rank());
      for (int use = 0; use < 2; ++use)
        y = model.coordinator.around({&model.first}, BackwardNeeds::values, y, [&](const Tensor& x) {
          return alst::checkpoint(
              [&](const std::vector<Tensor>& in, alst::Kept&) -> std::vector<Tensor> {
                return {Model::layer(in[0], model.first.parameter(0))};
              },
              {x})[0];
        });
      torch::autograd::backward({y.sum()});
      model.coordinator.end_pass();
      EXPECT_EQ(model.first.group().traffic().bytes(comm::Collective::reduce_scatter),
                model.first.gradient_elements() * 8 / 2);
      model.finish();
      Tensor w = Model::weight(0).requires_grad_(true);
      for (int64_t rank = 0; rank < 2; ++rank)
        torch::autograd::backward({Model::layer(Model::layer(input_of(rank), w), w).sum()});
      EXPECT_LT((tests::whole_gradient(model.first, 0) - w.grad()).abs().max().item<double>(), 1e-13);
    });
}

// What `around` may be told, and what it finds out by itself, about a parameter of another unit.
TEST(Coordinator, ExternalParametersAreGatheredWithTheUnitThatReadsThem) {
  for (bool registered : {false, true})
    run_ranks(2, [&](const comm::Connection& connection) {
      Model model(world_of(connection), Stage::parameters);
      model.coordinator.adopt({&model.first, &model.second});
      if (registered) model.coordinator.register_external_parameter(model.second, model.first);
      for (int pass = 0; pass < 3; ++pass) {
        // second's forward uses first's weight too, which first itself does not use in this pass.
        Tensor y = model.coordinator.around(
            {&model.second}, BackwardNeeds::values, input_of(connection.rank()), [&](const Tensor& x) {
              return Model::layer(Model::layer(x, model.second.parameter(0)), model.first.parameter(0));
            });
        EXPECT_EQ(model.first.state() == State::not_available, model.second.state() == State::not_available);
        torch::autograd::backward({y.sum()});
        model.finish();
        EXPECT_EQ(model.coordinator.live_parameters(), 0);
        Tensor a = Model::weight(0).requires_grad_(true), b = Model::weight(1).requires_grad_(true);
        for (int64_t rank = 0; rank < 2; ++rank)
          torch::autograd::backward({Model::layer(Model::layer(input_of(rank), b), a).sum()});
        EXPECT_LT((tests::whole_gradient(model.first, 0) - a.grad()).abs().max().item<double>(), 1e-13);
        EXPECT_LT((tests::whole_gradient(model.second, 0) - b.grad()).abs().max().item<double>(), 1e-13);
        model.first.clear_gradients();
        model.second.clear_gradients();
      }
    });
}

TEST(Coordinator, AReadOutsideEveryPassIsAnErrorThatNamesTheParameter) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    model.coordinator.adopt({&model.first, &model.second});
    const auto expect_refusal = [&](const std::function<void()>& use) {
      try {
        use();
        FAIL() << "did not throw";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("parameter 'w' is partitioned over 2 ranks"));
      }
    };
    expect_refusal([&] { (model.first.parameter(0) + 1).sum(); });
    // A tensor that was taken out of its unit's pass, in another unit's: element-wise too.
    Tensor stray = model.first.parameter(0);
    Tensor loss =
        model.coordinator.around({&model.second}, BackwardNeeds::values, input_of(0), [&](const Tensor& x) {
          expect_refusal([&] { return at::zeros({4, 1}, at::kDouble) + stray; });
          return Model::layer(x, model.second.parameter(0));
        });
    torch::autograd::backward({loss.sum()});
    model.finish();
    expect_refusal([&] { at::matmul(stray, stray); });
  });
}

TEST(Coordinator, AUnitInUseIsNotReleased) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    model.coordinator.around({&model.first}, BackwardNeeds::values, input_of(0), [&](const Tensor& x) {
      try {
        model.first.release();
        ADD_FAILURE() << "did not throw";
      } catch (const core::ValueError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("unit 'first'"));
        EXPECT_THAT(error.what(), testing::HasSubstr("while it is in use"));
      }
      { Gathered inside(model.first); }  // ends, and leaves the values to the forward pass
      return Model::layer(x, model.first.parameter(0));
    });
    model.coordinator.end_pass();
    EXPECT_EQ(model.first.state(), State::not_available);
  });
}

TEST(Coordinator, EventsArePaired) {
  run_ranks(1, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    EXPECT_THROW(model.coordinator.after_forward({&model.first}, false), core::ValueError);
    model.coordinator.before_forward({&model.first});
    EXPECT_THROW(model.coordinator.after_forward({&model.second}, false), core::ValueError);
  });
}

TEST(Coordinator, AGraphFromBeforeTheStepIsRefused) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    Tensor loss = model.forward(input_of(0));
    model.second.publish();
    try {
      torch::autograd::backward({loss});
      FAIL() << "did not throw";
    } catch (const core::ValueError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("before the last optimizer step for unit 'second'"));
    }
  });
}

TEST(Coordinator, AnExceptionInForwardReleasesTheUnit) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters);
    EXPECT_THROW(model.coordinator.around({&model.first}, BackwardNeeds::values, input_of(0),
                                          [](const Tensor&) -> Tensor { throw std::runtime_error("no"); }),
                 std::runtime_error);
    EXPECT_EQ(model.first.state(), State::not_available);
  });
}

}  // namespace
}  // namespace trireme::zero
