#include "trireme/train/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "train/oracle.h"
#include "trireme/core/check.h"

// The first invariant: loss, every gradient, the gradient norm and the weights after three steps are those of
// one process of plain autograd, whatever the layout of ranks, the ZeRO stage, tiles, recomputation and
// accumulation.
namespace trireme::train {
namespace {

using Layout = std::pair<int64_t, int64_t>;  // ranks, sp
const std::vector<Layout> kLayouts{{1, 1}, {2, 2}, {4, 4}, {4, 2}, {2, 1}};

// For every kind, layout and stage: the rest takes turns, so that each value meets each.
void expect_oracle_everywhere(at::ScalarType dtype) {
  const std::optional<int64_t> tiles[] = {std::nullopt, 0, 3, 50};
  const Recompute recompute[] = {Recompute::layer, Recompute::all_but_attention, Recompute::nothing};
  size_t turn = 0;
  for (size_t kind = 0; kind < kinds().size(); ++kind)
    for (auto [ranks, sp] : kLayouts)
      for (int64_t stage = 0; stage < 4; ++stage, ++turn)
        expect_oracle(kind,
                      {ranks, sp, stage, turn % 2 ? 1 : 2, recompute[turn % 3], tiles[turn / 3 % 4],
                       turn % 5 ? std::optional<int64_t>(turn % 5) : std::nullopt},
                      dtype);
}

TEST(Oracle, Fp64) { expect_oracle_everywhere(at::kDouble); }

TEST(Oracle, Fp32) { expect_oracle_everywhere(at::kFloat); }

TEST(Oracle, EveryWayToRecomputeAtEveryStage) {
  for (int64_t stage = 0; stage < 4; ++stage)
    for (Recompute recompute : {Recompute::nothing, Recompute::layer, Recompute::all_but_attention})
      for (std::optional<int64_t> tiles :
           {std::optional<int64_t>(), std::optional<int64_t>(0), std::optional<int64_t>(5)})
        expect_oracle(1, {2, 2, stage, 4, recompute, tiles, 2}, at::kDouble);
}

TEST(Oracle, EveryScheduleOfStageThree) {
  for (int64_t ahead : {int64_t{0}, int64_t{1}, int64_t{1} << 40})
    for (int64_t live : {int64_t{1}, int64_t{1} << 40})
      for (int64_t reuse : {int64_t{0}, int64_t{1} << 40})
        for (bool overlap : {false, true})
          for (Recompute recompute : {Recompute::nothing, Recompute::all_but_attention})
            expect_oracle(1,
                          {2,
                           2,
                           3,
                           1,
                           recompute,
                           5,
                           2,
                           {.prefetch_bucket_size = ahead,
                            .max_live_parameters = live,
                            .max_reuse_distance = reuse,
                            .overlap_reductions = overlap}},
                          at::kDouble);
}

TEST(Oracle, EveryPlaceOfStatesAndEveryThreshold) {
  using core::Residence;
  size_t turn = 0;
  for (int64_t ranks : {1, 2, 4})
    for (int64_t threshold : {int64_t{0}, int64_t{100}, int64_t{100'000}, int64_t{1} << 40})
      for (Residence parameters : {Residence::device, Residence::host, Residence::disk})
        for (Residence optimizer : {Residence::device, Residence::host, Residence::disk}) {
          ++turn;
          Setting s{.ranks = ranks, .sp = ranks == 4 ? 2 : ranks, .stage = 3};
          s.recompute = turn % 2 ? Recompute::all_but_attention : Recompute::layer;
          s.persistence_threshold = threshold;
          s.parameters_on = parameters;
          s.optimizer_on = optimizer;
          if (turn % 3 == 0) s.schedule = {.prefetch_bucket_size = 0, .max_live_parameters = 1};
          expect_oracle(turn % kinds().size(), s, at::kDouble);
        }
  for (int64_t stage : {1, 2})  // the optimizer's alone
    expect_oracle(1, {.ranks = 2, .sp = 1, .stage = stage, .optimizer_on = core::Residence::disk},
                  at::kDouble);
}

TEST(Oracle, EveryPlaceOfActivations) {
  size_t turn = 0;
  for (auto [ranks, sp] : kLayouts)
    for (int64_t stage : {0, 3})
      for (Recompute recompute : {Recompute::layer, Recompute::all_but_attention})
        for (int64_t every : {1, 2})
          for (int64_t keep_last : {0, 1, 2}) {
            Setting s{.ranks = ranks, .sp = sp, .stage = stage, .recompute = recompute};
            s.recompute_every = every;
            s.micro_batch = ++turn % 2 ? 1 : 2;
            if (turn % 3) s.mlp_tiles = int64_t(turn % 3) * 2;
            s.activations_on_disk = {
                .what = turn % 5 ? alst::OffloadedTensors::all : alst::OffloadedTensors::inputs,
                .min_bytes = 0,
                .leaving_at_once = int64_t(turn % 3),
                .keep_last = keep_last};
            expect_oracle(turn % kinds().size(), s, turn % 4 ? at::kFloat : at::kDouble);
          }
}

// Where activations wait changes not a bit.
TEST(Engine, ActivationsComeBackBitForBit) {
  const Kind kind = kinds()[1];
  const tests::ReferenceDecoder reference(kind.config, at::kFloat);
  const auto rows = all_rows(kind.masked);
  for (auto dtype : {at::kFloat, at::kBFloat16})
    for (Recompute recompute : {Recompute::layer, Recompute::all_but_attention}) {
      const testing::TemporaryDirectory directory;
      tests::run_ranks(2, [&](const comm::Connection& connection) {
        const auto mesh = comm::Mesh::create(connection, 2);
        std::vector<std::optional<alst::ActivationOffloadOptions>> places{std::nullopt};
        for (auto what : {alst::OffloadedTensors::inputs, alst::OffloadedTensors::all})
          for (int64_t keep_last : {0, 1})
            places.push_back(alst::ActivationOffloadOptions{
                .what = what, .min_bytes = 0, .leaving_at_once = 1, .keep_last = keep_last});
        std::vector<Tensor> found[5];
        for (size_t place = 0; place < places.size(); ++place) {
          Setting s{.recompute = recompute};
          s.activations_on_disk = places[place];
          model::Decoder decoder(kind.config, {.dtype = dtype}, mesh);
          write_parameters(decoder, reference);
          Engine engine(decoder, mesh, forward_options(s, directory), 1.0);
          for (int64_t step = 0; step < kSteps; ++step)
            engine.step(micro_batches(rows[size_t(step)], mesh, 2), groups({.eps = kEps}));
          each_tensor(decoder, tests::whole_value,
                      [&](const std::string&, const Tensor& value) { found[place].push_back(value); });
          for (size_t i = 0; i < found[0].size(); ++i)
            EXPECT_TRUE(at::equal(found[0][i], found[place][i])) << "place " << place << ", tensor " << i;
        }
      });
    }
}

// The first layer and the embedding are not trained: nothing requires a gradient before the second layer.
TEST(Oracle, AFrozenBeginningUnderEveryWayToRecompute) {
  for (const size_t kind : {size_t{0}, size_t{2}}) {  // of the second, the head is the frozen embedding
    tests::ReferenceDecoder reference(kinds()[kind].config, at::kDouble);
    reference.freeze("model.embed_tokens");
    reference.freeze("model.layers.0.");
    const Expected want = run_reference(std::move(reference), kinds()[kind].masked);
    for (int64_t stage : {0, 2, 3})
      for (int64_t ranks : {1, 2})
        for (Recompute recompute : {Recompute::nothing, Recompute::layer, Recompute::all_but_attention})
          for (int64_t threshold : {0, 100}) {
            Setting s{.ranks = ranks, .sp = ranks, .stage = stage, .recompute = recompute};
            s.persistence_threshold = threshold;
            s.rules.frozen = {"model.embed_tokens.weight", "model.layers.0.*"};
            expect_oracle(kind, s, at::kDouble, want);
          }
  }
}

TEST(Oracle, GroupsHaveTheirOwnRateAndDecay) {
  tests::ReferenceDecoder reference(kinds()[1].config, at::kDouble);
  const auto start = reference.parameters();
  for (const auto& [name, value] : start) {
    if (name.ends_with("down_proj.weight")) reference.set_numbers(name, 3, 0.1);
    if (name.starts_with("model.layers.1.self_attn.")) reference.set_numbers(name, 1, 0.5);
  }
  const Expected want = run_reference(std::move(reference), false);
  Setting s{.ranks = 2, .sp = 2};
  s.rules.groups = {{"*.down_proj.weight"}, {"model.layers.1.self_attn.*"}};
  auto faster = groups({.eps = kEps});
  for (auto& numbers : faster) numbers.learning_rate *= 3;
  auto decayed = groups({.eps = kEps, .weight_decay = 0.5});
  decayed[1] = decayed[0];
  s.further_groups = {faster[0], faster[1], decayed[0], decayed[1]};
  expect_oracle(1, s, at::kDouble, want);
}

TEST(Oracle, EveryTermOfTheLoss) {
  for (const size_t kind : {size_t{1}, size_t{3}})  // of the second, a rank has no targets
    for (const auto& loss : tests::kinds_of_loss()) {
      tests::ReferenceDecoder reference(kinds()[kind].config, at::kDouble);
      reference.set_loss(loss);
      const Expected want = run_reference(std::move(reference), kinds()[kind].masked);
      for (auto [ranks, sp] : {Layout{2, 2}, Layout{4, 2}})
        for (std::optional<int64_t> tiles : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
          Setting s{.ranks = ranks, .sp = sp, .loss_tiles = tiles};
          s.loss = loss;
          expect_oracle(kind, s, at::kDouble, want);
        }
    }
}

TEST(Decoder, ScoresAreCappedAsInTheLoss) {
  const Kind kind = kinds()[0];
  const tests::ReferenceDecoder reference(kind.config, at::kDouble);
  const auto rows = rows_of(0, kind.masked);
  tests::run_ranks(1, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 1);
    model::Decoder decoder(kind.config, {.dtype = at::kDouble}, mesh);
    write_parameters(decoder, reference);
    for (double soft_cap : {0.0, 0.5}) {
      model::ForwardOptions forward;
      forward.loss.soft_cap = soft_cap;
      at::NoGradGuard evaluation;
      const Tensor scores = decoder.logits(micro_batches(rows, mesh, 1)[0], forward);
      decoder.coordinator().end_pass();
      const Tensor want = tests::capped(reference.logits(rows[0]).flatten(0, 1), soft_cap);
      EXPECT_LE(tests::relative_difference(scores, want), 1e-12);
    }
  });
}

// fp32 shards that are rounded when they are gathered give what fp32 masters beside bf16 shards give.
TEST(Engine, Fp32ShardsUnderBf16AreTheMasters) {
  const Kind kind = kinds()[1];
  const tests::ReferenceDecoder reference(kind.config, at::kFloat);
  const auto rows = all_rows(kind.masked);
  tests::run_ranks(2, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 2);
    std::vector<Tensor> found[2];
    int64_t gathered[2];
    for (int own : {0, 1}) {
      zero::Options options{.dtype = at::kBFloat16};
      if (own) options.stored_dtype = at::kFloat;
      model::Decoder decoder(kind.config, options, mesh);
      write_parameters(decoder, reference);
      Engine engine(decoder, mesh, {}, 1.0);
      const int64_t before = mesh.world.traffic().bytes(comm::Collective::all_gather);
      for (int64_t step = 0; step < kSteps; ++step)
        engine.step(micro_batches(rows[size_t(step)], mesh, 1), groups({.eps = kEps}));
      gathered[own] = mesh.world.traffic().bytes(comm::Collective::all_gather) - before;
      each_tensor(decoder, tests::whole_value,
                  [&](const std::string&, const Tensor& value) { found[own].push_back(value.clone()); });
    }
    EXPECT_EQ(gathered[0], gathered[1]);
    for (size_t i = 0; i < found[0].size(); ++i) EXPECT_TRUE(at::equal(found[0][i], found[1][i])) << i;
  });
}

TEST(Engine, Bf16FollowsFp32) {
  const Kind kind = kinds()[1];
  const Expected& want = expected(1, at::kFloat);
  const tests::ReferenceDecoder reference(kind.config, at::kFloat);
  const auto rows = all_rows(kind.masked);
  for (int64_t sp : {1, 2})
    tests::run_ranks(2, [&](const comm::Connection& connection) {
      const auto mesh = comm::Mesh::create(connection, sp);
      model::Decoder decoder(kind.config, {.dtype = at::kBFloat16}, mesh);
      write_parameters(decoder, reference);
      Engine engine(decoder, mesh, {.recompute = Recompute::all_but_attention}, 1.0);
      for (int64_t step = 0; step < kSteps; ++step) {
        auto result = engine.step(micro_batches(rows[size_t(step)], mesh, 1), groups({.eps = kEps}));
        EXPECT_NEAR(result.loss, want.losses[size_t(step)], 2e-2 * want.losses[size_t(step)]);
        EXPECT_NEAR(result.gradient_norm, want.norms[size_t(step)], 5e-2 * want.norms[size_t(step)]);
      }
    });
}

TEST(Engine, AStepWithoutTargetsChangesNothingButDecay) {
  const Kind kind = kinds()[0];
  const tests::ReferenceDecoder reference(kind.config, at::kFloat);
  auto rows = rows_of(0, false);
  for (auto& row : rows) row.labels.fill_(-100);
  tests::run_ranks(2, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 2);
    model::Decoder decoder(kind.config, {}, mesh);
    write_parameters(decoder, reference);
    Engine engine(decoder, mesh, {}, 1.0);
    const auto result = engine.step(micro_batches(rows, mesh, 1), groups({.weight_decay = 0}));
    EXPECT_EQ(result.loss, 0);
    EXPECT_EQ(result.gradient_norm, 0);
    EXPECT_EQ(result.targets, 0);
    each_tensor(decoder, tests::whole_value, [&](const std::string& name, const Tensor& value) {
      EXPECT_TRUE(at::equal(value, reference.parameters().at(name).detach()));
    });
  });
}

