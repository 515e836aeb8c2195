#include "trireme/sp/slice.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/core/check.h"

namespace trireme::sp {
namespace {

using at::Tensor;

Tensor row(std::vector<int64_t> values) { return at::tensor(values).unsqueeze(0); }

TEST(Slice, LabelsAreShiftedBeforeTheCut) {
  Tensor ids = at::arange(1, 9).unsqueeze(0);
  EXPECT_TRUE(at::equal(slice_batch({ids, ids, {}, {}}, 0, 2).labels, row({2, 3, 4, 5})));
  EXPECT_TRUE(at::equal(slice_batch({ids, ids, {}, {}}, 1, 2).labels, row({6, 7, 8, -100})));
}

TEST(Slice, NoLabelCrossesADocumentsBorder) {
  Tensor ids = at::arange(6).unsqueeze(0);
  EXPECT_TRUE(at::equal(shift_labels(ids, {{3, 3}}), row({1, 2, -100, 4, 5, -100})));
  EXPECT_TRUE(at::equal(shift_labels(ids, {{1, 0, 5}}), row({-100, 2, 3, 4, 5, -100})));
}

TEST(Slice, PositionsRestartAndMasksMoveWithTheirTokens) {
  Tensor ids = at::arange(10, 20).view({2, 5});
  Tensor labels = ids.clone();
  labels[0][1] = kIgnored;  // 11 is nobody's target
  const SequenceBatch batch{ids, labels, {{2, 3}, {5}}, {}};
  SlicedBatch slice = slice_batch(batch, 0, 1);
  EXPECT_TRUE(
      at::equal(slice.labels, at::tensor({-100, -100, 13, 14, -100, 16, 17, 18, 19, -100}).view({2, 5})));
  EXPECT_TRUE(at::equal(slice.positions, at::tensor({0, 1, 0, 1, 2, 0, 1, 2, 3, 4}).view({2, 5})));
  EXPECT_EQ(slice.longest_document, 5);
}

TEST(Slice, PadsAndNeverDrops) {
  const int64_t P = 4, S = 10;
  Tensor ids = at::arange(S).unsqueeze(0) + 1;
  Tensor weights = at::stack({ids.to(at::kDouble), -ids.to(at::kDouble)}, 2);  // [1, S, 2]
  std::vector<Tensor> tokens, labels, positions, extra;
  for (int64_t rank = 0; rank < P; ++rank) {
    SlicedBatch slice = slice_batch({ids, ids, {{4, 6}}, {{"weights", weights}}}, rank, P);
    EXPECT_EQ(slice.context.document_lengths, (std::vector<std::vector<int64_t>>{{4, 6}}));
    EXPECT_EQ(slice.longest_document, 6);
    tokens.push_back(slice.tokens);
    labels.push_back(slice.labels);
    positions.push_back(slice.positions);
    extra.push_back(slice.extra.at("weights"));
  }
  EXPECT_TRUE(at::equal(at::cat(tokens, 1), row({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0})));
  EXPECT_TRUE(at::equal(at::cat(labels, 1), row({2, 3, 4, -100, 6, 7, 8, 9, 10, -100, -100, -100})));
  EXPECT_TRUE(at::equal(at::cat(positions, 1), row({0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 0})));
  EXPECT_TRUE(at::equal(at::cat(extra, 1).narrow(1, 0, S), weights));
  EXPECT_EQ(at::cat(extra, 1).size(1), 12);
}

TEST(Slice, WhatNoDocumentHoldsIsPadding) {
  Tensor ids = at::arange(10).view({2, 5});
  SlicedBatch slice = slice_batch({ids, ids, {{2}, {1, 3}}, {}}, 0, 1);
  EXPECT_TRUE(
      at::equal(slice.labels, at::tensor({1, -100, -100, -100, -100, -100, 7, 8, -100, -100}).view({2, 5})));
  EXPECT_TRUE(at::equal(slice.positions, at::tensor({0, 1, 0, 0, 0, 0, 0, 1, 2, 0}).view({2, 5})));
  EXPECT_EQ(slice.longest_document, 3);
}

TEST(Slice, RefusesWhatDoesNotFit) {
  Tensor ids = at::arange(6).unsqueeze(0);
  EXPECT_THROW(slice_batch({ids, ids, {{3, 4}}, {}}, 0, 2), core::ValueError);
  EXPECT_THROW(slice_batch({ids, ids, {{6}, {6}}, {}}, 0, 2), core::ValueError);
  EXPECT_THROW(slice_batch({ids, ids.narrow(1, 0, 5), {}, {}}, 0, 2), core::ValueError);
  EXPECT_THROW(slice_batch({ids, ids, {}, {{"x", at::zeros({1, 5})}}}, 0, 2), core::ValueError);
}

}  // namespace
}  // namespace trireme::sp
