// What an attention must know beside q, k and v: never a mask, always rules from which tiles of one can be
// made.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::sp {

/// Tokens [first, first + count) of a row.
struct TokenRange {
  int64_t first = 0, count = 0;
  bool operator==(const TokenRange&) const = default;
};

/// Attention between blocks of `block` tokens: block i of queries reads the key blocks `keys[i]`, ascending.
struct BlockLayout {
  int64_t block = 0;
  std::vector<std::vector<int64_t>> keys;
};

/// Valid for whole rows of S tokens, the same on every rank of a sequence-parallel group.
struct AttentionContext {
  /// For each row of the batch the lengths of its documents, in order; attention never crosses their borders.
  /// Tokens after the last one are padding, which neither reads nor is read. Empty: each row is one document.
  std::vector<std::vector<int64_t>> document_lengths;
  /// Tokens read only what is not after them.
  bool causal = true;
  /// A token reads itself and the `window - 1` tokens before it (and after it, where not causal); 0: all.
  int64_t window = 0;
  /// Where given, only these blocks are read. Not together with a window.
  std::optional<BlockLayout> blocks;
  /// Tokens of each rank's slice; empty where all slices are equally long.
  std::vector<int64_t> slice_lengths;
};

}  // namespace trireme::sp
