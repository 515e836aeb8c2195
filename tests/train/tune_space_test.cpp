#include "trireme/train/tune_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace trireme::train {
namespace {

using core::Residence;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Options options_with(const json& zero = json::object()) {
  return parse_options({{"model",
                         {{"config",
                           {{"model_type", "llama"},
                            {"vocab_size", 100},
                            {"hidden_size", 16},
                            {"intermediate_size", 32},
                            {"num_hidden_layers", 2},
                            {"num_attention_heads", 2}}}}},
                        {"data", {{"path", "d"}, {"sequence_length", 64}}},
                        {"steps", 5},
                        {"zero_optimization", zero}});
}

constexpr ModelSizes kSizes{.all = 10'000'000, .largest_unit = 1'234'567, .two_largest_units = 2'000'000};

TuneSpace space_of(const json& zero, const TuneMachine& machine = {}) {
  return {options_with(zero), kSizes, machine};
}

TEST(ModelSizes, CountTheElementsOfUnits) {
  const ModelSizes sizes = model_sizes(options_with());
  const int64_t embedding = 100 * 16, layer = 4 * 16 * 16 + 3 * 16 * 32 + 2 * 16, norm = 16;
  EXPECT_EQ(sizes.all, 2 * embedding + 2 * layer + norm);
  EXPECT_EQ(sizes.largest_unit, layer);
  EXPECT_EQ(sizes.two_largest_units, 2 * layer);
}

TEST(TuneSpaces, BeginWithWhatIsGiven) {
  const auto given = space_of({{"stage3_max_live_parameters", 7}, {"offload_param", {{"device", "cpu"}}}});
  EXPECT_EQ(given.given(), (TunedOptions{.max_live_parameters = 7,
                                         .prefetch_bucket_size = 50'000'000,
                                         .optimizer = Residence::device,
                                         .parameters = Residence::host}));
  EXPECT_FALSE(given.given_is_default());
  EXPECT_TRUE(space_of(json::object()).given_is_default());
}

TEST(TuneSpaces, HaveRoundLimitsThatUnitsFitUnder) {
  const auto space = space_of(json::object());
  std::vector<int64_t> limits, buckets;
  for (const auto& options : space.around(space.given(), Knob::max_live_parameters)) {
    limits.push_back(options.max_live_parameters);
    EXPECT_EQ(options.prefetch_bucket_size, space.given().prefetch_bucket_size);
  }
  EXPECT_THAT(limits, ElementsAre(1'000'000'000, 5'200'000, 2'100'000, 1'300'000));
  for (const auto& options : space.around(space.given(), Knob::prefetch_bucket_size))
    buckets.push_back(options.prefetch_bucket_size);
  EXPECT_THAT(buckets, ElementsAre(50'000'000, 2'100'000, 1'300'000, 0));
}

TEST(TuneSpaces, LeaveOutWhatTheStageDoesNotHave) {
  const auto first = space_of({{"stage", 1}}), none = space_of({{"stage", 0}});
  for (const Knob knob : {Knob::max_live_parameters, Knob::prefetch_bucket_size, Knob::offload_parameters})
    EXPECT_THAT(first.around(first.given(), knob), IsEmpty());
  EXPECT_EQ(first.around(first.given(), Knob::offload_optimizer).size(), 2u);
  EXPECT_THAT(none.around(none.given(), Knob::offload_optimizer), IsEmpty());
}

TEST(TuneSpaces, OffloadToADiskWhereThereIsOne) {
  const auto places = [](const TuneSpace& space) {
    std::vector<Residence> all;
    for (const auto& options : space.around(space.given(), Knob::offload_parameters))
      all.push_back(options.parameters);
    return all;
  };
  EXPECT_THAT(places(space_of(json::object())), ElementsAre(Residence::device, Residence::host));
  EXPECT_THAT(places(space_of(json::object(), {.nvme_path = "/nvme"})),
              ElementsAre(Residence::device, Residence::host, Residence::disk));
  EXPECT_THAT(places(space_of({{"offload_param", {{"device", "nvme"}, {"nvme_path", "/own"}}}})),
              ElementsAre(Residence::device, Residence::host, Residence::disk));
}

TEST(TuneSpaces, KnowWhatIsTheSame) {
  const auto cpu = space_of(json::object()), gpu = space_of(json::object(), {.computes_on_cpu = false});
  TunedOptions other = cpu.given();
  other.max_live_parameters = other.prefetch_bucket_size = 20'000'000;  // more than there are
  EXPECT_TRUE(cpu.same(cpu.given(), other));
  other.parameters = Residence::host;
  EXPECT_TRUE(cpu.same(cpu.given(), other));
  EXPECT_FALSE(gpu.same(gpu.given(), other));
  other.max_live_parameters = 9'000'000;
  EXPECT_FALSE(cpu.same(cpu.given(), other));
}

TEST(TuneSpaces, OverrideWhatDiffers) {
  const auto space = space_of({{"offload_param", {{"device", "cpu"}}}}, {.nvme_path = "12"});
  EXPECT_THAT(space.overrides(space.given()), IsEmpty());
  EXPECT_EQ(difference(space.given(), space.given()), "");
  const TunedOptions options{5, 6, Residence::disk, Residence::device};
  EXPECT_THAT(space.overrides(options), ElementsAre("zero_optimization.stage3_max_live_parameters=5",
                                                    "zero_optimization.stage3_prefetch_bucket_size=6",
                                                    "zero_optimization.offload_optimizer.device=nvme",
                                                    "zero_optimization.offload_optimizer.nvme_path=\"12\"",
                                                    "zero_optimization.offload_param.device=none"));
  EXPECT_EQ(
      difference(options, space.given()),
      "stage3_max_live_parameters 5, stage3_prefetch_bucket_size 6, offload_optimizer nvme, offload_param "
      "none");
}

}  // namespace
}  // namespace trireme::train
