#include "trireme/model/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/core/host_kernel.h"
#include "trireme/model/rotary_kernel.h"

namespace trireme::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor plain_frequencies(double theta, int64_t head_size, at::ScalarType dtype) {
  Tensor exponent = at::arange(0, head_size, 2, at::TensorOptions(dtype)).div_(double(head_size));
  return at::pow(theta, exponent).reciprocal_();
}

// Long wave lengths are stretched by the factor, short ones kept, and those between interpolated.
Tensor llama3_frequencies(const Tensor& plain, const RopeOptions& rope) {
  const auto original = double(rope.original_max_positions);
  const Tensor wave = plain.reciprocal().mul_(2 * std::numbers::pi);
  const double longest_kept = original / rope.high_frequency_factor,
               shortest_stretched = original / rope.low_frequency_factor;
  Tensor smooth = (original / wave - rope.low_frequency_factor) /
                  (rope.high_frequency_factor - rope.low_frequency_factor);
  Tensor between = (1 - smooth) * plain / rope.factor + smooth * plain;
  return at::where(wave < longest_kept, plain,
                   at::where(wave > shortest_stretched, plain / rope.factor, between));
}

// The pair of elements that turns `rotations` times over the original positions (arXiv:2309.00071, equation
// 19).
double yarn_dimension(double rotations, int64_t head_size, const RopeOptions& rope) {
  return double(head_size) *
         std::log(double(rope.original_max_positions) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

Tensor yarn_frequencies(const Tensor& plain, int64_t head_size, const RopeOptions& rope) {
  double low = yarn_dimension(rope.beta_fast, head_size, rope),
         high = yarn_dimension(rope.beta_slow, head_size, rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, double(head_size - 1));
  if (low == high) high += 0.001;
  Tensor ramp = at::arange(head_size / 2, plain.options()).sub_(low).div_(high - low).clamp_(0, 1);
  return plain / rope.factor * ramp + plain * (1 - ramp);
}

double mscale(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

// to = from with each head turned; sign -1 turns back. [N, heads, D] both, not the same memory.
void turn(const Tensor& to, const Tensor& from, const Tensor& cosine, const Tensor& sine, double sign) {
  auto in = from.chunk(2, -1), out = to.chunk(2, -1);
  at::mul_out(out[0], in[0], cosine).addcmul_(in[1], sine, -sign);
  at::mul_out(out[1], in[1], cosine).addcmul_(in[0], sine, sign);
}

Tensor by_head(const Tensor& x, const Tensor& cosine) { return x.view({x.size(0), -1, 2 * cosine.size(-1)}); }

bool has_kernel(const Tensor& x, const Tensor& cosine) {
  return core::has_host_kernel(x) && x.is_contiguous() && cosine.is_contiguous() &&
         x.scalar_type() == cosine.scalar_type();
}

// `to` may be `from`.
void turn_by_kernel(const Tensor& to, const Tensor& from, int64_t count, const Tensor& cosine,
                    const Tensor& sine, float sign) {
  const int64_t tokens = from.size(0), width = from.numel() / std::max<int64_t>(1, tokens),
                D = 2 * cosine.size(-1);
  core::with_element_type(from, [&]<class T>(std::type_identity<T>) {
    T* out = to.mutable_data_ptr<T>();
    const T *in = from.const_data_ptr<T>(), *c = cosine.const_data_ptr<T>(), *s = sine.const_data_ptr<T>();
    core::parallel_rows(tokens, width, [&](int64_t first, int64_t rows) {
      const int64_t angle = first * D / 2;
      rotate_tokens(in + first * width, c + angle, s + angle, rows, width, count, D, sign,
                    out + first * width);
    });
  });
}

struct RotateHeads : Function<RotateHeads> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, int64_t count, const Tensor& cosine,
                        const Tensor& sine) {
    ctx->mark_dirty({x});
    ctx->save_for_backward({cosine, sine});
    ctx->saved_data["count"] = count;
    if (has_kernel(x, cosine)) {
      turn_by_kernel(x, x, count, cosine, sine, 1);
      return x;
    }
    auto half = by_head(x, cosine).narrow(1, 0, count).chunk(2, -1);
    Tensor crossed = half[0] * sine;
    half[0].mul_(cosine).addcmul_(half[1], sine, -1);
    half[1].mul_(cosine).add_(crossed);
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const int64_t count = ctx->saved_data["count"].toInt();
    Tensor gradient = at::empty_like(gradients[0]);
    if (has_kernel(gradients[0], saved[0])) {
      turn_by_kernel(gradient, gradients[0], count, saved[0], saved[1], -1);
      return {gradient, Tensor(), Tensor(), Tensor()};
    }
    const Tensor from = by_head(gradients[0], saved[0]), to = by_head(gradient, saved[0]);
    const int64_t rest = to.size(1) - count;
    turn(to.narrow(1, 0, count), from.narrow(1, 0, count), saved[0], saved[1], -1);
    if (rest > 0) to.narrow(1, count, rest).copy_(from.narrow(1, count, rest));
    return {gradient, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor rope_frequencies(const Config& config, int64_t longest, at::ScalarType dtype) {
  const auto& rope = config.rope;
  const int64_t D = config.head_size;
  switch (rope.type) {
    case RopeType::standard:
      return plain_frequencies(rope.theta, D, dtype);
    case RopeType::linear:
      return plain_frequencies(rope.theta, D, dtype).div_(rope.factor);
    case RopeType::dynamic: {
      const double stretch = double(std::max(longest, config.max_positions)) / double(config.max_positions);
      const double base =
          rope.theta * std::pow(rope.factor * stretch - (rope.factor - 1), double(D) / double(D - 2));
      return plain_frequencies(base, D, dtype);
    }
    case RopeType::llama3:
      return llama3_frequencies(plain_frequencies(rope.theta, D, dtype), rope);
    case RopeType::yarn:
      return yarn_frequencies(plain_frequencies(rope.theta, D, dtype), D, rope);
  }
  return {};
}

double rope_attention_factor(const RopeOptions& options) {
  if (options.type != RopeType::yarn) return 1;
  if (options.attention_factor) return *options.attention_factor;
  if (options.mscale != 0 && options.mscale_all_dim != 0)
    return mscale(options.factor, options.mscale) / mscale(options.factor, options.mscale_all_dim);
  return mscale(options.factor, 1);
}

RotaryTables rotary_tables(const Config& config, const Tensor& positions, int64_t longest,
                           at::ScalarType dtype) {
  const auto wide = at::promoteTypes(dtype, at::kFloat);
  Tensor frequencies = rope_frequencies(config, longest, wide).to(positions.device());
  Tensor angles = positions.to(wide).view({-1, 1, 1}) * frequencies;
  const double factor = rope_attention_factor(config.rope);
  return {angles.cos().mul_(factor).to(dtype), angles.sin().mul_(factor).to(dtype)};
}

Tensor rotate_heads_(const Tensor& x, int64_t count, const RotaryTables& tables) {
  return RotateHeads::apply(x, count, tables.cosine, tables.sine);
}

}  // namespace trireme::model
