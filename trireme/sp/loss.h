// Losses over tokens that are spread over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/group.h"

namespace trireme::sp {

/// How many of `labels` (any shape, -100: ignored) count, over all ranks of the group.
int64_t count_targets(const at::Tensor& labels, const comm::Group& group);

/// The mean over all ranks' tokens, from each rank's mean and the number of tokens it is over:
///   sum_r(mean_r * count_r) / max(sum_r(count_r), 1).
/// The same number on every rank; where no token counts anywhere, 0. A rank without tokens may give any mean,
/// NaN too. Differentiable. The gradient assumes that all ranks' losses are added up only once, as a sum over
/// ranks of local shares: d(result)/d(mean_r) = upstream_r * count_r / sum(count), no communication.
at::Tensor weighted_loss(const at::Tensor& mean, int64_t count, const comm::Group& group);

}  // namespace trireme::sp
