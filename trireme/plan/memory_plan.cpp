#include "trireme/plan/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "trireme/alst/tiles.h"
#include "trireme/core/check.h"
#include "trireme/plan/layer_memory.h"
#include "trireme/plan/state_memory.h"

namespace trireme::plan {
namespace {

using core::Residence;

// On a CPU: LibTorch's code, kernels made for the processor and packed constants (a model of a few thousand
// parameters takes 24 MiB, 36 in bf16, above what the process held before it), and pages that the allocator
// has not returned yet.
int64_t first_use(const Setting& setting) {
  if (!setting.on_cpu) return 0;
  return int64_t{setting.bf16 ? 44 : 32} << 20;
}

class Planner {
 public:
  explicit Planner(const Setting& setting) : s_(setting), units_(unit_memory(setting)) {
    std::map<std::pair<int64_t, bool>, LayerMemory> kinds;
    for (int64_t layer = 0; layer < s_.config.layers; ++layer) {
      const int64_t window = s_.config.windows[size_t(layer)];
      const bool checkpointed = s_.recompute != model::Recompute::nothing && layer % s_.recompute_every == 0;
      const auto kind = kinds.try_emplace({window, checkpointed}, s_, window, checkpointed).first;
      layers_.push_back(kind->second);
      checkpointed_.push_back(checkpointed);
    }
    add_states();
    add_batch();
  }

  MemoryPlan plan() {
    const int64_t last = s_.config.layers - 1;
    consider("forward", forward(last));
    consider("loss", loss());
    for (int64_t layer = last; layer >= 0; --layer) consider("backward", backward(layer));
    consider("backward", embedding_backward());
    consider("reduction", reduction());
    best_.disk = base_.disk + activations_on_disk();
    return best_;
  }

 private:
  void add_states() {
    base_.device[Part::base] = first_use(s_);
    for (const auto& unit : units_) {
      base_.device[Part::parameters] += unit.parameters.device;
      base_.host[Part::parameters] += unit.parameters.host;
      base_.device[Part::optimizer] += unit.optimizer.device;
      base_.host[Part::optimizer] += unit.optimizer.host;
      base_.device[Part::gradients] += unit.gradients.device;
      base_.host[Part::gradients] += unit.gradients.host;
      base_.disk += unit.parameters.disk + unit.optimizer.disk + unit.gradients.disk;
    }
    base_.device[Part::gathered] = gathered_at_once(s_, units_);
    // Buffers of gradients on their way wait for the next pass: the head's, a layer's, and another one's that
    // is still being reduced.
    const int64_t layers = s_.overlap_reductions && s_.ranks > 1 ? 2 : 1;
    base_.device[Part::communication] = head().collected + layers * units_[1].collected;
    if (s_.parameters_on == Residence::disk) {
      // Shards that are read ahead, and those of gathers that are under way.
      int64_t shards = 0, largest = 0;
      for (const auto& unit : units_) {
        shards += unit.parameters.disk;
        largest = std::max(largest, unit.gathered_elements);
      }
      const int64_t stored = s_.stored_fp32 ? kWide : s_.element_bytes();
      const int64_t gathering = s_.prefetch > 0 ? (s_.prefetch + largest) / s_.ranks : 0;
      memory_of_host()[Part::communication] += std::min(shards, (s_.read_ahead + gathering) * stored);
    }
    if (s_.optimizer_on == Residence::disk)
      memory_of_host()[Part::communication] += s_.optimizer_buffers * kWide;
  }

  // Tokens, labels and positions are int64; cosines and sines are of half a head each.
  void add_batch() {
    const int64_t N = s_.tokens();
    base_.device[Part::batch] = 3 * 8 * N * s_.micro_batches + N * s_.config.head_size * s_.element_bytes();
  }

  const UnitMemory& head() const { return s_.config.tied_embeddings ? units_.front() : units_.back(); }

  Amount& memory_of_host() { return s_.on_cpu ? base_.device : base_.host; }

  // What layers 0 to `last` keep: of these, `last` and those below it that are on their way back or out.
  void add_kept(int64_t last, int64_t there, MemoryPlan& plan) const {
    const ActivationPlace& place = s_.activations;
    int64_t checkpoints_above = 0;
    for (int64_t layer = last; layer >= 0; --layer) {
      const auto& memory = layers_[size_t(layer)];
      int64_t leaves = 0;
      if (checkpointed_[size_t(layer)] && moves_away() && checkpoints_above++ >= there)
        leaves = moved(memory);
      plan.device[Part::activations] += memory.input() + memory.kept() - leaves;
      if (place.on == Residence::host) plan.host[Part::activations] += leaves;
    }
  }
  // What leaves of a checkpoint.
  int64_t moved(const LayerMemory& memory) const {
    const auto if_large = [&](int64_t bytes) { return bytes >= s_.activations.min_bytes ? bytes : 0; };
    int64_t bytes = if_large(memory.input());
    if (s_.activations.inputs_only) return bytes;
    for (const int64_t tensor : memory.kept_besides()) bytes += if_large(tensor);
    return bytes;
  }
  bool moves_away() const {
    return s_.activations.on == Residence::disk || (s_.activations.on == Residence::host && !s_.on_cpu);
  }

  // The other layers have left, but for those that stay and those that are on their way.
  MemoryPlan forward(int64_t layer) const {
    MemoryPlan plan = base_;
    if (layer > 0) add_kept(layer - 1, s_.activations.keep_last + s_.activations.leaving_at_once, plan);
    const auto& memory = layers_[size_t(layer)];
    plan.device[Part::activations] += memory.input();
    plan.device[Part::working_set] = memory.forward();
    return plan;
  }

