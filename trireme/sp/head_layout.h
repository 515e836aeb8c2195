// Which heads each rank of a sequence-parallel group attends with.
//   P ranks, H query heads, K key/value heads; query head q reads key/value head q / (H / K).
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::sp {

/// Heads [first, first + count).
struct HeadRange {
  int64_t first = 0, count = 0;
  bool operator==(const HeadRange&) const = default;
};

/// Query heads are shared out in order, as evenly as they go; a rank also gets every key/value head that its
/// query heads read, so that a key/value head may be on several ranks (always where K < P). A rank may have
/// no head (H < P).
class HeadLayout {
 public:
  /// Throws `core::ValueError` unless all are positive and K divides H.
  HeadLayout(int64_t query_heads, int64_t key_heads, int64_t ranks);

  int64_t query_heads() const { return query_heads_; }
  int64_t key_heads() const { return key_heads_; }

  /// Ranges by rank.
  const std::vector<HeadRange>& queries() const { return queries_; }
  const std::vector<HeadRange>& keys() const { return keys_; }

  /// For each query head of `rank`, the place of its key/value head among the rank's own. Empty where every
  /// key/value head of the rank serves equally many query heads, so that an attention kernel knows without
  /// being told.
  std::vector<int64_t> key_of_query(int64_t rank) const;

 private:
  int64_t query_heads_, key_heads_;
  std::vector<HeadRange> queries_, keys_;
};

}  // namespace trireme::sp
