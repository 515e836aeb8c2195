#include "trireme/plan/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/errors.h"

namespace trireme::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// As the weights' index files count them: total_size / 2.
TEST(Shapes, HaveTheParametersOfTheirModels) {
  const std::map<std::string_view, int64_t> counts{{"meta-llama-8b", 8'030'261'248},
                                                   {"meta-llama-70b", 70'553'706'496},
                                                   {"qwen3-8b", 8'190'735'360},
                                                   {"qwen3-32b", 32'762'123'264}};
  EXPECT_EQ(shape_names().size(), counts.size());
  for (const auto name : shape_names())
    EXPECT_EQ(parameter_count(model::parse_config(shape(name))), counts.at(name)) << name;
}

TEST(Shapes, AreListedWhereANameIsUnknown) {
  EXPECT_THAT(testing::value_error([] { shape("gpt-5"); }),
              AllOf(HasSubstr("meta-llama-8b, meta-llama-70b, qwen3-8b, qwen3-32b; got gpt-5")));
}

TEST(Shapes, OfGptHaveItsSize) {
  for (const auto& [layers, hidden_size] :
       {std::pair<int64_t, int64_t>{65, 4096}, {50, 8192}, {128, 25600}}) {
    const auto config = model::parse_config(gpt_shape(layers, hidden_size));
    const double expected =
        12.0 * double(layers) * double(hidden_size) * double(hidden_size) + 50304.0 * double(hidden_size);
    EXPECT_NEAR(double(parameter_count(config)) / expected, 1, 0.005) << hidden_size;
    EXPECT_EQ(config.head_size, 128);
  }
}

}  // namespace
}  // namespace trireme::plan
