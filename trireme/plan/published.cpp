#include "trireme/plan/published.h"

#include <algorithm>

#include "trireme/plan/shapes.h"
#include "trireme/zero/schedule.h"

namespace trireme::plan {
namespace {

using core::Residence;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kH100 = 81559 * kMiB, kV100 = 32510 * kMiB;  // what nvidia-smi has of 80 and 32 GB
constexpr int64_t kTB = 1'000'000'000'000;
constexpr int64_t kPersistence = 100'000;  // DeepSpeed's default, and ours

// On GPUs, with DeepSpeed's defaults.
Setting setting_of(const nlohmann::json& config, int64_t ranks) {
  const zero::Schedule schedule;
  return {.config = model::parse_config(config),
          .rules = {},
          .on_cpu = false,
          .ranks = ranks,
          .bf16 = true,
          .persistence_threshold = kPersistence,
          .max_live_parameters = schedule.max_live_parameters,
          .max_reuse_distance = schedule.max_reuse_distance,
          .prefetch = schedule.prefetch_bucket_size,
          .optimizer_on = Residence::host,
          .activations = {.on = Residence::host}};
}

PublishedSequence sequence_on(int64_t ranks, int64_t tokens, std::string_view why) {
  Setting setting = setting_of(shape("meta-llama-8b"), ranks);
  setting.sequence_ranks = ranks;
  setting.sequence = tokens;
  if (ranks == 1) setting.parameters_on = Residence::host;
  return {.tokens = tokens,
          .setting = std::move(setting),
          .machine = {.device_bytes = kH100,
                      .taken = kContextBytes,
                      .ranks = std::min<int64_t>(ranks, 8),
                      .host_bytes = 19 * kTB / 10},
          .why = why};
}

PublishedModel model_of(std::string_view name, std::string_view shape, int64_t layers, int64_t hidden_size,
                        int64_t ranks, int64_t stage, std::string_view why) {
  Setting setting = setting_of(gpt_shape(layers, hidden_size), ranks);
  setting.sequence = 1024;
  setting.stage = stage;
  if (stage == 3) setting.parameters_on = Residence::host;
  return {.name = name,
          .shape = shape,
          .setting = std::move(setting),
          .machine = {.device_bytes = kV100,
                      .taken = kContextBytes,
                      .ranks = std::min<int64_t>(ranks, 16),
                      .host_bytes = 15 * kTB / 10},
          .why = why};
}

}  // namespace

std::vector<PublishedSequence> published_sequences() {
  return {
      sequence_on(
          1, 500'000,
          "the recipe remarks that 555 000 tokens end in an illegal memory access of a Triton kernel, not "
          "in a lack of memory; perhaps since [tokens, 4096] reaches 2^31 elements, the limit of 32-bit "
          "indices, at 524 288 tokens. The plan knows no such limit"),
      sequence_on(
          8, 3'700'000,
          "the sources do not say what ends it (the recipe's own length is 3 800 000). What the plan has "
          "at the published length leaves room on the device and on the host, so that it was no lack of "
          "memory that the plan knows of"),
      sequence_on(
          32, 15'000'000,
          "as with 8 GPUs; the recipe's own length is 15 500 000, with the remark to try again on a later "
          "PyTorch. The plan's own gain a GPU is smaller than on 8: each of 8 key/value heads goes to 4 "
          "ranks, so that q, k and v take twice as much")};
}

std::vector<PublishedModel> published_models() {
  return {model_of("ZeRO-2 Offload, 1 GPU", "65 layers of 4096", 65, 4096, 1, 2,
                   "as published: the GPU holds all 16-bit parameters, which is what limits the size"),
          model_of("ZeRO-3 Offload, 1 GPU", "50 layers of 8192", 50, 8192, 1, 3,
                   "as published: all states are on the host, 18 bytes a parameter, half of its memory"),
          model_of("ZeRO-3 Offload, 512 GPUs", "128 layers of 25600", 128, 25600, 512, 3,
                   "its states would, but a layer of 7.9 G parameters is gathered and its gradient collected "
                   "whole, where DeepSpeed takes single matrices, a third of it at most")};
}

}  // namespace trireme::plan
