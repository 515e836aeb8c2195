// Attention by its definition: every score, every rule applied to every pair of tokens.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trireme/sp/attention_context.h"

namespace trireme::tests {

/// 1 where a query of a row reads a key: [S, S].
inline at::Tensor reads(const sp::AttentionContext& context, int64_t row, int64_t S) {
  at::Tensor allowed = at::zeros({S, S}, at::kBool);
  auto access = allowed.accessor<bool, 2>();
  std::vector<int64_t> document(size_t(S), 0);
  if (!context.document_lengths.empty()) {
    std::fill(document.begin(), document.end(), -1);  // padding
    int64_t token = 0, index = 0;
    for (int64_t length : context.document_lengths[size_t(row)]) {
      for (int64_t i = 0; i < length; ++i) document[size_t(token++)] = index;
      ++index;
    }
  }
  for (int64_t q = 0; q < S; ++q)
    for (int64_t k = 0; k < S; ++k) {
      bool see = document[size_t(q)] >= 0 && document[size_t(q)] == document[size_t(k)];
      if (context.causal) see = see && k <= q;
      if (context.window > 0) see = see && std::abs(q - k) < context.window;
      if (context.blocks) {
        const auto& keys = context.blocks->keys[size_t(q / context.blocks->block)];
        see = see && std::find(keys.begin(), keys.end(), k / context.blocks->block) != keys.end();
      }
      access[q][k] = see;
    }
  return allowed;
}

/// query [B, S, H, D], key and value [B, S, K, D] -> [B, S, H, D].
inline at::Tensor reference_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      const sp::AttentionContext& context) {
  const int64_t B = query.size(0), S = query.size(1), H = query.size(2), readers = H / key.size(2);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < B; ++b) {
    at::Tensor hidden = reads(context, b, S).logical_not();
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < H; ++h) {
      at::Tensor q = query[b].select(1, h), k = key[b].select(1, h / readers),
                 v = value[b].select(1, h / readers);
      at::Tensor scores = at::matmul(q, k.t()) / std::sqrt(double(query.size(3)));
      at::Tensor weights = at::softmax(scores.masked_fill(hidden, -1e30), -1).masked_fill(hidden, 0);
      heads.push_back(at::matmul(weights, v));
    }
    rows.push_back(at::stack(heads, 1));
  }
  return at::stack(rows);
}

}  // namespace trireme::tests
