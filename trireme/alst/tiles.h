// How a number of rows is cut into tiles.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme::alst {

/// Calls visit(first, count) for each of `tiles` pieces of `rows` rows, as equal as they go; empty ones are
/// left out.
template <class Visit>
void each_tile(int64_t rows, int64_t tiles, const Visit& visit) {
  tiles = std::max<int64_t>(1, std::min(tiles, rows));
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = rows / tiles * tile + std::min(tile, rows % tiles);
    const int64_t count = rows / tiles + (tile < rows % tiles);
    if (count > 0) visit(first, count);
  }
}

}  // namespace trireme::alst
