#include "trireme/alst/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>

#include "trireme/alst/cross_entropy_kernel.h"
#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

constexpr int64_t kIgnored = -100;
constexpr int64_t kElementsATask = 1 << 16;  // worth another thread

// By ATen's operators: any device and dtype.
Tensor general(const Tensor& logits, const Tensor& labels, bool gradient_wanted) {
  const auto wide = at::promoteTypes(logits.scalar_type(), at::kFloat);
  const Tensor ignored = labels.eq(kIgnored).unsqueeze(1), index = labels.clamp_min(0).unsqueeze(1);
  Tensor log_probability = at::log_softmax(logits, -1, wide);
  Tensor sum = log_probability.gather(1, index).masked_fill_(ignored, 0).sum().neg_();
  if (!gradient_wanted) return sum;
  Tensor gradient = log_probability.exp_();
  gradient.scatter_add_(1, index, at::full(index.sizes(), -1, gradient.options()));
  logits.copy_(gradient.masked_fill_(ignored, 0));
  return sum;
}

void check_labels(const int64_t* labels, int64_t rows, int64_t vocabulary) {
  for (int64_t row = 0; row < rows; ++row)
    core::check_value(labels[row] == kIgnored || (labels[row] >= 0 && labels[row] < vocabulary),
                      "[alst] a label is -100 (ignored) or a token below ", vocabulary, "; got ", labels[row],
                      " in row ", row, " of a tile; see that the tokens fit the model's vocabulary");
}

template <class T>
Tensor on_host(const Tensor& logits, const Tensor& labels, bool gradient_wanted) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const Tensor dense_labels = labels.to(at::kLong).contiguous();
  const auto* label = dense_labels.const_data_ptr<int64_t>();
  check_labels(label, rows, vocabulary);
  Tensor losses = at::empty({rows}, at::kFloat);
  auto* loss = losses.mutable_data_ptr<float>();
  auto* row = logits.mutable_data_ptr<T>();
  const int64_t rows_a_task = std::max<int64_t>(1, kElementsATask / std::max<int64_t>(1, vocabulary));
  at::parallel_for(0, rows, rows_a_task, [&](int64_t begin, int64_t end) {
    cross_entropy_rows(row + begin * vocabulary, label + begin, end - begin, vocabulary, gradient_wanted,
                       loss + begin);
  });
  return losses.sum();
}

}  // namespace

Tensor cross_entropy_(const Tensor& logits, const Tensor& labels, bool gradient_wanted) {
  core::check_internal(
      logits.dim() == 2 && logits.is_contiguous() && labels.dim() == 1 && labels.size(0) == logits.size(0),
      "[alst] the cross entropy needs dense logits [n, V] and labels [n]; got ", logits.sizes(), " and ",
      labels.sizes());
  if (logits.is_cpu() && logits.scalar_type() == at::kFloat)
    return on_host<float>(logits, labels, gradient_wanted);
  if (logits.is_cpu() && logits.scalar_type() == at::kBFloat16)
    return on_host<c10::BFloat16>(logits, labels, gradient_wanted);
  return general(logits, labels, gradient_wanted);
}

}  // namespace trireme::alst
