#include "trireme/alst/labels.h"

#include "trireme/core/check.h"

namespace trireme::alst {

void check_logits_of(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& labels,
                     std::string_view what) {
  core::check_value(hidden.dim() == 2 && head.dim() == 2 && labels.dim() == 1 &&
                        hidden.size(1) == head.size(1) && labels.size(0) == hidden.size(0) &&
                        hidden.scalar_type() == head.scalar_type(),
                    "[alst] ", what, " needs hidden [N, E] and head [V, E] of one dtype and labels [N]; got ",
                    hidden.scalar_type(), " ", hidden.sizes(), ", ", head.scalar_type(), " ", head.sizes(),
                    " and ", labels.sizes());
}

at::Tensor checked_labels(const at::Tensor& labels, int64_t vocabulary) {
  at::Tensor dense = labels.to(at::kLong).contiguous();
  if (!dense.is_cpu()) return dense;
  const auto* label = dense.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < dense.numel(); ++row)
    core::check_value(label[row] == kIgnored || (label[row] >= 0 && label[row] < vocabulary),
                      "[alst] a label is -100 (ignored) or a token below ", vocabulary, "; got ", label[row],
                      " in row ", row, " of a tile; see that the tokens fit the model's vocabulary");
  return dense;
}

}  // namespace trireme::alst
