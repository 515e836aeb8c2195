#include "trireme/data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/errors.h"

namespace trireme::data {
namespace {

using ::testing::HasSubstr;
using testing::value_error;

struct Corpus {
  std::vector<int64_t> starts;
  int64_t tokens = 0;
};

Corpus corpus_of(const std::vector<int64_t>& lengths) {
  Corpus corpus;
  for (const int64_t length : lengths) {
    corpus.starts.push_back(corpus.tokens);
    corpus.tokens += length;
  }
  return corpus;
}

Corpus random_corpus(size_t documents, int64_t longest, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<int64_t> lengths(documents);
  for (auto& length : lengths) length = 1 + engine() % longest;
  return corpus_of(lengths);
}

Packing pack(const Corpus& corpus, int64_t sequence_length, bool shuffle, uint64_t seed = 0,
             int64_t epoch = 0) {
  return Packing(corpus.starts, corpus.tokens, {sequence_length, shuffle, seed}, epoch);
}

/// Rows as "document:begin+length" words, for readable comparison.
std::vector<std::string> words(const Packing& packing) {
  std::vector<std::string> rows;
  for (int64_t i = 0; i < packing.rows(); ++i) {
    std::ostringstream text;
    for (const Piece& piece : packing.row(i))
      text << (text.tellp() > 0 ? " " : "") << piece.document << ":" << piece.begin << "+" << piece.length;
    rows.push_back(text.str());
  }
  return rows;
}

/// Each token once, no row too long or empty, no piece across a document's border.
void expect_sound(const Packing& packing, const Corpus& corpus, int64_t sequence_length) {
  std::vector<int> seen(static_cast<size_t>(corpus.tokens), 0);
  for (int64_t i = 0; i < packing.rows(); ++i) {
    int64_t filled = 0;
    EXPECT_FALSE(packing.row(i).empty());
    for (const Piece& piece : packing.row(i)) {
      filled += piece.length;
      ASSERT_GT(piece.length, 0);
      const auto document = static_cast<size_t>(piece.document);
      const int64_t end = document + 1 < corpus.starts.size() ? corpus.starts[document + 1] : corpus.tokens;
      ASSERT_GE(piece.begin, corpus.starts[document]);
      ASSERT_LE(piece.begin + piece.length, end);
      for (int64_t t = 0; t < piece.length; ++t) ++seen[static_cast<size_t>(piece.begin + t)];
    }
    EXPECT_LE(filled, sequence_length);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), corpus.tokens);
}

TEST(Packing, InOrderClosesARowWhereTheNextDocumentDoesNotFit) {
  const auto corpus = corpus_of({3, 4, 2, 8, 1, 1});
  EXPECT_THAT(words(pack(corpus, 8, false)),
              ::testing::ElementsAre("0:0+3 1:3+4", "2:7+2", "3:9+8", "4:17+1 5:18+1"));
}

TEST(Packing, CutsLongDocumentsFromTheirBeginning) {
  EXPECT_THAT(words(pack(corpus_of({2, 9, 1}), 4, false)),
              ::testing::ElementsAre("0:0+2", "1:2+4", "1:6+4", "1:10+1 2:11+1"));
  EXPECT_THAT(words(pack(corpus_of({3}), 1, false)), ::testing::ElementsAre("0:0+1", "0:1+1", "0:2+1"));
}

TEST(Packing, HasEachTokenOnce) {
  for (const int64_t sequence_length : {1, 7, 64, 1000}) {
    const auto corpus = random_corpus(300, 150, 5);
    expect_sound(pack(corpus, sequence_length, false), corpus, sequence_length);
    for (int64_t epoch = 0; epoch < 3; ++epoch)
      expect_sound(pack(corpus, sequence_length, true, 11, epoch), corpus, sequence_length);
  }
}

TEST(Packing, ShuffleDependsOnSeedAndEpochAlone) {
  const auto corpus = random_corpus(200, 50, 1);
  const auto base = words(pack(corpus, 64, true, 3, 2));
  EXPECT_EQ(words(pack(corpus, 64, true, 3, 2)), base);
  EXPECT_NE(words(pack(corpus, 64, true, 3, 3)), base);
  EXPECT_NE(words(pack(corpus, 64, true, 2, 2)), base);
  EXPECT_NE(words(pack(corpus, 64, true, 2, 3)), base);
}

TEST(Packing, ShuffleIsTheSameOnEveryMachine) {
  // Frozen: a changed order would make a resumed run read other rows.
  EXPECT_THAT(words(pack(corpus_of({1, 2, 3, 4, 5}), 6, true, 42, 1)),
              ::testing::ElementsAre("3:6+4 1:1+2", "2:3+3", "4:10+5 0:0+1"));
}

TEST(Packing, ShufflesEvenly) {
  // 4 documents of a row each have 24 orders; in 24000 draws each comes up 1000 times, give or take.
  const auto corpus = corpus_of({5, 5, 5, 5});
  std::map<std::vector<std::string>, int> counts;
  for (int64_t epoch = 0; epoch < 24000; ++epoch) ++counts[words(pack(corpus, 5, true, 9, epoch))];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Packing, BestFitWastesLittle) {
  const auto corpus = random_corpus(20000, 400, 3);
  const int64_t rows = pack(corpus, 1024, true, 1, 0).rows();
  const double fullness = static_cast<double>(corpus.tokens) / static_cast<double>(rows * 1024);
  EXPECT_GT(fullness, 0.99);
  EXPECT_LT(rows, pack(corpus, 1024, false).rows());
}

TEST(Packing, CountsBeyondThirtyTwoBits) {
  const int64_t far = int64_t{1} << 40;
  const std::vector<int64_t> starts{0, far};
  const Packing packing(starts, far + 3, {int64_t{1} << 38, false, 0}, 0);
  EXPECT_THAT(words(packing), ::testing::ElementsAre("0:0+274877906944", "0:274877906944+274877906944",
                                                     "0:549755813888+274877906944",
                                                     "0:824633720832+274877906944", "1:1099511627776+3"));
}

TEST(Packing, RefusesBadArguments) {
  const auto corpus = corpus_of({3});
  EXPECT_THAT(value_error([&] { pack(corpus, 0, false); }), HasSubstr("sequence_length 0"));
  EXPECT_THAT(value_error([&] { pack(corpus, 4, true, 0, -1); }), HasSubstr("epochs count from 0"));
  EXPECT_THAT(value_error([&] { pack(corpus, 4, true).row(1); }), HasSubstr("below 1; got 1"));
}

}  // namespace
}  // namespace trireme::data
