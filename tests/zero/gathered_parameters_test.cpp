#include "trireme/zero/gathered_parameters.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"
#include "support/units.h"
#include "trireme/core/check.h"
#include "trireme/zero/adamw.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::value_error;
using tests::run_ranks;
using tests::world_of;

// Two units: one with a parameter that stays replicated under stage 3, one with a frozen parameter.
struct Model {
  std::shared_ptr<core::BufferPool> pool = std::make_shared<core::BufferPool>();
  Options options;
  Unit a, b;

  Model(const comm::Group& group, Stage stage, at::ScalarType dtype)
      : options{.stage = stage, .dtype = dtype, .persistence_threshold = 5},
        a("a", {{"w", {5, 3}}, {"small", {3}, 1}}, options, group, pool),
        b("b", {{"v", {7}}, {"frozen", {9}, 0, /*trainable=*/false}}, options, group, pool) {
    for (Unit* unit : {&a, &b})
      for (size_t i = 0; i < 2; ++i) unit->write(i, 0, first_value(*unit, i));
    for (Unit* unit : {&a, &b}) unit->publish();
  }
  static Tensor first_value(const Unit& unit, size_t index) {
    return (at::arange(unit.spec(index).numel(), at::kDouble) * 0.37 + double(index))
        .view(unit.spec(index).shape);
  }
  std::vector<ParameterReference> all() { return parameters_of({&a, &b}); }

  // A step with gradients of one and learning rate `rate`.
  void step(double rate) {
    AdamW optimizer({&a, &b});
    for (Unit* unit : {&a, &b})
      for (size_t i = 0; i < 2; ++i)
        if (unit->spec(i).trainable)
          unit->place(i).flat->collect(
              unit->place(i).index,
              at::ones(unit->spec(i).shape, unit->parameter(i).options().requires_grad(false)));
    for (Unit* unit : {&a, &b}) {
      unit->start_reduction();
      unit->finish_gradients();
    }
    optimizer.step(decayed_and_not({.learning_rate = rate, .weight_decay = 0}), 1);
  }
};

template <class Body>
void in_every_setting(const Body& body) {
  for (int64_t ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3})
      for (auto dtype : {at::kFloat, at::kBFloat16})
        run_ranks(ranks, [&](const comm::Connection& connection) {
          SCOPED_TRACE(core::concatenate(ranks, " ranks, stage ", stage, ", ", dtype));
          Model model(world_of(connection), Stage(stage), dtype);
          body(model, connection);
        });
}

TEST(GatheredParameters, AreWholeInTheScopeAndGoneAfterIt) {
  in_every_setting([](Model& model, const comm::Connection&) {
    {
      GatheredParameters gathered(model.all());
      for (const auto& [unit, index] : model.all())
        EXPECT_TRUE(at::equal(unit->parameter(index).detach(),
                              Model::first_value(*unit, index).to(model.options.dtype)));
    }
    const State expected = model.options.partitions_parameters() ? State::not_available : State::available;
    EXPECT_EQ(model.a.state(), expected);
    EXPECT_EQ(model.b.state(), expected);
  });
}

TEST(GatheredParameters, WhatTheModifierWritesReachesEveryRankAndSurvivesAStepOfRateZero) {
  in_every_setting([](Model& model, const comm::Connection& connection) {
    const int64_t modifier = connection.size() - 1;
    {
      GatheredParameters gathered(model.all(), modifier);
      at::NoGradGuard no_graph;
      if (connection.rank() == modifier)
        for (const auto& [unit, index] : model.all())
          unit->parameter(index).view({-1}).narrow(0, 1, 2).fill_(-8);
    }
    for (int round = 0; round < 2; ++round) {
      for (const auto& [unit, index] : model.all()) {
        Tensor expected = Model::first_value(*unit, index).to(model.options.dtype);
        expected.view({-1}).narrow(0, 1, 2).fill_(-8);
        EXPECT_TRUE(at::equal(tests::whole_value(*unit, index), expected)) << unit->spec(index).name;
      }
      model.step(0);
    }
  });
}

// What was not written keeps the master's full precision.
TEST(GatheredParameters, MastersOfUnchangedElementsAreKept) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters, at::kBFloat16);
    {
      GatheredParameters gathered({{&model.a, 0}}, 0);
      at::NoGradGuard no_graph;
      if (connection.rank() == 0) model.a.parameter(0)[0][0].fill_(1.0 / 3);
    }
    auto& flat = *model.a.place(0).flat;
    Tensor masters =
        model.a.group().all_gather(flat.read_master(0, flat.optimizer_range().count()).wait(), "test");
    Tensor expected = Model::first_value(model.a, 0).view({-1}).to(at::kFloat);
    expected[0] = at::scalar_tensor(1.0 / 3).to(at::kBFloat16).to(at::kFloat);
    EXPECT_TRUE(at::equal(masters.view({-1}).narrow(0, 0, 15), expected));
  });
}

