// A function of tiles against the same function called once, by plain autograd.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "trireme/alst/tile_inputs.h"

namespace trireme::tests {

/// What a function reads.
struct Reads {
  alst::TileInputs inputs;
  std::vector<at::Tensor> parameters;  // captured

  /// The same values in tensors of their own, with the same strides.
  Reads copy() const {
    const auto copied = [](std::vector<at::Tensor> tensors) {
      for (auto& tensor : tensors)
        if (tensor.defined()) tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad());
      return tensors;
    };
    return {{copied(inputs.tiled), copied(inputs.whole)}, copied(parameters)};
  }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors = inputs.tiled;
    tensors.insert(tensors.end(), inputs.whole.begin(), inputs.whole.end());
    tensors.insert(tensors.end(), parameters.begin(), parameters.end());
    return tensors;
  }
};

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what,
                         double tolerance = 1e-12) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (actual.numel() == 0) return;
  EXPECT_LT((actual - expected).abs().max().item<double>(), tolerance) << what;
}

/// Numbers that do not repeat.
inline at::Tensor numbers(at::IntArrayRef shape, double seed) {
  return (at::arange(c10::multiply_integers(shape), at::kDouble) * 1.7 + seed).sin().view(shape);
}

/// Backward from all outputs that can, each element with a weight of its own.
inline void run_backward(const std::vector<at::Tensor>& outputs) {
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].requires_grad()) loss = loss + (outputs[i] * numbers(outputs[i].sizes(), double(i))).sum();
  torch::autograd::backward({loss});
}

using Run = std::function<std::vector<at::Tensor>(const Reads&)>;

/// Outputs of `tiled` and `plain`, and the gradients of everything that is read.
inline void expect_same(const Reads& reads, const Run& tiled, const Run& plain, const std::string& what) {
  const Reads a = reads.copy(), b = reads.copy();
  const auto actual = tiled(a), expected = plain(b);
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    expect_close(actual[i].detach(), expected[i].detach(), what + ", output " + std::to_string(i));
  run_backward(actual);
  run_backward(expected);
  for (size_t i = 0; i < a.all().size(); ++i) {
    const at::Tensor tensor = a.all()[i], reference = b.all()[i];
    if (tensor.defined() && tensor.requires_grad())
      expect_close(tensor.grad(), reference.grad(), what + ", gradient " + std::to_string(i));
  }
}

/// Tokens and tiles: fewer tiles than tokens, more, uneven ones, none.
inline const std::vector<std::pair<int64_t, int64_t>> kTokensAndTiles{{5, 4}, {2, 4},  {7, 4}, {8, 4},
                                                                      {7, 3}, {13, 5}, {1, 1}, {0, 2}};

}  // namespace trireme::tests
