// Moves what checkpoints keep out of the device's memory until the backward pass comes to it.
// ALST, arXiv:2506.13996, section 3.3 (activation checkpoints are offloaded).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/alst/kept_tensors.h"
#include "trireme/alst/offload_target.h"

namespace trireme::alst {

enum class OffloadedTensors {
  inputs,  ///< of checkpoints: hidden states
  all,     ///< also what they keep besides, such as attention's output
};

struct ActivationOffloadOptions {
  OffloadedTensors what = OffloadedTensors::all;
  int64_t min_bytes = 1024;     ///< smaller tensors stay
  int64_t leaving_at_once = 2;  ///< checkpoints that may be on their way in the forward pass
  int64_t keep_last = 1;        ///< newest checkpoints that stay: the backward pass wants them first
};

/// Checkpoints leave in the order of the forward pass, each when `keep_last` newer ones are there, and come
/// back in the opposite order, one ahead of its use. A tensor that several checkpoints keep leaves once; it
/// is the same tensor if memory, offset, shape, strides, dtype and version are. Not thread-safe: one a rank.
/// What it kept may outlive it.
class ActivationOffload final : public Keeper {
 public:
  ActivationOffload(const ActivationOffloadOptions& options, std::shared_ptr<OffloadTarget> target);
  ~ActivationOffload() override;

  /// Throws `core::ValueError` where a tensor was changed in place before it left.
  std::shared_ptr<KeptTensors> keep(const std::vector<at::Tensor>& inputs,
                                    const std::vector<at::Tensor>& computed) override;

  /// Of all tensors that left or came back so far.
  int64_t bytes_away() const;
  int64_t bytes_back() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme::alst
