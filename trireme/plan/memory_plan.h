// What a run takes of one rank's memory, by part.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "trireme/plan/setting.h"

namespace trireme::plan {

enum class Part {
  parameters,
  gradients,
  optimizer,
  gathered,       ///< units that are gathered
  activations,    ///< kept for the backward pass
  working_set,    ///< of the layer that runs
  logits,         ///< the loss: a tile of logits, the gradients that it forms
  communication,  ///< gradients on their way, and buffers that wait for the next
  batch,          ///< tokens, labels, positions, rotary tables
  base,           ///< the process with LibTorch in it
};
inline constexpr size_t kParts = 10;
std::string_view name_of(Part part);

/// Bytes by part.
class Amount {
 public:
  int64_t& operator[](Part part) { return bytes_[size_t(part)]; }
  int64_t operator[](Part part) const { return bytes_[size_t(part)]; }
  int64_t total() const;

 private:
  std::array<int64_t, kParts> bytes_{};
};

/// On the rank that takes most, at the moment when its device takes most, and its host, which may be another.
/// `base` is what the process grows by when it first computes; what it holds before that is the caller's to
/// add.
struct MemoryPlan {
  Amount device;            ///< on a CPU: the process's memory
  Amount host;              ///< of what a GPU's rank keeps there
  int64_t disk = 0;         ///< bytes of scratch files
  std::string_view moment;  ///< "forward", "loss", "backward" or "reduction"
};

/// Tokens of a rank's rows in an optimizer step that are planned at most: no sum of bytes overflows.
inline constexpr int64_t kMostTokens = int64_t{1} << 36;

/// The sum of what tensors take. Allocators add to that: a little by rounding, more where memory is in
/// pieces. Takes a reduction to have ended when the next layer's begins: over links that are slower than the
/// computation more gradients are on their way. ValueError beyond `kMostTokens`.
MemoryPlan plan_memory(const Setting& setting);

/// The longest sequence that is planned, by `kMostTokens`, whatever the setting's own is.
inline int64_t longest_planned(const Setting& setting) {
  return kMostTokens / setting.batch / setting.micro_batches;
}

/// The longest sequence of which plan_memory takes no more than so much, `base` included, in steps of
/// `multiple` tokens; 0: none. At most `longest_planned`.
int64_t longest_sequence(Setting setting, int64_t device_bytes, int64_t host_bytes, int64_t multiple);

}  // namespace trireme::plan
