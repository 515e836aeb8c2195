#include "trireme/train/options.h"

#include <algorithm>
#include <filesystem>

#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/text.h"
#include "trireme/data/token_file.h"
#include "trireme/model/config.h"
#include "trireme/model/weight_files.h"
#include "trireme/train/json_reader.h"
#include "trireme/train/option_names.h"
#include "trireme/train/overrides.h"
#include "trireme/train/scheduler_options.h"

namespace trireme::train {
namespace {

using nlohmann::json;

constexpr Range kTimeouts{
    .high = 1e6, .low_allowed = false, .text = "a number of seconds above 0 and up to 1000000"};
constexpr int64_t kMostTiles = int64_t{1} << 31;
constexpr Range kUnit{.high = 1, .high_allowed = false, .text = "a number from 0 to below 1"};

ModelOptions read_model(const ObjectReader& options) {
  core::check_value(options.has("model"), "[options] model must be given; it is missing");
  const ObjectReader reader = options.object("model", {"path", "config", "frozen"});
  ModelOptions model;
  model.path = reader.text("path", "");
  if (const json* config = reader.any("config")) {
    if (!config->is_object()) reader.refuse("config", "an object with the fields of a config.json");
    model.config = *config;
  }
  core::check_value(
      model.path.empty() != model.config.is_null(),
      "[options] model must have either path (a model directory) or config (from random weights); got ",
      model.path.empty() ? "neither" : "both");
  model.frozen = reader.texts("frozen");
  return model;
}

DataOptions read_data(const ObjectReader& options) {
  core::check_value(options.has("data"), "[options] data must be given; it is missing");
  const ObjectReader reader = options.object("data", {"path", "sequence_length", "shuffle"});
  DataOptions data;
  data.path = reader.text("path", {});
  data.sequence_length = reader.integer("sequence_length", {}, 2);
  data.shuffle = reader.boolean("shuffle", data.shuffle);
  return data;
}

Betas read_betas(const ObjectReader& params, Betas betas) {
  const json* value = params.any("betas");
  if (!value) return betas;
  const auto good = [](const json& beta) { return beta.is_number() && kUnit.contains(beta.get<double>()); };
  if (!value->is_array() || value->size() != 2 || !good((*value)[0]) || !good((*value)[1]))
    params.refuse("betas", "two numbers from 0 to below 1");
  return {(*value)[0].get<double>(), (*value)[1].get<double>()};
}

std::vector<OptimizerGroup> read_groups(const ObjectReader& optimizer) {
  std::vector<OptimizerGroup> groups;
  for (const auto& reader : optimizer.objects("groups", {"match", "lr", "weight_decay"})) {
    OptimizerGroup group{.match = reader.texts("match")};
    if (reader.has("lr")) group.lr = reader.number("lr", {}, kNotNegative);
    if (reader.has("weight_decay")) group.weight_decay = reader.number("weight_decay", {}, kNotNegative);
    core::check_value(!group.match.empty(), "[options] ", reader.path_of("match"),
                      " must be a list of at least one pattern of tensor names; got none");
    groups.push_back(std::move(group));
  }
  return groups;
}

OptimizerOptions read_optimizer(const ObjectReader& options) {
  const ObjectReader reader = options.object("optimizer", {"type", "params", "groups"});
  OptimizerOptions optimizer;
  optimizer.type = reader.choice<std::string_view>("type", optimizer.type, kOptimizers);
  const ObjectReader params = reader.object("params", {"lr", "betas", "eps", "weight_decay"});
  optimizer.lr = params.number("lr", optimizer.lr, kNotNegative);
  optimizer.betas = read_betas(params, optimizer.betas);
  optimizer.eps = params.number("eps", optimizer.eps, kPositive);
  optimizer.weight_decay = params.number("weight_decay", optimizer.weight_decay, kNotNegative);
  optimizer.groups = read_groups(reader);
  return optimizer;
}

Tiles read_tiles(const ObjectReader& tiling, std::string_view key) {
  const json* value = tiling.any(key);
  if (!value || *value == "auto") return {};
  if (*value == "off") return {.mode = Tiles::Mode::off};
  const bool too_large = core::is_integer_above(*value, kMostTiles);
  if (!value->is_number_integer() || *value < 1 || too_large)
    tiling.refuse(key, R"("auto", "off" or )" + core::integer_rule(1, kMostTiles, too_large));
  return {.mode = Tiles::Mode::count, .count = value->get<int64_t>()};
}

void read_batch(const ObjectReader& reader, Options& options) {
  options.sequence_parallel_size =
      reader.integer("sequence_parallel_size", options.sequence_parallel_size, 1, kMostRanks);
  options.micro_batch_size =
      reader.integer("train_micro_batch_size_per_gpu", options.micro_batch_size, 1, kLargestBatch);
  options.gradient_accumulation_steps =
      reader.integer("gradient_accumulation_steps", options.gradient_accumulation_steps, 1, kLargestBatch);
  if (reader.has("train_batch_size")) options.train_batch_size = reader.integer("train_batch_size", {}, 1);
  core::check_value(
      options.data.sequence_length >= options.sequence_parallel_size,
      "[options] data.sequence_length must be at least sequence_parallel_size: each rank needs a token; "
      "got ",
      options.data.sequence_length, " tokens for ", options.sequence_parallel_size, " ranks");
}

constexpr Choices<bool, 1> kAutocastTypes{{{"bfloat16", true}}};

void read_precision(const ObjectReader& reader, Options& options) {
  options.bf16 = reader.object("bf16", {"enabled"}).boolean("enabled", options.bf16);
  const ObjectReader autocast = reader.object("torch_autocast", {"enabled", "dtype"});
  options.autocast = autocast.boolean("enabled", options.autocast);
  autocast.choice<bool>("dtype", true, kAutocastTypes);
  core::check_value(!options.bf16 || !options.autocast,
                    "[options] bf16.enabled and torch_autocast.enabled are two ways to the same; got both; "
                    "set one of them");
  core::check_value(
      !reader.object("fp16", {"enabled"}).boolean("enabled", false),
      "[options] fp16.enabled must be false: fp16 needs loss scaling, which is not built; got true; set "
      "bf16.enabled to true in its place");
  options.communication_type = reader.choice<CommunicationType>(
      "communication_data_type", options.communication_type, kCommunicationTypes);
  core::check_value(
      options.bf16 || options.autocast || options.communication_type != CommunicationType::bf16,
      R"([options] communication_data_type must be "fp32" unless bf16.enabled or torch_autocast.enabled is true; got "bf16")");
}

alst::LossOptions read_loss(const ObjectReader& options) {
  const ObjectReader reader = options.object("loss", {"z_loss", "label_smoothing", "logit_soft_cap"});
  alst::LossOptions loss;
  loss.z_loss = reader.number("z_loss", loss.z_loss, kNotNegative);
  loss.label_smoothing = reader.number("label_smoothing", loss.label_smoothing, kUnit);
  loss.soft_cap = reader.number("logit_soft_cap", loss.soft_cap, kNotNegative);
  return loss;
}

void read_memory(const ObjectReader& reader, Options& options) {
  options.zero = read_zero_options(reader);
  options.checkpoint = read_checkpoint_options(reader);
  const ObjectReader tiling = reader.object("tiling", {"mlp", "loss"});
  options.tiling = {.mlp = read_tiles(tiling, "mlp"), .loss = read_tiles(tiling, "loss")};
}

json tiles_to_json(const Tiles& tiles) {
  switch (tiles.mode) {
    case Tiles::Mode::automatic:
      return "auto";
    case Tiles::Mode::off:
      return "off";
    case Tiles::Mode::count:
      return tiles.count;
  }
  return nullptr;
}

/// "2 or 4", or "2" where the first number is none.
std::string either(int64_t first, int64_t second) {
  return first > 0 ? core::concatenate(first, " or ", second) : std::to_string(second);
}

/// What to do where `world_size` ranks do not divide by `sp`: the nearest numbers that fit.
std::string advice_on_ranks(int64_t world_size, int64_t sp) {
  const int64_t fewer = world_size / sp * sp;
  int64_t below = std::min(sp, world_size), above = below;
  while (below > 1 && world_size % below != 0) --below;
  while (above < world_size && world_size % above != 0) ++above;
  const std::string ranks = either(fewer, fewer + sp);
  return core::concatenate("start ", ranks, " ranks (on one machine: --ranks ", ranks,
                           "), or set sequence_parallel_size to ", either(below < above ? below : 0, above));
}

/// Why the file is no token file, without the mark of the module that found it; empty where it is one.
std::string fault_of_token_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "there is no such file";
  try {
    const data::TokenFile tokens(path);
  } catch (const core::ValueError& error) {
    const std::string_view text = error.what();
    return std::string(text.substr(text.find("] ") + 2));
  }
  return "";
}

json groups_to_json(const std::vector<OptimizerGroup>& groups) {
  json out = json::array();
  for (const auto& group : groups) {
    out.push_back({{"match", group.match}});
    if (group.lr) out.back()["lr"] = *group.lr;
    if (group.weight_decay) out.back()["weight_decay"] = *group.weight_decay;
  }
  return out;
}

json optimizer_to_json(const OptimizerOptions& optimizer) {
  json out{{"type", optimizer.type},
           {"params",
            {{"lr", optimizer.lr},
             {"betas", json::array({optimizer.betas.first, optimizer.betas.second})},
             {"eps", optimizer.eps},
             {"weight_decay", optimizer.weight_decay}}}};
  if (!optimizer.groups.empty()) out["groups"] = groups_to_json(optimizer.groups);
  return out;
}

}  // namespace

