#include "trireme/model/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace trireme::model {
namespace {

using ::testing::HasSubstr;

std::vector<UnitPlan> plans(bool tied = false) {
  return plan_units(parse_config({{"model_type", "llama"},
                                  {"vocab_size", 8},
                                  {"hidden_size", 16},
                                  {"intermediate_size", 16},
                                  {"num_hidden_layers", 2},
                                  {"num_attention_heads", 2},
                                  {"tie_word_embeddings", tied}}));
}

std::vector<std::string> frozen(const std::vector<UnitPlan>& all) {
  std::vector<std::string> names;
  for (const auto& plan : all)
    for (const auto& parameter : plan.parameters)
      if (!parameter.spec.trainable) names.push_back(parameter.spec.name);
  return names;
}

std::string refusal(const TensorRules& rules) {
  return testing::value_error([&] {
    auto all = plans();
    apply_rules(rules, all);
  });
}

TEST(TensorRules, FreezeWhatAPatternMatches) {
  auto all = plans();
  apply_rules({.frozen = {"lm_head.weight", "model.layers.1.mlp.*", "*.0.self_attn.[qk]_proj.weight",
                          "*.0.self_attn.v_proj.weight"}},
              all);
  EXPECT_THAT(frozen(all), ::testing::ElementsAre("model.layers.0.self_attn.qkv_proj.weight",
                                                  "model.layers.1.mlp.gate_up_proj.weight",
                                                  "model.layers.1.mlp.down_proj.weight", "lm_head.weight"));
}

TEST(TensorRules, GiveGroupsInTurnMatricesApartFromNorms) {
  auto all = plans();
  apply_rules({.groups = {{"model.layers.*"}, {"model.layers.1.*"}}}, all);
  EXPECT_EQ(all[0].parameters[0].spec.group, size_t{kDecayed});
  EXPECT_EQ(all[1].parameters[kQkv].spec.group, 2u);
  EXPECT_EQ(all[1].parameters[kInputNorm].spec.group, 3u);
  EXPECT_EQ(all[2].parameters[kQkv].spec.group, 4u);  // the later one wins
  EXPECT_EQ(all[2].parameters[kInputNorm].spec.group, 5u);
  EXPECT_EQ(all[3].parameters[0].spec.group, size_t{kUndecayed});
}

TEST(TensorRules, RefuseWhatCannotBe) {
  EXPECT_THAT(refusal({.frozen = {"model.layers.7.*"}}),
              HasSubstr("got 'model.layers.7.*', which matches none"));
  EXPECT_THAT(refusal({.frozen = {"*.q_proj.weight"}}),
              HasSubstr("'model.layers.0.self_attn.qkv_proj.weight' are one parameter and go together; got "
                        "patterns that match 1 of 3"));
  EXPECT_THAT(refusal({.groups = {{"*.up_proj.weight"}}}), HasSubstr("match 1 of 2"));
  EXPECT_THAT(refusal({.frozen = {"*"}}), HasSubstr("something must be left to train"));
}

}  // namespace
}  // namespace trireme::model
