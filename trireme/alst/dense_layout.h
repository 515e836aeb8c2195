// How the elements of a tensor of any strides lie in a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::alst {

/// The shape of a tensor, and the order of its dimensions in memory. Repeated elements (of a dimension of
/// stride 0, as `expand` makes) are in the row once.
class DenseLayout {
 public:
  explicit DenseLayout(const at::Tensor& tensor);

  /// Elements in the row.
  int64_t numel() const;

  /// Copies the distinct elements of a tensor of this layout to `row`, [numel], of its dtype and any device.
  void copy_to(const at::Tensor& row, const at::Tensor& tensor, bool non_blocking = false) const;

  /// A view of `row` with the tensor's shape. Its strides are the tensor's where that had no gaps.
  at::Tensor view_of(const at::Tensor& row) const;

 private:
  at::Tensor ordered(const at::Tensor& tensor) const;

  std::vector<int64_t> sizes_;
  std::vector<int64_t> order_;          // dimensions from the largest stride to the smallest
  std::vector<int64_t> ordered_sizes_;  // of the distinct elements, in that order
};

}  // namespace trireme::alst
