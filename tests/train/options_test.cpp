#include "trireme/train/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "trireme/core/json.h"
#include "trireme/data/token_file.h"
#include "trireme/train/option_list.h"
#include "trireme/train/overrides.h"
#include "trireme/train/scheduler_options.h"

namespace trireme::train {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json minimal() {
  return {{"model", {{"path", "m"}}}, {"data", {{"path", "d"}, {"sequence_length", 64}}}, {"steps", 5}};
}

json with(std::initializer_list<const char*> overrides, json options = minimal()) {
  for (const char* text : overrides) apply_override(options, text);
  return options;
}

std::string refusal(std::initializer_list<const char*> overrides) {
  return testing::value_error([&] { parse_options(with(overrides)); });
}

TEST(Options, HaveTheDocumentedDefaults) {
  const Options options = parse_options(minimal());
  EXPECT_EQ(options.model.path, "m");
  EXPECT_TRUE(options.model.config.is_null());
  EXPECT_TRUE(options.data.shuffle);
  EXPECT_EQ(options.seed, 1);
  EXPECT_EQ(options.output, "runs/run");
  EXPECT_EQ(options.device, DeviceChoice::automatic);
  EXPECT_EQ(options.sequence_parallel_size, 1);
  EXPECT_EQ(options.micro_batch_size, 1);
  EXPECT_EQ(options.gradient_accumulation_steps, 1);
  EXPECT_FALSE(options.train_batch_size);
  EXPECT_EQ(options.gradient_clipping, 1.0);
  EXPECT_EQ(options.optimizer.type, "AdamW");
  EXPECT_EQ(options.optimizer.lr, 1e-4);
  EXPECT_EQ(options.optimizer.betas, (Betas{0.9, 0.95}));
  EXPECT_EQ(options.optimizer.eps, 1e-8);
  EXPECT_EQ(options.optimizer.weight_decay, 0.1);
  EXPECT_EQ(options.scheduler, Scheduler(ConstantLR{1e-4}));
  EXPECT_FALSE(options.bf16);
  EXPECT_EQ(options.zero.stage, 3);
  EXPECT_EQ(options.checkpoint.policy, CheckpointPolicy::layer);
  EXPECT_EQ(options.tiling.mlp, Tiles{});
  EXPECT_EQ(options.tiling.loss, Tiles{});
  EXPECT_EQ(options.loss, (alst::LossOptions{.z_loss = 0, .label_smoothing = 0, .soft_cap = 0}));
  EXPECT_EQ(options.communication_type, CommunicationType::fp32);
  EXPECT_EQ(options.timeout_seconds, 600);
}

TEST(Options, TakeEveryKey) {
  const Options options = parse_options(core::parse_json(R"({
    "model": {"config": {"model_type": "llama"}},  // from scratch
    "data": {"path": "c.safetensors", "sequence_length": 8192, "shuffle": false},
    "steps": 40, "seed": 7, "output": "o", "device": "cpu",
    "sequence_parallel_size": 2, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4,
    "train_batch_size": 24, "gradient_clipping": 0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5, "total_num_steps": 30}},
    "bf16": {"enabled": true}, "fp16": {"enabled": false}, "communication_data_type": "bf16",
    "zero_optimization": {"stage": 1}, "activation_checkpointing": {"policy": "keep_attention"},
    "tiling": {"mlp": "off", "loss": 6},
    "loss": {"z_loss": 1e-4, "label_smoothing": 0.1, "logit_soft_cap": 30},
    "timeout_seconds": 1.5 /* short */
  })",
                                                         "run.json", core::JsonComments::allowed));
  EXPECT_EQ(options.model.config, json({{"model_type", "llama"}}));
  EXPECT_EQ(options.model.path, "");
  EXPECT_EQ(options.data.path, "c.safetensors");
  EXPECT_EQ(options.data.sequence_length, 8192);
  EXPECT_FALSE(options.data.shuffle);
  EXPECT_EQ(options.steps, 40);
  EXPECT_EQ(options.seed, 7);
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.device, DeviceChoice::cpu);
  EXPECT_EQ(options.sequence_parallel_size, 2);
  EXPECT_EQ(options.micro_batch_size, 3);
  EXPECT_EQ(options.gradient_accumulation_steps, 4);
  EXPECT_EQ(options.train_batch_size, 24);
  EXPECT_EQ(options.gradient_clipping, 0);
  EXPECT_EQ(options.optimizer.type, "Adam");
  EXPECT_EQ(options.optimizer.lr, 1e-3);
  EXPECT_EQ(options.optimizer.betas, (Betas{0.8, 0.9}));
  EXPECT_EQ(options.optimizer.eps, 1e-6);
  EXPECT_EQ(options.optimizer.weight_decay, 0);
  EXPECT_EQ(options.scheduler, Scheduler(WarmupCosineLR{1e-3, 0, 1e-4, {5, WarmupType::log}, 30}));
  EXPECT_TRUE(options.bf16);
  EXPECT_EQ(options.communication_type, CommunicationType::bf16);
  EXPECT_EQ(options.zero.stage, 1);
  EXPECT_EQ(options.checkpoint.policy, CheckpointPolicy::keep_attention);
  EXPECT_EQ(options.tiling.mlp, (Tiles{Tiles::Mode::off, 0}));
  EXPECT_EQ(options.tiling.loss, (Tiles{Tiles::Mode::count, 6}));
  EXPECT_EQ(options.loss, (alst::LossOptions{.z_loss = 1e-4, .label_smoothing = 0.1, .soft_cap = 30}));
  EXPECT_EQ(options.timeout_seconds, 1.5);
}

