#include "trireme/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::model {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

json small(std::string_view model_type = "llama") {
  return {{"model_type", model_type}, {"hidden_size", 64},        {"intermediate_size", 96},
          {"num_hidden_layers", 3},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 50}};
}

Config parse_with(json fields, std::string_view model_type = "llama") {
  json whole = small(model_type);
  if (!fields.is_null()) whole.update(fields);
  return parse_config(whole);
}

std::string error_with(json fields, std::string_view model_type = "llama") {
  return value_error([&] { parse_with(fields, model_type); });
}

TEST(Config, KnowsWhatTellsTheArchitecturesApart) {
  EXPECT_EQ(parse_with({}, "llama").architecture, Architecture::llama);
  EXPECT_EQ(parse_with({}, "mistral").architecture, Architecture::mistral);
  const Config qwen2 = parse_with({}, "qwen2"), qwen3 = parse_with({}, "qwen3");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.qk_norm);
  EXPECT_TRUE(!qwen3.qkv_bias && qwen3.qk_norm);
  EXPECT_EQ(qwen2.head_size, 16);
  EXPECT_EQ(qwen3.head_size, 128);
  EXPECT_THAT(parse_with({}, "mistral").windows, ElementsAre(4096, 4096, 4096));
  EXPECT_THAT(qwen2.windows, Each(0));
}

TEST(Config, TakesTheArchitectureFromTheClassWhereTheTypeLacks) {
  json fields = small();
  fields.erase("model_type");
  fields["architectures"] = {"Qwen3ForCausalLM"};
  EXPECT_EQ(parse_config(fields).architecture, Architecture::qwen3);
  fields["architectures"] = {"GPT2LMHeadModel"};
  EXPECT_THAT(value_error([&] { parse_config(fields); }), HasSubstr("GPT2LMHeadModel"));
  fields.erase("architectures");
  EXPECT_THAT(value_error([&] { parse_config(fields); }), HasSubstr("`model_type` = nothing"));
}

TEST(Config, RefusesOtherArchitectures) {
  EXPECT_THAT(error_with({{"model_type", "gpt_neox"}}),
              AllOf(HasSubstr("`model_type` = 'gpt_neox' in config.json"), HasSubstr("llama, mistral")));
  EXPECT_THAT(error_with({{"model_type", "qwen3_moe"}}), HasSubstr("qwen3_moe"));
  EXPECT_THAT(error_with({{"model_type", 3}}), HasSubstr("a string is needed"));
  EXPECT_THAT(error_with({{"architectures", {"LlamaForSequenceClassification"}}}),
              HasSubstr("LlamaForSequenceClassification"));
  EXPECT_THAT(error_with({{"architectures", {"Qwen2ForCausalLM"}}}), HasSubstr("Qwen2ForCausalLM"));
  EXPECT_THAT(error_with({{"architectures", "LlamaForCausalLM"}}), HasSubstr("an array is needed"));
  EXPECT_NO_THROW(parse_with({{"architectures", {"LlamaForCausalLM"}}}));
  EXPECT_NO_THROW(parse_with({{"architectures", nullptr}}));
}

TEST(Config, RefusesOptionsThatComputeSomethingElse) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{
           {"hidden_act", "gelu"},
           {"hidden_act", nullptr},
           {"attention_bias", true},
           {"mlp_bias", true},
           {"attention_dropout", 0.1},
           {"partial_rotary_factor", 0.5},
           {"pretraining_tp", 2},
           {"is_causal", false},
           {"quantization_config", {{"quant_method", "gptq"}}},
           {"per_layer_config", json::array()},
           {"dtype", "float64"},
           {"torch_dtype", "float8_e4m3fn"},
           {"layer_types", {"full_attention", "linear_attention", "full_attention"}},
           {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
       })
    EXPECT_THAT(error_with({{key, value}}), AllOf(HasSubstr("`" + key + "`"), HasSubstr("in config.json")))
        << value;
  EXPECT_THAT(error_with({{"attention_bias", true}}, "qwen3"), HasSubstr("`attention_bias`"));
}

TEST(Config, PassesWhatChangesNothing) {
  EXPECT_NO_THROW(parse_with({{"use_cache", false},
                              {"transformers_version", "4.40.0"},
                              {"attention_dropout", nullptr},
                              {"pretraining_tp", 1},
                              {"attention_bias", false},
                              {"partial_rotary_factor", 1.0},
                              {"quantization_config", nullptr},
                              {"some_note", {{"deep", {1, 2}}}}}));
}

