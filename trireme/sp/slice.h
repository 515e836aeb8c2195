// How a batch of whole sequences becomes this rank's slice of it.
//   B batch, S sequence, P ranks, s = ceil(S / P).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/sp/attention_context.h"

namespace trireme::sp {

/// Labels of this value count for nothing.
inline constexpr int64_t kIgnored = -100;

/// Whole rows, the same on every rank of a sequence-parallel group.
struct SequenceBatch {
  at::Tensor tokens;  ///< [B, S], int64
  at::Tensor labels;  ///< [B, S], int64, not shifted: a token's label is the token itself, or kIgnored
  std::vector<std::vector<int64_t>>
      document_lengths;                     ///< by row; what is left of a row is padding. Empty: one document
  std::map<std::string, at::Tensor> extra;  ///< other per-token tensors [B, S, ...], cut the same way
};

/// One rank's part.
struct SlicedBatch {
  at::Tensor tokens;                        ///< [B, s]
  at::Tensor labels;                        ///< [B, s]: what each token has to predict
  at::Tensor positions;                     ///< [B, s]: place in its document
  std::map<std::string, at::Tensor> extra;  ///< [B, s, ...]
  AttentionContext context;                 ///< for whole rows of P * s tokens
  int64_t longest_document = 0;             ///< over the whole batch, the same on every rank
};

/// labels [B, S] -> [B, S]: each token gets the label of the next one of its document, the last one and the
/// padding kIgnored.
/// On whole rows, before any cut: else the target of each slice's last token would be lost.
at::Tensor shift_labels(const at::Tensor& labels, const std::vector<std::vector<int64_t>>& document_lengths);

/// [B, S]: 0, 1, ... within each document; 0 in the padding.
at::Tensor document_positions(const std::vector<std::vector<int64_t>>& document_lengths, int64_t batch,
                              int64_t sequence);

/// Rank `rank`'s slice of `ranks`. Rows that do not divide are padded: no token is dropped.
/// Throws `core::ValueError` where shapes disagree or documents do not fit their row.
SlicedBatch slice_batch(const SequenceBatch& batch, int64_t rank, int64_t ranks);

}  // namespace trireme::sp
