// What losses of tokens read: hidden states, a head, labels.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme::alst {

inline constexpr int64_t kIgnored = -100;  ///< the label of a token that is no target

/// Throws `core::ValueError` unless hidden [N, E] and head [V, E] are of one dtype and labels are [N]. `what`
/// needs them, "the loss".
void check_logits_of(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& labels,
                     std::string_view what);

/// labels [n] of any integers as a dense tensor of int64. Throws `core::ValueError` for one that is neither
/// `kIgnored` nor in [0, vocabulary) where a host can see it.
at::Tensor checked_labels(const at::Tensor& labels, int64_t vocabulary);

}  // namespace trireme::alst
