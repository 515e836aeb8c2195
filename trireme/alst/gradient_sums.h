// Gradients that come in pieces, summed.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::alst {

/// Sums of gradients, one for each of a number of tensors, in fp32 at least. Not thread-safe.
class GradientSums {
 public:
  explicit GradientSums(size_t count = 0) : sums_(count) {}

  /// Another sum, with the next index.
  void append() { sums_.emplace_back(); }

  /// Undefined ones add nothing. The first is kept as it is where its dtype allows, but never written to as
  /// long as anybody else may see its memory.
  void add(size_t index, at::Tensor gradient);

  /// sum += left right  ([a, b] and [b, c])
  void add_product(size_t index, const at::Tensor& left, const at::Tensor& right);

  /// The sum, rounded to `dtype` once; undefined where nothing was added. It starts again from nothing.
  at::Tensor take(size_t index, at::ScalarType dtype);

 private:
  struct Sum {
    at::Tensor value;
    bool is_own = false;  // may be written to
  };
  std::vector<Sum> sums_;
};

}  // namespace trireme::alst
