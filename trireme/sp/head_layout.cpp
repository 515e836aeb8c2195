#include "trireme/sp/head_layout.h"

#include "trireme/core/check.h"

namespace trireme::sp {

HeadLayout::HeadLayout(int64_t query_heads, int64_t key_heads, int64_t ranks)
    : query_heads_(query_heads), key_heads_(key_heads) {
  core::check_value(query_heads > 0 && key_heads > 0 && ranks > 0 && query_heads % key_heads == 0,
                    "[sp] key/value heads must divide query heads; got ", key_heads, " and ", query_heads,
                    " on ", ranks, " ranks");
  const int64_t readers = query_heads / key_heads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = rank * query_heads / ranks, end = (rank + 1) * query_heads / ranks;
    queries_.push_back({first, end - first});
    const int64_t first_key = first / readers, end_key = (end + readers - 1) / readers;
    keys_.push_back({first_key, end > first ? end_key - first_key : 0});
  }
}

std::vector<int64_t> HeadLayout::key_of_query(int64_t rank) const {
  const auto& mine = queries_[size_t(rank)];
  const auto& keys = keys_[size_t(rank)];
  const int64_t readers = query_heads_ / key_heads_;
  std::vector<int64_t> key_of(size_t(mine.count));
  bool even = keys.count > 0 && mine.count % keys.count == 0;
  for (int64_t i = 0; i < mine.count; ++i) {
    key_of[size_t(i)] = (mine.first + i) / readers - keys.first;
    even = even && key_of[size_t(i)] == i / (mine.count / keys.count);
  }
  return even ? std::vector<int64_t>{} : key_of;
}

}  // namespace trireme::sp
