#include "trireme/model/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "trireme/core/host_kernel.h"
#include "trireme/model/norm_kernel.h"

namespace trireme::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::ScalarType wide(const Tensor& t) { return at::promoteTypes(t.scalar_type(), at::kFloat); }

constexpr int64_t kRowsASum = 256;  // rows that are added up in fp32 before they join the others

bool has_kernel(const Tensor& x, const Tensor& weight) {
  return core::has_host_kernel(x) && x.scalar_type() == weight.scalar_type() && weight.is_contiguous();
}

Normalized by_operators(const Tensor& x, const Tensor& weight, double epsilon) {
  Tensor inverse = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true, wide(x));
  inverse.square_().div_(double(x.size(-1))).add_(epsilon).rsqrt_();
  return {x.mul(inverse).to(x.scalar_type()).mul_(weight), inverse};
}

template <class T>
Normalized by_kernel(const Tensor& x, const Tensor& weight, double epsilon) {
  auto shape = x.sizes().vec();
  Tensor output = at::empty(shape, x.options().requires_grad(false));
  shape.back() = 1;
  Tensor inverse = at::empty(shape, output.options().dtype(at::kFloat));
  const int64_t E = x.size(-1);
  const T* from = x.const_data_ptr<T>();
  const T* factors = weight.const_data_ptr<T>();
  T* to = output.mutable_data_ptr<T>();
  auto* inverses = inverse.mutable_data_ptr<float>();
  core::parallel_rows(inverse.numel(), E, [&](int64_t first, int64_t count) {
    norm_rows(from + first * E, factors, count, E, epsilon, to + first * E, inverses + first);
  });
  return {output, inverse};
}

NormGradients gradients_by_operators(const Tensor& upstream, const Tensor& x, const Tensor& weight,
                                     const Tensor& inverse, bool weight_wanted) {
  NormGradients result;
  Tensor normalized = x * inverse;  // in fp32 at least, as everything below
  if (weight_wanted) {
    Tensor products = (upstream * normalized).reshape({-1, x.size(-1)});
    result.weight = products.sum(0, /*keepdim=*/false, wide(x)).to(weight.scalar_type());
  }
  Tensor grad_normalized = upstream.to(wide(x)) * weight;
  Tensor mean = (grad_normalized * normalized).mean(-1, /*keepdim=*/true);
  result.x = grad_normalized.sub_(normalized.mul_(mean)).mul_(inverse).to(x.scalar_type());
  return result;
}

template <class T>
NormGradients gradients_by_kernel(const Tensor& upstream, const Tensor& x, const Tensor& weight,
                                  const Tensor& inverse, bool weight_wanted) {
  const int64_t E = x.size(-1), rows = inverse.numel(), sums = (rows + kRowsASum - 1) / kRowsASum;
  NormGradients result{at::empty(x.sizes(), x.options().requires_grad(false)), {}};
  // One sum for so many rows, whatever the number of threads: the result does not depend on it.
  Tensor partial;
  if (weight_wanted) partial = at::zeros({sums, E}, result.x.options().dtype(at::kFloat));
  const T *up = upstream.const_data_ptr<T>(), *from = x.const_data_ptr<T>(),
          *factors = weight.const_data_ptr<T>();
  const auto* inverses = inverse.const_data_ptr<float>();
  T* to = result.x.mutable_data_ptr<T>();
  float* sum = weight_wanted ? partial.mutable_data_ptr<float>() : nullptr;
  core::parallel_rows(sums, kRowsASum * E, [&](int64_t first_sum, int64_t count) {
    for (int64_t i = first_sum; i < first_sum + count; ++i) {
      const int64_t first = i * kRowsASum, place = first * E;
      norm_rows_backward(up + place, from + place, factors, inverses + first,
                         std::min(kRowsASum, rows - first), E, to + place, sum ? sum + i * E : nullptr);
    }
  });
  if (weight_wanted) result.weight = partial.sum(0).to(weight.scalar_type());
  return result;
}

struct RootMeanSquareNorm : Function<RootMeanSquareNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double epsilon) {
    auto result = normalize(x, weight, epsilon);
    ctx->save_for_backward({x, weight, result.inverse});
    return result.output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    auto result = normalize_backward(gradients[0], saved[0], saved[1], saved[2], ctx->needs_input_grad(1));
    return {result.x, result.weight, Tensor()};
  }
};

}  // namespace

Normalized normalize(const Tensor& x, const Tensor& weight, double epsilon) {
  if (!has_kernel(x, weight)) return by_operators(x, weight, epsilon);
  const Tensor dense = x.contiguous();
  return core::with_element_type(
      x, [&]<class T>(std::type_identity<T>) { return by_kernel<T>(dense, weight, epsilon); });
}

NormGradients normalize_backward(const Tensor& upstream, const Tensor& x, const Tensor& weight,
                                 const Tensor& inverse, bool weight_wanted) {
  if (!has_kernel(x, weight)) return gradients_by_operators(upstream, x, weight, inverse, weight_wanted);
  return core::with_element_type(x, [&]<class T>(std::type_identity<T>) {
    return gradients_by_kernel<T>(upstream.contiguous(), x.contiguous(), weight, inverse, weight_wanted);
  });
}

Tensor root_mean_square_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  return RootMeanSquareNorm::apply(x, weight, epsilon);
}

}  // namespace trireme::model
