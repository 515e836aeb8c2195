#include "trireme/sp/tiled_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/sp/attention_plan.h"

namespace trireme::sp {
namespace {

using at::Tensor;

constexpr double kLeast = 1e-30;  // norm of a query's gradient that is not taken for none

Tensor query_part(const Tensor& t, const AttentionTile& tile) {  // [B, S, ..] -> [rows, queries, ..]
  return t.narrow(0, tile.first_row, tile.rows).narrow(1, tile.queries.first, tile.queries.count);
}

Tensor key_part(const Tensor& t, const AttentionTile& tile) {  // [B, S, ..] -> [rows, keys, ..]
  Tensor rows = t.narrow(0, tile.first_row, tile.rows);
  if (tile.keys.size() == 1) return rows.narrow(1, tile.keys[0].first, tile.keys[0].count);
  std::vector<Tensor> ranges;
  for (const auto& range : tile.keys) ranges.push_back(rows.narrow(1, range.first, range.count));
  return at::cat(ranges, 1);
}

void add_to_keys(const Tensor& target, const Tensor& part, const AttentionTile& tile) {
  Tensor rows = target.narrow(0, tile.first_row, tile.rows);
  int64_t place = 0;
  for (const auto& range : tile.keys) {
    rows.narrow(1, range.first, range.count).add_(part.narrow(1, place, range.count));
    place += range.count;
  }
}

// Neighbouring tiles often have the same mask: the last one is kept.
class Masks {
 public:
  Masks(const AttentionContext& context, at::TensorOptions options) : context_(context), options_(options) {}

  FlashMask of(const AttentionTile& tile) {
    if (tile.mask == AttentionTile::Mask::none) return {};
    if (tile.mask == AttentionTile::Mask::causal) return {.causal = true};
    const bool same = bias_.defined() && tile.keys.size() == 1 && last_.keys.size() == 1 &&
                      tile.queries.count == last_.queries.count &&
                      tile.keys[0].count == last_.keys[0].count &&
                      tile.queries.first - tile.keys[0].first == last_.queries.first - last_.keys[0].first;
    if (!same) {
      bias_ = tile_mask(tile, context_, options_);
      last_ = tile;
    }
    return {.bias = bias_};
  }

 private:
  const AttentionContext& context_;
  at::TensorOptions options_;
  Tensor bias_;
  AttentionTile last_;
};

// A single tile that covers everything needs no copies in or out.
bool covers_all(const std::vector<AttentionTile>& tiles, const Tensor& query) {
  return tiles.size() == 1 && tiles[0].rows == query.size(0) && tiles[0].queries.count == query.size(1) &&
         tiles[0].key_count() == query.size(1);
}

// A tensor like the output, whose products with grad_output sum up to `delta` for each query: a kernel's
// backward pass reads the output for that alone (FlashAttention-2, algorithm 2, line 4).
//   grad_output [b, q, h, D], delta [b, q, h].
Tensor stand_in(const Tensor& grad_output, const Tensor& delta) {
  Tensor output = at::empty_like(grad_output);
  // A part at a time, since it is computed in fp64: squares of small gradients underflow in fp32.
  constexpr int64_t kQueries = 1024;
  for (int64_t first = 0; first < grad_output.size(1); first += kQueries) {
    const int64_t count = std::min(kQueries, grad_output.size(1) - first);
    const Tensor part = grad_output.narrow(1, first, count);
    const Tensor norm = at::linalg_vector_norm(part, 2, at::IntArrayRef{-1}, /*keepdim=*/true, at::kDouble);
    // The factor of the least gradients would be infinite in fp32; none of theirs would be seen in a sum.
    const Tensor factor =
        delta.narrow(1, first, count).unsqueeze(-1).div(norm).div_(norm).masked_fill_(norm.lt(kLeast), 0);
    output.narrow(1, first, count).copy_(part.mul(factor.to(delta.scalar_type())));
  }
  return output;
}

FlashOutput known_part(const KnownOutput& known, const Tensor& grad_output, const AttentionTile& tile) {
  Tensor logsumexp = query_part(known.logsumexp, tile);
  if (known.output.defined()) return {query_part(known.output, tile), logsumexp};
  return {stand_in(grad_output, query_part(known.delta, tile)), logsumexp};
}

// Queries', keys' and values' gradients side by side, as an exchange sends them.
FlashGradients packed_zeros(const Tensor& query, const Tensor& key) {
  const int64_t h = query.size(2), k = key.size(2);
  auto shape = query.sizes().vec();
  shape[2] = h + 2 * k;
  auto parts = at::zeros(shape, query.options().requires_grad(false)).split_with_sizes({h, k, k}, 2);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace

FlashOutput attend(const Tensor& query, const Tensor& key, const Tensor& value,
                   const AttentionContext& context) {
  const auto options = query.options().requires_grad(false);
  const auto wide = at::promoteTypes(query.scalar_type(), at::kFloat);
  const auto tiles = plan_attention(context, query.size(0), query.size(1));
  Masks masks(context, options);
  if (query.size(2) > 0 && covers_all(tiles, query))
    return flash_forward(query, key, value, masks.of(tiles[0]));
  FlashOutput all{at::zeros(query.sizes(), options),
                  at::zeros(query.sizes().slice(0, 3), options.dtype(wide))};
  if (query.size(2) == 0) return all;  // this rank has no head
  for (const auto& tile : tiles) {
    auto part =
        flash_forward(query_part(query, tile), key_part(key, tile), key_part(value, tile), masks.of(tile));
    query_part(all.output, tile).copy_(part.output);
    query_part(all.logsumexp, tile).copy_(part.logsumexp);
  }
  return all;
}

FlashGradients attend_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                               const Tensor& value, const KnownOutput& known,
                               const AttentionContext& context) {
  const auto tiles = plan_attention(context, query.size(0), query.size(1));
  Masks masks(context, query.options().requires_grad(false));
  if (query.size(2) > 0 && covers_all(tiles, query))
    return flash_backward(grad_output, query, key, value, known_part(known, grad_output, tiles[0]),
                          masks.of(tiles[0]));
  FlashGradients all = packed_zeros(query, key);
  if (query.size(2) == 0) return all;
  // Documents read each key once; where tiles share keys their gradients are summed in fp32 at least.
  const bool shared =
      std::any_of(tiles.begin(), tiles.end(), [](auto& t) { return t.mask == AttentionTile::Mask::rule; });
  const auto wide = at::promoteTypes(key.scalar_type(), at::kFloat);
  FlashGradients sums = all;
  if (shared && key.scalar_type() != wide) {
    sums.key = at::zeros(key.sizes(), key.options().dtype(wide).requires_grad(false));
    sums.value = at::zeros(value.sizes(), sums.key.options());
  }
  for (const auto& tile : tiles) {
    const Tensor upstream = query_part(grad_output, tile);
    auto part = flash_backward(upstream, query_part(query, tile), key_part(key, tile), key_part(value, tile),
                               known_part(known, upstream, tile), masks.of(tile));
    query_part(all.query, tile).copy_(part.query);
    add_to_keys(sums.key, part.key, tile);
    add_to_keys(sums.value, part.value, tile);
  }
  if (!sums.key.is_same(all.key)) {
    all.key.copy_(sums.key);
    all.value.copy_(sums.value);
  }
  return all;
}

}  // namespace trireme::sp
