#include "trireme/comm/mesh.h"

#include "trireme/core/check.h"

namespace trireme::comm {
namespace {

std::vector<int64_t> every(int64_t step, int64_t first, int64_t count) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

}  // namespace

Mesh Mesh::create(const Connection& connection, int64_t sp) {
  const int64_t size = connection.size(), rank = connection.rank();
  core::check_value(sp > 0 && size % sp == 0,
                    "[comm] sequence_parallel_size must divide the number of ranks; got ", sp, " for ", size,
                    " ranks");
  return {connection.group("world", every(1, 0, size)),
          connection.group("sequence", every(1, rank / sp * sp, sp)),
          connection.group("data", every(sp, rank % sp, size / sp))};
}

}  // namespace trireme::comm
