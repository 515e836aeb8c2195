#include "trireme/comm/traffic.h"

namespace trireme::comm {

std::string_view name_of(Collective collective) {
  static constexpr std::array<std::string_view, kCollectives> names{
      "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"};
  return names[size_t(collective)];
}

int64_t Traffic::total() const {
  int64_t sum = 0;
  for (const auto& bytes : bytes_) sum += bytes;
  return sum;
}

}  // namespace trireme::comm
