#include "trireme/plan/layer_memory.h"

#include <algorithm>
#include <numeric>

#include "trireme/alst/tiles.h"
#include "trireme/sp/head_layout.h"

namespace trireme::plan {

namespace {

int64_t rows_of(int64_t tokens, int64_t tiles) { return tiles == 0 ? 0 : (tokens + tiles - 1) / tiles; }

}  // namespace

LayerMemory::LayerMemory(const Setting& setting, int64_t window, bool checkpointed)
    : checkpointed_(checkpointed),
      keeps_attention_(checkpointed && setting.recompute == model::Recompute::all_but_attention),
      exchanges_(setting.sequence_ranks > 1),
      by_tiles_(window > 0 && window < setting.sequence),
      batched_(setting.batch > 1),
      normed_heads_(setting.config.qk_norm),
      element_(setting.element_bytes()),
      E_(setting.config.hidden_size),
      I_(setting.config.intermediate_size),
      Q_(setting.config.heads * setting.config.head_size) {
  const auto& config = setting.config;
  const int64_t N = setting.tokens(), D = config.head_size, P = setting.sequence_ranks,
                all = setting.batch * setting.slice() * P;
  const sp::HeadLayout layout(config.heads, config.kv_heads, P);
  int64_t queries = 0, keys = 0, mine = 0, spread = 0, everywhere = 0;
  for (size_t rank = 0; rank < size_t(P); ++rank) {
    const int64_t h = layout.queries()[rank].count, k = layout.keys()[rank].count,
                  again = layout.key_of_query(int64_t(rank)).empty() ? 0 : 2 * h;
    everywhere += h + 2 * k;
    if (h + 2 * k + again <= mine + spread) continue;
    queries = h;
    keys = again > 0 ? h : k;
    mine = h + 2 * k;
    spread = again;
  }
  hidden_ = N * E_ * element_;
  packed_ = N * (config.heads + 2 * config.kv_heads) * D * element_;
  sent_ = N * everywhere * D * element_;
  heads_packed_ = all * mine * D * element_;
  heads_output_ = all * queries * D * element_;
  spread_ = all * spread * D * element_;
  output_ = N * Q_ * element_;
  logsumexp_ = all * queries * kWide;
  deltas_ = (N * config.heads + all * queries) * kWide;
  inverse_ = N * kWide;
  inner_ = N * I_ * element_;
  // ATen's kernel has a tile of scores a thread, in the type of the operands, too, where that is not fp32.
  constexpr int64_t kScores = 256 * 512;
  if (setting.on_cpu && !by_tiles_) {
    scratch_ = setting.threads * kScores * (kWide + (element_ < kWide ? element_ : 0));
    // In bf16 it packs keys and values for the dot product, a copy of each for every query head.
    if (element_ < kWide) scratch_ += 2 * heads_output_;
  }
  // Tiles that share keys add up their gradients in fp32.
  if (by_tiles_ && element_ < kWide) key_sums_ = 2 * all * keys * D * kWide;
  tiles_ = setting.mlp_tiles.value_or(alst::automatic_mlp_tiles(N, E_));
  if (checkpointed_) tiles_ = std::max<int64_t>(1, tiles_);
  // Automatic tiles are as long as they may get, so that a longer sequence never takes less.
  tile_rows_ = setting.mlp_tiles ? rows_of(N, tiles_) : std::min(N, E_);
}

// What attention and its projections save, the layer's input aside: one number a token of the norm, q, k and
// v where the heads are, the output, the log-sum-exp; before the heads' own norms also what these read; keys
// and values again where each query head has its own.
int64_t LayerMemory::attention_kept() const {
  const int64_t heads = exchanges_ ? heads_packed_ : packed_;
  const int64_t before_norms = normed_heads_ ? packed_ : 0;
  return inverse_ + heads + spread_ + before_norms + output_ + logsumexp_;
}

std::vector<int64_t> LayerMemory::kept_besides() const {
  return keeps_attention_ ? std::vector<int64_t>{output_, logsumexp_} : std::vector<int64_t>{};
}

int64_t LayerMemory::kept() const {
  if (checkpointed_) {
    const auto tensors = kept_besides();
    return std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
  }
  return attention_kept() + mlp_kept();
}

// The MLP's input, and without tiles what the gate read.
int64_t LayerMemory::mlp_kept() const { return hidden_ + (tiles_ > 0 ? 0 : inverse_ + 2 * inner_); }

// gate and up, and the activation or the norm's output, of one tile.
int64_t LayerMemory::mlp_tile_forward() const {
  const int64_t rows = tiles_ > 0 ? tile_rows_ : hidden_ / (E_ * element_);
  return rows * element_ * (2 * I_ + std::max(I_, E_)) + rows * kWide;
}

// Forward again with a graph, the gradients of activation, gate and up, norm and input.
int64_t LayerMemory::mlp_tile_backward() const {
  return tile_rows_ * element_ * (2 * I_ + std::max(I_ + std::max(I_, 2 * I_), 2 * I_ + 2 * E_));
}

int64_t LayerMemory::forward() const {
  // Attention computes q, k and v, sends them, attends, and sends the output; what it read stays until then.
  const int64_t saved =
      checkpointed_ ? 0 : attention_kept() - output_ - logsumexp_ - (exchanges_ ? heads_packed_ : packed_);
  int64_t most = hidden_ + packed_;
  if (exchanges_) {
    most = std::max(most, packed_ + heads_packed_ + (batched_ ? heads_packed_ : sent_));
    most = std::max(most, packed_ + heads_packed_ + spread_ + heads_output_ + logsumexp_ + 2 * output_);
  } else {
    most = std::max(most, packed_ + output_ + logsumexp_ + hidden_);
  }
  const int64_t mlp = 2 * hidden_ + (checkpointed_ ? kept() : attention_kept()) + mlp_tile_forward();
  return std::max(saved + most, mlp);
}

// Until the MLP's backward pass begins: a checkpoint's replay, beyond what it kept and its gradient.
int64_t LayerMemory::replay() const {
  const int64_t attends = keeps_attention_ ? 0 : output_ + logsumexp_;
  int64_t most = hidden_ + packed_;
  if (exchanges_) {
    most = std::max(most, packed_ + heads_packed_ + (batched_ ? heads_packed_ : sent_));
    if (!keeps_attention_)
      most = std::max(most, packed_ + heads_packed_ + spread_ + heads_output_ + logsumexp_ + 2 * output_);
  } else {
    most = std::max(most, packed_ + attends + hidden_);
  }
  return most + inverse_;
}

// Of the MLP, as autograd forms them.
int64_t LayerMemory::parameter_gradients() const { return 3 * I_ * E_ * kWide; }

// The gradient in and out, the MLP's input; a tile, or the whole without tiles.
int64_t LayerMemory::mlp_backward() const {
  if (tiles_ > 0) return 2 * hidden_ + mlp_tile_backward() + parameter_gradients();
  return 2 * hidden_ + std::max(3 * inner_, 2 * inner_ + hidden_);
}

// The residual's gradient, the output's here and where the heads are, those of q, k and v, and the stand-in
// for the output in one piece where there are no tiles.
int64_t LayerMemory::attention_backward() const {
  const int64_t gradients = spread_ > 0 ? heads_output_ + spread_ : heads_packed_;
  int64_t most = hidden_ + output_ + (exchanges_ ? heads_output_ + deltas_ + gradients : packed_);
  if (exchanges_ && !by_tiles_) most += heads_output_;
  return most + scratch_ + key_sums_;
}

// q, k and v's gradients where the heads are, as they arrive, and side by side. Where each query head had its
// own keys: their gradients beside those of the keys, and what is sent.
int64_t LayerMemory::exchange_backward() const {
  if (!exchanges_) return hidden_ + 2 * packed_;
  const int64_t before = spread_ > 0 ? heads_packed_ + spread_ + heads_packed_ : heads_packed_;
  return hidden_ + before + sent_ + (spread_ > 0 ? 0 : packed_);
}

int64_t LayerMemory::norm_backward() const { return 3 * hidden_ + packed_; }

int64_t LayerMemory::backward() const {
  if (!checkpointed_) {
    // What the MLP kept is gone when attention's turn comes, and then what attention kept.
    const int64_t after = std::max(exchange_backward(), norm_backward());
    return std::max({mlp_backward(), attention_backward() - mlp_kept(), after - kept()});
  }
  const int64_t upstream = hidden_, middle = hidden_;
  // What the replay made that the forward pass had not kept, the MLP's input aside.
  const int64_t replayed = attention_kept() - kept();
  const int64_t mlp = replayed + middle + mlp_backward() - hidden_;  // which counts the upstream gradient
  const int64_t after = std::max(exchange_backward(), norm_backward());
  return upstream + std::max({replay(), mlp, replayed + attention_backward(), after});
}

}  // namespace trireme::plan