TEST(Options, AreWrittenAsTheyAreRead) {
  const std::vector<json> runs{
      minimal(),
      with({"train_batch_size=8", "bf16.enabled=true", "communication_data_type=bf16", "tiling.mlp=3"}),
      with({"loss.z_loss=1e-4", "loss.label_smoothing=0.05", "loss.logit_soft_cap=30"}),
      with({R"(model={"config": {"vocab_size": 3}})", "device=cuda", "seed=9223372036854775807"}),
      with({"scheduler.type=WarmupLR", "scheduler.params.warmup_type=linear"}),
      with({"scheduler.type=WarmupDecayLR", "scheduler.params.warmup_num_steps=3"}),
      with({"scheduler.type=WarmupCosineLR", "scheduler.params.warmup_num_steps=3"}),
      with({"scheduler.type=OneCycle", "scheduler.params.cycle_first_stair_count=4"})};
  for (const json& run : runs) {
    const json written = to_json(parse_options(run, "somewhere"));
    EXPECT_EQ(to_json(parse_options(written)), written);
    EXPECT_EQ(written.at("output"), "somewhere");
  }
}

TEST(Options, RefuseAnUnknownKeyWithItsPathAndTheNearest) {
  EXPECT_EQ(
      refusal({"zero_optimization.stge=3"}),
      "[options] zero_optimization.stge is not a known key; got 3; did you mean zero_optimization.stage?");
  EXPECT_EQ(refusal({"stesp=7", "steps=null"}),
            "[options] stesp is not a known key; got 7; did you mean steps?");
  EXPECT_THAT(refusal({"optimizer.params.momentum=1"}),
              AllOf(HasSubstr("optimizer.params.momentum is not a known key; got 1"),
                    HasSubstr("the keys here are lr, betas, eps, weight_decay")));
  // A key of another scheduler is not ignored.
  EXPECT_THAT(refusal({"scheduler.type=WarmupLR", "scheduler.params.cos_min_ratio=0"}),
              HasSubstr("scheduler.params.cos_min_ratio is not a known key"));
}

