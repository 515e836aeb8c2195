#include "trireme/alst/cross_entropy_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/alst/cross_entropy_kernel.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include "trireme/core/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace trireme::alst::HWY_NAMESPACE {

namespace simd = trireme::core::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;
using simd::Floats;
using simd::Vector;

// Scores l' that are the logits l.
struct Uncapped {
  static HWY_INLINE Vector score(Vector logit) { return logit; }
  static HWY_INLINE Vector pass_back(Vector gradient, Vector /*score*/) { return gradient; }
};

// l' = cap tanh(l / cap), never rounded to the memory's dtype: each pass computes it again.
class Capped {
 public:
  explicit Capped(double cap) : cap_(float(cap)), inverse_(float(1 / cap)) {}

  HWY_INLINE Vector score(Vector logit) const {
    const Floats f;
    return hn::Mul(hn::Tanh(f, hn::Mul(logit, hn::Set(f, inverse_))), hn::Set(f, cap_));
  }

  // The gradient of the logit from that of the score.
  HWY_INLINE Vector pass_back(Vector gradient, Vector score) const {
    const Floats f;
    const Vector ratio = hn::Mul(score, hn::Set(f, inverse_));
    return hn::Mul(gradient, hn::NegMulAdd(ratio, ratio, hn::Set(f, 1.0f)));
  }

 private:
  float cap_, inverse_;
};

template <class Scores>
float score_of(const Scores& scores, float logit) {
  return hn::GetLane(scores.score(hn::Set(Floats(), logit)));
}

template <class T>
float largest(const T* row, size_t count) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const size_t lanes = simd::lanes();
  Vector best = hn::Set(Floats(), kLowest);
  for (size_t i = 0; i < count; i += lanes)
    best = hn::Max(best, simd::load(row + i, std::min(lanes, count - i), kLowest));
  return simd::maximum(best);
}

struct Sums {
  float powers, distances;
};

// The sums of exp(score - largest), and, where `distances_wanted`, of score - largest. `largest` may have
// missed a NaN: the first sum does not.
template <bool distances_wanted, class T, class Scores>
Sums sums_of(const T* row, size_t count, float largest, const Scores& scores) {
  const size_t lanes = simd::lanes();
  const Floats f;
  const Vector shift = hn::Set(f, largest);
  Vector powers = hn::Zero(f), distances = hn::Zero(f);
  for (size_t i = 0; i < count; i += lanes) {
    const size_t n = std::min(lanes, count - i);
    const Vector distance = hn::Sub(scores.score(simd::load(row + i, n)), shift);
    const Vector power = hn::IfThenElse(hn::IsNaN(distance), distance, hn::Exp(f, distance));
    powers = hn::Add(powers, simd::first(power, n));
    if constexpr (distances_wanted) distances = hn::Add(distances, simd::first(distance, n));
  }
  return {simd::sum(powers), simd::sum(distances)};
}

// Where the score is s: the gradient that  exp(s - shift) * factor - less  of s is to the logit.
template <class T, class Scores>
void to_gradient(T* row, size_t count, float shift, float factor, float less, const Scores& scores) {
  const size_t lanes = simd::lanes();
  const Floats f;
  const Vector shifts = hn::Set(f, shift), factors = hn::Set(f, factor), constant = hn::Set(f, less);
  for (size_t i = 0; i < count; i += lanes) {
    const size_t n = std::min(lanes, count - i);
    const Vector score = scores.score(simd::load(row + i, n));
    const Vector power = hn::Exp(f, hn::Sub(score, shifts));
    simd::store(scores.pass_back(hn::MulSub(power, factors, constant), score), row + i, n);
  }
}

// The same for the element of the label, whose score is given.
template <class Scores>
float gradient_of(float score, float shift, float factor, float less, const Scores& scores) {
  const Floats f;
  const float of_score = std::exp(score - shift) * factor - less;
  return hn::GetLane(scores.pass_back(hn::Set(f, of_score), hn::Set(f, score)));
}

template <class T, class Scores>
float cross_entropy_row(T* row, int64_t label, size_t count, const LossOptions& options, const Scores& scores,
                        bool gradient_wanted) {
  const auto smoothing = float(options.label_smoothing), z = float(options.z_loss),
             uniform = float(options.label_smoothing / double(count));
  const float shift = score_of(scores, largest(row, count)), score = score_of(scores, float(row[label]));
  const Sums sums =
      smoothing > 0 ? sums_of<true>(row, count, shift, scores) : sums_of<false>(row, count, shift, scores);
  const float log_power = std::log(sums.powers), log_sum = shift + log_power;
  // Distances in place of scores: the shift, which may be large, cancels.
  float loss = log_power - (1 - smoothing) * (score - shift) - uniform * sums.distances;
  if (z > 0) loss += z * log_sum * log_sum;
  if (!gradient_wanted) return loss;
  const float factor = (z > 0 ? 1 + 2 * z * log_sum : 1) / sums.powers;
  to_gradient(row, count, shift, factor, uniform, scores);
  row[label] = T(gradient_of(score, shift, factor, uniform + (1 - smoothing), scores));
  return loss;
}

template <class T, class Scores>
void cross_entropy(T* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                   const LossOptions& options, const Scores& scores, bool gradient_wanted, float* losses) {
  const auto count = size_t(vocabulary);
  for (int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    if (labels[r] >= 0) {
      losses[r] = cross_entropy_row(row, labels[r], count, options, scores, gradient_wanted);
    } else {
      losses[r] = 0;
      if (gradient_wanted) std::fill_n(row, count, T(0.0f));
    }
  }
}

