#include "trireme/core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "x.safetensors");
}

/// The error for a file whose header has these entries, over `data_bytes` of data.
std::string error_of(const std::string& entries, size_t data_bytes = 0) {
  const std::string message = value_error([&] { parse(file_of("{" + entries + "}", data_bytes)); });
  EXPECT_THAT(message, HasSubstr("x.safetensors"));
  return message;
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirBytes) {
  const auto header = parse(file_of(R"({"a": {"dtype": "I16", "shape": [2, 3], "data_offsets": [4, 16]},
      "__metadata__": {"format": "pt"}, "b": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
      "e": {"dtype": "BOOL", "shape": [0, 7], "data_offsets": [16, 16]}})",
                                    16));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[1].dtype, DType::i16);
  EXPECT_EQ(header.tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].begin, 4);
  EXPECT_EQ(header.tensors[1].bytes(), 12);
  EXPECT_EQ(header.tensors[2].bytes(), 0);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, TakesAnEmptyFileOfTensorsAndPaddingSpaces) {
  EXPECT_TRUE(parse(file_of("{}      ", 0)).tensors.empty());
}

TEST(SafetensorsHeader, RefusesALengthThatIsNotThere) {
  std::string file(100, ' ');
  const uint64_t claimed = 1'000'000'000;
  std::memcpy(file.data(), &claimed, 8);
  file[8] = '{';
  EXPECT_THAT(
      value_error([&] { parse(file); }),
      AllOf(HasSubstr("1000000000 bytes claimed in x.safetensors of 100 bytes"), HasSubstr("cut off")));
  std::memset(file.data(), 0xff, 8);
  EXPECT_THAT(value_error([&] { parse(file); }), HasSubstr("must lie inside its file"));
  EXPECT_THAT(value_error([&] { parse("1234567"); }), HasSubstr("begins with 8 bytes"));
  EXPECT_THAT(value_error([&] { parse(""); }), HasSubstr("got 0 bytes"));
  EXPECT_THAT(value_error([&] { parse(std::string(8, '\0')); }), HasSubstr("begins with '{'"));
}

TEST(SafetensorsHeader, KnowsWhatIsNoSafetensorsFileAtAll) {
  EXPECT_EQ(value_error([&] { parse("Dear diary, today I wrote a trainer.\n"); }),
            "[core] a safetensors file begins with '{' behind 8 bytes of header length; got 'Dear diar' in "
            "x.safetensors, which is no safetensors file");
}

TEST(SafetensorsHeader, RefusesJsonThatIsNone) {
  EXPECT_THAT(value_error([&] { parse(file_of("[1, 2]", 0)); }), HasSubstr("begins with '{'"));
  EXPECT_THAT(error_of(R"("a": )"), HasSubstr("must be valid JSON"));
  EXPECT_THAT(error_of(R"("a": )" + std::string(1000000, '[')), HasSubstr("nest at most"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                          "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]})",
                       2),
              HasSubstr("'a' twice"));
  EXPECT_THAT(value_error([&] { parse(file_of(std::string("{}\0\0", 4), 0)); }),
              HasSubstr("must be valid JSON"));
}

TEST(SafetensorsHeader, RefusesEntriesOfAnotherForm) {
  EXPECT_THAT(error_of(R"("a": 3)"), AllOf(HasSubstr("described by an object"), HasSubstr("tensor 'a'")));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1]})", 1),
              HasSubstr("dtype, shape and data_offsets"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "strides": [1]})", 1),
              HasSubstr("'strides'"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U9", "shape": [1], "data_offsets": [0, 1]})", 1),
              AllOf(HasSubstr("'U9'"), HasSubstr("tensor 'a'")));
  EXPECT_THAT(error_of(R"("a": {"dtype": 8, "shape": [1], "data_offsets": [0, 1]})", 1),
              HasSubstr("is a string"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": 1, "data_offsets": [0, 1]})", 1),
              HasSubstr("an array"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]})", 1),
              HasSubstr("two integers"));
  EXPECT_THAT(error_of(R"("__metadata__": ["x"])"), HasSubstr("__metadata__ is an object of strings"));
  EXPECT_THAT(error_of(R"("__metadata__": {"step": 3})"), HasSubstr("number for 'step'"));
}

TEST(SafetensorsHeader, RefusesBadShapes) {
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]})", 1),
              HasSubstr("not negative; got -1"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]})", 1),
              HasSubstr("64-bit integers; got '1.0'"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [18446744073709551615], "data_offsets": [0, 1]})", 1),
              HasSubstr("64-bit integers"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]})"),
              HasSubstr("fewer than 2^60"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})", 4),
              HasSubstr("got 4 bytes where 8 are needed in tensor 'a' of x.safetensors"));
}

TEST(SafetensorsHeader, RefusesOffsetsThatDoNotTileTheFile) {
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]})", 1),
              HasSubstr("in order and not negative; got 1 to 0"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [1], "data_offsets": [-1, 0]})", 1),
              HasSubstr("in order and not negative"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]})", 8),
              HasSubstr("end 9 of 8 bytes"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                          "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]})",
                       7),
              AllOf(HasSubstr("without holes and overlaps"), HasSubstr("begin 3 where 4")));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                          "b": {"dtype": "U8", "shape": [4], "data_offsets": [5, 9]})",
                       9),
              HasSubstr("begin 5 where 4"));
  EXPECT_THAT(error_of(R"("a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]})", 6),
              HasSubstr("got 2 bytes behind the last one"));
}

TEST(SafetensorsHeader, TakesManyTensorsAtOnce) {
  // Anything that walks all tensors for each one would take minutes here.
  std::ostringstream header;
  header << "{";
  for (int i = 0; i < 100000; ++i)
    header << (i ? "," : "") << "\"" << i << R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" << i << ","
           << i + 1 << "]}";
  header << "}";
  EXPECT_EQ(parse(file_of(header.str(), 100000)).tensors.size(), 100000u);
}

TEST(SafetensorsHeader, KeepsBrokenNamesOutOfTheTerminal) {
  const std::string message = error_of(R"("\u001b[31m)" + std::string(5000, 'n') + R"(": 1)");
  EXPECT_THAT(message, HasSubstr("\\x1b[31m"));
  EXPECT_LT(message.size(), 400u);
}

TEST(SafetensorsFile, FindsBytesByName) {
  const TemporaryDirectory directory;
  const auto path = write_text(directory / "x.safetensors",
                               file_of(R"({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                             "b": {"dtype": "U16", "shape": [2], "data_offsets": [3, 7]}})",
                                       7));
  SafetensorsFile opened(path);
  const SafetensorsFile file(std::move(opened));
  ASSERT_NE(file.find("b"), nullptr);
  const auto bytes = file.bytes(file.at("b"));
  ASSERT_EQ(bytes.size(), 4u);
  EXPECT_EQ(std::to_integer<int>(bytes[0]), 3);
  EXPECT_EQ(std::to_integer<int>(bytes[3]), 6);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THAT(value_error([&] { file.at("c"); }), AllOf(HasSubstr("'c'"), HasSubstr(path.string())));
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  const std::string whole = file_of(R"({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}})", 3);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse(whole.substr(0, size)), ValueError) << size;
  EXPECT_NO_THROW(parse(whole));
}

}  // namespace
}  // namespace trireme::core
