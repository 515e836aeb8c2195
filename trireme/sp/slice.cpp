#include "trireme/sp/slice.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

using at::Tensor;
using core::check_value;
using Documents = std::vector<std::vector<int64_t>>;

Documents one_document_a_row(int64_t batch, int64_t sequence) { return Documents(size_t(batch), {sequence}); }

void check_documents(const Documents& documents, int64_t batch, int64_t sequence) {
  check_value(int64_t(documents.size()) == batch, "[sp] each row needs its documents' lengths; got ",
              documents.size(), " lists for ", batch, " rows");
  for (size_t row = 0; row < documents.size(); ++row)
    check_value(std::accumulate(documents[row].begin(), documents[row].end(), int64_t{0}) <= sequence,
                "[sp] the documents of a row must fit into the row; got ", at::IntArrayRef(documents[row]),
                " in row ", row, " for ", sequence, " tokens");
}

// Calls visit(row, first token, length) for each document that is not empty.
template <class Visit>
void each_document(const Documents& documents, const Visit& visit) {
  for (size_t row = 0; row < documents.size(); ++row) {
    int64_t first = 0;
    for (int64_t length : documents[row]) {
      if (length > 0) visit(int64_t(row), first, length);
      first += length;
    }
  }
}

// [B, S, ...] -> [B, s, ...]: padded at the end of the rows, then cut. A copy: a view would hold the whole
// rows.
Tensor cut(const Tensor& whole, int64_t padding, double fill, int64_t rank, int64_t s) {
  std::vector<int64_t> pad(size_t(2 * (whole.dim() - 1)), 0);
  pad.back() = padding;
  Tensor padded = padding > 0 ? at::constant_pad_nd(whole, pad, fill) : whole;
  return padded.narrow(1, rank * s, s).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

Tensor shift_labels(const Tensor& labels, const Documents& document_lengths) {
  const int64_t B = labels.size(0), S = labels.size(1);
  const Documents& documents = document_lengths.empty() ? one_document_a_row(B, S) : document_lengths;
  check_documents(documents, B, S);
  Tensor shifted = at::full_like(labels, kIgnored);
  each_document(documents, [&](int64_t row, int64_t first, int64_t length) {
    shifted[row].narrow(0, first, length - 1).copy_(labels[row].narrow(0, first + 1, length - 1));
  });
  return shifted;
}

Tensor document_positions(const Documents& document_lengths, int64_t batch, int64_t sequence) {
  check_documents(document_lengths, batch, sequence);
  Tensor positions = at::zeros({batch, sequence}, at::kLong);
  each_document(document_lengths, [&](int64_t row, int64_t first, int64_t length) {
    positions[row].narrow(0, first, length).copy_(at::arange(length));
  });
  return positions;
}

SlicedBatch slice_batch(const SequenceBatch& batch, int64_t rank, int64_t ranks) {
  const Tensor& tokens = batch.tokens;
  check_value(tokens.dim() == 2 && batch.labels.sizes() == tokens.sizes(),
              "[sp] tokens and labels are [B, S] both; got ", tokens.sizes(), " and ", batch.labels.sizes());
  const int64_t B = tokens.size(0), S = tokens.size(1), s = (S + ranks - 1) / ranks, padding = s * ranks - S;
  Documents documents = batch.document_lengths.empty() ? one_document_a_row(B, S) : batch.document_lengths;
  SlicedBatch sliced;
  sliced.labels = cut(shift_labels(batch.labels, documents), padding, double(kIgnored), rank, s);
  sliced.tokens = cut(tokens, padding, 0, rank, s);
  each_document(documents, [&](int64_t, int64_t, int64_t length) {
    sliced.longest_document = std::max(sliced.longest_document, length);
  });
  sliced.positions = cut(document_positions(documents, B, s * ranks), 0, 0, rank, s).to(tokens.device());
  for (const auto& [name, tensor] : batch.extra) {
    check_value(tensor.dim() >= 2 && tensor.size(0) == B && tensor.size(1) == S,
                "[sp] a per-token tensor is [B, S, ...]; got '", name, "' ", tensor.sizes(), " for tokens ",
                tokens.sizes());
    sliced.extra.emplace(name, cut(tensor, padding, 0, rank, s));
  }
  sliced.context.document_lengths = std::move(documents);
  return sliced;
}

}  // namespace trireme::sp