TEST(Config, RefusesSizesThatAreNone) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"})
    for (const json& value : {json(0), json(-4), json(16.0), json("16"), json(true), json(json::array({16})),
                              json(UINT64_MAX), json(INT64_MAX)})
      EXPECT_THAT(error_with({{key, value}}),
                  AllOf(HasSubstr(std::string("`") + key + "`"), HasSubstr("integer")))
          << key << " " << value;
  EXPECT_THAT(error_with({{"hidden_size", nullptr}}), HasSubstr("`hidden_size` = null"));
  EXPECT_THAT(error_with({{"num_attention_heads", 1 << 20}, {"head_dim", 1 << 20}, {"hidden_size", 1 << 20}}),
              HasSubstr("heads times the head size"));
  EXPECT_THAT(error_with({{"num_hidden_layers", 1 << 20}}), HasSubstr("from 1 to 65536"));
}

TEST(Config, RefusesHeadsThatDoNotFit) {
  EXPECT_EQ(error_with({{"hidden_size", 100}, {"num_attention_heads", 3}, {"num_key_value_heads", 3}}),
            "[model] hidden_size must be a multiple of num_attention_heads unless head_dim is given; got "
            "hidden_size 100, num_attention_heads 3 in config.json; change one of them");
  EXPECT_THAT(error_with({{"num_attention_heads", 6}, {"head_dim", 16}}),
              HasSubstr("a multiple of num_attention_heads in a llama model; got hidden_size 64, "
                        "num_attention_heads 6 in config.json"));
  EXPECT_EQ(parse_with({{"num_attention_heads", 6}, {"head_dim", 16}}, "mistral").head_size, 16);
  EXPECT_EQ(error_with({{"num_key_value_heads", 3}}),
            "[model] num_attention_heads must be a multiple of num_key_value_heads; got num_attention_heads "
            "4, num_key_value_heads 3 in config.json; change one of them");
  EXPECT_THAT(error_with({{"head_dim", 15}}), HasSubstr("even size, since RoPE turns pairs of its numbers; "
                                                        "got head_dim 15 in config.json"));
  EXPECT_THAT(error_with({{"hidden_size", 60}}),
              HasSubstr("got hidden_size 60, num_attention_heads 4, which make heads of 15 in config.json"));
}

TEST(Config, RefusesOtherBadValues) {
  EXPECT_THAT(error_with({{"rms_norm_eps", "1e-5"}}), HasSubstr("`rms_norm_eps`"));
  EXPECT_THAT(error_with({{"rms_norm_eps", -1.0}}), HasSubstr("`rms_norm_eps`"));
  EXPECT_THAT(error_with({{"initializer_range", -0.02}}), HasSubstr("`initializer_range`"));
  EXPECT_THAT(error_with({{"tie_word_embeddings", 1}}), HasSubstr("true or false"));
  EXPECT_THAT(error_with({{"pad_token_id", 50}}), HasSubstr("must lie in the vocabulary"));
  EXPECT_THAT(error_with({{"pad_token_id", -51}}), HasSubstr("must lie in the vocabulary"));
  EXPECT_THAT(error_with({{"dtype", 16}}), HasSubstr("`dtype`"));
  EXPECT_THAT(value_error([] { parse_config(json::array()); }), HasSubstr("object is needed; got array"));
}

