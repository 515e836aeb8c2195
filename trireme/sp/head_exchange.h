// The exchange of Ulysses: "my tokens, all heads" for "all tokens, my heads", and back.
//   B batch, P ranks, S sequence, s this rank's slice of it, H heads of a part, h this rank's share of them,
//   D head size.
// DeepSpeed-Ulysses, arXiv:2309.14509, section 3.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/sp/head_layout.h"

namespace trireme::sp {

/// Moves one or several parts (queries, keys, values) in one all-to-all. Each part has its own heads and head
/// ranges; B, s and D are common. For groups of more than one rank. Copyable; holds no tensor.
class HeadExchange {
 public:
  /// `ranges[i][p]`: the heads of part i that rank p works on; ranges may overlap. `slice_lengths[p]`: tokens
  /// of rank p.
  HeadExchange(comm::Group group, std::vector<std::vector<HeadRange>> ranges,
               std::vector<int64_t> slice_lengths);

  /// Parts [B, s, H, D] -> [B, S, h, D], side by side: one tensor of the sum of their h.
  at::Tensor to_heads(const std::vector<at::Tensor>& slices, std::string_view purpose) const;

  /// Parts [B, S, h, D] -> [B, s, H, D], side by side: the transpose of `to_heads`. A head that several ranks
  /// worked on is their sum, a head that none worked on is zero. `heads[i]`: H of part i. Parts of one row
  /// that lie side by side already are sent from where they are.
  at::Tensor to_slices(const std::vector<at::Tensor>& parts, const std::vector<int64_t>& heads,
                       std::string_view purpose) const;

  /// This rank's heads of each part.
  std::vector<int64_t> local_heads() const;

 private:
  int64_t heads_of(int64_t rank) const;  // over all parts
  int64_t head_of_part(size_t part, int64_t rank) const;

  comm::Group group_;
  std::vector<std::vector<HeadRange>> ranges_;
  std::vector<int64_t> slice_lengths_;
  int64_t sequence_;
};

/// Tokens of each rank's slice, given this rank's `length`: one small all-gather.
std::vector<int64_t> agree_slice_lengths(int64_t length, const comm::Group& group);

/// What one attention reads: queries [.., H, D], keys and values [.., K, D].
struct QueryKeyValue {
  at::Tensor query, key, value;
};

/// [B, s, H, D], [B, s, K, D], [B, s, K, D] -> [B, S, h, D], [B, S, k, D], [B, S, k, D], in one all-to-all.
/// Differentiable. The gradient assumes each rank's gradient of its own heads, and is the way back; a
/// key/value head that several ranks read gets the sum of their gradients.
QueryKeyValue exchange_to_heads(const QueryKeyValue& slices, const HeadLayout& layout,
                                const std::vector<int64_t>& slice_lengths, const comm::Group& group);

/// The same of queries, keys and values that lie side by side, [B, s, H + 2 K, D]: so does their gradient.
QueryKeyValue exchange_to_heads(const at::Tensor& packed, const HeadLayout& layout,
                                const std::vector<int64_t>& slice_lengths, const comm::Group& group);

/// [B, S, h, D] -> [B, s, H, D], in one all-to-all. Differentiable: the gradient is the way back.
at::Tensor exchange_to_slices(const at::Tensor& heads, const HeadLayout& layout,
                              const std::vector<int64_t>& slice_lengths, const comm::Group& group);

}  // namespace trireme::sp
