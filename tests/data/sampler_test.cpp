#include "trireme/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trireme::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::value_error;

/// A corpus whose token values are their positions.
class SamplerTest : public ::testing::Test {
 protected:
  TokenFile corpus(const std::vector<int64_t>& lengths, const std::vector<uint8_t>& mask = {}) {
    std::vector<int64_t> starts;
    int64_t count = 0;
    for (const int64_t length : lengths) {
      starts.push_back(count);
      count += length;
    }
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    write_token_file(directory_ / "corpus.safetensors", tokens, starts, mask);
    return TokenFile(directory_ / "corpus.safetensors");
  }

  TemporaryDirectory directory_;
};

Sampler::Options options(int64_t sequence_length, bool shuffle, uint64_t seed = 0) {
  return {{sequence_length, shuffle, seed}, 1000};
}

TEST_F(SamplerTest, PadsAndLeavesLabelsUnshifted) {
  const auto file = corpus({3, 2, 4});
  Sampler sampler(file, options(6, false));
  const Row first = sampler.row(0);
  EXPECT_THAT(first.tokens, ElementsAre(0, 1, 2, 3, 4, 0));
  EXPECT_THAT(first.labels, ElementsAre(0, 1, 2, 3, 4, kIgnoredLabel));
  EXPECT_THAT(first.document_lengths, ElementsAre(3, 2));
  const Row second = sampler.row(1);
  EXPECT_THAT(second.tokens, ElementsAre(5, 6, 7, 8, 0, 0));
  EXPECT_THAT(second.document_lengths, ElementsAre(4));
}

TEST_F(SamplerTest, CutPiecesAreDocumentsOfTheirOwn) {
  const auto file = corpus({5, 1});
  Sampler sampler(file, options(4, false));
  EXPECT_THAT(sampler.row(0).document_lengths, ElementsAre(4));
  EXPECT_THAT(sampler.row(1).tokens, ElementsAre(4, 5, 0, 0));
  EXPECT_THAT(sampler.row(1).document_lengths, ElementsAre(1, 1));
}

TEST_F(SamplerTest, IgnoresWhatTheMaskExcludes) {
  const auto file = corpus({3, 2}, {0, 1, 1, 0, 0});
  Sampler sampler(file, options(6, false));
  EXPECT_THAT(sampler.row(0).labels, ElementsAre(-100, 1, 2, -100, -100, -100));
  EXPECT_THAT(sampler.row(0).tokens, ElementsAre(0, 1, 2, 3, 4, 0));
}

TEST_F(SamplerTest, RepeatsInOrderWithoutShuffle) {
  const auto file = corpus({4, 4, 4});
  Sampler sampler(file, options(4, false));
  EXPECT_EQ(sampler.row(7).tokens, sampler.row(1).tokens);
  EXPECT_EQ(sampler.epoch_of(7), 2);
  EXPECT_EQ(sampler.epoch_of(int64_t{3} << 60), int64_t{1} << 60);
}