TEST(Config, ReadsWindowsAsEachArchitectureDoes) {
  const json some{{"use_sliding_window", true}, {"sliding_window", 7}, {"max_window_layers", 1}};
  EXPECT_THAT(parse_with(some, "qwen2").windows, ElementsAre(0, 7, 7));
  EXPECT_THAT(parse_with(some, "llama").windows, Each(0));
  EXPECT_THAT(parse_with(some, "mistral").windows, Each(7));
  EXPECT_THAT(parse_with({{"sliding_window", nullptr}}, "mistral").windows, Each(0));
  const json types{{"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
                   {"use_sliding_window", true},
                   {"sliding_window", 9}};
  EXPECT_THAT(parse_with(types, "qwen3").windows, ElementsAre(9, 0, 9));
  EXPECT_THAT(error_with(types, "mistral"), HasSubstr("`layer_types`"));
  EXPECT_THAT(error_with({{"layer_types", types["layer_types"]}}, "qwen3"), HasSubstr("needs a window"));
  EXPECT_THAT(error_with({{"layer_types", {"full_attention"}}}, "qwen3"), HasSubstr("3 in all"));
  EXPECT_THAT(error_with({{"sliding_window", 0}}, "mistral"), HasSubstr("`sliding_window` = 0 in"));
}

TEST(RopeOptions, RefusesWhatItDoesNotCompute) {
  const auto rope = [](json value) { return error_with({{"rope_parameters", std::move(value)}}); };
  EXPECT_THAT(rope({{"rope_type", "longrope"}}),
              AllOf(HasSubstr("longrope"), HasSubstr("default, linear, dynamic, llama3 and yarn")));
  EXPECT_THAT(error_with({{"rope_scaling", {{"type", "su"}}}}), HasSubstr("`type` = 'su'"));
  EXPECT_THAT(rope({{"rope_type", nullptr}}), HasSubstr("`rope_type`"));
  EXPECT_THAT(rope({{"full_attention", {{"rope_theta", 1e4}}}}), HasSubstr("by layer type"));
  EXPECT_THAT(rope({{"partial_rotary_factor", 0.25}}), HasSubstr("`partial_rotary_factor`"));
  EXPECT_THAT(rope({{"rope_theta", 1.0}}), HasSubstr("above 1"));
  EXPECT_THAT(rope({{"rope_theta", "1e4"}}), HasSubstr("`rope_theta`"));
  EXPECT_THAT(rope({{"rope_type", "linear"}}), HasSubstr("`factor`"));
  EXPECT_THAT(rope({{"rope_type", "linear"}, {"factor", 0}}), HasSubstr("above 0"));
  EXPECT_THAT(rope({{"rope_type", "dynamic"}, {"factor", nullptr}}), HasSubstr("`factor`"));
  EXPECT_THAT(rope({{"rope_type", "yarn"}}), HasSubstr("`factor`"));
  EXPECT_THAT(rope({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", -1}}), HasSubstr("`beta_fast`"));
  EXPECT_THAT(rope({{"rope_type", "yarn"}, {"factor", 2}, {"truncate", nullptr}}), HasSubstr("`truncate`"));
  EXPECT_THAT(rope({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
              HasSubstr("above `low_freq_factor`"));
  EXPECT_THAT(error_with({{"rope_parameters", 3}}), HasSubstr("an object is needed"));
  EXPECT_THAT(error_with({{"head_dim", 2}, {"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}}}),
              HasSubstr("head size above 2"));
}

TEST(ReadConfig, NamesTheFile) {
  const TemporaryDirectory directory;
  EXPECT_THAT(value_error([&] { read_config(directory / "none"); }), HasSubstr("none"));
  EXPECT_THAT(value_error([&] { read_config(directory.path()); }), HasSubstr("config.json"));
  write_text(directory / "config.json", small().dump());
  EXPECT_EQ(read_config(directory.path()).layers, 3);
  write_text(directory / "config.json", R"({"model_type": "llama", "hidden_size": -1})");
  EXPECT_THAT(value_error([&] { read_config(directory.path()); }), HasSubstr(directory.path().string()));
}

TEST(ExportedConfig, WritesOutWhatWasLeftToDefaults) {
  const json exported =
      exported_config(parse_config({{"model_type", "mistral"}, {"torch_dtype", "float16"}}), "bfloat16");
  EXPECT_EQ(exported["dtype"], "bfloat16");
  EXPECT_FALSE(exported.contains("torch_dtype"));
  EXPECT_EQ(exported["architectures"], json::array({"MistralForCausalLM"}));
  EXPECT_EQ(exported["num_key_value_heads"], 8);
  EXPECT_EQ(exported["head_dim"], 128);
  EXPECT_EQ(exported["sliding_window"], 4096);
  EXPECT_EQ(exported["rope_parameters"]["rope_theta"], 10000.0);
  EXPECT_THAT(value_error([] { exported_config(parse_with({}), "float64"); }), HasSubstr("float64"));
}

TEST(ExportedConfig, KeepsTheRest) {
  const json exported = exported_config(
      parse_with({{"eos_token_id", {7, 8}}, {"rope_theta", 5e5}, {"note", "mine"}}), "float32");
  EXPECT_EQ(exported["eos_token_id"], json::array({7, 8}));
  EXPECT_EQ(exported["rope_theta"], 5e5);
  EXPECT_FALSE(exported.contains("rope_parameters"));
  EXPECT_EQ(exported["note"], "mine");
}

TEST(Config, SlipsInKeysWrittenByHandAreRefused) {
  const nlohmann::json good = {
      {"model_type", "llama"}, {"hidden_size", 8}, {"use_cache", true}, {"my_note", 1}};
  EXPECT_NO_THROW(refuse_misspelt_keys(good, "model.config"));
  for (const auto& [slip, meant] : {std::pair{"intermediate_sise", "intermediate_size"},
                                    {"hiden_size", "hidden_size"},
                                    {"num_hidden_layer", "num_hidden_layers"},
                                    {"rope_thetta", "rope_theta"}}) {
    nlohmann::json bad = good;
    bad[slip] = 96;
    EXPECT_EQ(testing::value_error([&] { refuse_misspelt_keys(bad, "model.config"); }),
              core::concatenate("[model] '", slip,
                                "' is not a known key of model.config; got '96'; did you mean ", meant, "?"));
  }
}

}  // namespace
}  // namespace trireme::model
