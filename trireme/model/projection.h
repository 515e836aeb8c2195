// The matrix product and the gate of a decoder layer, with gradients that keep just what they need.
//   N tokens, a inputs, b outputs, I width of the MLP.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::model {

/// x [N, a], weight [b, a], bias [b] or undefined -> x weight^T + bias [N, b]. Keeps x and weight.
/// Gradients: upstream weight; upstream^T x, dense in the weight's layout; the sum of upstream over tokens.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// x [N, a], norm_weight [a] -> project(root_mean_square_norm(x)) [N, b], with one node in the graph: it
/// keeps x, one number a token and the weights, and normalizes x again for the weight's gradient.
at::Tensor project_normalized(const at::Tensor& x, const at::Tensor& norm_weight, double epsilon,
                              const at::Tensor& weight, const at::Tensor& bias = {});

/// gate_up [N, 2 I] -> silu(gate) * up [N, I], gate being the first half (arXiv:2002.05202, SwiGLU). Keeps
/// gate_up alone.
at::Tensor gated_silu(const at::Tensor& gate_up);

/// gate_up [N, 2 I], down [E, I] -> project(gated_silu(gate_up), down) [N, E], with one node in the graph: it
/// keeps gate_up and down, and applies the gate again for down's gradient.
at::Tensor project_gated(const at::Tensor& gate_up, const at::Tensor& down);

/// tokens [B, s] -> rows of weight [V, E]: [B, s, E]. The gradient of weight is dense, summed in fp32 at
/// least; `padding_token`, where not negative, gets none.
at::Tensor embed(const at::Tensor& tokens, const at::Tensor& weight, int64_t padding_token = -1);

}  // namespace trireme::model
