#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>

#include "support/files.h"
#include "support/ranks.h"
#include "support/recording_allocator.h"
#include "trireme/alst/activation_offload.h"
#include "trireme/alst/disk_target.h"
#include "trireme/core/check.h"
#include "trireme/model/weights.h"
#include "trireme/plan/memory_plan.h"
#include "trireme/train/engine.h"

// What plan_memory says against what a step's tensors take.
namespace trireme::train {
namespace {

using model::Recompute;
using nlohmann::json;
using plan::Part;

struct Shape {
  const char* type;
  int64_t hidden, inner, layers, heads, kv_heads, vocabulary, window;
  bool tied = false;
};

struct Case {
  Shape shape;
  int64_t sequence, ranks, sp, batch, stage;
  Recompute recompute;
  bool bf16 = false;
  std::optional<int64_t> mlp_tiles, loss_tiles;
  bool on_disk = false;
};

model::Config config_of(const Shape& shape) {
  json source{{"model_type", shape.type},
              {"vocab_size", shape.vocabulary},
              {"hidden_size", shape.hidden},
              {"intermediate_size", shape.inner},
              {"num_hidden_layers", shape.layers},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.kv_heads},
              {"head_dim", shape.hidden / shape.heads},
              {"tie_word_embeddings", shape.tied}};
  if (shape.window > 0) source["sliding_window"] = shape.window;
  return model::parse_config(source);
}

plan::Setting setting_of(const Case& c) {
  const zero::Schedule schedule;
  plan::Setting setting{.config = config_of(c.shape),
                        .rules = {},
                        .threads = at::get_num_threads(),
                        .ranks = c.ranks,
                        .sequence_ranks = c.sp,
                        .batch = c.batch,
                        .sequence = c.sequence,
                        .bf16 = c.bf16,
                        .stage = c.stage,
                        .max_live_parameters = schedule.max_live_parameters,
                        .max_reuse_distance = schedule.max_reuse_distance,
                        .prefetch = schedule.prefetch_bucket_size,
                        .recompute = c.recompute,
                        .mlp_tiles = c.mlp_tiles,
                        .loss_tiles = c.loss_tiles};
  // How fast a disk is must not matter.
  if (c.on_disk) setting.activations = {.on = core::Residence::disk, .leaving_at_once = 0};
  return setting;
}

std::shared_ptr<alst::Keeper> keeper_on(const testing::TemporaryDirectory& directory) {
  const auto pool = std::make_shared<core::BufferPool>();
  const auto store = std::make_shared<core::DiskStore>(
      core::DiskStoreOptions{.directory = directory.path(), .write_behind_bytes = int64_t{1} << 40}, pool);
  return std::make_shared<alst::ActivationOffload>(alst::ActivationOffloadOptions{.leaving_at_once = 0},
                                                   std::make_shared<alst::DiskTarget>(store, pool));
}

// The most that the tensors of rank 0 take in its second step.
int64_t measured(const Case& c) {
  const auto config = config_of(c.shape);
  std::barrier ready(c.ranks);
  tests::RecordingAllocator allocator;
  const testing::TemporaryDirectory directory;
  tests::run_ranks(c.ranks, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, c.sp);
    if (connection.rank() == 0) allocator.watch_this_thread();
    ready.arrive_and_wait();
    model::Decoder decoder(
        config, {.stage = zero::Stage(c.stage), .dtype = c.bf16 ? at::kBFloat16 : at::kFloat}, mesh);
    model::initialize_weights(decoder, 1);
    Engine engine(decoder, mesh,
                  {.recompute = c.recompute,
                   .keeper = c.on_disk ? keeper_on(directory) : nullptr,
                   .mlp_tiles = c.mlp_tiles,
                   .loss_tiles = c.loss_tiles},
                  1.0);
    const at::Tensor tokens =
        at::arange(c.batch * c.sequence).remainder(c.shape.vocabulary).view({c.batch, c.sequence});
    const auto batch = sp::slice_batch({tokens, tokens, {}, {}}, mesh.sequence.rank(), mesh.sequence.size());
    for (int step = 0; step < 2; ++step) {
      ready.arrive_and_wait();
      if (connection.rank() == 0) allocator.reset();
      engine.step({batch}, zero::decayed_and_not({}));
    }
    ready.arrive_and_wait();
  });
  return allocator.peak();
}

