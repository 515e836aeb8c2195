#include "trireme/model/weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/ranks.h"
#include "support/units.h"
#include "trireme/core/check.h"

namespace trireme::model {
namespace {

using at::Tensor;

Config config(bool tied) {
  return parse_config({{"model_type", "qwen2"},
                       {"vocab_size", 11},
                       {"hidden_size", 12},
                       {"intermediate_size", 7},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 3},
                       {"num_key_value_heads", 1},
                       {"tie_word_embeddings", tied}});
}

// Every tensor by its Hugging Face name. Every rank must call it.
std::map<std::string, Tensor> values(Decoder& decoder) {
  std::map<std::string, Tensor> all;
  for (size_t u = 0; u < decoder.plans().size(); ++u)
    for (size_t p = 0; p < decoder.plans()[u].parameters.size(); ++p) {
      const Tensor flat = tests::whole_value(*decoder.units()[u], p).view({-1});
      for (const auto& piece : decoder.plans()[u].parameters[p].pieces)
        all[piece.name] = flat.narrow(0, piece.first, piece.count()).view(piece.shape);
    }
  return all;
}

void expect_equal(const std::map<std::string, Tensor>& actual,
                  const std::map<std::string, Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_TRUE(at::equal(actual.at(name), value)) << name;
}

std::map<std::string, Tensor> initial_values(bool tied, int64_t seed) {
  std::map<std::string, Tensor> all;
  tests::run_ranks(1, [&](const comm::Connection& connection) {
    Decoder decoder(config(tied), {}, comm::Mesh::create(connection, 1));
    initialize_weights(decoder, seed);
    all = values(decoder);
  });
  return all;
}

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("trireme_weights_" + std::to_string(getpid()));
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

TEST_F(Weights, DependOnTheSeedAndTheNameAlone) {
  const auto expected = initial_values(false, 5);
  EXPECT_EQ(expected.at("model.norm.weight").sum().item<float>(), 12);
  EXPECT_EQ(expected.at("model.layers.1.self_attn.k_proj.bias").abs().sum().item<float>(), 0);
  EXPECT_NEAR(expected.at("lm_head.weight").std().item<float>(), 0.02, 0.005);
  EXPECT_FALSE(at::equal(expected.at("model.layers.0.mlp.up_proj.weight"),
                         expected.at("model.layers.1.mlp.up_proj.weight")));
  EXPECT_FALSE(at::equal(initial_values(false, 6).at("lm_head.weight"), expected.at("lm_head.weight")));
  for (int stage = 0; stage < 4; ++stage)
    tests::run_ranks(3, [&](const comm::Connection& connection) {
      Decoder decoder(config(false), {.stage = zero::Stage(stage)}, comm::Mesh::create(connection, 1));
      initialize_weights(decoder, 5);
      expect_equal(values(decoder), expected);
    });
}

TEST_F(Weights, ASavedDirectoryIsReadAtAnyNumberOfRanks) {
  for (bool tied : {false, true})
    for (int64_t max_file_bytes : {int64_t{1} << 30, int64_t{1000}}) {  // one file, and many with an index
      const auto expected = initial_values(tied, 5);
      tests::run_ranks(2, [&](const comm::Connection& connection) {
        Decoder decoder(config(tied), {}, comm::Mesh::create(connection, 2));
        initialize_weights(decoder, 5);
        save_weights(decoder, directory_, {}, max_file_bytes);
        for (const auto* unit : decoder.units()) EXPECT_EQ(unit->state(), zero::State::not_available);
      });
      EXPECT_EQ(std::filesystem::exists(directory_ / "model.safetensors.index.json"), max_file_bytes == 1000);
      EXPECT_FALSE(std::filesystem::exists(directory_.string() + ".partial"));
      for (int64_t ranks : {1, 3})
        tests::run_ranks(ranks, [&](const comm::Connection& connection) {
          Decoder decoder(read_config(directory_), {.stage = zero::Stage(ranks)},
                          comm::Mesh::create(connection, 1));
          load_weights(decoder, WeightFiles::open(directory_));
          expect_equal(values(decoder), expected);
        });
    }
}

TEST_F(Weights, AModelOfAnotherShapeIsRefusedByName) {
  tests::run_ranks(1, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 1);
    Decoder saved(config(false), {}, mesh);
    save_weights(saved, directory_, {});
    auto narrow = config(false);
    narrow.intermediate_size = 6;
    auto shallow = config(false);
    shallow.layers = 1;
    shallow.windows = {0};
    auto deep = config(false);
    deep.layers = 3;
    deep.windows = {0, 0, 0};
    const std::pair<Config, const char*> cases[] = {
        {narrow, "gate_proj.weight"}, {shallow, "model.layers.1."}, {deep, "model.layers.2."}};
    for (const auto& [other, name] : cases) {
      Decoder decoder(other, {}, mesh);
      try {
        load_weights(decoder, WeightFiles::open(directory_));
        ADD_FAILURE() << "did not throw: " << name;
      } catch (const core::ValueError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr(name));
      }
    }
  });
}

}  // namespace
}  // namespace trireme::model