Options parse_options(const json& json, const std::string& default_output) {
  const ObjectReader reader(json, "",
                            {"model",
                             "data",
                             "steps",
                             "seed",
                             "output",
                             "device",
                             "sequence_parallel_size",
                             "train_micro_batch_size_per_gpu",
                             "gradient_accumulation_steps",
                             "train_batch_size",
                             "gradient_clipping",
                             "optimizer",
                             "scheduler",
                             "bf16",
                             "fp16",
                             "torch_autocast",
                             "communication_data_type",
                             "zero_optimization",
                             "activation_checkpointing",
                             "tiling",
                             "loss",
                             "timeout_seconds"});
  Options options;
  options.model = read_model(reader);
  options.data = read_data(reader);
  options.steps = reader.integer("steps", {}, 1, kMostSteps);
  options.seed = reader.integer("seed", options.seed, 0);
  options.output = reader.text("output", default_output);
  options.device = reader.choice<DeviceChoice>("device", options.device, kDevices);
  read_batch(reader, options);
  options.gradient_clipping = reader.number("gradient_clipping", options.gradient_clipping, kNotNegative);
  options.optimizer = read_optimizer(reader);
  options.scheduler = read_scheduler(reader, options.optimizer, options.steps);
  options.loss = read_loss(reader);
  read_precision(reader, options);
  read_memory(reader, options);
  options.timeout_seconds = reader.number("timeout_seconds", options.timeout_seconds, kTimeouts);
  return options;
}

