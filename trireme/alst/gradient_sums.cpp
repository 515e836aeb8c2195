#include "trireme/alst/gradient_sums.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>

#include <utility>

#include "trireme/alst/add_product.h"

namespace trireme::alst {
namespace {

using at::Tensor;

// Autograd passes gradients on as they came where it can: one may be another's, a part of it, or expanded.
bool is_unshared(const Tensor& gradient) {
  return gradient.layout() == at::kStrided && gradient.use_count() == 1 &&
         gradient.storage().use_count() == 1 && gradient.is_non_overlapping_and_dense();
}

}  // namespace

void GradientSums::add(size_t index, Tensor gradient) {
  if (!gradient.defined()) return;
  auto& [value, is_own] = sums_[index];
  if (!value.defined()) {
    const auto wide = at::promoteTypes(gradient.scalar_type(), at::kFloat);
    is_own = wide != gradient.scalar_type() || is_unshared(gradient);
    value = wide != gradient.scalar_type() ? gradient.to(wide) : std::move(gradient);
  } else if (is_own) {
    value.add_(gradient);
  } else {
    value = at::add(value, gradient);
    is_own = true;
  }
}

void GradientSums::add_product(size_t index, const Tensor& left, const Tensor& right) {
  auto& [value, is_own] = sums_[index];
  if (value.defined() && is_own)
    alst::add_product(value, left, right);
  else
    add(index, at::mm(left, right));
}

Tensor GradientSums::take(size_t index, at::ScalarType dtype) {
  const Sum sum = std::exchange(sums_[index], {});
  return sum.value.defined() ? sum.value.to(dtype) : sum.value;
}

}  // namespace trireme::alst
