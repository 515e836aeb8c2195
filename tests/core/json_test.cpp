#include "trireme/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;
using testing::write_text;

TEST(ParseJson, ReadsWhatIsRight) {
  const auto value = parse_json(R"({"a": [1, {"b": "x"}, {"b": "y"}], "c": -2.5})", "text");
  EXPECT_EQ(value["a"][2]["b"], "y");
  EXPECT_EQ(value["c"], -2.5);
}

TEST(ParseJson, NamesPlaceAndReasonOfASyntaxError) {
  EXPECT_THAT(value_error([] { parse_json("{\"a\": 1,\n \"b\" 2}", "f.json"); }),
              AllOf(HasSubstr("f.json must be valid JSON"), HasSubstr("line 2, column")));
  EXPECT_THAT(value_error([] { parse_json("", "f"); }), HasSubstr("must be valid JSON"));
  EXPECT_THAT(value_error([] { parse_json("1 2", "f"); }), HasSubstr("must be valid JSON"));
  EXPECT_THAT(value_error([] { parse_json("1e999", "f"); }), HasSubstr("must be valid JSON"));
  EXPECT_THAT(value_error([] { parse_json("\"\xff\"", "f"); }), HasSubstr("must be valid JSON"));
  EXPECT_THAT(value_error([] { parse_json(std::string("{}\0", 3), "f"); }), HasSubstr("must be valid JSON"));
}

TEST(ParseJson, KeepsAnErrorShort) {
  EXPECT_LT(value_error([] { parse_json("[" + std::string(100000, 'x'), "f"); }).size(), 400u);
}

TEST(ParseJson, RefusesAKeyTwiceInOneObjectOnly) {
  EXPECT_THAT(value_error([] { parse_json(R"({"a": {"k": 1, "j": 2, "k": 3}})", "f"); }),
              HasSubstr("'k' twice"));
  EXPECT_NO_THROW(parse_json(R"({"k": {"k": {"k": 1}}, "j": {"k": 1}})", "f"));
}

TEST(ParseJson, BoundsNesting) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_NO_THROW(parse_json(nested(kDeepestJson), "f"));
  EXPECT_THAT(value_error([&] { parse_json(nested(kDeepestJson + 1), "f"); }), HasSubstr("nest at most 64"));
  EXPECT_THAT(value_error([&] { parse_json(nested(3000000), "f"); }), HasSubstr("nest at most 64"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(value_error([&] { parse_json(objects, "f"); }), HasSubstr("nest at most 64"));
}

TEST(ParseJson, TakesCommentsWhereAllowed) {
  constexpr auto kText = "{ // one\n \"a\": 1 /* two */ }";
  EXPECT_EQ(parse_json(kText, "f", JsonComments::allowed)["a"], 1);
  EXPECT_THAT(value_error([&] { parse_json(kText, "f"); }), HasSubstr("must be valid JSON"));
}

TEST(IsIntegerAbove, KnowsIntegersThatAnInt64DoesNotHold) {
  EXPECT_TRUE(is_integer_above(UINT64_MAX, INT64_MAX));
  EXPECT_FALSE(is_integer_above(uint64_t{INT64_MAX}, INT64_MAX));
  EXPECT_TRUE(is_integer_above(3, 2));
  EXPECT_FALSE(is_integer_above(-3, 2));
  EXPECT_FALSE(is_integer_above(3.5, 2));
  EXPECT_FALSE(is_integer_above("3", 2));
}

TEST(ReadJson, NamesTheFile) {
  const TemporaryDirectory directory;
  EXPECT_EQ(read_json(write_text(directory / "a.json", "[3]"))[0], 3);
  EXPECT_THAT(value_error([&] { read_json(write_text(directory / "empty.json", "")); }),
              HasSubstr("empty.json"));
  EXPECT_THAT(value_error([&] { read_json(directory / "none.json"); }),
              AllOf(HasSubstr("none.json"), HasSubstr("No such file")));
}

}  // namespace
}  // namespace trireme::core
