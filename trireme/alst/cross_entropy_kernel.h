// The host's kernels of cross_entropy.h and token_log_probabilities.h: a row stays in cache from one pass
// over it to the next.
//   n rows, V vocabulary; logits [n, V], dense; labels [n], in range or negative (ignored).
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "trireme/alst/loss_options.h"

namespace trireme::alst {

/// Writes each row's loss to `losses` (0 where ignored), and, if `gradient_wanted`, its gradient in place of
/// the logits.
void cross_entropy_rows(float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        const LossOptions& options, bool gradient_wanted, float* losses);
void cross_entropy_rows(c10::BFloat16* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        const LossOptions& options, bool gradient_wanted, float* losses);

/// log_sums[r] = L and values[r] = l'_label - L in the words of loss_options.h; both 0 where ignored.
void log_probability_rows(const float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                          double soft_cap, float* values, float* log_sums);
void log_probability_rows(const c10::BFloat16* logits, const int64_t* labels, int64_t rows,
                          int64_t vocabulary, double soft_cap, float* values, float* log_sums);

/// Puts in place of the logits the gradient that upstream [n] of `values` is to them, with `log_sums` from
/// above.
void log_probability_rows_backward(float* logits, const int64_t* labels, const float* log_sums,
                                   const float* upstream, int64_t rows, int64_t vocabulary, double soft_cap);
void log_probability_rows_backward(c10::BFloat16* logits, const int64_t* labels, const float* log_sums,
                                   const float* upstream, int64_t rows, int64_t vocabulary, double soft_cap);

}  // namespace trireme::alst
