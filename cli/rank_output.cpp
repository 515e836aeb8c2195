#include "cli/rank_output.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "cli/error_mark.h"
#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

constexpr size_t kRemembered = 256;  // printed lines

std::string prefix_of(int64_t rank) { return core::concatenate("[rank ", rank, "] "); }

}  // namespace

std::vector<std::string> LineSplitter::add(std::string_view bytes) {
  std::vector<std::string> lines;
  for (size_t end = bytes.find('\n'); end != bytes.npos; end = bytes.find('\n')) {
    line_ += bytes.substr(0, end);
    if (line_.ends_with('\r')) line_.pop_back();
    lines.push_back(std::move(line_));
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
  line_ += bytes;
  return lines;
}

std::vector<std::string> LineSplitter::rest() {
  if (line_.empty()) return {};
  return {std::exchange(line_, {})};
}

RankOutput::RankOutput(std::ostream& out, std::ostream& err, int64_t ranks)
    : out_(out),
      err_(err),
      output_lines_(size_t(ranks)),
      error_lines_(size_t(ranks)),
      announced_(size_t(ranks)) {}

void RankOutput::add_output(int64_t rank, std::string_view bytes) {
  if (bytes.empty()) return;
  if (rank == 0) {
    out_ << bytes << std::flush;
    in_line_ = bytes.back() != '\n';
    return;
  }
  for (const std::string& line : output_lines_[size_t(rank)].add(bytes)) print(out_, prefix_of(rank), line);
}

void RankOutput::add_errors(int64_t rank, std::string_view bytes, Clock::time_point now) {
  for (std::string& line : error_lines_[size_t(rank)].add(bytes)) add_line(rank, now, std::move(line));
}

void RankOutput::end_rank(int64_t rank, Clock::time_point now) {
  for (const std::string& line : output_lines_[size_t(rank)].rest()) print(out_, prefix_of(rank), line);
  for (std::string& line : error_lines_[size_t(rank)].rest()) add_line(rank, now, std::move(line));
}

void RankOutput::add_line(int64_t rank, Clock::time_point now, std::string text) {
  auto& announced = announced_[size_t(rank)];
  if (const auto exit_code = take_error_mark(text)) announced = exit_code;
  waiting_.push_back({rank, now, std::move(text), announced.has_value()});
  if (kept_rank_ != kAll) release_all();
}

void RankOutput::release(Clock::time_point before) {
  std::deque<Line> rest;
  for (Line& line : waiting_) {
    if (line.held || line.time >= before)
      rest.push_back(std::move(line));
    else if (kept_rank_ == kAll || kept_rank_ == line.rank)
      print_error(line);
  }
  waiting_ = std::move(rest);
}

void RankOutput::release_all() {
  for (Line& line : waiting_) line.held = false;
  release(Clock::time_point::max());
}

void RankOutput::keep_only(int64_t rank) {
  kept_rank_ = rank;
  release_all();
}

void RankOutput::silence() { keep_only(kNobody); }

void RankOutput::say(std::string_view line) { print(err_, "trireme: ", line); }

void RankOutput::print_error(const Line& line) {
  const bool said_by_another = std::any_of(printed_.begin(), printed_.end(), [&](const Line& other) {
    return other.rank != line.rank && other.text == line.text;
  });
  if (said_by_another) return;
  print(err_, prefix_of(line.rank), line.text);
  printed_.push_back(line);
  if (printed_.size() > kRemembered) printed_.pop_front();
}

void RankOutput::print(std::ostream& stream, std::string_view prefix, std::string_view text) {
  if (in_line_) out_ << std::endl;  // leaves the progress line as it stands
  in_line_ = false;
  stream << prefix << text << std::endl;
}

}  // namespace trireme::cli
