// The host's kernel of cross_entropy.h.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace trireme::alst {

/// Row by row, two passes over a row that stays in cache. `labels` are in range or negative (ignored). Writes
/// each row's loss to `losses` (0 where ignored), and, if `gradient_wanted`, its gradient in place of the
/// logits.
void cross_entropy_rows(float* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        bool gradient_wanted, float* losses);
void cross_entropy_rows(c10::BFloat16* logits, const int64_t* labels, int64_t rows, int64_t vocabulary,
                        bool gradient_wanted, float* losses);

}  // namespace trireme::alst
