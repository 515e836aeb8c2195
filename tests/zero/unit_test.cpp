#include "trireme/zero/unit.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/ranks.h"
#include "support/units.h"
#include "trireme/core/check.h"

namespace trireme::zero {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;

std::vector<ParameterSpec> specs() { return {{"w", {5, 3}}, {"empty", {0, 3}}, {"b", {3}, 1}}; }

Tensor value_of(size_t index) {
  const auto spec = specs()[index];
  return at::arange(c10::multiply_integers(spec.shape), at::kDouble).view(spec.shape) * 0.5 + double(index);
}

std::unique_ptr<Unit> make_unit(const comm::Group& group, const Options& options) {
  auto unit =
      std::make_unique<Unit>("layers.0", specs(), options, group, std::make_shared<core::BufferPool>());
  for (size_t i = 0; i < specs().size(); ++i) unit->write(i, 0, value_of(i));
  unit->publish();
  return unit;
}

// Runs body(connection, options) on every rank, for each stage, dtype and number of ranks.
template <class Body>
void in_every_setting(const Body& body) {
  for (int64_t ranks : {1, 2, 3, 4})
    for (int stage : {0, 1, 2, 3})
      for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
        run_ranks(ranks, [&](const comm::Connection& connection) {
          SCOPED_TRACE(core::concatenate(ranks, " ranks, stage ", stage, ", ", dtype));
          body(connection, Options{.stage = Stage(stage), .dtype = dtype});
        });
}

TEST(EveryStage, ValuesAreWhatWasWritten) {
  in_every_setting([](const comm::Connection& connection, const Options& options) {
    auto unit = make_unit(world_of(connection), options);
    for (int round = 0; round < 2; ++round) {
      Gathered gathered(*unit);
      for (size_t i = 0; i < specs().size(); ++i)
        EXPECT_TRUE(at::equal(unit->parameter(i).detach(), value_of(i).to(options.dtype)));
    }
    EXPECT_EQ(unit->state(), options.partitions_parameters() ? State::not_available : State::available);
  });
}

// Three backward passes of different losses on every rank, one parameter unused in one of them.
TEST(EveryStage, GradientsAreTheSumOverRanksAndPasses) {
  in_every_setting([](const comm::Connection& connection, const Options& options) {
    const comm::Group group = world_of(connection);
    auto unit = make_unit(group, options);
    const auto factor = [](int64_t rank, int pass) { return double(rank + 1 + 4 * pass); };
    for (int pass = 0; pass < 3; ++pass) {
      Gathered gathered(*unit);
      Tensor loss = unit->parameter(0).mul(factor(group.rank(), pass)).sum();
      if (pass != 1) loss = loss + unit->parameter(2).mul(2 * factor(group.rank(), pass)).sum();
      torch::autograd::backward({loss});
      EXPECT_FALSE(unit->parameter(0).grad().defined());  // taken at once
      unit->start_reduction();
    }
    unit->finish_gradients();
    double all = 0, used = 0;
    for (int64_t rank = 0; rank < group.size(); ++rank)
      for (int pass = 0; pass < 3; ++pass) {
        all += factor(rank, pass);
        used += pass != 1 ? 2 * factor(rank, pass) : 0;
      }
    FlatParameters& flat = *unit->flats().at(0);
    EXPECT_EQ(flat.gradient().dtype(), flat.master_dtype());
    EXPECT_EQ(flat.gradient().numel(), flat.optimizer_range().count());
    EXPECT_TRUE(at::equal(tests::whole_gradient(*unit, 0), at::full({5, 3}, all, flat.master_dtype())));
    EXPECT_TRUE(at::equal(tests::whole_gradient(*unit, 2), at::full({3}, used, flat.master_dtype())));
    // Padding stays out of every norm.
    const Tensor& gradient = flat.gradient().in_place();
    EXPECT_EQ(gradient.isnan().any().item<bool>(), false);
    Tensor sum = gradient.sum().to(at::kDouble);
    if (options.partitions_optimizer()) group.all_reduce(sum, "test");
    EXPECT_DOUBLE_EQ(sum.item<double>(), 15 * all + 3 * used);
  });
}

TEST(EveryStage, AStepWithoutGradientsHasZeros) {
  in_every_setting([](const comm::Connection& connection, const Options& options) {
    auto unit = make_unit(world_of(connection), options);
    unit->finish_gradients();
    EXPECT_TRUE(unit->flats()[0]->gradient().in_place().eq(0).all().item<bool>());
  });
}

TEST(EveryStage, PublishBringsTheMastersToEveryRank) {
  in_every_setting([](const comm::Connection& connection, const Options& options) {
    auto unit = make_unit(world_of(connection), options);
    const auto before = unit->generation();
    tests::change_masters(*unit, [](Tensor& master) { master.mul_(2); });
    EXPECT_EQ(unit->generation(), before + 1);
    EXPECT_TRUE(at::equal(tests::whole_value(*unit, 0), (value_of(0) * 2).to(options.dtype)));
  });
}

TEST(Unit, MeanIsTheSumOverTheWorldSize) {
  run_ranks(3, [](const comm::Connection& connection) {
    auto unit = make_unit(world_of(connection), {.dtype = at::kDouble, .reduction = GradientReduction::mean});
    unit->flats()[0]->collect(0, at::full({5, 3}, double(connection.rank()), at::kDouble));
    unit->start_reduction();
    unit->finish_gradients();
    EXPECT_TRUE(at::equal(tests::whole_gradient(*unit, 0), at::ones({5, 3}, at::kDouble)));
  });
}

TEST(Unit, SumsOfBf16GradientsAreFormedInFp32) {
  run_ranks(2, [](const comm::Connection& connection) {
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      auto unit = make_unit(world_of(connection), {.dtype = at::kBFloat16, .reduction_dtype = dtype});
      unit->flats()[0]->collect(0, at::full({5, 3}, connection.rank() == 0 ? 256 : 1, at::kBFloat16));
      unit->start_reduction();
      unit->finish_gradients();
      const double expected = dtype == at::kFloat ? 257 : 256;  // 257 is no bf16 number
      EXPECT_TRUE(at::equal(tests::whole_gradient(*unit, 0), at::full({5, 3}, expected, at::kFloat)));
    }
  });
}

