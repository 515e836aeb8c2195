#include "trireme/sp/local_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "trireme/core/capsule.h"
#include "trireme/sp/attention_plan.h"
#include "trireme/sp/flash_kernel.h"

namespace trireme::sp {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

FlashGradients attend_pass(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                           const Tensor& value, const FlashOutput& forward, const AttentionContext& context) {
  const auto tiles = plan_attention(context, query.size(0), query.size(1));
  Masks masks(context, query.options().requires_grad(false));
  if (query.size(2) > 0 && covers_all(tiles, query))
    return flash_backward(grad_output, query, key, value, forward, masks.of(tiles[0]));
  // Documents read each key once; where tiles share keys their gradients are summed in fp32 at least.
  const bool shared =
      std::any_of(tiles.begin(), tiles.end(), [](auto& t) { return t.mask == AttentionTile::Mask::rule; });
  const auto sums =
      key.options().dtype(shared ? at::promoteTypes(key.scalar_type(), at::kFloat) : key.scalar_type());
  FlashGradients all{at::zeros_like(query), at::zeros(key.sizes(), sums), at::zeros(value.sizes(), sums)};
  if (query.size(2) == 0) return all;
  for (const auto& tile : tiles) {
    auto part = flash_backward(
        query_part(grad_output, tile), query_part(query, tile), key_part(key, tile), key_part(value, tile),
        {query_part(forward.output, tile), query_part(forward.logsumexp, tile)}, masks.of(tile));
    query_part(all.query, tile).copy_(part.query);
    add_to_keys(all.key, part.key, tile);
    add_to_keys(all.value, part.value, tile);
  }
  all.key = all.key.to(key.scalar_type());
  all.value = all.value.to(value.scalar_type());
  return all;
}

struct FusedAttention : Function<FusedAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key, const Tensor& value,
                        const AttentionContext& context, KeptAttention* kept) {
    FlashOutput result;
    if (kept && kept->local_output.defined()) {
      result = {kept->local_output.detach(), kept->logsumexp};
    } else {
      result = attend(query, key, value, context);
      if (kept) {
        kept->local_output = result.output.detach();
        kept->logsumexp = result.logsumexp;
      }
    }
    ctx->save_for_backward({query, key, value, result.output, result.logsumexp});
    ctx->saved_data["context"] = core::to_capsule(context);
    return result.output;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& context = core::from_capsule<AttentionContext>(ctx->saved_data["context"]);
    auto result = attend_pass(gradients[0], saved[0], saved[1], saved[2], {saved[3], saved[4]}, context);
    return {result.query, result.key, result.value, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor fused_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionContext& context, KeptAttention* kept) {
  return FusedAttention::apply(query, key, value, context, kept);
}

}  // namespace trireme::sp
