// A gradient's sum over tiles.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace trireme::alst {

/// sum [a, b] += factor left [a, n] right [n, b], in place; `sum` may be wider than the other two, as fp32 is
/// where they are bf16. One pass where no dtype is in the way.
inline void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, double factor = 1) {
  if (sum.scalar_type() == left.scalar_type())
    sum.addmm_(left, right, /*beta=*/1, factor);
  else
    sum.add_(at::mm(left, right), factor);
}

}  // namespace trireme::alst