  // The last layer's output, the norm's, its gradient, and a tile of logits.
  MemoryPlan loss() const {
    MemoryPlan plan = base_;
    const int64_t N = s_.tokens(), E = s_.config.hidden_size, V = s_.config.vocabulary_size,
                  element = s_.element_bytes();
    add_kept(s_.config.layers - 1, s_.activations.keep_last + s_.activations.leaving_at_once, plan);
    // Automatic tiles are as long as they may get, so that a longer sequence never takes less.
    int64_t rows = std::min(N, alst::automatic_loss_rows(V));
    if (s_.loss_tiles) rows = (N + *s_.loss_tiles - 1) / std::max<int64_t>(1, *s_.loss_tiles);
    plan.device[Part::working_set] = 2 * N * E * element;
    plan.device[Part::logits] =
        N * E * element + rows * V * element + V * E * kWide + (element < kWide ? V * E * element : 0);
    return plan;
  }

  MemoryPlan backward(int64_t layer) const {
    MemoryPlan plan = base_;
    const int64_t last = s_.config.layers - 1;
    // The layer itself, and one ahead of its use.
    const int64_t there = layer == last ? std::max<int64_t>(1, s_.activations.keep_last) + 1
                                        : std::max<int64_t>(2, s_.activations.keep_last - (last - layer));
    add_kept(layer, there, plan);
    const auto& memory = layers_[size_t(layer)];
    plan.device[Part::working_set] = memory.backward();
    for (size_t above = size_t(layer) + 1; above < units_.size(); ++above)
      plan.device[Part::gradients] += units_[above].whole_gradient;
    // What was before is being reduced; a tied head waits for the embedding.
    const auto& before = layer == last ? head() : units_[size_t(layer) + 2];
    const bool waits = layer == last && s_.config.tied_embeddings;
    if (s_.overlap_reductions && s_.ranks > 1 && !waits) plan.device[Part::communication] += before.received;
    return plan;
  }

  // The gradient of the first layer's input, and the embedding's, of a row for each token there could be: a
  // tied head's waits for it, and then it is collected. Nothing is gathered any more.
  MemoryPlan embedding_backward() const {
    MemoryPlan plan = base_;
    const int64_t N = s_.tokens(), E = s_.config.hidden_size, V = s_.config.vocabulary_size,
                  dense = V * E * s_.element_bytes(), collected = units_.front().whole_gradient;
    plan.device[Part::gathered] = 0;
    plan.device[Part::working_set] = N * E * s_.element_bytes() + dense +
                                     (s_.config.tied_embeddings ? std::max(dense, collected) : collected);
    for (size_t above = 1; above < units_.size(); ++above)
      plan.device[Part::gradients] += units_[above].whole_gradient;
    return plan;
  }

  // Under stage 1, unit by unit, once all gradients are there: what arrives, and its sum.
  MemoryPlan reduction() const {
    MemoryPlan plan = base_;
    plan.device[Part::gathered] = 0;
    int64_t largest = 0;
    for (const auto& unit : units_) {
      plan.device[Part::gradients] += unit.whole_gradient;
      largest = std::max(largest, unit.whole_gradient);
    }
    if (s_.ranks > 1) plan.device[Part::communication] += (s_.on_cpu ? largest : 0) + largest / s_.ranks;
    return plan;
  }

  void consider(std::string_view moment, MemoryPlan plan) {
    const Amount host =
        std::max(best_.host, plan.host, [](auto& a, auto& b) { return a.total() < b.total(); });
    if (best_.moment.empty() || plan.device.total() > best_.device.total()) {
      best_ = std::move(plan);
      best_.moment = moment;
    }
    best_.host = host;  // the host may have its own moment
  }

  int64_t activations_on_disk() const {
    if (s_.activations.on != Residence::disk) return 0;
    int64_t bytes = 0, newer = 0;
    for (int64_t layer = s_.config.layers - 1; layer >= 0; --layer)
      if (checkpointed_[size_t(layer)] && newer++ >= s_.activations.keep_last)
        bytes += moved(layers_[size_t(layer)]);
    return bytes;
  }

  Setting s_;
  std::vector<UnitMemory> units_;
  std::vector<LayerMemory> layers_;
  std::vector<bool> checkpointed_;
  MemoryPlan base_, best_;
};

}  // namespace

std::string_view name_of(Part part) {
  static constexpr std::array<std::string_view, kParts> names{
      "parameters",  "gradients", "optimizer",     "gathered units", "kept activations",
      "working set", "loss",      "communication", "batch",          "process"};
  return names[size_t(part)];
}

int64_t Amount::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0}); }

MemoryPlan plan_memory(const Setting& setting) {
  core::check_value(
      setting.sequence <= longest_planned(setting), "[plan] an optimizer step must have at most ",
      kMostTokens, " tokens of a rank's sequences; got ", setting.micro_batches, " micro-batches of ",
      setting.batch, " rows of ", setting.sequence,
      " tokens; lower gradient_accumulation_steps, train_micro_batch_size_per_gpu or the sequence");
  return Planner(setting).plan();
}

int64_t longest_sequence(Setting setting, int64_t device_bytes, int64_t host_bytes, int64_t multiple) {
  const int64_t most = longest_planned(setting) / multiple;
  const auto fits = [&](int64_t count) {
    setting.sequence = count * multiple;
    const MemoryPlan plan = plan_memory(setting);
    return plan.device.total() <= device_bytes && plan.host.total() <= host_bytes;
  };
  if (most < 1 || !fits(1)) return 0;
  if (fits(most)) return most * multiple;
  int64_t good = 1, bad = std::min<int64_t>(2, most);
  while (fits(bad)) good = std::exchange(bad, std::min(2 * bad, most));
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good * multiple;
}

}  // namespace trireme::plan
