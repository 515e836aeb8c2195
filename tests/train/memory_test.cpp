#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>

#include "support/ranks.h"
#include "support/recording_allocator.h"
#include "trireme/model/weights.h"
#include "trireme/train/engine.h"

// What no step may allocate, and what partitioning must save.
namespace trireme::train {
namespace {

using nlohmann::json;

model::Config config(int64_t hidden, int64_t layers, int64_t vocabulary) {
  return model::parse_config({{"model_type", "llama"},
                              {"vocab_size", vocabulary},
                              {"hidden_size", hidden},
                              {"intermediate_size", 2 * hidden},
                              {"num_hidden_layers", layers},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 2}});
}

sp::SlicedBatch batch(int64_t B, int64_t S, int64_t vocabulary, const comm::Mesh& mesh, bool packed) {
  at::Tensor tokens = at::arange(B * S).remainder(vocabulary).view({B, S});
  sp::SequenceBatch whole{tokens, tokens, {}, {}};
  for (int64_t b = 0; packed && b < B; ++b) whole.document_lengths.push_back({S / 3, S - S / 3});
  return sp::slice_batch(whole, mesh.sequence.rank(), mesh.sequence.size());
}

// Takes two steps on two threads; one of them calls `before_model` and `before_steps`.
void run_steps(const model::Config& c, zero::Stage stage, const model::ForwardOptions& forward, int64_t B,
               int64_t S, const std::function<void()>& before_model,
               const std::function<void()>& before_steps) {
  std::barrier ready(2);
  tests::run_ranks(2, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 2);
    if (connection.rank() == 0) before_model();
    ready.arrive_and_wait();
    // As lean as it goes: nothing ahead, nothing kept.
    model::Decoder::Settings lean;
    lean.schedule = {.prefetch_bucket_size = 0, .max_reuse_distance = 0, .overlap_reductions = false};
    model::Decoder decoder(c, {.stage = stage}, mesh, lean);
    model::initialize_weights(decoder, 1);
    Engine engine(decoder, mesh, forward, 1.0);
    ready.arrive_and_wait();
    if (connection.rank() == 0) before_steps();
    ready.arrive_and_wait();
    for (int step = 0; step < 2; ++step)
      engine.step({batch(B, S, c.vocabulary_size, mesh, true)}, zero::decayed_and_not({}));
  });
}

TEST(Memory, NoTensorOfAllLogitsOrAllScoresIsEverMade) {
  const int64_t B = 2, S = 4096, s = S / 2, V = 1024;
  for (auto recompute :
       {model::Recompute::layer, model::Recompute::all_but_attention, model::Recompute::nothing})
    for (int64_t window : {0, 100}) {
      tests::RecordingAllocator allocator;
      auto c = config(16, 1, V);
      c.windows.assign(1, window);
      run_steps(
          c, zero::Stage::parameters, {.recompute = recompute, .loss_tiles = 32}, B, S, [] {},
          [&] { allocator.reset(); });
      EXPECT_GT(allocator.largest(), 0);
      EXPECT_LT(allocator.largest(), B * s * V * 4 / 8);
      EXPECT_LT(allocator.largest(), S * S * 4 / 8);
    }
}

TEST(Memory, StageThreeHalvesTheStatesOfTwoRanks) {
  const auto c = config(128, 12, 256);
  const auto peak_of = [&](zero::Stage stage) {
    tests::RecordingAllocator allocator;
    const auto watch_one_rank = [&] {
      allocator.watch_this_thread();
      allocator.reset();
    };
    run_steps(c, stage, {}, 1, 16, watch_one_rank, [] {});
    return allocator.peak();
  };
  const int64_t replicated = peak_of(zero::Stage::replicated), partitioned = peak_of(zero::Stage::parameters);
  int64_t parameters = 0, largest_unit = 0;
  for (const auto& plan : model::plan_units(c)) {
    const zero::FlatLayout layout(plan.specs(), 2);
    parameters += layout.padded();
    largest_unit = std::max(largest_unit, layout.padded() * 4);
  }
  // Parameter, gradient and two moments of each: most of what there is.
  EXPECT_GT(double(16 * parameters), 0.8 * double(replicated));
  // What is beyond half is one unit: its gathered values, its gradients as autograd forms them, flat, and as
  // they arrive.
  EXPECT_LT(partitioned, replicated / 2 + 4 * largest_unit);
}

TEST(Memory, StepsDoNotAccumulateMemory) {
  tests::RecordingAllocator allocator;
  const auto c = config(32, 2, 64);
  tests::run_ranks(1, [&](const comm::Connection& connection) {
    const auto mesh = comm::Mesh::create(connection, 1);
    model::Decoder decoder(c, {}, mesh);
    model::initialize_weights(decoder, 1);
    Engine engine(decoder, mesh, {}, 1.0);
    const auto one = batch(1, 64, 64, mesh, false);
    const auto step = [&] { engine.step({one}, zero::decayed_and_not({})); };
    step();
    step();
    const int64_t live = allocator.live();
    for (int i = 0; i < 5; ++i) step();
    EXPECT_EQ(allocator.live(), live);
  });
}

}  // namespace
}  // namespace trireme::train
