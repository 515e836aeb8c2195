#include "trireme/alst/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>

#include "trireme/alst/cross_entropy_kernel.h"
#include "trireme/alst/labels.h"
#include "trireme/alst/soft_cap.h"
#include "trireme/core/check.h"
#include "trireme/core/host_kernel.h"

namespace trireme::alst {
namespace {

using at::Tensor;

// By ATen's operators: any device and dtype.
Tensor by_operators(const Tensor& logits, const Tensor& labels, bool gradient_wanted,
                    const LossOptions& options) {
  const auto wide = at::promoteTypes(logits.scalar_type(), at::kFloat);
  const Tensor ignored = labels.eq(kIgnored).unsqueeze(1), index = labels.clamp_min(0).unsqueeze(1);
  const double smoothing = options.label_smoothing, z = options.z_loss, V = double(logits.size(1));
  const Tensor scores = options.soft_cap > 0 ? soft_capped(logits.to(wide), options.soft_cap) : logits;
  Tensor log_probability = at::log_softmax(scores, -1, wide), log_sum;
  Tensor losses = log_probability.gather(1, index).mul_(smoothing - 1);
  if (smoothing > 0) losses.sub_(log_probability.sum(1, /*keepdim=*/true), smoothing / V);
  if (z > 0) {
    log_sum = at::logsumexp(scores.to(wide), at::IntArrayRef{1}, /*keepdim=*/true);
    losses.add_(log_sum.square(), z);
  }
  Tensor sum = losses.masked_fill_(ignored, 0).sum();
  if (!gradient_wanted) return sum;
  Tensor gradient = log_probability.exp_();
  if (z > 0) gradient.mul_(log_sum.mul_(2 * z).add_(1));
  if (smoothing > 0) gradient.sub_(smoothing / V);
  gradient.scatter_add_(1, index, at::full(index.sizes(), smoothing - 1, gradient.options()));
  if (options.soft_cap > 0) gradient.mul_(scores.div(options.soft_cap).square_().neg_().add_(1));
  logits.copy_(gradient.masked_fill_(ignored, 0));
  return sum;
}

template <class T>
Tensor by_kernel(const Tensor& logits, const Tensor& labels, bool gradient_wanted,
                 const LossOptions& options) {
  const int64_t V = logits.size(1);
  const auto* label = labels.const_data_ptr<int64_t>();
  Tensor losses = at::empty(labels.sizes(), at::kFloat);
  auto* loss = losses.mutable_data_ptr<float>();
  auto* row = logits.mutable_data_ptr<T>();
  core::parallel_rows(logits.size(0), V, [&](int64_t first, int64_t count) {
    cross_entropy_rows(row + first * V, label + first, count, V, options, gradient_wanted, loss + first);
  });
  return losses.sum();
}

}  // namespace

Tensor cross_entropy_(const Tensor& logits, const Tensor& labels, bool gradient_wanted,
                      const LossOptions& options) {
  core::check_internal(
      logits.dim() == 2 && logits.is_contiguous() && labels.dim() == 1 && labels.size(0) == logits.size(0),
      "[alst] the cross entropy needs dense logits [n, V] and labels [n]; got ", logits.sizes(), " and ",
      labels.sizes());
  check_loss_options(options);
  const Tensor checked = checked_labels(labels, logits.size(1));
  if (!core::has_host_kernel(logits)) return by_operators(logits, checked, gradient_wanted, options);
  return core::with_element_type(logits, [&]<class T>(std::type_identity<T>) {
    return by_kernel<T>(logits, checked, gradient_wanted, options);
  });
}

}  // namespace trireme::alst
