#include "trireme/sp/attention_plan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

using core::check_value;

// The keys of [first, end) as one range, or none.
void add_range(std::vector<TokenRange>& ranges, int64_t first, int64_t end) {
  if (end <= first) return;
  if (!ranges.empty() && ranges.back().first + ranges.back().count == first)
    ranges.back().count += end - first;
  else
    ranges.push_back({first, end - first});
}

// Queries are cut finely enough that little of a tile lies outside the window.
int64_t window_tile(int64_t window) { return std::clamp<int64_t>(window / 4, 64, 1024); }

class Planner {
 public:
  Planner(const AttentionContext& context, int64_t first_row, int64_t rows)
      : context_(context), first_row_(first_row), rows_(rows) {}

  void plan_document(const TokenRange& document) {
    if (context_.blocks)
      plan_blocks(document);
    else if (context_.window > 0 && context_.window < document.count)
      plan_window(document);
    else if (document.count > 0)
      add(document, {document}, context_.causal ? AttentionTile::Mask::causal : AttentionTile::Mask::none);
  }

  std::vector<AttentionTile> take() { return std::move(tiles_); }

 private:
  void add(const TokenRange& queries, std::vector<TokenRange> keys, AttentionTile::Mask mask) {
    if (!keys.empty()) tiles_.push_back({first_row_, rows_, queries, std::move(keys), mask});
  }

  void plan_window(const TokenRange& document) {
    const int64_t end = document.first + document.count, step = window_tile(context_.window);
    for (int64_t first = document.first; first < end; first += step) {
      const int64_t count = std::min(step, end - first);
      const int64_t first_key = std::max(document.first, first - context_.window + 1);
      const int64_t end_key =
          context_.causal ? first + count : std::min(end, first + count + context_.window - 1);
      add({first, count}, {{first_key, end_key - first_key}}, AttentionTile::Mask::rule);
    }
  }

  void plan_blocks(const TokenRange& document) {
    const auto& [block, keys_of] = *context_.blocks;
    const int64_t end = document.first + document.count;
    for (int64_t first = document.first; first < end;) {
      const int64_t index = first / block, next = std::min(end, (index + 1) * block);
      std::vector<TokenRange> keys;
      const int64_t last_key = context_.causal ? next : end;
      for (int64_t key : keys_of[size_t(index)])
        add_range(keys, std::max(document.first, key * block), std::min(last_key, (key + 1) * block));
      // Only keys inside the queries' own block can be ahead of a query.
      const bool ahead =
          context_.causal && !keys.empty() && keys.back().first + keys.back().count > first + 1;
      add({first, next - first}, std::move(keys),
          ahead ? AttentionTile::Mask::rule : AttentionTile::Mask::none);
      first = next;
    }
  }

  const AttentionContext& context_;
  int64_t first_row_, rows_;
  std::vector<AttentionTile> tiles_;
};

void check_context(const AttentionContext& context, int64_t batch, int64_t sequence) {
  const auto& documents = context.document_lengths;
  check_value(documents.empty() || int64_t(documents.size()) == batch,
              "[sp] each row needs its documents' lengths; got ", documents.size(), " lists for ", batch,
              " rows");
  for (const auto& lengths : documents)
    check_value(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) <= sequence &&
                    std::all_of(lengths.begin(), lengths.end(), [](int64_t length) { return length >= 0; }),
                "[sp] the documents of a row must fit into the row; got ", at::IntArrayRef(lengths), " for ",
                sequence, " tokens");
  check_value(context.window >= 0, "[sp] a window is a number of tokens, or 0 for none; got ",
              context.window);
  if (!context.blocks) return;
  check_value(context.window == 0, "[sp] a block layout excludes a window; got a window of ", context.window);
  const auto& [block, keys] = *context.blocks;
  check_value(block > 0 && int64_t(keys.size()) * block >= sequence,
              "[sp] a block layout must cover the row; got ", keys.size(), " blocks of ", block, " for ",
              sequence, " tokens");
  for (const auto& row : keys)
    check_value(std::is_sorted(row.begin(), row.end()) &&
                    (row.empty() || (row.front() >= 0 && row.back() < int64_t(keys.size()))),
                "[sp] a block's key blocks must be ascending and exist; got ", at::IntArrayRef(row));
}

}  // namespace

int64_t AttentionTile::key_count() const {
  return std::accumulate(keys.begin(), keys.end(), int64_t{0},
                         [](int64_t sum, const TokenRange& range) { return sum + range.count; });
}

std::vector<AttentionTile> plan_attention(const AttentionContext& context, int64_t batch, int64_t sequence) {
  check_context(context, batch, sequence);
  const auto& documents = context.document_lengths;
  const std::vector<std::vector<int64_t>> whole{{sequence}};
  const bool alike = documents.empty() || std::all_of(documents.begin(), documents.end(),
                                                      [&](auto& d) { return d == documents.front(); });
  std::vector<AttentionTile> tiles;
  for (int64_t row = 0; row < (alike ? std::min<int64_t>(1, batch) : batch); ++row) {
    Planner planner(context, row, alike ? batch : 1);
    int64_t first = 0;
    for (int64_t length : documents.empty() ? whole[0] : documents[size_t(row)]) {
      planner.plan_document({first, length});
      first += length;
    }
    auto planned = planner.take();
    tiles.insert(tiles.end(), planned.begin(), planned.end());
  }
  return tiles;
}

at::Tensor tile_mask(const AttentionTile& tile, const AttentionContext& context,
                     const at::TensorOptions& options) {
  const auto positions = [&](const TokenRange& range) {
    return at::arange(range.first, range.first + range.count, options.dtype(at::kLong));
  };
  std::vector<at::Tensor> key_positions;
  for (const auto& range : tile.keys) key_positions.push_back(positions(range));
  at::Tensor behind =
      positions(tile.queries).unsqueeze(1) - at::cat(key_positions).unsqueeze(0);  // > 0: key is before
  at::Tensor hidden = at::zeros(behind.sizes(), options.dtype(at::kBool));
  if (context.causal) hidden |= behind < 0;
  if (context.window > 0) hidden |= behind.abs() >= context.window;
  return at::zeros(behind.sizes(), options).masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace trireme::sp
