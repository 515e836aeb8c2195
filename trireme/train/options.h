// The options of a training run: what `run.json` says, parsed once, checked before anything starts.
// Keys are DeepSpeed's where it has them. `list_options` describes each one.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/alst/loss_options.h"
#include "trireme/model/config.h"
#include "trireme/model/parameters.h"
#include "trireme/train/checkpoint_options.h"
#include "trireme/train/scheduler.h"
#include "trireme/train/zero_options.h"

namespace trireme::train {

inline constexpr int64_t kMostSteps = int64_t{1} << 40;
inline constexpr int64_t kMostRanks = int64_t{1} << 20;
inline constexpr int64_t kLargestBatch = int64_t{1}
                                         << 20;  // of one rank, or of accumulation: products fit in int64

/// Which model to train: exactly one of the two is set.
struct ModelOptions {
  std::string path;                 ///< a Hugging Face model directory, or empty
  nlohmann::json config;            ///< the fields of a config.json, trained from random weights; or null
  std::vector<std::string> frozen;  ///< patterns of tensors that are not trained
};

struct DataOptions {
  std::string path;             ///< a token file
  int64_t sequence_length = 0;  ///< tokens of a whole row, over all ranks that share it
  bool shuffle = true;
};

/// Tensors that have numbers of their own.
struct OptimizerGroup {
  std::vector<std::string> match;      ///< patterns of their names
  std::optional<double> lr;            ///< at the schedule's peak: it moves as the others' does
  std::optional<double> weight_decay;  ///< of all of them; else of matrices, as the others'
};

/// AdamW. DeepSpeed's "Adam" too decouples the weight decay, so that both names mean the same.
struct OptimizerOptions {
  std::string type = "AdamW";
  double lr = 1e-4;
  Betas betas;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< of matrices, not of norms and biases
  std::vector<OptimizerGroup> groups;
};

/// Into how many tiles a computation over tokens is cut.
struct Tiles {
  enum class Mode { automatic, off, count };
  Mode mode = Mode::automatic;
  int64_t count = 0;  ///< with `count`
  bool operator==(const Tiles&) const = default;
};

struct TilingOptions {
  Tiles mlp;
  Tiles loss;

  /// As model::ForwardOptions has them: nothing where automatic. Without tiles the MLP keeps its activations,
  /// and the loss, fused in any case, has one.
  std::optional<int64_t> mlp_count() const;
  std::optional<int64_t> loss_count() const;
};

enum class CommunicationType { fp32, bf16 };
enum class DeviceChoice { automatic, cpu, cuda };

/// Everything that a run is told.
struct Options {
  ModelOptions model;
  DataOptions data;
  int64_t steps = 0;  ///< optimizer steps
  int64_t seed = 1;
  std::string output;  ///< directory of metrics, of the options' record and of the trained model
  DeviceChoice device = DeviceChoice::automatic;
  int64_t sequence_parallel_size = 1;
  int64_t micro_batch_size = 1;             ///< rows that one data-parallel group takes at once
  int64_t gradient_accumulation_steps = 1;  ///< micro-batches of an optimizer step
  std::optional<int64_t> train_batch_size;  ///< if given, checked by `check_world`
  double gradient_clipping = 1.0;           ///< largest global gradient norm; 0: no clipping
  OptimizerOptions optimizer;
  Scheduler scheduler;
  bool bf16 = false;      ///< parameters and activations in bf16, masters and optimizer state in fp32
  bool autocast = false;  ///< the same, with fp32 shards that are rounded to bf16 when they are gathered
  ZeroOptions zero;
  CheckpointOptions checkpoint;
  TilingOptions tiling;
  alst::LossOptions loss;
  CommunicationType communication_type = CommunicationType::fp32;  ///< dtype that gradients are reduced in
  double timeout_seconds = 600;                                    ///< longest wait for the other ranks
};

/// Options from `run.json`'s content. `default_output` is the output directory where the options name none.
/// Throws `ValueError` "[options] KEY.PATH must be RULE; got VALUE" for an unknown key (with the nearest
/// known one), a wrong type or value, or a combination that cannot be.
Options parse_options(const nlohmann::json& json, const std::string& default_output = "runs/run");

/// Options from a file, each override "key.path=value" applied first: see `apply_overrides`. A value is JSON,
/// or else taken as text; null removes the key. The default output is "runs/NAME" for NAME.json. Throws as
/// `parse_options`, and where the file cannot be read.
Options read_options(const std::string& path, const std::vector<std::string>& overrides = {});

/// The resolved options, defaults included: `parse_options(to_json(o))` gives `o` again.
nlohmann::json to_json(const Options& options);

/// bf16 parameters and activations, by either option?
bool computes_in_bf16(const Options& options);

/// The shape of the model to train. Throws `ValueError`.
model::Config model_config(const ModelOptions& options);

model::TensorRules tensor_rules(const Options& options);

/// Rows of an optimizer step: micro-batch x accumulation x (world / sequence parallel size).
int64_t train_batch_size(const Options& options, int64_t world_size);

/// Throws `ValueError` unless `world_size` ranks can run with these options: the sequence parallel size
/// divides it, and the train batch size, where one is given, is what `train_batch_size` says.
void check_world(const Options& options, int64_t world_size);

/// Opens the model's files and the token file, without loading anything: what they are refused for is known
/// before any rank starts. Throws `ValueError`.
void check_inputs(const Options& options);

}  // namespace trireme::train
