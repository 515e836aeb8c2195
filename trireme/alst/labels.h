// The labels of a tile of tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::alst {

inline constexpr int64_t kIgnored = -100;  ///< the label of a token that is no target

/// labels [n] of any integers as a dense tensor of int64. Throws `core::ValueError` for one that is neither
/// `kIgnored` nor in [0, vocabulary) where a host can see it.
at::Tensor checked_labels(const at::Tensor& labels, int64_t vocabulary);

}  // namespace trireme::alst
