// Attention over a batch as a list of kernel calls, from the rules of its context.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/sp/attention_context.h"

namespace trireme::sp {

/// One kernel call: queries of some rows against keys of the same rows.
struct AttentionTile {
  int64_t first_row = 0, rows = 0;
  TokenRange queries;
  std::vector<TokenRange> keys;  ///< ascending; never empty
  enum class Mask {
    none,    ///< every query reads every key
    causal,  ///< queries and keys are the same tokens, and the kernel's own causal rule holds
    rule,    ///< see `tile_mask`
  } mask = Mask::none;

  int64_t key_count() const;
};

/// Tiles that cover each query once; queries that read nothing are in none. Rows with equal documents share
/// tiles. Masks of `rule` tiles have at most 1024 queries, whatever S is. Throws `core::ValueError` where the
/// context contradicts [B, S].
std::vector<AttentionTile> plan_attention(const AttentionContext& context, int64_t batch, int64_t sequence);

/// Zero where a query reads a key, else -inf: [queries, keys]. For tiles with `Mask::rule`.
at::Tensor tile_mask(const AttentionTile& tile, const AttentionContext& context,
                     const at::TensorOptions& options);

}  // namespace trireme::sp
