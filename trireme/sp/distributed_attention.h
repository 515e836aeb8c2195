// Attention of a sequence that is cut over ranks: exchange, attend locally, exchange back.
//   B batch, S sequence, s this rank's slice, H query heads, K key/value heads, D head size.
// DeepSpeed-Ulysses, arXiv:2309.14509: two all-to-alls a forward pass, whose volume per rank falls with their
// number.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/group.h"
#include "trireme/sp/attention_context.h"
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

/// The fast path, for q, k, v [B, s, .., D] and fused kernels: `kept`, if given, receives what a
/// recomputation needs, and where it holds that already neither attention nor the output's exchange run
/// again.
at::Tensor ulysses_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const AttentionContext& context, const comm::Group& group,
                             KeptAttention* kept = nullptr);

}  // namespace trireme::sp