TEST(Options, RefuseWhatIsMissing) {
  for (const char* key : {"model", "data", "steps", "data.path", "data.sequence_length"})
    EXPECT_EQ(testing::value_error([&] { parse_options(with({(std::string(key) + "=null").c_str()})); }),
              "[options] " + std::string(key) + " must be given; it is missing");
  EXPECT_THAT(refusal({"model={}"}), HasSubstr("got neither"));
  EXPECT_THAT(refusal({"model.config={}"}), HasSubstr("got both"));
}

TEST(Options, RefuseWrongValuesByPathRuleAndValue) {
  EXPECT_EQ(refusal({"zero_optimization.stage=4"}),
            "[options] zero_optimization.stage must be 0, 1, 2 or 3; got 4");
  EXPECT_EQ(refusal({"steps=0"}), "[options] steps must be an integer of at least 1; got 0");
  EXPECT_EQ(refusal({"steps=1099511627777"}),
            "[options] steps must be an integer from 1 to 1099511627776; got 1099511627777");
  EXPECT_EQ(refusal({"seed=-1"}), "[options] seed must be an integer of at least 0; got -1");
  EXPECT_EQ(refusal({"seed=18446744073709551615"}),
            "[options] seed must be an integer from 0 to 9223372036854775807; got 18446744073709551615");
  EXPECT_EQ(refusal({"bf16.enabled=1"}), "[options] bf16.enabled must be true or false; got 1");
  EXPECT_EQ(refusal({"bf16=true"}), "[options] bf16 must be an object {...}; got true");
  EXPECT_EQ(refusal({"optimizer.params.eps=0"}),
            "[options] optimizer.params.eps must be a number above 0; got 0");
  EXPECT_EQ(refusal({"optimizer.params.betas=[0.9,1]"}),
            "[options] optimizer.params.betas must be two numbers from 0 to below 1; got [0.9,1]");
  EXPECT_EQ(
      refusal({"activation_checkpointing.policy=full"}),
      "[options] activation_checkpointing.policy must be \"none\", \"layer\" or \"keep_attention\"; got "
      "\"full\"");
  EXPECT_EQ(refusal({"tiling.loss=0"}),
            "[options] tiling.loss must be \"auto\", \"off\" or an integer of at least 1; got 0");
  EXPECT_EQ(refusal({"loss.z_loss=-1e-4"}),
            "[options] loss.z_loss must be a number of at least 0; got -0.0001");
  EXPECT_EQ(refusal({"loss.label_smoothing=1"}),
            "[options] loss.label_smoothing must be a number from 0 to below 1; got 1");
  EXPECT_EQ(refusal({"loss.logit_soft_cap=-30"}),
            "[options] loss.logit_soft_cap must be a number of at least 0; got -30");
  EXPECT_THAT(refusal({"loss=1e-4"}), HasSubstr("loss must be an object {...}"));
  EXPECT_THAT(refusal({"loss.zloss=1"}), HasSubstr("did you mean loss.z_loss?"));
  EXPECT_THAT(refusal({"tiling.loss=18446744073709551615"}),
              HasSubstr("an integer from 1 to 2147483648; got"));
  EXPECT_THAT(refusal({"data.sequence_length=1.5"}), HasSubstr("data.sequence_length must be an integer"));
  EXPECT_THAT(refusal({"output="}), HasSubstr("output must be a text that is not empty; got \"\""));
}

TEST(Options, RefuseImpossibleCombinations) {
  EXPECT_THAT(refusal({"fp16.enabled=true"}), AllOf(HasSubstr("fp16"), HasSubstr("bf16.enabled")));
  EXPECT_THAT(refusal({"communication_data_type=bf16"}),
              HasSubstr("unless bf16.enabled or torch_autocast.enabled is true"));
  EXPECT_THAT(refusal({"sequence_parallel_size=65"}), HasSubstr("got 64 tokens for 65 ranks"));
  // The default warm-up of 1000 steps is longer than the run.
  EXPECT_THAT(
      refusal({"scheduler.type=WarmupCosineLR"}),
      AllOf(HasSubstr("scheduler.params.warmup_num_steps"), HasSubstr("got 1000 warm-up steps of 5")));
  EXPECT_THAT(refusal({"scheduler.type=WarmupLR", "scheduler.params.warmup_min_lr=1"}),
              HasSubstr("scheduler.params.warmup_min_lr must be at most"));
  EXPECT_THAT(refusal({"steps=100", "scheduler.type=OneCycle", "scheduler.params.cycle_first_step_size=2",
                       "scheduler.params.decay_step_size=1", "scheduler.params.decay_mom_rate=0.1"}),
              HasSubstr("scheduler.params.decay_mom_rate must leave the momentum below 1"));
}

