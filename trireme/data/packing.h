// Which documents make which row. A row is one training sequence of a fixed length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

/// A whole document, or where that is longer than a row a part of it. A piece attends to itself alone.
struct Piece {
  int64_t document = 0;
  int64_t begin = 0;   ///< first token, counted from the file's first
  int64_t length = 0;  ///< in tokens, 1 to the row's length
};

struct PackingOptions {
  int64_t sequence_length = 0;
  bool shuffle = false;
  uint64_t seed = 0;
};

/// All rows of one epoch. Every token of the corpus is in exactly one piece of one row.
class Packing {
 public:
  /// Packs documents that begin at `document_starts` (rising from 0) and end with token `token_count`.
  /// Documents longer than a row are cut every `sequence_length` tokens. Without shuffle the pieces keep
  /// their order, and a row ends where the next one does not fit (`epoch` does not matter). With shuffle the
  /// pieces are permuted by seed and epoch alone, the same on every machine, and each goes to the fullest of
  /// a few open rows that has room for it. Takes memory for a few numbers a piece.
  Packing(std::span<const int64_t> document_starts, int64_t token_count, const PackingOptions& options,
          int64_t epoch);

  int64_t rows() const { return static_cast<int64_t>(row_begins_.size()) - 1; }

  /// The pieces of a row, in the order in which they lie in it: together at most `sequence_length` tokens.
  std::span<const Piece> row(int64_t index) const;

 private:
  void fill_in_order(const std::vector<Piece>& pieces, int64_t sequence_length);
  void fill_best_fit(const std::vector<Piece>& pieces, int64_t sequence_length);

  std::vector<Piece> pieces_;       ///< row by row
  std::vector<size_t> row_begins_;  ///< in pieces_, and one more: the end
};

}  // namespace trireme::data