template <class T, class Scores>
void log_probability(const T* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                     const Scores& scores, float* values, float* log_sums) {
  const auto count = size_t(vocabulary);
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = logits + r * vocabulary;
    values[r] = log_sums[r] = 0;
    if (labels[r] < 0) continue;
    const float shift = score_of(scores, largest(row, count));
    const float log_power = std::log(sums_of<false>(row, count, shift, scores).powers);
    log_sums[r] = shift + log_power;
    values[r] = score_of(scores, float(row[labels[r]])) - shift - log_power;
  }
}

template <class T, class Scores>
void log_probability_backward(T* logits, const int64_t* labels, const float* log_sums, const float* upstream,
                              int64_t rows, int64_t vocabulary, const Scores& scores) {
  const auto count = size_t(vocabulary);
  for (int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    if (labels[r] < 0) {
      std::fill_n(row, count, T(0.0f));
      continue;
    }
    T& target = row[labels[r]];
    const float score = score_of(scores, float(target));
    to_gradient(row, count, log_sums[r], -upstream[r], 0, scores);
    target = T(gradient_of(score, log_sums[r], -upstream[r], -upstream[r], scores));
  }
}

// Calls body(scores) for what makes scores of logits.
template <class Body>
void with_scores(double soft_cap, const Body& body) {
  if (soft_cap > 0)
    body(Capped(soft_cap));
  else
    body(Uncapped());
}

void cross_entropy_fp32(float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        const LossOptions& options, bool gradient_wanted, float* losses) {
  with_scores(options.soft_cap, [&](const auto& scores) HWY_ATTR {
    cross_entropy(logits, labels, rows, vocabulary, options, scores, gradient_wanted, losses);
  });
}
void cross_entropy_bf16(c10::BFloat16* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        const LossOptions& options, bool gradient_wanted, float* losses) {
  with_scores(options.soft_cap, [&](const auto& scores) HWY_ATTR {
    cross_entropy(logits, labels, rows, vocabulary, options, scores, gradient_wanted, losses);
  });
}
void log_probability_fp32(const float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                          double soft_cap, float* values, float* log_sums) {
  with_scores(soft_cap, [&](const auto& scores) HWY_ATTR {
    log_probability(logits, labels, rows, vocabulary, scores, values, log_sums);
  });
}
void log_probability_bf16(const c10::BFloat16* logits, const int64_t* labels, int64_t rows,
                          int64_t vocabulary, double soft_cap, float* values, float* log_sums) {
  with_scores(soft_cap, [&](const auto& scores) HWY_ATTR {
    log_probability(logits, labels, rows, vocabulary, scores, values, log_sums);
  });
}
void backward_fp32(float* logits, const int64_t* labels, const float* log_sums, const float* upstream,
                   int64_t rows, int64_t vocabulary, double soft_cap) {
  with_scores(soft_cap, [&](const auto& scores) HWY_ATTR {
    log_probability_backward(logits, labels, log_sums, upstream, rows, vocabulary, scores);
  });
}
void backward_bf16(c10::BFloat16* logits, const int64_t* labels, const float* log_sums, const float* upstream,
                   int64_t rows, int64_t vocabulary, double soft_cap) {
  with_scores(soft_cap, [&](const auto& scores) HWY_ATTR {
    log_probability_backward(logits, labels, log_sums, upstream, rows, vocabulary, scores);
  });
}

}  // namespace trireme::alst::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::alst {

HWY_EXPORT(cross_entropy_fp32);
HWY_EXPORT(cross_entropy_bf16);
HWY_EXPORT(log_probability_fp32);
HWY_EXPORT(log_probability_bf16);
HWY_EXPORT(backward_fp32);
HWY_EXPORT(backward_bf16);

void cross_entropy_rows(float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        const LossOptions& options, bool gradient_wanted, float* losses) {
  HWY_DYNAMIC_DISPATCH(cross_entropy_fp32)
  (logits, labels, rows, vocabulary, options, gradient_wanted, losses);
}
void cross_entropy_rows(c10::BFloat16* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        const LossOptions& options, bool gradient_wanted, float* losses) {
  HWY_DYNAMIC_DISPATCH(cross_entropy_bf16)
  (logits, labels, rows, vocabulary, options, gradient_wanted, losses);
}
void log_probability_rows(const float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                          double soft_cap, float* values, float* log_sums) {
  HWY_DYNAMIC_DISPATCH(log_probability_fp32)(logits, labels, rows, vocabulary, soft_cap, values, log_sums);
}
void log_probability_rows(const c10::BFloat16* logits, const int64_t* labels, int64_t rows,
                          int64_t vocabulary, double soft_cap, float* values, float* log_sums) {
  HWY_DYNAMIC_DISPATCH(log_probability_bf16)(logits, labels, rows, vocabulary, soft_cap, values, log_sums);
}
void log_probability_rows_backward(float* logits, const int64_t* labels, const float* log_sums,
                                   const float* upstream, int64_t rows, int64_t vocabulary, double soft_cap) {
  HWY_DYNAMIC_DISPATCH(backward_fp32)(logits, labels, log_sums, upstream, rows, vocabulary, soft_cap);
}
void log_probability_rows_backward(c10::BFloat16* logits, const int64_t* labels, const float* log_sums,
                                   const float* upstream, int64_t rows, int64_t vocabulary, double soft_cap) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(logits, labels, log_sums, upstream, rows, vocabulary, soft_cap);
}

}  // namespace trireme::alst
#endif
