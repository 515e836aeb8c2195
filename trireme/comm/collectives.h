// Collectives that autograd knows. Each says what gradient it assumes and what it returns.
//   P: the group's size. L: the sum of all ranks' losses, which is what gradients here are of: dL/dx on the
//   rank that holds x. A rank whose output does not reach its loss still takes part, with a zero gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// `parts` [P, ...] -> [P, ...]; row p goes to rank p. A permutation of all ranks' rows that is its own
/// inverse: the gradient is the same exchange.
at::Tensor all_to_all_with_gradient(const at::Tensor& parts, const Group& group, std::string_view purpose);

/// `part` [...] -> [P, ...] on every rank. Each rank uses a copy of every part, so the gradient of a part is
/// the sum of all ranks' gradients of it: a reduce-scatter.
at::Tensor all_gather_with_gradient(const at::Tensor& part, const Group& group, std::string_view purpose);

/// `whole` [P, ...] -> [...]: row r of the sum over the ranks. Every rank's row p adds to rank p's output, so
/// its gradient is rank p's gradient: an all-gather.
at::Tensor reduce_scatter_with_gradient(const at::Tensor& whole, const Group& group,
                                        std::string_view purpose);

/// `tensor` [...] -> the sum over the ranks, on every rank. Each rank uses a copy of the sum, so the gradient
/// is the sum of all ranks' gradients: an all-reduce. (Where only one copy of the result counts towards L, as
/// when every rank computes the same loss from it, divide by P first.)
at::Tensor all_reduce_with_gradient(const at::Tensor& tensor, const Group& group, std::string_view purpose);

}  // namespace trireme::comm
