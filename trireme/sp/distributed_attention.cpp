#include "trireme/sp/distributed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "trireme/core/capsule.h"
#include "trireme/core/check.h"
#include "trireme/sp/tiled_attention.h"

namespace trireme::sp {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Where key/value heads do not serve equally many local query heads, each query head gets its own copy.
Tensor spread_keys(const Tensor& keys,
                   const std::vector<int64_t>& key_of_query) {  // [B, S, k, D] -> [B, S, h, D]
  if (key_of_query.empty()) return keys;
  return keys.index_select(2, at::tensor(key_of_query, keys.options().dtype(at::kLong)));
}

std::vector<int64_t> slice_lengths(const AttentionContext& context, int64_t mine, const comm::Group& group) {
  if (!context.slice_lengths.empty()) return context.slice_lengths;
  return std::vector<int64_t>(size_t(group.size()), mine);
}

void check_shapes(const Tensor& query, const Tensor& key, const Tensor& value) {
  core::check_value(query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes() &&
                        key.size(0) == query.size(0) && key.size(1) == query.size(1) &&
                        key.size(3) == query.size(3),
                    "[sp] attention needs query [B, s, H, D], key and value [B, s, K, D]; got ",
                    query.sizes(), ", ", key.sizes(), ", ", value.sizes());
}

constexpr int64_t kTokensAtOnce = 1024;  // whose products in fp32 are held at once

// sum over D of grad_output * output, [B, s, H, D] -> [B, s, H], in fp32 at least.
Tensor row_products(const Tensor& grad_output, const Tensor& output) {
  const auto wide = at::promoteTypes(output.scalar_type(), at::kFloat);
  Tensor sums = at::empty(output.sizes().slice(0, 3), output.options().dtype(wide).requires_grad(false));
  for (int64_t first = 0; first < output.size(1); first += kTokensAtOnce) {
    const int64_t count = std::min(kTokensAtOnce, output.size(1) - first);
    Tensor place = sums.narrow(1, first, count);
    at::sum_out(place, grad_output.narrow(1, first, count).to(wide) * output.narrow(1, first, count), -1);
  }
  return sums;
}

// Attention of all tokens by my heads, and the way back to my tokens of all heads.
struct UlyssesAttention : Function<UlyssesAttention> {
  struct Saved {
    AttentionContext context;
    comm::Group group;
    HeadExchange exchange;
    int64_t heads;  // H
  };

  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key, const Tensor& value,
                        const Saved& saved, KeptAttention* kept) {
    KeptAttention result;
    if (kept && kept->output.defined()) {
      // A fresh alias: autograd makes what is returned an output of the graph, and must not do that to a kept
      // tensor.
      result = {kept->output.detach(), kept->logsumexp};
    } else {
      auto [output, logsumexp] = attend(query, key, value, saved.context);
      if (saved.group.size() > 1)
        output = saved.exchange.to_slices({output}, {saved.heads}, "attention's output");
      result = {output, logsumexp};
      if (kept) *kept = {output.detach(), logsumexp};
    }
    ctx->save_for_backward({query, key, value, result.output, result.logsumexp});
    ctx->saved_data["saved"] = core::to_capsule(saved);
    return result.output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& saved = core::from_capsule<Saved>(ctx->saved_data["saved"]);
    const auto tensors = ctx->get_saved_variables();
    Tensor grad_output = gradients[0];
    KnownOutput known{.output = tensors[3], .delta = {}, .logsumexp = tensors[4]};
    if (saved.group.size() > 1) {
      Tensor delta = row_products(grad_output, tensors[3]).unsqueeze(-1);
      known.output = Tensor();
      known.delta =
          saved.exchange.to_heads({delta}, "the products of attention's output and its gradient").squeeze(-1);
      grad_output = saved.exchange.to_heads({grad_output}, "the gradient of attention's output");
    }
    auto result = attend_backward(grad_output, tensors[0], tensors[1], tensors[2], known, saved.context);
    return {result.query, result.key, result.value, Tensor(), Tensor()};
  }
};

