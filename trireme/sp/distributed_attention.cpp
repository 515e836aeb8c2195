#include "trireme/sp/distributed_attention.h"

#include <ATen/ops/tensor.h>

#include "trireme/core/check.h"
#include "trireme/sp/head_exchange.h"

namespace trireme::sp {
namespace {

using at::Tensor;

// Where key/value heads do not serve equally many local query heads, each query head gets its own copy.
Tensor spread_keys(const Tensor& keys,
                   const std::vector<int64_t>& key_of_query) {  // [B, S, k, D] -> [B, S, h, D]
  if (key_of_query.empty()) return keys;
  return keys.index_select(2, at::tensor(key_of_query, keys.options().dtype(at::kLong)));
}

template <class Attend>
Tensor exchanged_attention(const QueryKeyValue& slices, const AttentionContext& context,
                           const comm::Group& group, const Tensor& known_output, const Attend& attend) {
  const HeadLayout layout(slices.query.size(2), slices.key.size(2), group.size());
  auto lengths = context.slice_lengths;
  if (lengths.empty()) lengths.assign(size_t(group.size()), slices.query.size(1));
  auto heads = exchange_to_heads(slices, layout, lengths, group);
  const auto key_of_query = layout.key_of_query(group.rank());
  Tensor output =
      heads.query;  // a rank without heads has nothing to attend, and takes part in the exchanges alone
  if (output.size(2) > 0)
    output =
        attend(heads.query, spread_keys(heads.key, key_of_query), spread_keys(heads.value, key_of_query));
  return exchange_to_slices(output, layout, lengths, group, known_output);
}

void check_shapes(const Tensor& query, const Tensor& key, const Tensor& value) {
  core::check_value(query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes() &&
                        key.size(0) == query.size(0) && key.size(1) == query.size(1) &&
                        key.size(3) == query.size(3),
                    "[sp] attention needs query [B, s, H, D], key and value [B, s, K, D]; got ",
                    query.sizes(), ", ", key.sizes(), ", ", value.sizes());
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
  Tensor output = exchanged_attention(
      slices, context, group_, {},
      [&](const Tensor& q, const Tensor& k, const Tensor& v) { return local_attention_(q, k, v, context); });
  return output.permute(back);
}

Tensor ulysses_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                         const AttentionContext& context, const comm::Group& group, KeptAttention* kept) {
  check_shapes(query, key, value);
  Tensor output = exchanged_attention({query, key, value}, context, group, kept ? kept->output : Tensor(),
                                      [&](const Tensor& q, const Tensor& k, const Tensor& v) {
                                        return fused_attention(q, k, v, context, kept);
                                      });
  if (kept && !kept->output.defined()) kept->output = output.detach();
  return output;
}

}  // namespace trireme::sp
