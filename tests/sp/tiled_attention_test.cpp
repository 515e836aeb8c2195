#include "trireme/sp/tiled_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/differences.h"
#include "support/recording_allocator.h"

namespace trireme::sp {
namespace {

using at::Tensor;

struct Operands {
  Tensor query, key, value, upstream;  // [B, S, h or k, D]
  FlashOutput forward;

  Operands(int64_t B, int64_t S, int64_t h, int64_t k, at::ScalarType dtype,
           const AttentionContext& context) {
    at::manual_seed(3);
    const auto random = [&](int64_t heads) { return at::randn({B, S, heads, 16}, at::kDouble).to(dtype); };
    query = random(h);
    key = random(k);
    value = random(k);
    upstream = random(h);
    forward = attend(query, key, value, context);
  }
  KnownOutput output() const { return {forward.output, {}, forward.logsumexp}; }
  KnownOutput delta() const {
    return {{}, (upstream * forward.output).sum(-1).to(forward.logsumexp.scalar_type()), forward.logsumexp};
  }
  FlashGradients gradients(const KnownOutput& known, const AttentionContext& context) const {
    return attend_backward(upstream, query, key, value, known, context);
  }
};

TEST(TiledAttention, AKnownDeltaServesAsTheOutputAndIsLeftAsItIs) {
  for (const AttentionContext& context : {AttentionContext{}, AttentionContext{.window = 300}}) {
    const Operands o(2, 2100, 4, 2, at::kDouble, context);
    const auto expected = o.gradients(o.output(), context);
    const KnownOutput known = o.delta();
    for (int pass = 0; pass < 2; ++pass) {
      const auto found = o.gradients(known, context);
      EXPECT_LE(tests::relative_difference(found.query, expected.query), 1e-12);
      EXPECT_LE(tests::relative_difference(found.key, expected.key), 1e-12);
      EXPECT_LE(tests::relative_difference(found.value, expected.value), 1e-12);
    }
  }
}

TEST(TiledAttention, AKnownDeltaTakesTheMemoryOfAnOutput) {
  const AttentionContext context;
  const Operands o(1, 4096, 8, 1, at::kBFloat16, context);
  const KnownOutput output = o.output(), delta = o.delta();
  tests::RecordingAllocator memory;
  const auto peak_of = [&](const KnownOutput& known) {
    memory.reset();
    const auto gradients = o.gradients(known, context);
    return memory.peak();
  };
  const int64_t with_output = peak_of(output), with_delta = peak_of(delta);
  EXPECT_LE(with_delta, with_output + int64_t(1.5 * double(o.query.nbytes())));
}

}  // namespace
}  // namespace trireme::sp
