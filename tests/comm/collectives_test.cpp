#include "trireme/comm/collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/ranks.h"

// The reference for every gradient: the same program for all ranks at once, in one process, on stacked
// tensors.
namespace trireme::comm {
namespace {

using at::Tensor;
using tests::run_ranks;
using tests::world_of;
using Collect = Tensor (*)(const Tensor&, const Group&, std::string_view);

// Rank r's weights for its loss: what makes every rank's gradient different.
Tensor weights(int64_t rank, at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).view(shape).sin() + double(rank);
}

// What all ranks compute together: inputs [P, ...] -> outputs [P, ...].
using Reference = Tensor (*)(const Tensor&);

class Gradient : public testing::TestWithParam<int64_t> {
 protected:
  void check(Collect collect, Reference reference, bool rows) {
    const int64_t P = GetParam();
    const std::vector<int64_t> shape = rows ? std::vector<int64_t>{P, 3, 2} : std::vector<int64_t>{3, 2};
    std::vector<Tensor> inputs;
    for (int64_t r = 0; r < P; ++r) inputs.push_back(weights(7 * r + 1, shape));
    Tensor all = at::stack(inputs).requires_grad_(true);
    Tensor outputs = reference(all);
    Tensor loss = at::zeros({}, at::kDouble);
    for (int64_t r = 0; r < P; ++r) loss = loss + (outputs[r] * weights(r, outputs[r].sizes())).sum();
    torch::autograd::backward({loss});
    run_ranks(P, [&](const Connection& connection) {
      const Group group = world_of(connection);
      const int64_t rank = group.rank();
      Tensor input = inputs[size_t(rank)].clone().requires_grad_(true);
      Tensor output = collect(input, group, "test");
      EXPECT_TRUE(at::allclose(output, outputs[rank], 1e-14, 1e-14));
      torch::autograd::backward({(output * weights(rank, output.sizes())).sum()});
      EXPECT_TRUE(at::allclose(input.grad(), all.grad()[rank], 1e-14, 1e-14));
      // An expanded gradient, as .sum() makes it, must not be sent as if it were dense.
      input.mutable_grad().reset();
      torch::autograd::backward({collect(input, group, "test").sum()});
      EXPECT_TRUE(input.grad().is_contiguous());
      EXPECT_EQ(input.grad().sizes(), input.sizes());
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, Gradient, testing::Values(1, 2, 3, 4));

TEST_P(Gradient, AllToAll) {
  check(
      all_to_all_with_gradient, [](const Tensor& all) { return all.transpose(0, 1); }, true);
}

TEST_P(Gradient, AllGather) {
  check(
      all_gather_with_gradient,
      [](const Tensor& all) {
        return all.unsqueeze(0).expand({all.size(0), all.size(0), 3, 2});
      },
      false);
}

TEST_P(Gradient, ReduceScatter) {
  check(
      reduce_scatter_with_gradient, [](const Tensor& all) { return all.sum(0); }, true);
}

TEST_P(Gradient, AllReduce) {
  check(
      all_reduce_with_gradient,
      [](const Tensor& all) {
        return all.sum(0, true).expand({all.size(0), 3, 2});
      },
      false);
}

}  // namespace
}  // namespace trireme::comm