TEST(GatheredParameters, AWriteWithoutAModifierIsAnErrorOnEveryRank) {
  for (int stage : {0, 3})
    run_ranks(3, [&](const comm::Connection& connection) {
      Model model(world_of(connection), Stage(stage), at::kFloat);
      EXPECT_THAT(value_error([&] {
                    GatheredParameters gathered(model.all());
                    at::NoGradGuard no_graph;
                    if (connection.rank() == 1) model.b.parameter(0).zero_();
                    gathered.finish();
                  }),
                  HasSubstr("got a write to 'v' of unit 'b', on this rank or another; give a modifier_rank"));
      EXPECT_EQ(model.b.is_used(), false);
      if (stage != 3) return;
      EXPECT_TRUE(at::equal(tests::whole_value(model.b, 0), Model::first_value(model.b, 0).to(at::kFloat)));
    });
}

TEST(GatheredParameters, TheDestructorReportsToo) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters, at::kFloat);
    EXPECT_THAT(value_error([&] {
                  GatheredParameters gathered(model.all());
                  at::NoGradGuard no_graph;
                  model.a.parameter(0).zero_();
                }),
                HasSubstr("got a write to 'w'"));
    // An exception on its way is the one to be told.
    try {
      GatheredParameters gathered(model.all());
      at::NoGradGuard no_graph;
      model.a.parameter(0).zero_();
      throw std::runtime_error("mine");
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "mine");
    }
    EXPECT_EQ(model.a.state(), State::not_available);
  });
}

TEST(GatheredParameters, ScopesMayBeNestedAndRepeated) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters, at::kFloat);
    for (int round = 0; round < 3; ++round) {
      GatheredParameters outer(model.all());
      {
        GatheredParameters inner({{&model.a, 0}, {&model.a, 0}}, 1);
        at::NoGradGuard no_graph;
        if (connection.rank() == 1) model.a.parameter(0).fill_(round);
      }
      EXPECT_EQ(model.a.state(), State::available);  // the outer one uses it still
      EXPECT_TRUE(model.a.parameter(0).eq(round).all().item<bool>());
      GatheredParameters reader({{&model.a, 0}});
      reader.finish();
      outer.finish();  // what the inner one wrote is no fault of the outer one
      EXPECT_EQ(model.a.state(), State::not_available);
    }
    EXPECT_TRUE(tests::whole_value(model.a, 0).eq(2).all().item<bool>());
    EXPECT_THAT(value_error([&] {
                  GatheredParameters outer(model.all());
                  at::NoGradGuard no_graph;
                  { GatheredParameters inner({{&model.a, 0}}, 0); }
                  model.a.parameter(0).fill_(5);
                  outer.finish();
                }),
                HasSubstr("got a write to 'w'"));
  });
}

// Of a parameter that several ranks have a part of.
TEST(GatheredParameters, WhatAnInnerScopeWritesIsNoFaultOfTheOuterOne) {
  for (int stage : {0, 1, 2, 3})
    run_ranks(2, [&](const comm::Connection& connection) {
      Unit unit("u", {{"w", {40}}}, {.stage = Stage(stage)}, world_of(connection),
                std::make_shared<core::BufferPool>());
      GatheredParameters outer({{&unit, 0}});
      {
        GatheredParameters inner({{&unit, 0}}, 0);
        at::NoGradGuard no_graph;
        if (connection.rank() == 0) unit.parameter(0).copy_(at::arange(40));
      }
      outer.finish();
      EXPECT_TRUE(at::equal(tests::whole_value(unit, 0), at::arange(40, at::kFloat)));
    });
}

TEST(GatheredParameters, RefusesWhatIsNotThere) {
  run_ranks(2, [](const comm::Connection& connection) {
    Model model(world_of(connection), Stage::parameters, at::kFloat);
    EXPECT_THAT(value_error([&] {
                  GatheredParameters gathered({{&model.a, 2}});
                }),
                HasSubstr("unit 'a' has 2 parameters; got parameter 2"));
    EXPECT_THAT(value_error([&] { GatheredParameters gathered(model.all(), 2); }),
                HasSubstr("one of the group's 2 ranks; got 2"));
    GatheredParameters nothing({}, 0);
    nothing.finish();
    EXPECT_THAT(value_error([&] { nothing.finish(); }), HasSubstr("ends once"));
  });
}

TEST(Initialize, ActsAsOnAModelThatIsNotPartitioned) {
  in_every_setting([](Model& model, const comm::Connection&) {
    initialize({&model.a, &model.b},
               [](const ParameterSpec& spec, Tensor& values) { values.fill_(spec.name == "w" ? 0.5 : 2); });
    model.step(0);
    for (const auto& [unit, index] : model.all())
      EXPECT_TRUE(
          tests::whole_value(*unit, index).eq(unit->spec(index).name == "w" ? 0.5 : 2).all().item<bool>());
  });
}

}  // namespace
}  // namespace trireme::zero
