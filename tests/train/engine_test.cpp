#include "trireme/train/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "support/files.h"
#include "support/ranks.h"
#include "support/reference_decoder.h"
#include "support/units.h"
#include "trireme/alst/activation_offload.h"
#include "trireme/alst/disk_target.h"
#include "trireme/core/check.h"

// The first invariant: loss, every gradient, the gradient norm and the weights after three steps are those of
// one process of plain autograd, whatever the layout of ranks, the ZeRO stage, tiles, recomputation and
// accumulation.
namespace trireme::train {
namespace {

using at::Tensor;
using model::Recompute;
using nlohmann::json;

constexpr int64_t kVocabulary = 23, kRows = 4, kLength = 13, kSteps = 3;
constexpr double kRate = 1e-2, kEps = 1e-4;  // AdamW magnifies rounding where gradients are near zero

std::vector<zero::AdamWOptions> groups(zero::AdamWOptions options) {
  options.learning_rate = kRate;
  return zero::decayed_and_not(options);
}

json config_json(const std::string& type, int64_t heads, int64_t kv_heads, bool tied) {
  return {{"model_type", type},
          {"vocab_size", kVocabulary},
          {"hidden_size", 16},
          {"intermediate_size", 20},
          {"num_hidden_layers", 2},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"max_position_embeddings", 64},
          {"tie_word_embeddings", tied},
          {"head_dim", 4}};
}

struct Kind {
  const char* name;
  model::Config config;
  bool masked;  // the first half of every row is ignored: with sp, a rank without targets
};

std::vector<Kind> kinds() {
  json mistral = config_json("mistral", 4, 2, false);
  mistral["sliding_window"] = 4;
  json qwen2 = config_json("qwen2", 4, 1, true);
  qwen2.erase("head_dim");
  return {{"heads", model::parse_config(config_json("llama", 4, 4, false)), false},
          {"grouped", model::parse_config(config_json("qwen3", 6, 2, true)), false},
          {"multi_query", model::parse_config(qwen2), false},
          {"window", model::parse_config(mistral), true}};
}

// The rows of step `step`, the same whatever is done with them.
std::vector<tests::ReferenceBatch> rows_of(int64_t step, bool masked) {
  std::vector<tests::ReferenceBatch> rows;
  for (int64_t row = 0; row < kRows; ++row) {
    at::manual_seed(1000 + 10 * step + row);
    Tensor tokens = at::randint(kVocabulary, {1, kLength}, at::kLong), labels = tokens.clone();
    if (masked)
      labels.narrow(1, 0, kLength / 2 + 2).fill_(-100);
    else
      labels.narrow(1, row, row + 1).fill_(-100);
    const int64_t first = 1 + (3 * row + step) % (kLength - 2);
    rows.push_back(
        {tokens,
         labels,
         {row == 1 ? std::vector<int64_t>{kLength} : std::vector<int64_t>{first, kLength - first}}});
  }
  return rows;
}

// Of every step. Drawn from one generator, so never by several ranks at once.
std::vector<std::vector<tests::ReferenceBatch>> all_rows(bool masked) {
  std::vector<std::vector<tests::ReferenceBatch>> all;
  for (int64_t step = 0; step < kSteps; ++step) all.push_back(rows_of(step, masked));
  return all;
}

struct Expected {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> first_gradients, weights;
};

Expected run_reference(tests::ReferenceDecoder reference, bool masked) {
  Expected result;
  for (int64_t step = 0; step < kSteps; ++step) {
    result.losses.push_back(reference.loss_and_gradients(rows_of(step, masked)).item<double>());
    result.norms.push_back(reference.gradient_norm());
    if (step == 0)
      for (const auto& [name, value] : reference.parameters())
        if (value.requires_grad()) result.first_gradients[name] = value.grad().clone();
    reference.step(kRate, 0.9, 0.95, kEps, 0.1);
  }
  for (const auto& [name, value] : reference.parameters()) result.weights[name] = value.detach().clone();
  return result;
}

const Expected& expected(size_t kind, at::ScalarType dtype) {
  static std::map<std::pair<size_t, at::ScalarType>, Expected> known;
  auto [place, is_new] = known.try_emplace({kind, dtype});
  const Kind k = kinds()[kind];
  if (is_new) place->second = run_reference(tests::ReferenceDecoder(k.config, dtype), k.masked);
  return place->second;
}

struct Setting {
  int64_t ranks = 1, sp = 1, stage = 3, micro_batch = 1;
  Recompute recompute = Recompute::layer;
  std::optional<int64_t> mlp_tiles, loss_tiles;
  zero::Schedule schedule;
  int64_t persistence_threshold = 0;
  core::Residence parameters_on = core::Residence::device, optimizer_on = core::Residence::device;
  model::TensorRules rules;
  std::vector<zero::AdamWOptions> further_groups;
  int64_t recompute_every = 1;
  std::optional<alst::ActivationOffloadOptions> activations_on_disk;
  alst::LossOptions loss;
};

std::string describe(const Kind& kind, const Setting& s) {
  return core::concatenate(kind.name, ": ", s.ranks, " ranks, sp ", s.sp, ", stage ", s.stage,
                           ", micro-batch ", s.micro_batch, ", recompute ", int(s.recompute), ", mlp tiles ",
                           s.mlp_tiles.value_or(-1), ", loss tiles ", s.loss_tiles.value_or(-1),
                           ", persistent below ", s.persistence_threshold, ", parameters on ",
                           int(s.parameters_on), ", optimizer on ", int(s.optimizer_on), ", recompute every ",
                           s.recompute_every, ", activations on disk ", s.activations_on_disk.has_value());
}

std::vector<sp::SlicedBatch> micro_batches(const std::vector<tests::ReferenceBatch>& rows,
                                           const comm::Mesh& mesh, int64_t micro_batch) {
  const int64_t D = mesh.data.size(), A = kRows / (D * micro_batch);
  std::vector<sp::SlicedBatch> all;
  for (int64_t a = 0; a < A; ++a) {
    std::vector<Tensor> tokens, labels;
    sp::SequenceBatch batch;
    for (int64_t m = 0; m < micro_batch; ++m) {
      const auto& row = rows[size_t((a * D + mesh.data.rank()) * micro_batch + m)];
      tokens.push_back(row.tokens);
      labels.push_back(row.labels);
      batch.document_lengths.push_back(row.document_lengths[0]);
    }
    batch.tokens = at::cat(tokens);
    batch.labels = at::cat(labels);
    all.push_back(sp::slice_batch(batch, mesh.sequence.rank(), mesh.sequence.size()));
  }
  return all;
}

// Every tensor of the model by its Hugging Face name, from what `whole(unit, parameter)` returns.
template <class Whole, class Visit>
void each_tensor(model::Decoder& decoder, const Whole& whole, const Visit& visit, bool trained_only = false) {
  for (size_t u = 0; u < decoder.plans().size(); ++u)
    for (size_t p = 0; p < decoder.plans()[u].parameters.size(); ++p) {
      if (trained_only && !decoder.plans()[u].parameters[p].spec.trainable) continue;
      Tensor flat = whole(*decoder.units()[u], p).view({-1});
      for (const auto& piece : decoder.plans()[u].parameters[p].pieces)
        visit(piece.name, flat.narrow(0, piece.first, piece.count()).view(piece.shape));
    }
}

void write_parameters(model::Decoder& decoder, const tests::ReferenceDecoder& reference) {
  for (size_t u = 0; u < decoder.plans().size(); ++u)
    for (size_t p = 0; p < decoder.plans()[u].parameters.size(); ++p)
      for (const auto& piece : decoder.plans()[u].parameters[p].pieces)
        decoder.units()[u]->write(p, piece.first, reference.parameters().at(piece.name));
  for (auto* unit : decoder.units()) unit->publish();
}

zero::Memory memory_of(const Setting& s, const testing::TemporaryDirectory& directory) {
  auto pool = std::make_shared<core::BufferPool>();
  const auto disk = [&](core::Residence where) {
    return where == core::Residence::disk
               ? std::make_shared<core::DiskStore>(
                     core::DiskStoreOptions{.directory = directory.path(), .write_behind_bytes = 1 << 20},
                     pool)
               : nullptr;
  };
  return {pool, disk(s.parameters_on), disk(s.optimizer_on)};
}

std::shared_ptr<alst::Keeper> keeper_of(const Setting& s, const testing::TemporaryDirectory& directory) {
  if (!s.activations_on_disk) return nullptr;
  const auto pool = std::make_shared<core::BufferPool>();
  const auto store = std::make_shared<core::DiskStore>(
      core::DiskStoreOptions{.directory = directory.path(), .write_behind_bytes = 1 << 20}, pool);
  return std::make_shared<alst::ActivationOffload>(*s.activations_on_disk,
                                                   std::make_shared<alst::DiskTarget>(store, pool));
}

model::ForwardOptions forward_options(const Setting& s, const testing::TemporaryDirectory& directory) {
  return {.recompute = s.recompute,
          .recompute_every = s.recompute_every,
          .keeper = keeper_of(s, directory),
          .mlp_tiles = s.mlp_tiles,
          .loss_tiles = s.loss_tiles,
          .loss = s.loss};
}

void expect_oracle(size_t kind_index, const Setting& s, at::ScalarType dtype, const Expected& want) {
  const Kind kind = kinds()[kind_index];
  SCOPED_TRACE(describe(kind, s));
  const double first = dtype == at::kDouble ? 1e-10 : 1e-5, later = dtype == at::kDouble ? 1e-10 : 1e-4;
  const tests::ReferenceDecoder reference(kind.config, dtype);
  const auto rows = all_rows(kind.masked);
  const testing::TemporaryDirectory directory;
  auto numbers = groups({.eps = kEps});
  numbers.insert(numbers.end(), s.further_groups.begin(), s.further_groups.end());
  tests::run_ranks(s.ranks, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, s.sp);
    model::Decoder decoder(kind.config,
                           {.stage = zero::Stage(s.stage),
                            .dtype = dtype,
                            .persistence_threshold = s.persistence_threshold,
                            .parameters_on = s.parameters_on,
                            .optimizer_on = s.optimizer_on},
                           mesh,
                           {.schedule = s.schedule, .rules = s.rules, .memory = memory_of(s, directory)});
    write_parameters(decoder, reference);
    Engine engine(decoder, mesh, forward_options(s, directory), /*gradient_clipping=*/1.0,
                  {.elements = 1, .ahead = 1});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double tolerance = step == 0 ? first : later;
      auto result = engine.accumulate(micro_batches(rows[size_t(step)], mesh, s.micro_batch));
      EXPECT_NEAR(result.loss, want.losses[size_t(step)], tolerance * want.losses[size_t(step)]);
      EXPECT_EQ(decoder.coordinator().live_parameters(), 0);
      if (step == 0)
        each_tensor(
            decoder, tests::whole_gradient,
            [&](const std::string& name, const Tensor& gradient) {
              EXPECT_LE(tests::relative_difference(gradient, want.first_gradients.at(name)), tolerance)
                  << "gradient of " << name;
            },
            /*trained_only=*/true);
      const double norm = engine.update(numbers);
      EXPECT_NEAR(norm, want.norms[size_t(step)], tolerance * want.norms[size_t(step)]);
    }
    each_tensor(decoder, tests::whole_value, [&](const std::string& name, const Tensor& value) {
      EXPECT_LE(tests::relative_difference(value, want.weights.at(name)), later) << "weights of " << name;
    });
  });
}

void expect_oracle(size_t kind_index, const Setting& s, at::ScalarType dtype) {
  expect_oracle(kind_index, s, dtype, expected(kind_index, dtype));
}

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