std::string describe(const Case& c, const plan::MemoryPlan& plan) {
  std::string text = trireme::core::concatenate(
      c.shape.type, " E ", c.shape.hidden, " I ", c.shape.inner, " L ", c.shape.layers, " H ", c.shape.heads,
      "/", c.shape.kv_heads, " V ", c.shape.vocabulary, " window ", c.shape.window, ", S ", c.sequence,
      ", ranks ", c.ranks, ", sp ", c.sp, ", B ", c.batch, ", stage ", c.stage, ", recompute ",
      int(c.recompute), ", bf16 ", c.bf16, ", mlp ", c.mlp_tiles.value_or(-1), ", disk ", c.on_disk, ": ",
      plan.moment);
  for (size_t part = 0; part < plan::kParts; ++part)
    text += trireme::core::concatenate(", ", plan::name_of(Part(part)), " ", plan.device[Part(part)] / 1024);
  return text;
}

constexpr Shape kLlama{"llama", 64, 160, 4, 4, 4, 256, 0}, kGrouped{"llama", 64, 160, 4, 8, 2, 256, 0},
    kWindow{"mistral", 64, 160, 4, 4, 2, 256, 64}, kNormed{"qwen3", 64, 160, 4, 4, 2, 256, 0},
    kWide{"llama", 64, 160, 2, 4, 2, 4096, 0}, kUneven{"mistral", 80, 160, 4, 10, 5, 256, 64},
    kVocabulary{"llama", 64, 160, 2, 4, 2, 30000, 0}, kTied{"llama", 64, 160, 2, 4, 2, 30000, 0, true},
    kDeep{"mistral", 64, 160, 8, 4, 2, 256, 64};

TEST(PlannedMemory, IsWhatAStepTakes) {
  using enum Recompute;
  const std::vector<Case> cases{
      {kLlama, 4096, 1, 1, 1, 3, nothing},
      {kLlama, 4096, 2, 2, 1, 3, nothing, /*bf16=*/true},
      {kLlama, 4096, 2, 2, 1, 3, layer},
      {kGrouped, 4096, 4, 4, 1, 3, all_but_attention},
      {kGrouped, 4096, 1, 1, 1, 0, layer, true},
      {kGrouped, 2048, 2, 1, 1, 1, layer},
      {kWindow, 4096, 2, 2, 1, 2, all_but_attention},
      {kWindow, 2048, 2, 2, 2, 3, layer, true},
      {kWindow, 2048, 1, 1, 2, 3, nothing},
      {kNormed, 4096, 2, 2, 1, 3, all_but_attention},
      {kNormed, 2048, 2, 2, 2, 3, nothing},
      {kWide, 4096, 2, 2, 1, 3, layer},
      {kWide, 4096, 1, 1, 1, 1, layer, true},
      {kLlama, 4096, 2, 2, 1, 3, nothing, false, /*mlp_tiles=*/0},
      {kWindow, 4096, 1, 1, 1, 3, nothing, true, 0},
      {kWindow, 4096, 2, 2, 1, 3, layer, false, 1},
      {kWindow, 4096, 2, 2, 1, 3, all_but_attention, false, {}, /*loss_tiles=*/1},
      {kUneven, 6000, 3, 3, 1, 3, layer},  // rank 0 has 3 query heads of 2 key heads
      {kUneven, 6000, 3, 3, 1, 3, nothing},
      {kUneven, 3000, 3, 3, 2, 3, all_but_attention, true},
      {kVocabulary, 64, 2, 2, 1, 1, layer},  // the embedding's gradient is the most there is
      {kVocabulary, 64, 1, 1, 1, 3, layer},
      {kTied, 64, 2, 2, 1, 1, layer},
      {kTied, 64, 1, 1, 1, 0, layer},
      {kDeep, 4096, 2, 2, 1, 3, layer, false, {}, {}, /*on_disk=*/true},
      {kDeep, 4096, 2, 2, 1, 3, all_but_attention, false, {}, {}, true},
      {kDeep, 4096, 1, 1, 1, 3, all_but_attention, true, {}, {}, true},
  };
  for (const Case& c : cases) {
    const auto plan = plan::plan_memory(setting_of(c));
    const int64_t peak = measured(c);
    const double ratio = double(plan.device.total() - plan.device[Part::base]) / double(peak);
    EXPECT_GT(ratio, 0.92) << peak << " measured; " << describe(c, plan);
    EXPECT_LT(ratio, 1.08) << peak << " measured; " << describe(c, plan);
  }
}

}  // namespace
}  // namespace trireme::train