Tensor attend_and_return(const QueryKeyValue& heads, const HeadLayout& layout,
                         const std::vector<int64_t>& lengths, const AttentionContext& context,
                         const comm::Group& group, KeptAttention* kept) {
  const auto key_of_query = layout.key_of_query(group.rank());
  const UlyssesAttention::Saved saved{context, group, HeadExchange(group, {layout.queries()}, lengths),
                                      layout.query_heads()};
  return UlyssesAttention::apply(heads.query, spread_keys(heads.key, key_of_query),
                                 spread_keys(heads.value, key_of_query), saved, kept);
}

}  // namespace

DistributedAttention::DistributedAttention(LocalAttention local_attention, comm::Group group,
                                           AttentionLayout layout)
    : local_attention_(std::move(local_attention)), group_(std::move(group)), layout_(layout) {
  const auto inside = [](int64_t dim) { return dim >= 0 && dim < 4; };
  core::check_value(
      inside(layout.head_dim) && inside(layout.token_dim) && layout.head_dim != layout.token_dim,
      "[sp] heads and tokens are two different dimensions of four; got ", layout.head_dim, " and ",
      layout.token_dim);
}

Tensor DistributedAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                        AttentionContext context) const {
  core::check_value(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
                    "[sp] attention needs tensors of four dimensions; got ", query.dim(), ", ", key.dim(),
                    " and ", value.dim());
  std::vector<int64_t> order, back(4);
  for (int64_t dim = 0; dim < 4; ++dim)
    if (dim != layout_.head_dim && dim != layout_.token_dim) order.push_back(dim);
  order.insert(order.begin() + 1, {layout_.token_dim, layout_.head_dim});  // [B, s, H, D]
  for (size_t i = 0; i < 4; ++i) back[size_t(order[i])] = int64_t(i);
  const QueryKeyValue slices{query.permute(order), key.permute(order), value.permute(order)};
  check_shapes(slices.query, slices.key, slices.value);
  if (context.slice_lengths.empty())
    context.slice_lengths = agree_slice_lengths(slices.query.size(1), group_);
  const HeadLayout layout(slices.query.size(2), slices.key.size(2), group_.size());
  const auto lengths = context.slice_lengths;
  auto heads = exchange_to_heads(slices, layout, lengths, group_);
  const auto key_of_query = layout.key_of_query(group_.rank());
  Tensor output =
      heads.query;  // a rank without heads has nothing to attend, and takes part in the exchanges alone
  if (output.size(2) > 0)
    output = local_attention_(heads.query, spread_keys(heads.key, key_of_query),
                              spread_keys(heads.value, key_of_query), context);
  return exchange_to_slices(output, layout, lengths, group_).permute(back);
}

Tensor ulysses_attention(const Tensor& qkv, int64_t query_heads, const AttentionContext& context,
                         const comm::Group& group, KeptAttention* kept) {
  core::check_value(
      qkv.dim() == 4 && query_heads > 0 && qkv.size(2) > query_heads && (qkv.size(2) - query_heads) % 2 == 0,
      "[sp] attention needs query, key and value heads side by side, [B, s, H + 2 K, D]; got ", qkv.sizes(),
      " for ", query_heads, " query heads");
  const HeadLayout layout(query_heads, (qkv.size(2) - query_heads) / 2, group.size());
  const auto lengths = slice_lengths(context, qkv.size(1), group);
  return attend_and_return(exchange_to_heads(qkv, layout, lengths, group), layout, lengths, context, group,
                           kept);
}

Tensor ulysses_attention(const QueryKeyValue& slices, const AttentionContext& context,
                         const comm::Group& group, KeptAttention* kept) {
  check_shapes(slices.query, slices.key, slices.value);
  const HeadLayout layout(slices.query.size(2), slices.key.size(2), group.size());
  const auto lengths = slice_lengths(context, slices.query.size(1), group);
  return attend_and_return(exchange_to_heads(slices, layout, lengths, group), layout, lengths, context, group,
                           kept);
}

}  // namespace trireme::sp