TEST(Engine, ANormThatIsNotFiniteStopsEveryRankAndChangesNothing) {
  const Kind kind = kinds()[0];
  const tests::ReferenceDecoder reference(kind.config, at::kFloat);
  const auto rows = rows_of(0, false);
  tests::run_ranks(2, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 2);
    model::Decoder decoder(kind.config, {}, mesh);
    write_parameters(decoder, reference);
    Engine engine(decoder, mesh, {}, 1.0);
    engine.accumulate(micro_batches(rows, mesh, 1));
    if (connection.rank() == 1)
      decoder.units()[1]->flats()[0]->gradient().in_place()[0].fill_(std::numeric_limits<float>::infinity());
    const auto master = [&] {
      auto& flat = *decoder.units()[1]->flats()[0];
      return flat.read_master(0, flat.optimizer_range().count()).wait().clone();
    };
    const Tensor before = master();
    const auto failure = [&] {
      try {
        engine.update(groups({}));
      } catch (const core::RunError& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    EXPECT_NE(failure().find("must be finite; got inf at step 1;"), std::string::npos);
    EXPECT_TRUE(at::equal(master(), before));
    engine.step(micro_batches(rows, mesh, 1), groups({.eps = kEps}));
    engine.accumulate(micro_batches(rows, mesh, 1));
    if (connection.rank() == 1)
      decoder.units()[1]->flats()[0]->gradient().in_place()[0].fill_(
          -std::numeric_limits<float>::quiet_NaN());
    EXPECT_NE(failure().find("must be finite; got nan at step 2;"), std::string::npos);
  });
}

}  // namespace
}  // namespace trireme::train