TEST_F(SamplerTest, SeesEachTokenOnceAnEpochAndRestartsAnywhere) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 60; ++i) lengths.push_back(1 + i * 7 % 13);
  const auto file = corpus(lengths);
  Sampler sampler(file, options(16, true, 5));
  std::vector<Row> rows;
  std::map<int64_t, std::vector<int>> seen;  // by epoch
  bool counts_differ = false;
  for (int64_t index = 0; sampler.epoch_of(index) < 6; ++index) {
    rows.push_back(sampler.row(index));
    auto& epoch = seen[sampler.epoch_of(index)];
    epoch.resize(static_cast<size_t>(file.token_count()));
    for (const int64_t label : rows.back().labels)
      if (label != kIgnoredLabel) ++epoch[static_cast<size_t>(label)];
    const auto& row = rows.back();
    EXPECT_EQ(std::accumulate(row.document_lengths.begin(), row.document_lengths.end(), 0),
              16 - std::count(row.labels.begin(), row.labels.end(), kIgnoredLabel));
  }
  for (const auto& [epoch, counts] : seen) {
    EXPECT_THAT(counts, ::testing::Each(1)) << epoch;
    counts_differ = counts_differ || sampler.rows_in_epoch(epoch) != sampler.rows_in_epoch(0);
  }
  EXPECT_TRUE(counts_differ) << "the case that epochs differ in length is not covered: change the lengths";

  const auto last = static_cast<int64_t>(rows.size()) - 1;
  for (const int64_t index : {last, int64_t{0}, last / 2, last / 2 + 1, int64_t{1}}) {
    Sampler restarted(file, options(16, true, 5));
    EXPECT_EQ(restarted.row(index).tokens, rows[static_cast<size_t>(index)].tokens) << index;
    EXPECT_EQ(sampler.row(index).tokens, rows[static_cast<size_t>(index)].tokens) << index;
  }
}

TEST_F(SamplerTest, RefusesTokensOutsideTheVocabulary) {
  const auto file = corpus({3, 2});
  Sampler sampler(file, {{5, false, 0}, 4});
  EXPECT_THAT(value_error([&] { sampler.row(0); }), HasSubstr("vocabulary of 4; got 4 at position 4 of"));
  EXPECT_THAT(value_error([&] {
                Sampler(file, {{5, false, 0}, 0});
              }),
              HasSubstr("at least one token; got 0"));
  EXPECT_THAT(value_error([&] { Sampler(file, options(0, false)); }), HasSubstr("sequence_length 0"));
  EXPECT_THAT(value_error([&] { sampler.row(-1); }), HasSubstr("count from 0; got -1"));
}

TEST(BatchLayout, GivesEachRowToOneSample) {
  const BatchLayout layout{3, 2, 4};
  std::vector<int64_t> rows;
  for (int64_t step = 0; step < 2; ++step)
    for (int64_t accumulation = 0; accumulation < 3; ++accumulation)
      for (int64_t rank = 0; rank < 2; ++rank)
        for (int64_t sample = 0; sample < 4; ++sample)
          rows.push_back(layout.row(step, accumulation, rank, sample));
  std::vector<int64_t> all(48);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(rows, all);
  EXPECT_EQ(layout.rows_per_step(), 24);
}

TEST(BatchLayout, TakesTheSameRowsAStepHoweverItIsSplit) {
  for (const BatchLayout layout : {BatchLayout{8, 1, 1}, BatchLayout{1, 8, 1}, BatchLayout{2, 2, 2}}) {
    EXPECT_EQ(layout.row(5, 0, 0, 0), 40);
    EXPECT_EQ(layout.row(5, layout.accumulation_steps - 1, layout.data_parallel_size - 1,
                         layout.micro_batch_size - 1),
              47);
  }
}

TEST(BatchLayout, RefusesWhatLiesOutside) {
  const BatchLayout layout{3, 2, 4};
  EXPECT_THAT(value_error([&] { layout.row(-1, 0, 0, 0); }), HasSubstr("steps count from 0"));
  EXPECT_THAT(value_error([&] { layout.row(0, 3, 0, 0); }),
              HasSubstr("accumulation step lies below 3; got 3"));
  EXPECT_THAT(value_error([&] { layout.row(0, 0, -1, 0); }), HasSubstr("rank lies below 2; got -1"));
  EXPECT_THAT(value_error([&] { layout.row(0, 0, 0, 4); }),
              HasSubstr("sample of a micro batch lies below 4"));
  EXPECT_THAT(value_error([&] { layout.row(INT64_MAX, 0, 0, 0); }), HasSubstr("must fit 64 bits"));
  EXPECT_THAT(value_error([&] { BatchLayout({0, 1, 1}).rows_per_step(); }), HasSubstr("at least 1; got 0"));
}

}  // namespace
}  // namespace trireme::data
