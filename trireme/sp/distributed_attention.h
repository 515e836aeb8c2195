// Attention of a sequence that is cut over ranks: exchange, attend locally, exchange back.
//   B batch, S sequence, s this rank's slice, H query heads, K key/value heads, D head size.
// DeepSpeed-Ulysses, arXiv:2309.14509: two all-to-alls a forward pass, whose volume per rank falls with their
// number.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/group.h"
#include "trireme/sp/attention_context.h"
#include "trireme/sp/head_exchange.h"
#include "trireme/sp/local_attention.h"

namespace trireme::sp {

/// Which dimensions of q, k, v and the output hold heads and tokens. The other two are batch and head size,
/// in order.
struct AttentionLayout {
  int64_t head_dim = 2;   ///< scattered over the ranks
  int64_t token_dim = 1;  ///< gathered from the ranks
};

/// Wraps any local attention. Heads and slice lengths need not divide by the ranks, nor be alike: K < P sends
/// each rank just the key/value heads that its query heads read. Copyable; no state between calls.
class DistributedAttention {
 public:
  DistributedAttention(LocalAttention local_attention, comm::Group group, AttentionLayout layout = {});

  /// query, key, value: this rank's tokens of all heads, in the layout's order; [B, s, H, D] and [B, s, K, D]
  /// by default. Returns this rank's tokens of the output, shaped like `query`. Autograd follows; the
  /// gradient assumes each rank's gradient of its own tokens. The local attention sees [B, S, h, D] whatever
  /// the layout. Throws `core::ValueError` where K does not divide H or the shapes disagree.
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        AttentionContext context) const;

 private:
  LocalAttention local_attention_;
  comm::Group group_;
  AttentionLayout layout_;
};

/// What a recomputation needs in order not to attend again.
struct KeptAttention {
  at::Tensor output;     ///< [B, s, H, D]: my tokens, all heads
  at::Tensor logsumexp;  ///< [B, S, h], fp32 at least: all tokens, my heads
};

/// The fast path, by fused kernels. qkv [B, s, H + 2 K, D]: this rank's tokens, query heads, then key heads,
/// then value heads. Returns [B, s, H, D]. `kept`, if given, receives what a recomputation needs, and where
/// it holds that already neither attention nor the output's exchange run again.
///
/// The backward pass keeps the output where this rank's tokens are, and nothing of it where its heads are: a
/// kernel needs it for one number a query, which travels in its place.
at::Tensor ulysses_attention(const at::Tensor& qkv, int64_t query_heads, const AttentionContext& context,
                             const comm::Group& group, KeptAttention* kept = nullptr);

/// The same of queries, keys and values [B, s, .., D] that lie apart.
at::Tensor ulysses_attention(const QueryKeyValue& slices, const AttentionContext& context,
                             const comm::Group& group, KeptAttention* kept = nullptr);

}  // namespace trireme::sp