Options read_options(const std::string& path, const std::vector<std::string>& overrides) {
  json json = core::read_json(path, core::JsonComments::allowed);
  apply_overrides(json, overrides);
  return parse_options(json, "runs/" + std::filesystem::path(path).stem().string());
}

json to_json(const Options& options) {
  json model = json::object();
  if (!options.model.path.empty()) model["path"] = options.model.path;
  if (!options.model.config.is_null()) model["config"] = options.model.config;
  if (!options.model.frozen.empty()) model["frozen"] = options.model.frozen;
  json out = {
      {"model", std::move(model)},
      {"data",
       {{"path", options.data.path},
        {"sequence_length", options.data.sequence_length},
        {"shuffle", options.data.shuffle}}},
      {"steps", options.steps},
      {"seed", options.seed},
      {"output", options.output},
      {"device", name_of(options.device, kDevices)},
      {"sequence_parallel_size", options.sequence_parallel_size},
      {"train_micro_batch_size_per_gpu", options.micro_batch_size},
      {"gradient_accumulation_steps", options.gradient_accumulation_steps},
      {"gradient_clipping", options.gradient_clipping},
      {"optimizer", optimizer_to_json(options.optimizer)},
      {"bf16", {{"enabled", options.bf16}}},
      {"torch_autocast", {{"enabled", options.autocast}, {"dtype", "bfloat16"}}},
      {"communication_data_type", name_of(options.communication_type, kCommunicationTypes)},
      {"zero_optimization", zero_options_to_json(options.zero)},
      {"activation_checkpointing", checkpoint_options_to_json(options.checkpoint)},
      {"loss",
       {{"z_loss", options.loss.z_loss},
        {"label_smoothing", options.loss.label_smoothing},
        {"logit_soft_cap", options.loss.soft_cap}}},
      {"tiling", {{"mlp", tiles_to_json(options.tiling.mlp)}, {"loss", tiles_to_json(options.tiling.loss)}}},
      {"timeout_seconds", options.timeout_seconds},
  };
  if (options.train_batch_size) out["train_batch_size"] = *options.train_batch_size;
  if (json scheduler = scheduler_to_json(options.scheduler); !scheduler.is_null())
    out["scheduler"] = std::move(scheduler);
  return out;
}

