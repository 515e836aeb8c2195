#include "trireme/data/packing.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::data {
namespace {

/// 64 leave less than 1 % of padding with documents of all lengths (log-normal; in order it is 3 to 18 %).
constexpr size_t kOpenRows = 64;

std::vector<Piece> cut(std::span<const int64_t> starts, int64_t token_count, int64_t longest) {
  std::vector<Piece> pieces;
  pieces.reserve(starts.size());
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t end = i + 1 < starts.size() ? starts[i + 1] : token_count;
    for (int64_t begin = starts[i]; begin < end;) {
      const int64_t length = std::min(longest, end - begin);
      pieces.push_back({static_cast<int64_t>(i), begin, length});
      begin += length;
    }
  }
  return pieces;
}

/// A number below `bound`, each equally likely. (The standard's distributions differ between libraries.)
uint64_t draw_below(uint64_t bound, std::mt19937_64& engine) {
  const uint64_t remainder = (UINT64_MAX % bound + 1) % bound;  // 2^64 modulo bound
  uint64_t drawn = engine();
  while (drawn > UINT64_MAX - remainder) drawn = engine();
  return drawn % bound;
}

/// Seeds that lie close together must not give engines that do.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

void permute(std::vector<Piece>& pieces, uint64_t seed, int64_t epoch) {
  std::mt19937_64 engine(mix(mix(seed) ^ static_cast<uint64_t>(epoch)));
  for (size_t left = pieces.size(); left > 1; --left)
    std::swap(pieces[left - 1], pieces[draw_below(left, engine)]);
}

}  // namespace

Packing::Packing(std::span<const int64_t> document_starts, int64_t token_count, const PackingOptions& options,
                 int64_t epoch) {
  core::check_value(options.sequence_length > 0,
                    "[data] a sequence has at least one token; got sequence_length ",
                    options.sequence_length);
  core::check_value(epoch >= 0, "[data] epochs count from 0; got ", epoch);
  auto pieces = cut(document_starts, token_count, options.sequence_length);
  if (options.shuffle) {
    permute(pieces, options.seed, epoch);
    fill_best_fit(pieces, options.sequence_length);
  } else {
    fill_in_order(pieces, options.sequence_length);
  }
}

std::span<const Piece> Packing::row(int64_t index) const {
  core::check_value(index >= 0 && index < rows(), "[data] a row's index is below ", rows(), "; got ", index);
  const size_t begin = row_begins_[static_cast<size_t>(index)];
  return std::span(pieces_).subspan(begin, row_begins_[static_cast<size_t>(index) + 1] - begin);
}

void Packing::fill_in_order(const std::vector<Piece>& pieces, int64_t sequence_length) {
  int64_t room = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].length > room) {
      row_begins_.push_back(i);
      room = sequence_length;
    }
    room -= pieces[i].length;
  }
  row_begins_.push_back(pieces.size());
  pieces_ = pieces;
}

void Packing::fill_best_fit(const std::vector<Piece>& pieces, int64_t sequence_length) {
  std::set<std::pair<int64_t, size_t>> open;  // room left, row
  std::vector<size_t> row_of(pieces.size());
  std::vector<size_t> sizes;  // pieces in each row
  for (size_t i = 0; i < pieces.size(); ++i) {
    int64_t room = sequence_length;
    size_t row = sizes.size();
    const auto best = open.lower_bound({pieces[i].length, 0});
    if (best == open.end()) {
      sizes.push_back(0);
    } else {
      std::tie(room, row) = *best;
      open.erase(best);
    }
    row_of[i] = row;
    ++sizes[row];
    if (room > pieces[i].length) open.insert({room - pieces[i].length, row});
    if (open.size() > kOpenRows) open.erase(open.begin());  // the fullest has the least to lose
  }

  row_begins_.assign(sizes.size() + 1, 0);
  for (size_t row = 0; row < sizes.size(); ++row) row_begins_[row + 1] = row_begins_[row] + sizes[row];
  std::vector<size_t> next(row_begins_.begin(), row_begins_.end() - 1);
  pieces_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) pieces_[next[row_of[i]]++] = pieces[i];
}

}  // namespace trireme::data
