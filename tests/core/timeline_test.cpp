#include "trireme/core/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::core {
namespace {

using std::chrono::microseconds;

TEST(Timeline, IsChromesTraceOfEveryRank) {
  const std::chrono::steady_clock::time_point origin{std::chrono::seconds(5)};
  const auto at = [&](int64_t begin, int64_t end) {
    return Interval{origin + microseconds(begin), origin + microseconds(end)};
  };
  Timeline first, second;
  first.add("gather", "layer \"0\"", at(10, 30));
  first.add("compute", "forward of layer", at(30, 45));
  first.add("gather", "layer 1", at(31, 40));
  second.add("compute", "forward", at(0, 1));
  const testing::TemporaryDirectory folder;
  const std::string path = folder / "timeline.json";
  write_timeline(path, {first.to_json_lines(0, origin), second.to_json_lines(1, origin)});

  const auto events = nlohmann::json::parse(testing::read_text(path)).at("traceEvents");
  std::vector<std::string> seen;
  for (const auto& event : events)
    seen.push_back(event.at("ph") == "M"
                       ? "M " + event.at("args").at("name").get<std::string>()
                       : concatenate(event.at("name").get<std::string>(), " @", event.at("pid"), '.',
                                     event.at("tid"), ' ', event.at("ts"), '+', event.at("dur")));
  EXPECT_THAT(seen, ::testing::ElementsAre("M rank 0", "M gather", "layer \"0\" @0.0 10.0+20.0", "M compute",
                                           "forward of layer @0.1 30.0+15.0", "layer 1 @0.0 31.0+9.0",
                                           "M rank 1", "M compute", "forward @1.0 0.0+1.0"));
}

TEST(Timeline, DrawsOverlappingEventsInRowsOfTheirOwn) {
  const std::chrono::steady_clock::time_point origin{};
  const auto at = [&](int64_t begin, int64_t end) {
    return Interval{origin + std::chrono::microseconds(begin), origin + std::chrono::microseconds(end)};
  };
  Timeline timeline;
  timeline.add("offload", "c", at(12, 20));  // told of in the order of their ends
  timeline.add("offload", "a", at(0, 10));
  timeline.add("offload", "b", at(5, 15));
  const std::string lines = timeline.to_json_lines(0, origin);
  std::vector<std::string> rows;
  std::istringstream in(lines);
  for (std::string text; std::getline(in, text);) {
    const auto event = nlohmann::json::parse(text);
    if (event.at("ph") == "X")
      rows.push_back(concatenate(event.at("name").get<std::string>(), event.at("tid")));
  }
  EXPECT_THAT(rows, ::testing::ElementsAre("a0", "b1", "c0"));
  EXPECT_NE(lines.find("offload 2"), lines.npos);
}

TEST(Timeline, SaysWhyItCannotBeWritten) {
  const testing::TemporaryDirectory folder;
  EXPECT_THAT(testing::value_error([&] { write_timeline(folder / "none/t.json", {}); }),
              ::testing::HasSubstr("got No such file or directory for"));
}

}  // namespace
}  // namespace trireme::core
