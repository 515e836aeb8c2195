#include "trireme/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/python.h"
#include "trireme/core/safetensors_writer.h"

namespace trireme::data {
namespace {

using core::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;

/// One tensor to write, with its values' bytes.
struct Tensor {
  core::TensorSpec spec;
  std::vector<std::byte> bytes;
};

template <class Value>
Tensor tensor(std::string name, DType dtype, std::vector<Value> values, std::vector<int64_t> shape = {}) {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  std::vector<std::byte> bytes(values.size() * sizeof(Value));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return {{std::move(name), dtype, std::move(shape)}, std::move(bytes)};
}

class TokenFileTest : public ::testing::Test {
 protected:
  TokenFile open(const std::vector<Tensor>& tensors) {
    std::vector<core::TensorSpec> specs;
    for (const auto& entry : tensors) specs.push_back(entry.spec);
    core::SafetensorsWriter writer(path_, specs);
    for (const auto& entry : tensors) writer.write(entry.spec.name, entry.bytes);
    writer.finish();
    return TokenFile(path_);
  }

  std::string error_of(const std::vector<Tensor>& tensors) {
    const std::string message = value_error([&] { open(tensors); });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    return message;
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "corpus.safetensors";
};

const Tensor kTokens = tensor<int32_t>("tokens", DType::i32, {5, 6, 7, 8, 9});
const Tensor kStarts = tensor<int64_t>("document_starts", DType::i64, {0, 2});

std::vector<int64_t> read(const TokenFile& file, int64_t begin, size_t count, int64_t vocabulary = 1 << 20) {
  std::vector<int64_t> out(count);
  file.read_tokens(begin, out, vocabulary);
  return out;
}

TEST_F(TokenFileTest, ReadsDocumentsTokensAndMask) {
  write_token_file(path_, std::vector<int32_t>{5, 6, 7, 8, 9}, std::vector<int64_t>{0, 2},
                   std::vector<uint8_t>{1, 0, 0, 1, 1});
  TokenFile opened(path_);
  const TokenFile file(std::move(opened));
  EXPECT_EQ(file.token_count(), 5);
  ASSERT_EQ(file.documents(), 2);
  EXPECT_EQ(file.document(0).begin, 0);
  EXPECT_EQ(file.document(0).end, 2);
  EXPECT_EQ(file.document(1).size(), 3);
  EXPECT_THAT(read(file, 1, 3), ElementsAre(6, 7, 8));
  ASSERT_TRUE(file.has_loss_mask());
  std::vector<uint8_t> mask(3);
  file.read_loss_mask(0, mask);
  EXPECT_THAT(mask, ElementsAre(1, 0, 0));
}

TEST_F(TokenFileTest, ReadsEveryTokenType) {
  EXPECT_THAT(read(open({tensor<uint16_t>("tokens", DType::u16, {1, 65535}),
                         tensor<int64_t>("document_starts", DType::i64, {0})}),
                   0, 2),
              ElementsAre(1, 65535));
  EXPECT_THAT(read(open({tensor<uint32_t>("tokens", DType::u32, {1, 4294967295}),
                         tensor<int64_t>("document_starts", DType::i64, {0})}),
                   0, 2, int64_t{1} << 32),
              ElementsAre(1, 4294967295));
  EXPECT_THAT(read(open({tensor<int64_t>("tokens", DType::i64, {1, int64_t{1} << 40}),
                         tensor<int64_t>("document_starts", DType::i64, {0})}),
                   0, 2, INT64_MAX),
              ElementsAre(1, int64_t{1} << 40));
}

TEST_F(TokenFileTest, CountsEveryTokenWithoutAMask) {
  const auto file = open({kTokens, kStarts});
  EXPECT_FALSE(file.has_loss_mask());
  std::vector<uint8_t> mask(5, 7);
  file.read_loss_mask(0, mask);
  EXPECT_THAT(mask, ::testing::Each(1));
}

TEST_F(TokenFileTest, ReadsFilesWhoseTensorsLieUnaligned) {
  const std::string header =
      R"({"loss_mask": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},)"
      R"("tokens": {"dtype": "I32", "shape": [3], "data_offsets": [3, 15]},)"
      R"("document_starts": {"dtype": "I64", "shape": [2], "data_offsets": [15, 31]}})";
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  text[1] = static_cast<char>(header.size() >> 8);
  text += header + std::string("\1\1\0", 3);
  const int32_t tokens[] = {10, 11, 12};
  const int64_t starts[] = {0, 2};
  text.append(reinterpret_cast<const char*>(tokens), sizeof tokens);
  text.append(reinterpret_cast<const char*>(starts), sizeof starts);
  const TokenFile file(testing::write_text(path_, text));
  EXPECT_THAT(read(file, 0, 3), ElementsAre(10, 11, 12));
  EXPECT_EQ(file.document(1).begin, 2);
}

TEST_F(TokenFileTest, NamesATokenOutsideTheVocabulary) {
  const auto file = open({kTokens, kStarts});
  EXPECT_THAT(value_error([&] { read(file, 1, 4, 8); }),
              AllOf(HasSubstr("vocabulary of 8; got 8 at position 3 of"), HasSubstr("corpus.safetensors")));
  EXPECT_THAT(read(file, 0, 3, 8), ElementsAre(5, 6, 7));
  const auto negative = open(
      {tensor<int32_t>("tokens", DType::i32, {3, -1}), tensor<int64_t>("document_starts", DType::i64, {0})});
  EXPECT_THAT(value_error([&] { read(negative, 0, 2); }), HasSubstr("got -1 at position 1"));
}

TEST_F(TokenFileTest, ReadsInsideTheFileOnly) {
  const auto file = open({kTokens, kStarts});
  EXPECT_TRUE(read(file, 5, 0).empty());
  EXPECT_THAT(value_error([&] { read(file, 4, 2); }), HasSubstr("got 2 from 4 on, of 5"));
  EXPECT_THAT(value_error([&] { read(file, -1, 2); }), HasSubstr("got 2 from -1 on"));
  EXPECT_THAT(value_error([&] { read(file, INT64_MAX, 2); }), HasSubstr("inside the file"));
  EXPECT_THAT(value_error([&] { file.document(2); }), HasSubstr("below 2; got 2"));
  EXPECT_THAT(value_error([&] { file.document(-1); }), HasSubstr("below 2; got -1"));
}

TEST_F(TokenFileTest, RefusesBordersThatAreNone) {
  const auto starts = [](std::vector<int64_t> values) {
    return tensor<int64_t>("document_starts", DType::i64, std::move(values));
  };
  EXPECT_THAT(error_of({kTokens, tensor<int64_t>("document_starts", DType::i64, {}, {0})}),
              HasSubstr("begin with 0; got none"));
  EXPECT_THAT(error_of({kTokens, starts({1, 2})}), HasSubstr("begin with 0; got 1"));
  EXPECT_THAT(error_of({kTokens, starts({0, 2, 2})}), HasSubstr("got 2 and then 2 at 2"));
  EXPECT_THAT(error_of({kTokens, starts({0, 3, 2})}), HasSubstr("got 3 and then 2 at 2"));
  EXPECT_THAT(error_of({kTokens, starts({0, 5})}), HasSubstr("below the token count; got 5 of 5"));
  EXPECT_THAT(error_of({kTokens}), HasSubstr("'document_starts'"));
  EXPECT_THAT(error_of({kTokens, tensor<int32_t>("document_starts", DType::i32, {0})}),
              HasSubstr("I64; got I32"));
  EXPECT_THAT(error_of({kTokens, tensor<int64_t>("document_starts", DType::i64, {0, 1}, {1, 2})}),
              HasSubstr("one dimension; got 2"));
}

TEST_F(TokenFileTest, RefusesOtherTensors) {
  EXPECT_THAT(error_of({kStarts}), HasSubstr("'tokens'"));
  EXPECT_THAT(error_of({kStarts, tensor<int32_t>("tokens", DType::i32, {}, {0})}),
              HasSubstr("at least one token"));
  EXPECT_THAT(error_of({kStarts, tensor<float>("tokens", DType::f32, {1, 2, 3})}), HasSubstr("I64; got F32"));
  EXPECT_THAT(error_of({kTokens, kStarts, tensor<uint8_t>("loss_mask", DType::u8, {1})}),
              HasSubstr("got 1 for 5"));
  EXPECT_THAT(error_of({kTokens, kStarts, tensor<int8_t>("loss_mask", DType::i8, {1, 1, 1, 1, 1})}),
              HasSubstr("U8; got I8"));
  EXPECT_THAT(error_of({kTokens, kStarts, tensor<uint8_t>("loss_masks", DType::u8, {1, 1, 1, 1, 1})}),
              AllOf(HasSubstr("'loss_masks'"), HasSubstr("is loss_mask meant?")));
}

TEST_F(TokenFileTest, RefusesMasksThatAreNeitherZeroNorOne) {
  const auto file = open({kTokens, kStarts, tensor<uint8_t>("loss_mask", DType::u8, {1, 0, 1, 255, 1})});
  std::vector<uint8_t> mask(3);
  file.read_loss_mask(0, mask);
  EXPECT_THAT(value_error([&] { file.read_loss_mask(2, mask); }), HasSubstr("got 255 at position 3"));
}

TEST_F(TokenFileTest, TheWriterRefusesWhatTheReaderWould) {
  const auto write = [&](std::vector<int32_t> tokens, std::vector<int64_t> starts,
                         std::vector<uint8_t> mask) {
    return value_error([&] { write_token_file(path_, tokens, starts, mask); });
  };
  EXPECT_THAT(write({}, {0}, {}), HasSubstr("at least one token"));
  EXPECT_THAT(write({1}, {}, {}), HasSubstr("begin with 0"));
  EXPECT_THAT(write({1, 2}, {0, 2}, {}), HasSubstr("below the token count"));
  EXPECT_THAT(write({1, 2}, {0}, {1}), HasSubstr("got 1 for 2"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TokenFileTest, ReadsWhatPythonWritesAndBack) {
  write_token_file(path_, std::vector<int32_t>{5, 6, 7}, std::vector<int64_t>{0, 2},
                   std::vector<uint8_t>{1, 0, 1});
  const auto made = directory_ / "python.safetensors";
  const auto result = testing::run_python("token_file_check.py", path_.string() + " " + made.string());
  ASSERT_EQ(result.status, 0) << result.output;
  const TokenFile file(made);
  EXPECT_EQ(file.documents(), 2);
  EXPECT_THAT(read(file, 0, 5), ElementsAre(1, 2, 3, 40000, 5));
  std::vector<uint8_t> mask(5);
  file.read_loss_mask(0, mask);
  EXPECT_THAT(mask, ElementsAre(0, 1, 1, 0, 1));
}

}  // namespace
}  // namespace trireme::data
