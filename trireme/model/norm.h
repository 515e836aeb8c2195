// Root mean square normalization with a hand-written gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::model {

/// x [..., E], weight [E] -> [..., E]:  weight * (x / sqrt(mean(x^2) + epsilon)), the quotient formed in fp32
/// at least and rounded to x's dtype before the product, as Transformers does. (arXiv:1910.07467,
/// equation 4.) Keeps x and one number a row. The gradient, with n = x / r and g = upstream * weight:
///   d(weight) = sum over rows of upstream * n;   d(x) = (g - n * mean(g * n)) / r.
at::Tensor root_mean_square_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

struct Normalized {
  at::Tensor output;   ///< [..., E]
  at::Tensor inverse;  ///< [..., 1], 1 / r in fp32 at least
};

/// The same without a graph.
Normalized normalize(const at::Tensor& x, const at::Tensor& weight, double epsilon);

struct NormGradients {
  at::Tensor x, weight;  ///< like the inputs; weight only if wanted
};

/// Its gradient, for who has a graph of their own.
NormGradients normalize_backward(const at::Tensor& upstream, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& inverse, bool weight_wanted);

}  // namespace trireme::model
