#include "trireme/model/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/python.h"

namespace trireme::model {
namespace {

using core::DType;
using core::TensorSpec;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

/// Writes a file of float tensors; each value is the place of the tensor in the file.
void write_weights(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors) {
  core::SafetensorsWriter writer(path, tensors, weight_file_metadata());
  float value = 0;
  for (const auto& tensor : tensors) {
    const std::vector<float> values(static_cast<size_t>(*core::tensor_bytes(tensor.dtype, tensor.shape)) / 4,
                                    value++);
    writer.write(tensor.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

class WeightFilesTest : public ::testing::Test {
 protected:
  void write_index(const json& map) { write_text(index_, json{{"weight_map", map}}.dump()); }
  std::string error() {
    return value_error([&] { WeightFiles::open(directory_.path()); });
  }

  TemporaryDirectory directory_;
  std::filesystem::path index_ = directory_ / "model.safetensors.index.json";
};

TEST_F(WeightFilesTest, OpensASingleFile) {
  write_weights(directory_ / "model.safetensors", {{"b", DType::f32, {2}}, {"a", DType::f32, {3, 1}}});
  const auto weights = WeightFiles::open(directory_.path());
  EXPECT_THAT(weights.names(), ElementsAre("a", "b"));
  const WeightLocation* found = weights.find("a");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->tensor->shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(found->file->bytes(*found->tensor).size(), 12u);
  EXPECT_EQ(weights.find("c"), nullptr);
  EXPECT_THAT(value_error([&] { weights.at("c"); }),
              AllOf(HasSubstr("'c'"), HasSubstr(directory_.path().string())));
}

TEST_F(WeightFilesTest, OpensWhatTheIndexLists) {
  write_weights(directory_ / "x1.safetensors", {{"a", DType::f32, {2}}, {"unlisted", DType::f32, {1}}});
  write_weights(directory_ / "x2.safetensors", {{"b", DType::f32, {5}}});
  write_index({{"a", "x1.safetensors"}, {"b", "x2.safetensors"}});
  WeightFiles opened = WeightFiles::open(directory_.path());
  const WeightFiles weights(std::move(opened));
  EXPECT_THAT(weights.names(), ElementsAre("a", "b"));
  EXPECT_THAT(weights.at("b").file->name(), HasSubstr("x2.safetensors"));
  EXPECT_EQ(weights.at("b").tensor->bytes(), 20);
}

TEST_F(WeightFilesTest, PrefersTheSingleFileAsTransformersDoes) {
  write_weights(directory_ / "model.safetensors", {{"a", DType::f32, {1}}});
  write_text(index_, "broken");
  EXPECT_THAT(WeightFiles::open(directory_.path()).names(), ElementsAre("a"));
}

TEST_F(WeightFilesTest, FollowsLinksToFilesElsewhere) {
  TemporaryDirectory blobs;
  write_weights(blobs / "blob", {{"a", DType::f32, {1}}});
  std::filesystem::create_symlink(blobs / "blob", directory_ / "model.safetensors");
  EXPECT_THAT(WeightFiles::open(directory_.path()).names(), ElementsAre("a"));
}

TEST_F(WeightFilesTest, SaysWhatIsMissing) {
  EXPECT_THAT(value_error([&] { WeightFiles::open(directory_ / "none"); }), HasSubstr("none"));
  EXPECT_THAT(error(), AllOf(HasSubstr("model.safetensors"), HasSubstr("got neither")));
  write_text(directory_ / "pytorch_model.bin", "x");
  EXPECT_THAT(error(), AllOf(HasSubstr("convert pytorch_model.bin"), HasSubstr("save_pretrained")));
}

TEST_F(WeightFilesTest, RefusesAnIndexThatDoesNotHold) {
  write_weights(directory_ / "x.safetensors", {{"a", DType::f32, {1}}});
  write_index({{"a", "y.safetensors"}});
  EXPECT_THAT(error(), AllOf(HasSubstr("y.safetensors"), HasSubstr("No such file")));
  write_index({{"a", "x.safetensors"}, {"b", "x.safetensors"}});
  EXPECT_THAT(error(), AllOf(HasSubstr("no 'b' in"), HasSubstr("x.safetensors"), HasSubstr("index.json")));
  for (const json& file :
       {json("../x.safetensors"), json("/tmp/x.safetensors"), json("sub/x.safetensors"), json("x.bin"),
        json(""), json(".."), json(3), json(nullptr), json(std::string(300, 'x') + ".safetensors"),
        json(std::string("x\0.safetensors", 14))}) {
    write_index({{"a", file}});
    EXPECT_THAT(error(), HasSubstr("of its own directory")) << file;
  }
  write_index(json::object());
  EXPECT_THAT(error(), HasSubstr("`weight_map`"));
  for (const char* text : {"[]", "{}", "{\"weight_map\": []}", "3"}) {
    write_text(index_, text);
    EXPECT_THAT(error(), HasSubstr("`weight_map`")) << text;
  }
  write_text(index_, "{");
  EXPECT_THAT(error(), HasSubstr("must be valid JSON"));
}

TEST_F(WeightFilesTest, RefusesATruncatedFile) {
  const auto path = directory_ / "model.safetensors";
  write_weights(path, {{"a", DType::f32, {100}}});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(error(), AllOf(HasSubstr("inside the file"), HasSubstr("'a'"), HasSubstr(path.string())));
}

TEST(WeightPlan, TakesOneFileWhereEverythingFits) {
  const auto plan = plan_weight_files({{"a", DType::f32, {4}}, {"b", DType::bf16, {4}}}, 24);
  ASSERT_EQ(plan.files.size(), 1u);
  EXPECT_EQ(plan.files[0].name, "model.safetensors");
  EXPECT_EQ(plan.files[0].tensors.size(), 2u);
  EXPECT_FALSE(plan.index.has_value());
  EXPECT_EQ(plan_weight_files({}, 1).files.size(), 1u);
}

TEST(WeightPlan, GivesALargeTensorItsOwnFile) {
  const auto plan = plan_weight_files({{"a", DType::u8, {4}},
                                       {"b", DType::u8, {100}},
                                       {"c", DType::u8, {6}},
                                       {"d", DType::u8, {5}},
                                       {"e", DType::u8, {0}}},
                                      10);
  ASSERT_EQ(plan.files.size(), 4u);
  EXPECT_EQ(plan.files[1].name, "model-00002-of-00004.safetensors");
  EXPECT_EQ(plan.files[3].tensors.size(), 2u);
  ASSERT_TRUE(plan.index.has_value());
  EXPECT_EQ((*plan.index)["metadata"]["total_size"], 115);
  EXPECT_EQ((*plan.index)["weight_map"]["c"], "model-00003-of-00004.safetensors");
  EXPECT_NO_THROW(parse_weight_index(*plan.index, "plan"));
}

TEST(WeightPlan, RefusesBadTensors) {
  EXPECT_THAT(value_error([] {
                plan_weight_files({{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}, 9);
              }),
              HasSubstr("'a' twice"));
  EXPECT_THAT(value_error([] {
                plan_weight_files({{"a", DType::u8, {-1}}}, 9);
              }),
              HasSubstr("memory can hold"));
  EXPECT_THAT(value_error([] { plan_weight_files({}, 0); }), HasSubstr("limit of 0"));
}

TEST_F(WeightFilesTest, TransformersLoadsWhatThePlanWrote) {
  const auto shapes = testing::run_python("weight_files_check.py", "make " + directory_.path().string());
  ASSERT_EQ(shapes.status, 0) << shapes.output;
  const auto source = WeightFiles::open(directory_ / "source");
  std::vector<TensorSpec> tensors;
  for (const auto& name : source.names()) {
    const auto* tensor = source.at(name).tensor;
    tensors.push_back({name, tensor->dtype, tensor->shape});
  }
  for (const int64_t limit : {int64_t{1} << 30, int64_t{20000}}) {
    const auto plan = plan_weight_files(tensors, limit);
    EXPECT_EQ(plan.files.size() > 1, limit == 20000);
    const auto copy = directory_ / (limit == 20000 ? "split" : "whole");
    write_text(copy / "config.json", testing::read_text(directory_ / "source/config.json"));
    if (plan.index) write_text(copy / "model.safetensors.index.json", plan.index->dump());
    for (const auto& planned : plan.files) {
      core::SafetensorsWriter writer(copy / planned.name, planned.tensors, weight_file_metadata());
      for (const auto& tensor : planned.tensors) {
        const auto& from = source.at(tensor.name);
        writer.write(tensor.name, from.file->bytes(*from.tensor));
      }
      writer.finish();
    }
    EXPECT_EQ(WeightFiles::open(copy).names(), source.names());
  }
  const auto result = testing::run_python("weight_files_check.py", "compare " + directory_.path().string());
  EXPECT_EQ(result.status, 0) << result.output;
}

}  // namespace
}  // namespace trireme::model
