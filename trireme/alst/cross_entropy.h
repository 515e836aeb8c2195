// The cross entropy of a tile's logits, which become its gradient.
//   n rows, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/alst/loss_options.h"

namespace trireme::alst {

/// logits [n, V], dense, of fp32, bf16 or fp64; labels [n], integers, -100: ignored; any other must be in [0,
/// V). Returns the sum over rows of the token losses of loss_options.h, [] in fp32 at least, and, if wanted,
/// leaves in place of the logits its gradient, zero for ignored rows; else they are as before or not. What is
/// between is in fp32 at least. Throws `core::ValueError` for an option out of its range, and for a label
/// outside the vocabulary where a host can see it.
at::Tensor cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, bool gradient_wanted,
                          const LossOptions& options = {});

}  // namespace trireme::alst
