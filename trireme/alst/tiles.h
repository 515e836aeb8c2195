// How a number of rows is cut into tiles.
//   N tokens, E hidden size, V vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme::alst {

/// A run of rows.
struct Tile {
  int64_t first;
  int64_t count;
};

/// Piece `index` of `tiles` pieces of `rows` rows, as equal as they go: longer ones first, empty ones last.
inline Tile tile_at(int64_t rows, int64_t tiles, int64_t index) {
  return {rows / tiles * index + std::min(index, rows % tiles), rows / tiles + (index < rows % tiles)};
}

/// Calls visit(first, count) for each of `tiles` pieces of `rows` rows, as equal as they go; empty ones are
/// left out.
template <class Visit>
void each_tile(int64_t rows, int64_t tiles, const Visit& visit) {
  tiles = std::max<int64_t>(1, std::min(tiles, rows));
  for (int64_t index = 0; index < tiles; ++index) {
    const auto [first, count] = tile_at(rows, tiles, index);
    if (count > 0) visit(first, count);
  }
}

/// Tiles of an MLP such that one has about as many tokens as the hidden size, whose activations then are no
/// larger than a weight. (ALST, arXiv:2506.13996, section 3.1.2.)
inline int64_t automatic_mlp_tiles(int64_t tokens, int64_t hidden_size) {
  return std::max<int64_t>(1, (tokens + hidden_size - 1) / hidden_size);
}

/// Tokens of a tile of a loss such that its logits take about 16 MiB in fp32, but at least 128: with fewer
/// the matrix products run below their rate.
inline int64_t automatic_loss_rows(int64_t vocabulary) {
  constexpr int64_t kTileBytes = 16 << 20, kLeastTokens = 128;
  return std::max(kLeastTokens, kTileBytes / (4 * std::max<int64_t>(1, vocabulary)));
}

/// Tiles of a loss that have so many tokens at most.
inline int64_t automatic_loss_tiles(int64_t tokens, int64_t vocabulary) {
  const int64_t rows = automatic_loss_rows(vocabulary);
  return std::max<int64_t>(1, (tokens + rows - 1) / rows);
}

}  // namespace trireme::alst