std::optional<int64_t> TilingOptions::mlp_count() const {
  if (mlp.mode == Tiles::Mode::automatic) return {};
  return mlp.mode == Tiles::Mode::off ? 0 : mlp.count;
}

std::optional<int64_t> TilingOptions::loss_count() const {
  if (loss.mode == Tiles::Mode::automatic) return {};
  return loss.mode == Tiles::Mode::off ? 1 : loss.count;
}

bool computes_in_bf16(const Options& options) { return options.bf16 || options.autocast; }

model::Config model_config(const ModelOptions& options) {
  return options.path.empty() ? model::parse_config(options.config, "model.config")
                              : model::read_config(options.path);
}

model::TensorRules tensor_rules(const Options& options) {
  model::TensorRules rules{.frozen = options.model.frozen, .groups = {}};
  for (const auto& group : options.optimizer.groups) rules.groups.push_back(group.match);
  return rules;
}

int64_t train_batch_size(const Options& options, int64_t world_size) {
  return options.micro_batch_size * options.gradient_accumulation_steps *
         (world_size / options.sequence_parallel_size);
}

void check_world(const Options& options, int64_t world_size) {
  const int64_t sp = options.sequence_parallel_size;
  core::check_value(world_size > 0 && world_size % sp == 0,
                    "[options] the number of ranks must be a multiple of sequence_parallel_size; got ",
                    core::counted(world_size, "rank"), " and sequence_parallel_size ", sp, "; ",
                    advice_on_ranks(world_size, sp));
  if (!options.train_batch_size) return;
  const int64_t product = train_batch_size(options, world_size);
  core::check_value(
      *options.train_batch_size == product,
      "[options] train_batch_size must be train_micro_batch_size_per_gpu x gradient_accumulation_steps x "
      "(ranks / sequence_parallel_size) = ",
      options.micro_batch_size, " x ", options.gradient_accumulation_steps, " x (", world_size, " / ", sp,
      ") = ", product, "; got ", *options.train_batch_size,
      "; change one of them, or leave it out (--set train_batch_size=null)");
}

void check_inputs(const Options& options) {
  check_offload_paths(options.zero);
  check_offload_path(options.checkpoint);
  std::error_code ignored;  // what cannot be looked at counts as missing
  core::check_value(options.model.path.empty() || std::filesystem::is_directory(options.model.path, ignored),
                    "[options] model.path must be a model directory; got ", options.model.path,
                    ", which is not a directory");
  const std::string fault = fault_of_token_file(options.data.path);
  core::check_value(
      fault.empty(),
      R"([options] data.path must be a token file (safetensors with "tokens" and "document_starts"); got )",
      options.data.path, ": ", fault, "; `trireme prepare` makes one from text");
  if (options.model.path.empty()) model::refuse_misspelt_keys(options.model.config, "model.config");
  model_config(options.model);
  if (!options.model.path.empty()) model::WeightFiles::open(options.model.path);
}

}  // namespace trireme::train
