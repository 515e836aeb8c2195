// Activation checkpointing: run without a graph, run again in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "trireme/alst/kept_tensors.h"

namespace trireme::alst {

/// What a region keeps of its forward pass so as not to compute it again. In the forward pass a region may
/// append to `tensors`; when it is replayed it finds them there, in the same order.
struct Kept {
  bool replaying = false;
  std::vector<at::Tensor> tensors;
};

/// From inputs to outputs. It may read anything else by capture, parameters too: their gradients are
/// accumulated as in any backward pass. In a replay the values of outputs are not used, only their graph: a
/// last operation whose backward pass does not need its output may leave that uncomputed.
using Region = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs, Kept& kept)>;

/// Runs `region` and keeps its inputs and what it asked for, nothing else. Backward assumes the gradients of
/// the outputs, replays the region with a graph under the random and autocast state of the first run, and
/// returns the gradients of the inputs.
///
/// Inputs of any dtype; undefined ones pass through. Where no input requires a gradient the outputs do all
/// the same, so that parameters in the region get theirs. A second backward pass needs retain_graph, as
/// everywhere, and adds up. Without grad mode the region just runs. What the region captures must outlive the
/// graph.
///
/// `keeper`, if given, has what is kept in place of autograd: see activation_offload.h.
std::vector<at::Tensor> checkpoint(const Region& region, const std::vector<at::Tensor>& inputs,
                                   const std::shared_ptr<Keeper>& keeper = nullptr);

}  // namespace trireme::alst