TEST(Unit, StoresOnlyItsShard) {
  run_ranks(4, [](const comm::Connection& connection) {
    auto unit = make_unit(world_of(connection), {.stage = Stage::parameters});
    EXPECT_EQ(unit->flats()[0]->optimizer_range().count() * 4, unit->gathered_elements());
    int64_t stored = unit->stored(0).count();
    Tensor all = at::scalar_tensor(stored, at::kLong);
    unit->group().all_reduce(all, "test");
    EXPECT_EQ(all.item<int64_t>(), 15);  // each element once
    EXPECT_EQ(make_unit(unit->group(), {.stage = Stage::gradients})->stored(0).count(), 15);
  });
}

template <class Use>
void expect_message(const Use& use, const std::string& part) {
  try {
    use();
    FAIL() << "did not throw: " << part;
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

TEST(Unit, EveryForbiddenTransitionIsANamedError) {
  run_ranks(2, [](const comm::Connection& connection) {
    auto unit = make_unit(world_of(connection), {});
    expect_message([&] { unit->release(); },
                   "unit 'layers.0' (first parameter 'w') cannot be released; got state not_available");
    expect_message([&] { unit->wait_gathered(); }, "cannot end its gather; got state not_available");
    expect_message([&] { unit->parameter(0).sum(); }, "parameter 'w' is partitioned over 2 ranks");
    unit->start_gather();
    expect_message([&] { unit->start_gather(); }, "cannot be gathered; got state in_flight");
    expect_message([&] { unit->release(); }, "cannot be released; got state in_flight");
    unit->wait_gathered();
    expect_message([&] { unit->start_gather(); }, "cannot be gathered; got state available");
    unit->begin_use();
    expect_message(
        [&] { unit->release(); },
        "(first parameter 'w') cannot be released while it is in use; got 1 forward or backward passes");
    unit->end_use();
    expect_message([&] { unit->write(0, 0, value_of(0)); }, "got state available");
    unit->release();
    expect_message([&] { unit->write(0, 10, value_of(0)); },
                   "inside parameter 'w' of 15 elements; got 15 from 10");
  });
}

// fp32 parameters under bf16 computation travel as bf16, and as the optimizer left them.
TEST(Unit, ValuesTravelInTheNarrowerType) {
  for (int64_t ranks : {1, 2})
    run_ranks(ranks, [](const comm::Connection& connection) {
      const comm::Group group = world_of(connection);
      // What is stored, what is computed in, what must travel.
      const std::tuple<at::ScalarType, at::ScalarType, std::optional<at::ScalarType>> cases[] = {
          {at::kFloat, at::kBFloat16, {}},
          {at::kFloat, at::kFloat, at::kBFloat16},
          {at::kFloat, at::kFloat, {}}};
      for (const auto& [stored, computed, travelling] : cases) {
        auto unit = make_unit(group, {.dtype = computed, .stored_dtype = stored, .gather_dtype = travelling});
        tests::change_masters(*unit, [](Tensor& master) { master.add_(1.0 / 3); });
        const int64_t before = group.traffic().bytes(comm::Collective::all_gather);
        const bool narrow = travelling || computed == at::kBFloat16;
        {
          Gathered gathered(*unit);
          const Tensor expected =
              (value_of(0).to(at::kFloat) + 1.0 / 3).to(narrow ? at::kBFloat16 : at::kFloat);
          EXPECT_EQ(unit->parameter(0).scalar_type(), computed);
          EXPECT_LE((unit->parameter(0).detach().to(at::kFloat) - expected.to(at::kFloat))
                        .abs()
                        .max()
                        .item<double>(),
                    1e-6);
        }
        if (group.size() == 2) {
          EXPECT_EQ(group.traffic().bytes(comm::Collective::all_gather) - before,
                    unit->gathered_elements() * (narrow ? 2 : 4) / 2);
        }
        EXPECT_EQ(unit->flats()[0]->gradient().dtype(), at::kFloat);
      }
    });
}

// Small parameters are there always, and their optimizer state is partitioned all the same.
TEST(Unit, PersistentParameters) {
  run_ranks(2, [](const comm::Connection& connection) {
    auto unit = make_unit(world_of(connection), {.dtype = at::kDouble, .persistence_threshold = 4});
    ASSERT_EQ(unit->flats().size(), 2u);
    EXPECT_TRUE(at::equal(unit->parameter(2).detach(), value_of(2)));
    EXPECT_FALSE(unit->place(2).flat->is_partitioned());
    EXPECT_EQ(unit->place(2).flat->optimizer_range().count() * 2, unit->place(2).flat->layout().padded());
    const int64_t before = unit->group().traffic().bytes(comm::Collective::all_gather);
    { Gathered gathered(*unit); }
    EXPECT_EQ(unit->group().traffic().bytes(comm::Collective::all_gather) - before,
              unit->place(0).flat->layout().padded() * 8 / 2);
    auto whole = make_unit(world_of(connection), {.dtype = at::kDouble, .persistence_threshold = 1 << 30});
    EXPECT_FALSE(whole->is_partitioned());
    EXPECT_EQ(whole->state(), State::available);
  });
}

TEST(Unit, TrafficOfAStageThreeStep) {
  run_ranks(4, [](const comm::Connection& connection) {
    auto unit = make_unit(world_of(connection), {.stage = Stage::parameters});
    const auto& traffic = unit->group().traffic();
    const int64_t before = traffic.total(), bytes = unit->gathered_elements() * 4;
    for (int pass = 0; pass < 2; ++pass) Gathered gathered(*unit);
    unit->flats()[0]->collect(0, at::zeros({5, 3}));
    unit->start_reduction();
    EXPECT_EQ(traffic.total() - before,
              3 * bytes * 3 / 4);  // two gathers and a reduction, (P - 1) / P of each
  });
}

}  // namespace
}  // namespace trireme::zero
