// What the host's kernels share: the memory that they take, and how their rows are spread over threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <type_traits>

namespace trireme::core {

/// Whether kernels of fp32 arithmetic over fp32 or bf16 memory take `t`, as far as device and dtype go.
inline bool has_host_kernel(const at::Tensor& t) {
  return t.is_cpu() && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16);
}

/// body(std::type_identity<T>()) for the type T of the elements of `t`, of which `has_host_kernel` is true.
template <class Body>
decltype(auto) with_element_type(const at::Tensor& t, const Body& body) {
  return t.scalar_type() == at::kFloat ? body(std::type_identity<float>())
                                       : body(std::type_identity<c10::BFloat16>());
}

/// rows_of_a_part(first, count) for parts of `rows` rows of `width` elements, on several threads where the
/// rows are enough for them.
template <class Rows>
void parallel_rows(int64_t rows, int64_t width, const Rows& rows_of_a_part) {
  constexpr int64_t kElementsATask = 1 << 15;  // worth another thread
  at::parallel_for(0, rows, 1 + kElementsATask / std::max<int64_t>(1, width),
                   [&](int64_t begin, int64_t end) { rows_of_a_part(begin, end - begin); });
}

}  // namespace trireme::core
