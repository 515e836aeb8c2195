#include "trireme/train/checkpoint_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/files.h"
#include "trireme/core/check.h"

namespace trireme::train {
namespace {

using core::Residence;
using nlohmann::json;
using ::testing::HasSubstr;

CheckpointOptions read(const json& value) {
  const json whole{{"activation_checkpointing", value}};
  return read_checkpoint_options(ObjectReader(whole, "", {"activation_checkpointing"}));
}

std::string refusal(const json& value) {
  try {
    read(value);
  } catch (const core::ValueError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckpointOptions, DefaultsAreDeepSpeedsOwn) {
  const auto checkpoint = read(json::object());
  EXPECT_EQ(checkpoint.policy, CheckpointPolicy::layer);
  EXPECT_EQ(checkpoint.every, 1);
  const auto& offload = checkpoint.offload;
  EXPECT_EQ(offload.device, Residence::device);
  EXPECT_FALSE(offload.inputs_only);
  EXPECT_TRUE(offload.use_pin_memory);
  EXPECT_TRUE(offload.use_streams);
  EXPECT_EQ(offload.min_offload_bytes, 1024);
  EXPECT_EQ(offload.max_fwd_stash_count, 2);
  EXPECT_EQ(offload.max_cpu_buffer_pool_count, 64);
  EXPECT_EQ(offload.keep_last_count, 1);
}

TEST(CheckpointOptions, AreWrittenAsTheyAreRead) {
  const json given{{"policy", "keep_attention"},
                   {"every", 3},
                   {"offload",
                    {{"device", "nvme"},
                     {"nvme_path", "/disk"},
                     {"io", "threads"},
                     {"what", "inputs"},
                     {"use_pin_memory", false},
                     {"use_streams", false},
                     {"min_offload_bytes", 5},
                     {"max_fwd_stash_count", 6},
                     {"max_cpu_buffer_pool_count", 7},
                     {"keep_last_count", 0}}}};
  EXPECT_EQ(checkpoint_options_to_json(read(given)), given);
}

TEST(CheckpointOptions, RefuseWhatCannotBe) {
  EXPECT_THAT(refusal({{"every", 0}}), HasSubstr("activation_checkpointing.every must be"));
  EXPECT_THAT(refusal({{"policy", "some"}}), HasSubstr("activation_checkpointing.policy must be"));
  EXPECT_THAT(refusal({{"offload", {{"device", "nvme"}}}}),
              HasSubstr("activation_checkpointing.offload.nvme_path must name a directory"));
  EXPECT_THAT(refusal({{"offload", {{"keep_last_count", -1}}}}), HasSubstr("keep_last_count must be"));
  EXPECT_THAT(refusal({{"offload", {{"keep_last_cuont", 1}}}}), HasSubstr("did you mean"));
  EXPECT_THAT(refusal({{"policy", "none"}, {"offload", {{"device", "cpu"}}}}),
              HasSubstr("activation_checkpointing.offload moves what checkpoints keep"));
}

TEST(CheckpointOptions, TheDirectoryMustBeThere) {
  const testing::TemporaryDirectory directory;
  const auto with = [](const std::string& path) {
    return read({{"offload", {{"device", "nvme"}, {"nvme_path", path}}}});
  };
  check_offload_path(with(directory.path()));
  EXPECT_THROW(check_offload_path(with(std::string(directory.path()) + "/none")), core::ValueError);
}

}  // namespace
}  // namespace trireme::train
