#include "trireme/core/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::core {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;
using nlohmann::json;

std::string line(const json& event) { return event.dump() + "\n"; }

// Names of a process or thread are events too.
json name_event(const char* kind, int64_t rank, size_t lane, const std::string& name) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

// A viewer draws a row well only where nothing in it overlaps.
struct Row {
  std::string lane;
  std::chrono::steady_clock::time_point end;
};

}  // namespace

void Timeline::add(std::string_view lane, std::string name, const Interval& interval) {
  events_.push_back({std::string(lane), std::move(name), interval});
}

std::string Timeline::to_json_lines(int64_t rank, std::chrono::steady_clock::time_point origin) const {
  std::vector<Event> sorted = events_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Event& a, const Event& b) { return a.interval.begin < b.interval.begin; });
  std::vector<Row> rows;
  std::string lines = line(name_event("process_name", rank, 0, concatenate("rank ", rank)));
  for (const auto& [lane, name, interval] : sorted) {
    const auto is_free = [&](const Row& row) { return row.lane == lane && row.end <= interval.begin; };
    const auto found = std::find_if(rows.begin(), rows.end(), is_free);
    const auto place = found - rows.begin();
    if (found == rows.end()) {
      const auto same =
          std::count_if(rows.begin(), rows.end(), [&](const Row& row) { return row.lane == lane; });
      rows.push_back({lane, interval.end});
      lines += line(name_event("thread_name", rank, size_t(place),
                               same == 0 ? lane : concatenate(lane, " ", same + 1)));
    }
    rows[size_t(place)].end = interval.end;
    lines += line({{"ph", "X"},
                   {"name", name},
                   {"cat", lane},
                   {"pid", rank},
                   {"tid", place},
                   {"ts", Microseconds(interval.begin - origin).count()},
                   {"dur", Microseconds(interval.end - interval.begin).count()}});
  }
  return lines;
}

void write_timeline(const std::filesystem::path& path, const std::vector<std::string>& lines_of_ranks) {
  errno = 0;
  std::ofstream file(path);
  file << "{\"traceEvents\": [\n";
  bool first = true;
  for (const std::string& lines : lines_of_ranks)
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = lines.find('\n', begin);
      file << (first ? "" : ",\n") << std::string_view(lines).substr(begin, end - begin);
      first = false;
      begin = end + 1;
    }
  file << "\n]}\n";
  check_value(bool(file.flush()), "[core] a timeline must be written; got ", std::strerror(errno), " for ",
              path.string(), "; choose another file");
}

}  // namespace trireme::core
