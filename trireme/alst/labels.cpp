#include "trireme/alst/labels.h"

#include "trireme/core/check.h"

namespace trireme::alst {

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