TEST(Options, NoteAWarmupThatIsLongerThanTheRun) {
  const auto note = [](std::initializer_list<const char*> overrides) {
    const Options options = parse_options(with(overrides));
    return warmup_note(options.scheduler, options.steps);
  };
  EXPECT_EQ(
      note({"scheduler.type=WarmupLR"}),
      "note: scheduler.params.warmup_num_steps, 1000, is more than the run's steps, 5: the learning rate "
      "never reaches its maximum");
  EXPECT_THAT(note({"scheduler.type=WarmupCosineLR", "scheduler.params.total_num_steps=2000"}),
              HasSubstr("1000, is more than the run's steps, 5"));
  EXPECT_EQ(note({"scheduler.type=WarmupLR", "scheduler.params.warmup_num_steps=5"}), "");
  EXPECT_EQ(note({"scheduler.type=OneCycle"}), "");
  EXPECT_EQ(note({}), "");
}

/// The keys of the list below `prefix` ("" or "a.b."), one level deep.
std::set<std::string> listed_below(const std::string& prefix) {
  std::set<std::string> keys;
  for (const OptionInfo& option : list_options())
    if (option.path.starts_with(prefix)) {
      const std::string_view rest = option.path.substr(prefix.size());
      keys.emplace(rest.substr(0, rest.find('.')));
    }
  return keys;
}

