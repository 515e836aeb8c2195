#include "trireme/alst/combined_output.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::alst {

using at::Tensor;

void CombinedOutput::add(const Tensor& part) {
  core::check_value(part.defined(),
                    "[alst] a function that is run by tiles must return tensors; got none from tile ",
                    parts_);
  if (combine_.kind == Combine::Kind::concatenate)
    append(part);
  else if (combine_.kind == Combine::Kind::sum)
    accumulate(part, 1);
  else if (!passes_over(parts_))
    accumulate(part, cut_.share(parts_));
  ++parts_;
}

// What a mean over no tokens would be is no number.
bool CombinedOutput::passes_over(int64_t tile) const {
  return combine_.kind == Combine::Kind::mean && cut_.tokens > 0 && cut_.tile(tile).count == 0;
}

void CombinedOutput::append(const Tensor& part) {
  const int64_t dim = combine_.dim.value_or(cut_.dim);
  core::check_value(-part.dim() <= dim && dim < part.dim(),
                    "[alst] outputs are concatenated along a dimension that they have; got dimension ", dim,
                    " and an output of ", part.sizes(), "; choose another, or a sum or mean");
  const int64_t length = part.size(dim), filled = ends_.empty() ? 0 : ends_.back();
  if (ends_.empty()) {
    dim_ = dim;
    auto sizes = part.sizes().vec();
    auto& along = sizes[size_t(at::maybe_wrap_dim(dim, part.dim()))];
    if (along == cut_.tile(0).count) along = cut_.tokens;
    whole_ = at::empty(sizes, part.options().requires_grad(false));
  }
  auto expected = whole_.sizes().vec();
  if (whole_.dim() == part.dim()) expected[size_t(at::maybe_wrap_dim(dim, part.dim()))] = length;
  core::check_value(part.sizes() == at::IntArrayRef(expected) && part.scalar_type() == whole_.scalar_type(),
                    "[alst] outputs that are concatenated must be alike but for their length; got ",
                    part.scalar_type(), " ", part.sizes(), " from tile ", parts_, " and ",
                    whole_.scalar_type(), " ", at::IntArrayRef(expected), " before");
  reserve(filled + length);
  whole_.narrow(dim, filled, length).copy_(part);
  ends_.push_back(filled + length);
}

void CombinedOutput::reserve(int64_t length) {
  const int64_t present = whole_.size(dim_);
  if (length <= present) return;
  auto sizes = whole_.sizes().vec();
  sizes[size_t(at::maybe_wrap_dim(dim_, whole_.dim()))] = std::max(length, 2 * present);
  Tensor larger = at::empty(sizes, whole_.options());
  larger.narrow(dim_, 0, present).copy_(whole_);
  whole_ = std::move(larger);
}

void CombinedOutput::accumulate(const Tensor& part, double weight) {
  const bool is_integral = at::isIntegralType(part.scalar_type(), /*includeBool=*/true);
  core::check_value(!is_integral || combine_.kind == Combine::Kind::sum,
                    "[alst] a mean is one of floating numbers; got ", part.scalar_type(), "; choose a sum");
  const auto dtype = is_integral ? at::kLong : part.scalar_type();
  core::check_value(!whole_.defined() || (part.sizes() == whole_.sizes() && dtype == dtype_),
                    "[alst] outputs that are added up must have one shape and dtype; got ",
                    part.scalar_type(), " ", part.sizes(), " from tile ", parts_, " and ", dtype_, " ",
                    whole_.defined() ? whole_.sizes() : at::IntArrayRef(), " before");
  if (!whole_.defined()) {
    dtype_ = dtype;
    const auto wide = is_integral ? at::kLong : at::promoteTypes(dtype_, at::kFloat);
    whole_ = part.detach().to(wide, /*non_blocking=*/false, /*copy=*/true);
    if (weight != 1) whole_.mul_(weight);
  } else if (weight != 1) {
    whole_.add_(part.detach(), weight);
  } else {
    whole_.add_(part.detach());
  }
}

Tensor CombinedOutput::take() {
  Tensor whole = std::exchange(whole_, Tensor());
  if (combine_.kind != Combine::Kind::concatenate) return whole.to(dtype_);
  const int64_t length = ends_.back();
  return whole.size(dim_) == length ? whole : whole.narrow(dim_, 0, length).clone();
}

Tensor CombinedOutput::gradient_of_part(const Tensor& gradient, int64_t tile) const {
  if (combine_.kind == Combine::Kind::sum) return gradient;
  if (combine_.kind == Combine::Kind::mean)
    return passes_over(tile) ? at::zeros_like(gradient) : gradient.mul(cut_.share(tile));
  const int64_t first = tile > 0 ? ends_[size_t(tile - 1)] : 0;
  return gradient.narrow(dim_, first, ends_[size_t(tile)] - first);
}

}  // namespace trireme::alst
