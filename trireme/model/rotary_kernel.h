// The host's kernel of rotary.h.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace trireme::model {

/// Turns the first `count` heads, of `head_size` elements, of each token and copies what is left of its
/// `width`: element i with element i + head_size / 2 by the angle whose cosine and sine are [tokens,
/// head_size / 2], times `sign`. `to` may be `from`.
void rotate_tokens(const float* from, const float* cosine, const float* sine, int64_t tokens, int64_t width,
                   int64_t count, int64_t head_size, float sign, float* to);
void rotate_tokens(const c10::BFloat16* from, const c10::BFloat16* cosine, const c10::BFloat16* sine,
                   int64_t tokens, int64_t width, int64_t count, int64_t head_size, float sign,
                   c10::BFloat16* to);

}  // namespace trireme::model
