#include "trireme/alst/dense_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace trireme::alst {

using at::Tensor;

DenseLayout::DenseLayout(const Tensor& tensor) : sizes_(tensor.sizes().vec()), order_(sizes_.size()) {
  std::iota(order_.begin(), order_.end(), int64_t{0});
  const auto strides = tensor.strides();
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int64_t a, int64_t b) { return strides[size_t(a)] > strides[size_t(b)]; });
  for (int64_t dim : order_)
    ordered_sizes_.push_back(strides[size_t(dim)] == 0 ? std::min<int64_t>(1, sizes_[size_t(dim)])
                                                       : sizes_[size_t(dim)]);
}

int64_t DenseLayout::numel() const {
  return std::accumulate(ordered_sizes_.begin(), ordered_sizes_.end(), int64_t{1}, std::multiplies<>());
}

Tensor DenseLayout::ordered(const Tensor& tensor) const {
  Tensor distinct = tensor.permute(order_);
  for (size_t dim = 0; dim < ordered_sizes_.size(); ++dim)
    distinct = distinct.narrow(int64_t(dim), 0, ordered_sizes_[dim]);
  return distinct;
}

void DenseLayout::copy_to(const Tensor& row, const Tensor& tensor, bool non_blocking) const {
  row.view(ordered_sizes_).copy_(ordered(tensor), non_blocking);
}

Tensor DenseLayout::view_of(const Tensor& row) const {
  std::vector<int64_t> back(order_.size());
  for (size_t place = 0; place < order_.size(); ++place) back[size_t(order_[place])] = int64_t(place);
  return row.view(ordered_sizes_).permute(back).expand(sizes_);
}

}  // namespace trireme::alst