TEST(OptionList, HoldsExactlyTheKeysThatAreAccepted) {
  const std::string schedulers[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"};
  const auto accepted = [](json options, const std::string& prefix) {
    apply_override(options, prefix + "zzzzzzzzzzzz=1");
    const std::string text = testing::value_error([&] { parse_options(options); });
    const std::string mark = "the keys here are ";
    std::set<std::string> keys;
    if (text.find(mark) == text.npos) return keys;
    std::istringstream list(text.substr(text.find(mark) + mark.size()));
    for (std::string key; std::getline(list >> std::ws, key, ',');) keys.insert(key);
    return keys;
  };
  for (const std::string prefix :
       {"", "model.", "data.", "optimizer.", "optimizer.params.", "scheduler.", "bf16.", "fp16.",
        "zero_optimization.", "activation_checkpointing.", "tiling.", "loss."})
    EXPECT_EQ(accepted(minimal(), prefix), listed_below(prefix)) << prefix;
  std::set<std::string> params;
  for (const std::string& type : schedulers)
    params.merge(accepted(with({("scheduler.type=" + type).c_str()}), "scheduler.params."));
  EXPECT_EQ(params, listed_below("scheduler.params."));
}

TEST(OptionList, HoldsNoKeyThatIsNeverRead) {
  const std::map<std::string, std::string> type_of{
      {"cycle", "OneCycle"},       {"decay", "OneCycle"},      {"warmup_m", "WarmupLR"},
      {"warmup", "WarmupDecayLR"}, {"total", "WarmupDecayLR"}, {"warmup_min_r", "WarmupCosineLR"},
      {"cos", "WarmupCosineLR"}};
  for (const OptionInfo& option : list_options()) {
    const std::string path(option.path);
    json options = minimal();
    if (path.starts_with("scheduler.params.")) {
      const std::string key = path.substr(path.rfind('.') + 1);
      std::string start;  // the longest that fits
      for (const auto& [prefix, type] : type_of)
        if (key.starts_with(prefix) && prefix.size() > start.size()) start = prefix;
      apply_override(options, "scheduler.type=" + type_of.at(start));
      if (start != "cycle" && start != "decay" && start != "warmup_m")
        apply_override(options, "scheduler.params.warmup_num_steps=2");
    }
    apply_override(options, path + "=[[]]");
    EXPECT_THAT(testing::value_error([&] { parse_options(options); }),
                HasSubstr("[options] " + path + " must be"))
        << path;
  }
}

TEST(CheckWorld, WantsWholeSequenceGroups) {
  const Options options = parse_options(with({"sequence_parallel_size=2"}));
  EXPECT_NO_THROW(check_world(options, 4));
  EXPECT_EQ(testing::value_error([&] { check_world(options, 3); }),
            "[options] the number of ranks must be a multiple of sequence_parallel_size; got 3 ranks and "
            "sequence_parallel_size 2; start 2 or 4 ranks (on one machine: --ranks 2 or 4), or set "
            "sequence_parallel_size to 1 or 3");
  EXPECT_EQ(testing::value_error([&] { check_world(options, 1); }),
            "[options] the number of ranks must be a multiple of sequence_parallel_size; got 1 rank and "
            "sequence_parallel_size 2; start 2 ranks (on one machine: --ranks 2), or set "
            "sequence_parallel_size to 1");
  const Options five = parse_options(with({"sequence_parallel_size=5"}));
  EXPECT_THAT(testing::value_error([&] { check_world(five, 12); }),
              AllOf(HasSubstr("start 10 or 15 ranks"), HasSubstr("to 4 or 6")));
}

TEST(CheckWorld, WantsTheTrainBatchSizeToFollow) {
  // Batch arithmetic is over the data-parallel groups alone.
  const Options options = parse_options(with({"sequence_parallel_size=2", "train_micro_batch_size_per_gpu=3",
                                              "gradient_accumulation_steps=5", "train_batch_size=30"}));
  EXPECT_NO_THROW(check_world(options, 4));
  EXPECT_THAT(testing::value_error([&] { check_world(options, 2); }),
              HasSubstr("3 x 5 x (2 / 2) = 15; got 30"));
}

TEST(Overrides, SetValuesOfAnyType) {
  json options = json::object();
  for (const char* text :
       {"a.b.c=1", "a.b.d=1e-3", "a.e=true", "f=runs/x y", "g=[1, 2]", "h=\"5\"", "i=a=b", "j="})
    apply_override(options, text);
  EXPECT_EQ(options, json::parse(R"({"a": {"b": {"c": 1, "d": 1e-3}, "e": true}, "f": "runs/x y", "g": [1, 2],
                                     "h": "5", "i": "a=b", "j": ""})"));
  apply_override(options, "a=null");
  EXPECT_FALSE(options.contains("a"));
}

TEST(Overrides, RefuseWhatIsNoAssignment) {
  json options = {{"steps", 5}};
  for (const char* text : {"steps", "=3", ".a=1", "a.=1", "a..b=1", ""})
    EXPECT_THAT(testing::value_error([&] { apply_override(options, text); }),
                HasSubstr("must be key.path=value"))
        << text;
  EXPECT_THAT(testing::value_error([&] { apply_override(options, "steps.x=1"); }),
              HasSubstr("where steps is 5"));
  EXPECT_THAT(testing::value_error([&] { apply_override(options, "steps.x.y=1"); }),
              HasSubstr("where steps is 5"));
}

TEST(Overrides, LetTheLastOfAKeyWin) {
  json options = minimal();
  apply_overrides(options, {"steps=6", "steps=7"});
  EXPECT_EQ(options.at("steps"), 7);
}

TEST(Overrides, PutOneModelInThePlaceOfAnother) {
  const auto model = [](json of_file, const std::vector<std::string>& overrides) {
    json options{{"model", std::move(of_file)}};
    apply_overrides(options, overrides);
    return options.at("model");
  };
  const json config{{"config", {{"vocab_size", 8}}}}, path{{"path", "m"}};
  EXPECT_EQ(model(config, {"model.path=m"}), path);
  EXPECT_EQ(model(path, {"model.config.vocab_size=8"}), config);
  EXPECT_EQ(model(path, {"steps=3", R"(model.config={"vocab_size": 8})"}), config);
  EXPECT_EQ(model(config, {"model.config.vocab_size=9"}), (json{{"config", {{"vocab_size", 9}}}}));
  // Nothing makes way for what is not set, nor where both are.
  EXPECT_EQ(model(config, {"model.path=null"}), config);
  EXPECT_EQ(model(config, {"model.paths=m"}), (json{{"config", {{"vocab_size", 8}}}, {"paths", "m"}}));
  EXPECT_EQ(model({{"path", "old"}}, {"model.path=m", "model.config.vocab_size=8"}),
            (json{{"path", "m"}, {"config", {{"vocab_size", 8}}}}));
}

class OptionFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    return testing::write_text(directory_ / name, text);
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(OptionFiles, AreReadWithCommentsAndOverrides) {
  const std::string path = write("demo.json", "// a run\n" + minimal().dump());
  const Options options = read_options(path, {"steps=9", "model.path=other"});
  EXPECT_EQ(options.steps, 9);
  EXPECT_EQ(options.model.path, "other");
  EXPECT_EQ(options.output, "runs/demo");
}

TEST_F(OptionFiles, AreRefusedWhereTheyCannotBeRead) {
  for (const std::string& path : {(directory_ / "none.json").string(), directory_.path().string()})
    EXPECT_THAT(testing::value_error([&] { read_options(path); }), HasSubstr(path));
  const std::string broken = write("broken.json", "{\"steps\": 1,\n \"seed\" 2}");
  EXPECT_THAT(testing::value_error([&] { read_options(broken); }),
              AllOf(HasSubstr(broken), HasSubstr("line 2")));
  const std::string twice = write("twice.json", R"({"steps": 1, "steps": 2})");
  EXPECT_THAT(testing::value_error([&] { read_options(twice); }),
              AllOf(HasSubstr(twice), HasSubstr("'steps' twice")));
}

TEST_F(OptionFiles, NameInputsThatMustBeThere) {
  Options options = parse_options(minimal());
  const auto refusal = [&] { return testing::value_error([&] { check_inputs(options); }); };
  std::filesystem::create_directories(directory_ / "model");
  options.model.path = directory_ / "model";
  options.data.path = directory_ / "corpus";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("data.path must be a token file"),
                               HasSubstr(options.data.path + ": there is no such file")));
  const std::vector<int32_t> tokens{1, 2, 3};
  const std::vector<int64_t> starts{0};
  data::write_token_file(options.data.path, tokens, starts);
  EXPECT_THAT(refusal(), HasSubstr("config.json"));
  write("model/config.json", R"({"model_type": "gpt2"})");
  EXPECT_THAT(refusal(), HasSubstr("gpt2"));
  options.model = {.path = "", .config = {{"model_type", "gpt2"}}};
  EXPECT_THAT(refusal(), HasSubstr("gpt2"));
  options.model.config = json::parse(R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 8,
      "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2})");
  EXPECT_EQ(refusal(), "no ValueError was thrown");
  write("model/config.json", options.model.config.dump());
  options.model = {.path = directory_ / "model", .config = {}};
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors"));
  write("corpus", "not tokens");
  const std::string& path = options.data.path;
  EXPECT_EQ(refusal(),
            "[options] data.path must be a token file (safetensors with \"tokens\" and "
            "\"document_starts\"); got " +
                path +
                ": a safetensors file begins with '{' behind 8 bytes of header length; got "
                "'not token' in " +
                path + ", which is no safetensors file; `trireme prepare` makes one from text");
  options.model = {.path = directory_ / "nowhere", .config = {}};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.path must be a model directory"), HasSubstr("nowhere")));
}

}  // namespace
}  // namespace trireme::train
