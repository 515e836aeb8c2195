#include "trireme/data/sampler.h"

#include <algorithm>

#include "trireme/core/check.h"

namespace trireme::data {
namespace {

/// a * b + c of numbers that are not negative, or an error where an int64 does not hold it.
int64_t multiply_add(int64_t a, int64_t b, int64_t c) {
  int64_t result = 0;
  const bool overflow = __builtin_mul_overflow(a, b, &result) || __builtin_add_overflow(result, c, &result);
  core::check_value(!overflow, "[data] a row's index must fit 64 bits; got ", a, " * ", b, " + ", c);
  return result;
}

void check_below(int64_t value, int64_t bound, const char* what) {
  core::check_value(value >= 0 && value < bound, "[data] ", what, " lies below ", bound, "; got ", value);
}

}  // namespace

int64_t BatchLayout::rows_per_step() const {
  core::check_value(accumulation_steps > 0 && data_parallel_size > 0 && micro_batch_size > 0,
                    "[data] accumulation, data parallel size and micro batch are at least 1; got ",
                    accumulation_steps, ", ", data_parallel_size, " and ", micro_batch_size);
  return multiply_add(multiply_add(accumulation_steps, data_parallel_size, 0), micro_batch_size, 0);
}

int64_t BatchLayout::row(int64_t step, int64_t accumulation, int64_t data_parallel_rank,
                         int64_t sample) const {
  core::check_value(step >= 0, "[data] steps count from 0; got ", step);
  check_below(accumulation, accumulation_steps, "the accumulation step");
  check_below(data_parallel_rank, data_parallel_size, "the data parallel rank");
  check_below(sample, micro_batch_size, "the sample of a micro batch");
  const int64_t micro_step = multiply_add(step, accumulation_steps, accumulation);
  return multiply_add(multiply_add(micro_step, data_parallel_size, data_parallel_rank), micro_batch_size,
                      sample);
}

Sampler::Sampler(const TokenFile& file, const Options& options) : file_(file), options_(options) {
  core::check_value(options.vocabulary_size > 0, "[data] a vocabulary has at least one token; got ",
                    options.vocabulary_size);
  core::check_value(options.packing.sequence_length > 0,
                    "[data] a sequence has at least one token; got sequence_length ",
                    options.packing.sequence_length);
}

const Packing& Sampler::packing(int64_t epoch) {
  // In order, all epochs are alike.
  const int64_t key = options_.packing.shuffle ? epoch : 0;
  if (packed_epoch_ != key) {
    packing_.emplace(file_.document_starts(), file_.token_count(), options_.packing, key);
    packed_epoch_ = key;
  }
  return *packing_;
}

int64_t Sampler::rows_in_epoch(int64_t epoch) { return packing(epoch).rows(); }

int64_t Sampler::epoch_of(int64_t index) {
  core::check_value(index >= 0, "[data] rows count from 0; got ", index);
  if (!options_.packing.shuffle) return index / rows_in_epoch(0);
  while (index >= epoch_begins_.back()) {
    const auto epoch = static_cast<int64_t>(epoch_begins_.size()) - 1;
    epoch_begins_.push_back(epoch_begins_.back() + rows_in_epoch(epoch));
  }
  const auto after = std::upper_bound(epoch_begins_.begin(), epoch_begins_.end(), index);
  return after - epoch_begins_.begin() - 1;
}

Row Sampler::row(int64_t index) {
  const int64_t epoch = epoch_of(index);
  const int64_t first =
      options_.packing.shuffle ? epoch_begins_[static_cast<size_t>(epoch)] : epoch * rows_in_epoch(0);
  return read_row(file_, packing(epoch).row(index - first), options_.packing.sequence_length,
                  options_.vocabulary_size);
}

Row read_row(const TokenFile& file, std::span<const Piece> pieces, int64_t sequence_length,
             int64_t vocabulary_size) {
  Row row;
  const auto length = static_cast<size_t>(sequence_length);
  row.tokens.assign(length, 0);
  row.labels.assign(length, kIgnoredLabel);
  std::vector<uint8_t> mask(length, 0);
  size_t filled = 0;
  for (const Piece& piece : pieces) {
    const auto size = static_cast<size_t>(piece.length);
    core::check_internal(size <= length - filled, "[data] pieces of ", piece.length,
                         " tokens overfill a row");
    file.read_tokens(piece.begin, std::span(row.tokens).subspan(filled, size), vocabulary_size);
    file.read_loss_mask(piece.begin, std::span(mask).subspan(filled, size));
    row.document_lengths.push_back(piece.length);
    filled += size;
  }
  for (size_t i = 0; i < filled; ++i)
    if (mask[i]) row.labels[i] = row.tokens[i];
  return row;
}

}  // namespace trireme::data
