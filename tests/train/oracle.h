// The first invariant as a function: what training gives under a setting is what one process of plain
// autograd gives, in loss, every gradient, the gradient norm and the weights after three steps.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/differences.h"
#include "support/files.h"
#include "support/ranks.h"
#include "support/reference_decoder.h"
#include "support/units.h"
#include "trireme/alst/activation_offload.h"
#include "trireme/alst/disk_target.h"
#include "trireme/train/engine.h"

namespace trireme::train {

using at::Tensor;
using model::Recompute;
using nlohmann::json;

inline constexpr int64_t kVocabulary = 23, kRows = 4, kLength = 13, kSteps = 3;
inline constexpr double kRate = 1e-2, kEps = 1e-4;  // AdamW magnifies rounding where gradients are near zero

inline std::vector<zero::AdamWOptions> groups(zero::AdamWOptions options) {
  options.learning_rate = kRate;
  return zero::decayed_and_not(options);
}

inline json config_json(const std::string& type, int64_t heads, int64_t kv_heads, bool tied) {
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

inline std::vector<Kind> kinds() {
  json mistral = config_json("mistral", 4, 2, false);
  mistral["sliding_window"] = 4;
  json qwen2 = config_json("qwen2", 4, 1, true);
  qwen2.erase("head_dim");
  return {{"heads", model::parse_config(config_json("llama", 4, 4, false)), false},
          {"grouped", model::parse_config(config_json("qwen3", 6, 2, true)), false},
          {"multi_query", model::parse_config(qwen2), false},
          {"window", model::parse_config(mistral), true}};
}

/// The rows of step `step`, the same whatever is done with them.
inline std::vector<tests::ReferenceBatch> rows_of(int64_t step, bool masked) {
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

/// Of every step. Drawn from one generator, so never by several ranks at once.
inline std::vector<std::vector<tests::ReferenceBatch>> all_rows(bool masked) {
  std::vector<std::vector<tests::ReferenceBatch>> all;
  for (int64_t step = 0; step < kSteps; ++step) all.push_back(rows_of(step, masked));
  return all;
}

struct Expected {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> first_gradients, weights;
};

inline Expected run_reference(tests::ReferenceDecoder reference, bool masked) {
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

inline const Expected& expected(size_t kind, at::ScalarType dtype) {
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

inline std::string describe(const Kind& kind, const Setting& s) {
  return core::concatenate(kind.name, ": ", s.ranks, " ranks, sp ", s.sp, ", stage ", s.stage,
                           ", micro-batch ", s.micro_batch, ", recompute ", int(s.recompute), ", mlp tiles ",
                           s.mlp_tiles.value_or(-1), ", loss tiles ", s.loss_tiles.value_or(-1),
                           ", persistent below ", s.persistence_threshold, ", parameters on ",
                           int(s.parameters_on), ", optimizer on ", int(s.optimizer_on), ", recompute every ",
                           s.recompute_every, ", activations on disk ", s.activations_on_disk.has_value());
}

inline std::vector<sp::SlicedBatch> micro_batches(const std::vector<tests::ReferenceBatch>& rows,
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

/// Every tensor of the model by its Hugging Face name, from what `whole(unit, parameter)` returns.
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

inline void write_parameters(model::Decoder& decoder, const tests::ReferenceDecoder& reference) {
  for (size_t u = 0; u < decoder.plans().size(); ++u)
    for (size_t p = 0; p < decoder.plans()[u].parameters.size(); ++p)
      for (const auto& piece : decoder.plans()[u].parameters[p].pieces)
        decoder.units()[u]->write(p, piece.first, reference.parameters().at(piece.name));
  for (auto* unit : decoder.units()) unit->publish();
}

inline zero::Memory memory_of(const Setting& s, const testing::TemporaryDirectory& directory) {
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

inline std::shared_ptr<alst::Keeper> keeper_of(const Setting& s,
                                               const testing::TemporaryDirectory& directory) {
  if (!s.activations_on_disk) return nullptr;
  const auto pool = std::make_shared<core::BufferPool>();
  const auto store = std::make_shared<core::DiskStore>(
      core::DiskStoreOptions{.directory = directory.path(), .write_behind_bytes = 1 << 20}, pool);
  return std::make_shared<alst::ActivationOffload>(*s.activations_on_disk,
                                                   std::make_shared<alst::DiskTarget>(store, pool));
}

inline model::ForwardOptions forward_options(const Setting& s, const testing::TemporaryDirectory& directory) {
  return {.recompute = s.recompute,
          .recompute_every = s.recompute_every,
          .keeper = keeper_of(s, directory),
          .mlp_tiles = s.mlp_tiles,
          .loss_tiles = s.loss_tiles,
          .loss = s.loss};
}

inline void expect_oracle(size_t kind_index, const Setting& s, at::ScalarType dtype, const Expected& want) {
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

inline void expect_oracle(size_t kind_index, const Setting& s, at::ScalarType dtype) {
  expect_oracle(kind_index, s, dtype, expected(kind_index, dtype));
}

}  // namespace trireme::train
