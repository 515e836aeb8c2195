// The endless stream of rows that training reads, and which rank reads which of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/data/packing.h"
#include "trireme/data/token_file.h"

namespace trireme::data {

/// A label that the loss leaves out.
inline constexpr int64_t kIgnoredLabel = -100;

/// One training sequence of S tokens.
struct Row {
  std::vector<int64_t> tokens;  ///< [S]; 0 in the padding
  std::vector<int64_t> labels;  ///< [S]; the tokens themselves, not shifted; ignored where the mask is 0
                                ///< and in the padding
  std::vector<int64_t> document_lengths;  ///< in order; what is left of S is padding
};

/// Which rows one step of training takes.
struct BatchLayout {
  int64_t accumulation_steps = 1;
  int64_t data_parallel_size = 1;
  int64_t micro_batch_size = 1;

  /// Rows that all ranks take together in one step.
  int64_t rows_per_step() const;

  /// The stream's row for one sample: row `((step*A + accumulation)*D + rank)*M + sample`, so that what a
  /// step takes in all does not depend on how it is split. Throws `ValueError` for an argument out of its
  /// range.
  int64_t row(int64_t step, int64_t accumulation, int64_t data_parallel_rank, int64_t sample) const;
};

/// Reads rows of a corpus by their index in a stream of epochs. Not thread-safe. Keeps the packing of one
/// epoch: going forward packs each epoch once. Going to a far row of a shuffled stream packs the epochs
/// before it once, to learn how many rows they have.
class Sampler {
 public:
  struct Options {
    PackingOptions packing;
    int64_t vocabulary_size = 0;  ///< tokens must lie below
  };

  /// `file` must outlive the sampler.
  Sampler(const TokenFile& file, const Options& options);

  /// Row `index` of the stream, counted from 0 over all epochs. Throws `ValueError` for tokens outside the
  /// vocabulary.
  Row row(int64_t index);

  /// The epoch, from 0, that row `index` belongs to.
  int64_t epoch_of(int64_t index);

  /// How many rows epoch `epoch` has.
  int64_t rows_in_epoch(int64_t epoch);

 private:
  const Packing& packing(int64_t epoch);

  const TokenFile& file_;
  Options options_;
  std::vector<int64_t> epoch_begins_{
      0};  ///< first row of each epoch known so far, and the end of the last one
  int64_t packed_epoch_ = -1;
  std::optional<Packing> packing_;  ///< of packed_epoch_
};

/// Reads the tokens of a row's pieces and pads them to `sequence_length`.
Row read_row(const TokenFile& file, std::span<const Piece> pieces, int64_t sequence_length,
             int64_t vocabulary_size);

}  // namespace trireme::data
