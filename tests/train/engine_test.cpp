#include "trireme/train/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/differences.h"
#include "support/ranks.h"
#include "support/reference_decoder.h"
#include "support/units.h"
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

const Expected& expected(size_t kind, at::ScalarType dtype) {
  static std::map<std::pair<size_t, at::ScalarType>, Expected> known;
  auto [place, is_new] = known.try_emplace({kind, dtype});
  if (!is_new) return place->second;
  const Kind k = kinds()[kind];
  tests::ReferenceDecoder reference(k.config, dtype);
  for (int64_t step = 0; step < kSteps; ++step) {
    place->second.losses.push_back(reference.loss_and_gradients(rows_of(step, k.masked)).item<double>());
    place->second.norms.push_back(reference.gradient_norm());
    if (step == 0)
      for (const auto& [name, value] : reference.parameters())
        place->second.first_gradients[name] = value.grad().clone();
    reference.step(kRate, 0.9, 0.95, kEps, 0.1);
  }
  for (const auto& [name, value] : reference.parameters())
    place->second.weights[name] = value.detach().clone();
  return place->second;
}

struct Setting {
  int64_t ranks = 1, sp = 1, stage = 3, micro_batch = 1;
  Recompute recompute = Recompute::layer;
  std::optional<int64_t> mlp_tiles, loss_tiles;
  zero::Schedule schedule;
};

std::string describe(const Kind& kind, const Setting& s) {
  return core::concatenate(kind.name, ": ", s.ranks, " ranks, sp ", s.sp, ", stage ", s.stage,
                           ", micro-batch ", s.micro_batch, ", recompute ", int(s.recompute), ", mlp tiles ",
                           s.mlp_tiles.value_or(-1), ", loss tiles ", s.loss_tiles.value_or(-1));
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
void each_tensor(model::Decoder& decoder, const Whole& whole, const Visit& visit) {
  for (size_t u = 0; u < decoder.plans().size(); ++u)
    for (size_t p = 0; p < decoder.plans()[u].parameters.size(); ++p) {
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

void expect_oracle(size_t kind_index, const Setting& s, at::ScalarType dtype) {
  const Kind kind = kinds()[kind_index];
  SCOPED_TRACE(describe(kind, s));
  const Expected& want = expected(kind_index, dtype);
  const double first = dtype == at::kDouble ? 1e-10 : 1e-5, later = dtype == at::kDouble ? 1e-10 : 1e-4;
  const tests::ReferenceDecoder reference(kind.config, dtype);
  const auto rows = all_rows(kind.masked);
  tests::run_ranks(s.ranks, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, s.sp);
    model::Decoder decoder(kind.config, {.stage = zero::Stage(s.stage), .dtype = dtype}, mesh, s.schedule);
    write_parameters(decoder, reference);
    Engine engine(decoder, mesh, {s.recompute, s.mlp_tiles, s.loss_tiles}, /*gradient_clipping=*/1.0);
    for (int64_t step = 0; step < kSteps; ++step) {
      const double tolerance = step == 0 ? first : later;
      auto result = engine.accumulate(micro_batches(rows[size_t(step)], mesh, s.micro_batch));
      EXPECT_NEAR(result.loss, want.losses[size_t(step)], tolerance * want.losses[size_t(step)]);
      if (step == 0)
        each_tensor(decoder, tests::whole_gradient, [&](const std::string& name, const Tensor& gradient) {
          EXPECT_LE(tests::relative_difference(gradient, want.first_gradients.at(name)), tolerance)
              << "gradient of " << name;
        });
      const double norm =
          engine.update({.beta1 = 0.9, .beta2 = 0.95, .eps = kEps, .weight_decay = 0.1}, kRate);
      EXPECT_NEAR(norm, want.norms[size_t(step)], tolerance * want.norms[size_t(step)]);
    }
    each_tensor(decoder, tests::whole_value, [&](const std::string& name, const Tensor& value) {
      EXPECT_LE(tests::relative_difference(value, want.weights.at(name)), later) << "weights of " << name;
    });
  });
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
      Engine engine(decoder, mesh, {Recompute::all_but_attention, {}, {}}, 1.0);
      for (int64_t step = 0; step < kSteps; ++step) {
        auto result = engine.step(micro_batches(rows[size_t(step)], mesh, 1), {.eps = kEps}, kRate);
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
    const auto result = engine.step(micro_batches(rows, mesh, 1), {.weight_decay = 0}, kRate);
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
      decoder.units()[1]->gradient()[0].fill_(std::numeric_limits<float>::infinity());
    const Tensor before = decoder.units()[1]->master().clone();
    const auto failure = [&] {
      try {
        engine.update({}, kRate);
      } catch (const core::RunError& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    EXPECT_NE(failure().find("must be finite; got inf at step 1;"), std::string::npos);
    EXPECT_TRUE(at::equal(decoder.units()[1]->master(), before));
    engine.step(micro_batches(rows, mesh, 1), {.eps = kEps}, kRate);
    engine.accumulate(micro_batches(rows, mesh, 1));
    if (connection.rank() == 1)
      decoder.units()[1]->gradient()[0].fill_(-std::numeric_limits<float>::quiet_NaN());
    EXPECT_NE(failure().find("must be finite; got nan at step 2;"), std::string::npos);
  });
}

}  // namespace
}  // namespace trireme::train
